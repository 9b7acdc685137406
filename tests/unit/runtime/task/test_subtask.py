"""One subtask, step by step: what it takes, when it snapshots, what it passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.sim.ports import SimChannel, SimClock, SimControl
from tests.states import FrozenTable
from tests.unit.runtime.fakes import (
    Pass,
    Pipes,
    QueuedBackground,
    Recording,
    ScriptReader,
    context,
    numbers,
    operator,
    plan_of,
    rows,
    run_all,
)
from weir.errors import ProtocolViolation
from weir.graph.plan import Forward
from weir.ids import AttemptId, ChannelId, CheckpointId, EdgeId, SubtaskId, Uid, VertexId
from weir.operators.base import Frozen
from weir.runtime.storage.locations import MemoryStorage
from weir.runtime.task.chain import Chain, Link
from weir.runtime.task.gate import Gate
from weir.runtime.task.snapshots import Snapshotter
from weir.runtime.task.subtask import Activity, InnerSubtask, SourceSubtask, Subtask
from weir.snapshot.alignment import AtLeastOnceAlignment, ExactlyOnceAlignment
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput, Watermark
from weir.snapshot.messages import SnapshotDeclined, SnapshotTaken

HERE = SubtaskId(VertexId(0), 0)


def checkpoint(number: int) -> CheckpointId:
    return CheckpointId(number)


def barrier(number: int, savepoint: str | None = None) -> Barrier:
    return Barrier(checkpoint(number), savepoint)


@dataclass
class Bench:
    """A subtask with everything around it in the test's hands."""

    subtask: Subtask
    pipes: Pipes
    clock: SimClock
    control: SimControl
    background: QueuedBackground
    operator: Recording
    inputs: list[SimChannel]

    @property
    def output(self) -> list[Any]:
        return self.pipes.sent(0, 0, 0)

    @property
    def out_channel(self) -> SimChannel:
        return self.pipes.out(ChannelId(EdgeId(0), 0, 0))

    def steps(self, count: int = 100) -> None:
        """Step until nothing more happens."""
        for _ in range(count):
            if self.subtask.step() is not Activity.BUSY:
                return

    @property
    def answers(self) -> list[tuple[str, int]]:
        run_all(self.background)
        kinds = {SnapshotTaken: "taken", SnapshotDeclined: "declined"}
        return [(kinds[type(m)], m.checkpoint) for m in self.control.to_driver]  # type: ignore[union-attr]


def bench(
    *,
    inputs: int = 0,
    reader: ScriptReader | None = None,
    holds: bool = False,
    capacity: int = 100,
    rows_max: int = 100,
    bytes_max: int = 1 << 20,
    buffer_timeout_ms: float = 10.0,
    exactly_once: bool = True,
) -> Bench:
    plan = plan_of((1, [operator("up", Pass())]), (1, [operator("down", Pass())]), edges=[(0, 1, Forward())])
    pipes, clock, control, background = Pipes(capacity), SimClock(), SimControl(), QueuedBackground()
    recording = Recording("op", [], holds=holds)
    gate = Gate(plan, HERE, pipes)
    common = {
        "chain": Chain([Link(Uid("op"), "op", recording)], gate.emit),
        "gate": gate,
        "sink": None,
        "snapshotter": Snapshotter(
            HERE,
            AttemptId(1),
            storage=MemoryStorage(1 << 20),
            background=background,
            control=control,
            clock=clock,
            sink=None,
            open_storage=lambda uri: MemoryStorage(1 << 20),
        ),
        "clock": clock,
        "buffer_timeout_ms": buffer_timeout_ms,
        "watermark_interval_ms": 100.0,
    }
    channels = [SimChannel(100, local=True) for _ in range(inputs)]
    subtask: Subtask
    if reader is not None:
        subtask = SourceSubtask(HERE, context=context("source"), reader=reader, rows_max=rows_max, **common)
    else:
        alignment = (ExactlyOnceAlignment if exactly_once else AtLeastOnceAlignment)(inputs)
        subtask = InnerSubtask(
            HERE,
            inputs=channels,
            ports=[0] * inputs,
            alignment=alignment,
            rows_max=rows_max,
            bytes_max=bytes_max,
            **common,
        )
    return Bench(subtask, pipes, clock, control, background, recording, channels)


