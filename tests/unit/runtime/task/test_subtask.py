"""One subtask, step by step: what it holds, when it stops, what its snapshot has in it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.states import FrozenTable
from tests.unit.runtime.fakes import ScriptReader, numbers, run_all
from tests.unit.runtime.task.subtask_bench import barrier, bench, checkpoint, feed, source
from weir.operators.base import Frozen
from weir.runtime.task.subtask import Activity
from weir.snapshot.elements import Barrier
from weir.snapshot.messages import SnapshotTaken
from weir.snapshot.parts import Position, Progress


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


def test_held_rows_leave_before_the_barrier_and_the_state_is_frozen_before_it_too() -> None:
    b = bench(inputs=1, holds=True)
    feed(b.inputs[0], [1], barrier(1))
    b.steps()
    assert b.output == [[1], barrier(1)]
    assert b.operator.calls == ["op takes [1]", "op freezes"]


def test_state_goes_into_the_snapshot_beside_the_position() -> None:
    b = source([1])
    b.operator.frozen = Frozen(Progress(1), {"table": FrozenTable(lambda: pa.table({"n": [1, 2]}))})
    b.subtask.trigger(Barrier(checkpoint(1)))
    b.steps()
    run_all(b.background)
    (taken,) = b.control.to_driver
    assert isinstance(taken, SnapshotTaken)
    assert [(part.uid, part.inline, list(part.states)) for part in taken.parts] == [
        ("source", Position(0), []),
        ("op", Progress(1), ["table"]),
    ]


def test_closing_closes_the_operators_and_the_reader_although_one_fails() -> None:
    reader = ScriptReader([])
    b = bench(reader=reader)
    b.operator.close_error = ValueError("stuck")
    with pytest.raises(ValueError, match="stuck"):
        b.subtask.close()
    assert reader.closed
