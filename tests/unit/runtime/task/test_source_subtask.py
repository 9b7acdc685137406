"""One source subtask, step by step: what it reads, and where its barriers go."""

from __future__ import annotations

from typing import Any

from tests.unit.runtime.fakes import run_all
from tests.unit.runtime.task.subtask_bench import Bench, barrier, checkpoint, source
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.subtask import Activity
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput
from weir.snapshot.messages import SnapshotTaken


def parts_of(b: Bench) -> dict[int, Any]:
    """Checkpoint to the position that the source put in."""
    run_all(b.background)
    taken = [m for m in b.control.to_driver if isinstance(m, SnapshotTaken)]
    return {m.checkpoint: {part.uid: part.inline for part in m.parts}["source"].value for m in taken}


def test_a_source_records_its_position_between_two_polls_and_sends_the_barrier_there() -> None:
    b = source([1], [2], [3])
    b.subtask.step()
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.steps()
    assert b.output == [[1], barrier(1), [2], [3], EndOfInput()]
    assert parts_of(b) == {1: 1}


def test_several_triggers_are_served_in_their_order() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.subtask.trigger(Barrier(checkpoint(2)))
    b.steps()
    assert b.output == [barrier(1), [1], barrier(2), EndOfInput()]
    assert parts_of(b) == {1: 0, 2: 1}


def test_rows_go_between_barriers_however_fast_checkpoints_follow() -> None:
    """There is room for one element, and whenever it is free a trigger waits already."""
    b = source([1], [2], [3], capacity=1)
    for number in range(1, 12):
        b.subtask.trigger(Barrier(checkpoint(number)))
        b.steps()
        b.out_channel.pop()
    assert isinstance(b.subtask, SourceSubtask)
    assert b.subtask.reader.finished


def test_a_source_without_rows_keeps_no_trigger_waiting() -> None:
    b = source(None, None)
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.subtask.trigger(Barrier(checkpoint(2)))
    b.subtask.step()
    b.subtask.step()
    b.subtask.step()
    assert b.output[:2] == [barrier(1), barrier(2)]


def test_a_finished_source_still_takes_part_in_checkpoints() -> None:
    b = source([1])
    b.steps()
    assert b.subtask.finished
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.steps()
    assert b.output == [[1], EndOfInput(), barrier(1)]
    assert parts_of(b) == {1: 1}


def test_a_trigger_waits_while_an_output_is_full() -> None:
    b = source([1], [2], [3], capacity=1)
    b.steps()
    b.subtask.trigger(Barrier(checkpoint(1)))
    assert b.subtask.step() is Activity.BLOCKED
    assert parts_of(b) == {}


def test_the_abort_of_a_trigger_that_waits_sends_a_cancel_marker_instead_of_the_barrier() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.subtask.abort(checkpoint(1))
    b.steps()
    assert b.output == [BarrierCancelled(checkpoint(1)), [1], EndOfInput()]
    assert parts_of(b) == {}


def test_an_abort_does_not_let_its_cancel_marker_overtake_an_older_barrier() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.subtask.trigger(Barrier(checkpoint(2)))
    b.subtask.abort(checkpoint(2))
    b.steps()
    assert b.output == [barrier(1), [1], BarrierCancelled(checkpoint(2)), EndOfInput()]


def test_the_abort_of_a_checkpoint_whose_barrier_is_out_changes_nothing() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.steps()
    b.subtask.abort(checkpoint(1))
    b.steps()
    assert b.output == [barrier(1), [1], EndOfInput()]


def test_a_source_with_nothing_to_give_is_asked_again_when_it_said() -> None:
    b = source(None, [1])
    assert b.subtask.step() is Activity.IDLE
    assert isinstance(b.subtask, SourceSubtask)
    assert b.subtask.wake_ms == 10.0
    b.clock.time_ms = 9.9
    assert b.subtask.step() is Activity.IDLE
    b.clock.time_ms = 10.0
    b.steps()
    assert b.output == [[1], EndOfInput()]
    assert b.subtask.wake_ms is None


def test_a_source_whose_output_is_full_does_not_ask_to_be_woken() -> None:
    b = source([1], [2], [3], capacity=1)
    b.steps()
    assert isinstance(b.subtask, SourceSubtask)
    assert b.subtask.step() is Activity.BLOCKED
    assert b.subtask.wake_ms is None
    b.out_channel.pop()
    assert b.subtask.step() is Activity.BUSY
    b.out_channel.pop()
    b.steps()
    assert b.subtask.wake_ms is None, "full again"


def test_rows_of_a_source_are_counted() -> None:
    b = source([1, 2], [3])
    b.steps()
    assert isinstance(b.subtask, SourceSubtask)
    assert (b.subtask.counters.rows_out, b.subtask.counters.bytes_out) == (3, 24)