def feed(channel: SimChannel, *elements: Any) -> None:
    for element in elements:
        assert channel.offer(rows(*element) if isinstance(element, list) else element)


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


def test_a_batch_beyond_every_limit_is_still_taken() -> None:
    b = bench(inputs=1, rows_max=2, bytes_max=8)
    feed(b.inputs[0], [1, 2, 3, 4, 5])
    b.steps()
    assert b.output == [[1, 2, 3, 4, 5]]


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


def test_nothing_is_taken_while_an_output_is_full() -> None:
    b = bench(inputs=1, capacity=1, rows_max=1)
    feed(b.inputs[0], [1], [2], [3])
    b.steps()
    assert b.subtask.step() is Activity.BLOCKED
    assert len(b.inputs[0].inbox) == 1  # 1 is in the channel, 2 waits at the gate, 3 has not been touched.
    taken = []
    while b.out_channel.inbox:
        taken.append(numbers(b.out_channel.pop()))
        b.steps()
    assert taken == [[1], [2], [3]]


def test_rows_that_an_operator_holds_leave_when_there_is_nothing_else_to_do() -> None:
    b = bench(inputs=1, holds=True, rows_max=1)
    feed(b.inputs[0], [1], [2])
    assert b.subtask.step() is Activity.BUSY
    assert b.subtask.step() is Activity.BUSY
    assert b.output == []
    assert b.subtask.step() is Activity.BUSY
    assert b.output == [[1], [2]]
    assert b.subtask.step() is Activity.IDLE


def test_rows_that_an_operator_holds_leave_after_the_buffer_timeout_although_more_come() -> None:
    b = bench(inputs=1, holds=True, rows_max=1, buffer_timeout_ms=10)
    feed(b.inputs[0], [1], [2], [3])
    b.clock.time_ms = 5
    b.subtask.step()
    assert b.output == []
    b.clock.time_ms = 10
    b.subtask.step()
    assert b.output == [[1], [2]]
    b.clock.time_ms = 19
    b.subtask.step()
    assert b.output == [[1], [2]]


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


def test_held_rows_leave_before_the_barrier_and_the_state_is_frozen_before_it_too() -> None:
    b = bench(inputs=1, holds=True)
    feed(b.inputs[0], [1], barrier(1))
    b.steps()
    assert b.output == [[1], barrier(1)]
    assert b.operator.calls == ["op takes [1]", "op freezes"]


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


# --- Sources ------------------------------------------------------------------------------------------


def source(*batches: Sequence[int] | None, **settings: Any) -> Bench:
    return bench(reader=ScriptReader([None if batch is None else rows(*batch) for batch in batches]), **settings)


def parts_of(b: Bench) -> dict[int, Any]:
    """Checkpoint to the position that the source put in."""
    run_all(b.background)
    taken = [m for m in b.control.to_driver if isinstance(m, SnapshotTaken)]
    return {m.checkpoint: {part.uid: part.inline for part in m.parts}["source"] for m in taken}


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


def test_state_goes_into_the_snapshot_beside_the_position() -> None:
    b = source([1])
    b.operator.frozen = Frozen({"kept": 1}, {"table": FrozenTable(lambda: pa.table({"n": [1, 2]}))})
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.steps()
    run_all(b.background)
    (taken,) = b.control.to_driver
    assert isinstance(taken, SnapshotTaken)
    assert [(part.uid, part.inline, list(part.states)) for part in taken.parts] == [
        ("source", 0, []),
        ("op", {"kept": 1}, ["table"]),
    ]


def test_closing_closes_the_operators_and_the_reader_although_one_fails() -> None:
    reader = ScriptReader([])
    b = bench(reader=reader)
    b.operator.close_error = ValueError("stuck")
    with pytest.raises(ValueError, match="stuck"):
        b.subtask.close()
    assert reader.closed
