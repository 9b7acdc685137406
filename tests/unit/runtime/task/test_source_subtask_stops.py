"""One source subtask, step by step, when the job is saved, stopped or drained."""

from __future__ import annotations

from tests.unit.runtime.fakes import ScriptReader, rows
from tests.unit.runtime.task.subtask_bench import barrier, bench, checkpoint
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.subtask import Activity
from weir.snapshot.elements import Barrier, EndOfInput


def test_a_source_that_is_to_pause_polls_no_more_behind_its_barrier_until_it_is_told_to_go_on() -> None:
    it = bench(reader=ScriptReader([rows(1), rows(2), rows(3)]))
    it.subtask.step()
    it.subtask.trigger(Barrier(checkpoint(1), "there"), pause=True)
    it.steps()
    assert it.output == [[1], barrier(1, "there")]
    assert it.subtask.step() is Activity.IDLE
    assert isinstance(it.subtask, SourceSubtask) and it.subtask.wake_ms is None, "nothing to wake up for"
    it.subtask.resume()
    it.steps()
    assert it.output == [[1], barrier(1, "there"), [2], [3], EndOfInput()]


def test_a_source_that_is_told_to_go_on_before_it_could_pause_does_not_pause() -> None:
    it = bench(reader=ScriptReader([rows(1)]))
    it.subtask.trigger(Barrier(checkpoint(1)), pause=True)
    it.subtask.resume()
    it.steps()
    assert it.output == [barrier(1), [1], EndOfInput()]


def test_an_aborted_checkpoint_lets_the_source_that_paused_for_it_go_on() -> None:
    it = bench(reader=ScriptReader([rows(1), rows(2)]))
    it.subtask.trigger(Barrier(checkpoint(1)), pause=True)
    it.steps()
    it.subtask.abort(checkpoint(7))
    it.steps()
    assert it.output == [barrier(1)], "the abort of another checkpoint is none of its business"
    it.subtask.abort(checkpoint(1))
    it.steps()
    assert it.output == [barrier(1), [1], [2], EndOfInput()]


def test_a_drained_source_ends_its_input_and_still_answers_barriers_with_its_position() -> None:
    reader = ScriptReader([rows(1), rows(2), rows(3)])
    it = bench(reader=reader)
    it.subtask.step()
    it.subtask.drain()
    it.steps()
    assert it.output == [[1], EndOfInput()]
    assert it.subtask.finished and not reader.finished
    it.subtask.trigger(Barrier(checkpoint(1), "there"))
    it.steps()
    assert it.output == [[1], EndOfInput(), barrier(1, "there")]
    assert it.answers == [("taken", 1)]
