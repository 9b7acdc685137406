"""One inner subtask, step by step: what it takes, when it snapshots, what it passes on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.unit.runtime.task.subtask_bench import Bench, barrier, bench, checkpoint, feed
from weir.errors import ProtocolViolation
from weir.ids import Uid
from weir.operators.base import Emit, Operator
from weir.runtime.task.chain import Chain, Link
from weir.runtime.task.inner_subtask import TURN_MS
from weir.runtime.task.subtask import Activity
from weir.snapshot.elements import BarrierCancelled, EndOfInput, Watermark

# --- Batches ------------------------------------------------------------------------------------------


def test_waiting_batches_are_taken_as_one_up_to_the_limit_of_rows() -> None:
    b = bench(inputs=1, rows_max=5)
    feed(b.inputs[0], [1, 2], [3, 4], [5, 6], [7])
    b.steps()
    assert b.output == [[1, 2, 3, 4], [5, 6, 7]]


def test_waiting_batches_are_taken_as_one_up_to_the_limit_of_bytes() -> None:
    b = bench(inputs=1, bytes_max=16)
    feed(b.inputs[0], [1], [2], [3])
    b.steps()
    assert b.output == [[1, 2], [3]]


def test_a_batch_beyond_every_limit_is_taken_in_turns_and_what_follows_it_waits() -> None:
    b = bench(inputs=2, rows_max=2, bytes_max=8)
    feed(b.inputs[0], [1, 2, 3, 4, 5], barrier(1), [9])
    feed(b.inputs[1], barrier(1))
    b.subtask.step()
    b.subtask.abort(checkpoint(7))
    b.steps()
    assert b.output == [[1, 2], [3, 4], [5], barrier(1), [9]]
    assert b.answers == [("taken", 1)]


class Slow(Operator):
    """Takes some time for each row."""

    def __init__(self, bench: Bench, row_ms: float) -> None:
        self.bench = bench
        self.row_ms = row_ms
        self.turns: list[int] = []

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self.turns.append(batch.num_rows)
        self.bench.clock.time_ms += self.row_ms * batch.num_rows
        out(batch)


@pytest.mark.parametrize("row_ms", [0.0, 0.001, 0.01, 0.1, 10.0])
def test_rows_are_taken_by_turns_of_some_milliseconds_whatever_they_cost(row_ms: float) -> None:
    b = bench(inputs=1, rows_max=65_536)
    slow = Slow(b, row_ms)
    b.subtask.chain = Chain([Link(Uid("op"), "op", slow)], b.subtask._gate.emit)
    rows = 100_000
    feed(b.inputs[0], list(range(rows)), barrier(1))
    while len(slow.turns) < 1_000 and b.subtask.step() is not Activity.IDLE:
        b.out_channel.inbox.clear()
    if row_ms < 10:
        assert sum(slow.turns) == rows and b.answers == [("taken", 1)]
    wanted = min(65_536, max(256, TURN_MS / row_ms if row_ms else rows))
    settled = slow.turns[len(slow.turns) // 2 : -1] or [wanted]
    assert max(slow.turns) <= max(1.2 * wanted, 1_000)
    assert row_ms < 0.01 or 0.5 * wanted <= sum(settled) / len(settled) <= 1.2 * wanted


def test_batches_are_never_merged_across_a_marker() -> None:
    b = bench(inputs=1)
    feed(b.inputs[0], [1], barrier(1), [2], [3])
    b.steps()
    assert b.output == [[1], barrier(1), [2, 3]]


def test_inputs_take_turns() -> None:
    b = bench(inputs=3, rows_max=1)
    feed(b.inputs[0], [1], [2], [3])
    feed(b.inputs[2], [7], [8])
    b.steps()
    assert b.output == [[1], [7], [2], [8], [3]]


def test_inputs_that_hold_event_time_back_have_more_turns_and_the_others_still_have_some() -> None:
    b = bench(inputs=3, rows_max=1)
    feed(b.inputs[0], Watermark(5))
    feed(b.inputs[1], Watermark(5))
    feed(b.inputs[2], Watermark(90))
    b.steps()
    for channel in range(3):
        feed(b.inputs[channel], *[[10 * channel + n] for n in range(8)])
    b.steps()
    taken = [row // 10 for element in b.output if isinstance(element, list) for row in element]
    assert taken[:16] == [0, 1, 0, 2, 1, 0, 1, 2] * 2
    assert sorted(taken) == [0] * 8 + [1] * 8 + [2] * 8
    assert taken[-3:] == [2] * 3, "one that is ahead is not left alone when the others have nothing"


# --- Alignment ----------------------------------------------------------------------------------------


def test_behind_its_barrier_a_channel_is_left_alone_until_the_barrier_is_in_on_all() -> None:
    b = bench(inputs=2)
    feed(b.inputs[0], [1], barrier(1), [2])
    feed(b.inputs[1], [3])
    b.steps()
    assert b.output == [[1], [3]]
    feed(b.inputs[1], [4], barrier(1), [5])
    b.steps()
    assert b.output[:4] == [[1], [3], [4], barrier(1)]
    assert sorted(b.output[4:]) == [[2], [5]]
    assert b.answers == [("taken", 1)]


def test_at_least_once_reads_on_behind_a_barrier() -> None:
    b = bench(inputs=2, exactly_once=False)
    feed(b.inputs[0], barrier(1), [2])
    b.steps()
    assert b.output == [[2]]
    feed(b.inputs[1], barrier(1))
    b.steps()
    assert b.output == [[2], barrier(1)]
    assert b.answers == [("taken", 1)]


def test_a_cancel_marker_ends_the_alignment_goes_on_and_is_declined() -> None:
    b = bench(inputs=2)
    feed(b.inputs[0], barrier(1), [2])
    feed(b.inputs[1], BarrierCancelled(checkpoint(1)))
    b.steps()
    assert b.output == [BarrierCancelled(checkpoint(1)), [2]]
    assert b.answers == [("declined", 1)]


def test_an_abort_of_the_driver_ends_the_alignment() -> None:
    b = bench(inputs=2)
    feed(b.inputs[0], barrier(1), [2])
    b.steps()
    b.subtask.abort(checkpoint(1))
    b.steps()
    assert b.output == [BarrierCancelled(checkpoint(1)), [2]]
    feed(b.inputs[1], barrier(1), [3])
    b.steps()
    assert b.output == [BarrierCancelled(checkpoint(1)), [2], [3]]


def test_an_abort_that_overtakes_the_barrier_makes_it_a_cancel_marker() -> None:
    b = bench(inputs=1)
    b.subtask.abort(checkpoint(1))
    feed(b.inputs[0], [1], barrier(1), barrier(2))
    b.steps()
    assert b.output == [[1], BarrierCancelled(checkpoint(1)), barrier(2)]
    assert b.answers == [("declined", 1), ("taken", 2)]


def test_an_inner_subtask_learns_of_the_savepoint_from_the_barrier_and_passes_it_on() -> None:
    it = bench(inputs=2)
    for channel in it.inputs:
        feed(channel, barrier(1, "memory-of-test://a"), barrier(2))
    it.steps()
    assert it.output == [barrier(1, "memory-of-test://a"), barrier(2)]


# --- Ends ---------------------------------------------------------------------------------------------


def test_the_end_goes_on_once_it_is_in_on_every_input() -> None:
    b = bench(inputs=2, holds=True)
    feed(b.inputs[0], [1], EndOfInput())
    b.steps()
    assert not b.subtask.finished
    feed(b.inputs[1], [2], EndOfInput())
    b.steps()
    assert b.subtask.finished
    assert b.output == [[1], [2], EndOfInput()]
    assert b.operator.calls == ["op takes [1]", "op takes [2]", "op ends"]


def test_a_finished_subtask_goes_on_answering_barriers() -> None:
    b = bench(inputs=2)
    for channel in b.inputs:
        feed(channel, EndOfInput())
    b.steps()
    for channel in b.inputs:
        feed(channel, barrier(1))
    b.steps()
    assert b.output == [EndOfInput(), barrier(1)]
    assert b.answers == [("taken", 1)]


def test_an_input_that_has_ended_does_not_stand_for_its_barrier() -> None:
    b = bench(inputs=2)
    feed(b.inputs[0], EndOfInput())
    feed(b.inputs[1], barrier(1))
    b.steps()
    assert b.output == []
    feed(b.inputs[0], barrier(1))
    b.steps()
    assert b.output == [barrier(1)]


def test_an_element_that_is_not_known_is_our_bug() -> None:
    b = bench(inputs=1)
    feed(b.inputs[0], "a stray string")
    with pytest.raises(ProtocolViolation, match=r"0\.0: unknown element"):
        b.steps()
