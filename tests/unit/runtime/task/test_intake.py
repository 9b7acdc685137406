"""Rows wait in their source until the driver has noted a position behind them, and nothing else goes wrong by that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.unit.runtime.fakes import run_all
from tests.unit.runtime.task.subtask_bench import Bench, barrier, checkpoint, source
from weir.ids import CheckpointId
from weir.runtime.task.intake import HELD_BATCHES_MAX, HELD_BYTES_MAX, ReadRows, ReservingIntake
from weir.snapshot.elements import Barrier, EndOfInput
from weir.snapshot.messages import SnapshotTaken


class Reader:
    """Only says where it is."""

    def __init__(self) -> None:
        self.read = 0

    def position(self) -> int:
        return self.read


class Desk:
    """A driver that answers when it is told to."""

    def __init__(self, restored: int = 0) -> None:
        self.reader = Reader()
        self.told: list[tuple[int, int, int]] = []
        self.intake = ReservingIntake(self.reader, self._tell, CheckpointId(restored))  # type: ignore[arg-type]

    def _tell(self, number: int, position: Any, behind: CheckpointId) -> None:
        self.told.append((number, position, behind))

    def read(self, *numbers: int, column: pa.Array | None = None) -> None:
        for number in numbers:
            self.reader.read = number
            self.intake.put(ReadRows(pa.record_batch({"n": column or pa.array([number])}), "", None))

    def answer(self) -> None:
        self.intake.reserved(self.told[-1][0])

    def taken(self) -> list[int]:
        found = []
        while (rows := self.intake.take()) is not None:
            found += rows.batch["n"].to_pylist()
        return found


def test_a_reader_tells_where_it_begins_before_anything_is_read() -> None:
    desk = Desk(restored=7)
    assert desk.told == [(1, 0, 0)]
    assert not desk.intake.is_settled
    desk.answer()
    assert desk.intake.is_settled


def test_rows_go_on_only_when_a_position_behind_them_is_noted() -> None:
    desk = Desk(restored=7)
    desk.read(1, 2)
    assert desk.taken() == []
    desk.answer()
    assert desk.taken() == [], "what was noted is where the reader began"
    assert desk.told[1:] == [(2, 2, 7)]
    desk.read(3)
    desk.answer()
    assert desk.taken() == [1, 2], "the third was read later"
    assert desk.told[2:] == [(3, 3, 7)]
    assert not desk.intake.is_settled
    desk.answer()
    assert desk.taken() == [3]
    assert desk.intake.is_settled


def test_an_answer_that_comes_late_or_twice_lets_nothing_go_on() -> None:
    desk = Desk()
    desk.answer()
    desk.read(1)
    desk.intake.reserved(1)
    assert desk.taken() == []
    desk.answer()
    desk.read(2)
    desk.intake.reserved(2)
    assert desk.taken() == [1]


def test_what_is_told_says_behind_which_checkpoint_it_was_read() -> None:
    desk = Desk(restored=7)
    desk.answer()
    desk.intake.begun(CheckpointId(9))
    desk.read(1)
    assert desk.told[-1] == (2, 1, 9)


def test_a_reader_is_not_polled_beyond_what_may_be_held() -> None:
    desk = Desk()
    desk.read(*range(HELD_BATCHES_MAX - 1))
    assert desk.intake.has_room
    desk.read(HELD_BATCHES_MAX)
    assert not desk.intake.has_room
    large = Desk()
    large.read(1, column=pa.array(["x" * HELD_BYTES_MAX]))
    assert not large.intake.has_room
    large.answer()
    large.answer()
    assert large.intake.take() is not None
    assert large.intake.has_room


# --- In a subtask -------------------------------------------------------------------------------------


def answered(b: Bench, told: list[tuple[int, Any, int]]) -> None:
    """The driver has noted what it was told last."""
    b.subtask.reserved(told[-1][0])
    b.steps()


def test_a_source_reads_on_while_its_rows_wait_and_ends_when_all_have_gone_on() -> None:
    told: list[tuple[int, Any, int]] = []
    b = source([1], [2], [3], told=told)
    b.steps()
    assert (b.output, told) == ([], [(1, 0, 0)])
    answered(b, told)
    assert (b.output, told[1:]) == ([], [(2, 3, 0)]), "all three were read meanwhile"
    answered(b, told)
    assert b.output == [[1], [2], [3], EndOfInput()]


def test_a_barrier_waits_for_the_rows_that_were_read_and_nothing_is_read_before_it() -> None:
    told: list[tuple[int, Any, int]] = []
    b = source([1], [2], told=told)
    answered(b, told)
    b.subtask.step()
    b.subtask.trigger(Barrier(checkpoint(1)), pause=True)
    b.steps()
    assert b.output == []
    while b.subtask.finished is False and len(told) < 10 and barrier(1) not in b.output:
        answered(b, told)
    read = b.output[:-1]
    assert b.output[-1] == barrier(1)
    run_all(b.background)
    (taken,) = [m for m in b.control.to_driver if isinstance(m, SnapshotTaken)]
    assert {part.uid: part.inline for part in taken.parts}["source"].value == len(read) == told[-1][1]


def test_a_drained_source_hands_on_what_it_had_read() -> None:
    told: list[tuple[int, Any, int]] = []
    b = source([1], told=told)
    b.steps()
    b.subtask.drain()
    b.steps()
    assert b.output == []
    answered(b, told)
    answered(b, told)
    assert b.output == [[1], EndOfInput()]


def test_a_checkpoint_without_state_asks_no_operator_for_any() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1), is_stateless=True))
    b.steps()
    run_all(b.background)
    (taken,) = [m for m in b.control.to_driver if isinstance(m, SnapshotTaken)]
    assert [part.uid for part in taken.parts] == ["source"]


def test_a_savepoint_of_a_job_that_keeps_none_holds_the_state_and_the_checkpoint_does_not() -> None:
    b = source([1])
    b.subtask.trigger(Barrier(checkpoint(1), "there", is_stateless=True))
    b.steps()
    run_all(b.background)
    (taken,) = [m for m in b.control.to_driver if isinstance(m, SnapshotTaken)]
    assert [part.uid for part in taken.parts] == ["source"]
    assert sorted(part.uid for part in taken.exported) == ["op", "source"]
