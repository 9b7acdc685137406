"""What a watermark, the clock, the end or rows set off is done in pieces: what happens in between, and what waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.fakes import Recording, numbers, rows
from tests.unit.runtime.task.subtask_bench import Bench, barrier, bench, checkpoint, feed
from weir.errors import ProtocolViolation
from weir.ids import Uid
from weir.operators.base import Course, Emit, PiecewiseOperator, WaitingOperator
from weir.runtime.task.chain import Chain, Link
from weir.runtime.task.subtask import Activity
from weir.snapshot.elements import BarrierCancelled, EndOfInput, Watermark
from weir.snapshot.watermarks import END_US


class Due(PiecewiseOperator):
    """Emits a number in each piece: so many for a watermark, for the clock, at the end."""

    def __init__(
        self, *pieces: int, by_clock: int = 0, at_end: int = 0, behind_rows: int = 0, for_ever: bool = False
    ) -> None:
        self.pieces, self.by_clock, self.at_end, self.behind_rows = pieces, by_clock, at_end, behind_rows
        self.for_ever = for_ever
        self.taken: list[Any] = []
        self._wakes = bool(by_clock)

    def process(self, batch: Any, out: Emit) -> None:
        self._catch_up()
        self.taken.append(numbers(batch))
        if self.behind_rows:
            self._leave(self._tidying())

    def _tidying(self) -> Course:
        for number in range(self.behind_rows):
            self.taken.append(f"piece {number}")
            yield
        return None

    def advance(self, time_us: int, out: Emit) -> Course:
        for number in self.pieces:
            out(rows(number))
            yield
        return time_us

    @property
    def wake_ms(self) -> float | None:
        return 0.0 if self._wakes else None

    def ticking(self, now_ms: float, out: Emit) -> Course:
        self._wakes = self.for_ever
        for number in range(self.by_clock):
            out(rows(number))
            yield
        return None

    def ending(self, out: Emit) -> Course:
        for number in range(self.at_end):
            out(rows(number))
            yield
        return None


class Calling(WaitingOperator):
    """Holds rows and watermarks; lets go of one with each tick, once it may."""

    is_full = False

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.may_go = False
        self._released_us: int | None = None

    def process(self, batch: Any, out: Emit) -> None:
        self.held.append(batch)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        if not self.held:
            return time_us
        self.held.append(time_us)
        return None

    @property
    def is_waiting(self) -> bool:
        return bool(self.held)

    @property
    def wake_ms(self) -> float | None:
        return 0.0 if self.held and self.may_go else None

    def tick(self, now_ms: float, out: Emit) -> None:
        first = self.held.pop(0)
        if isinstance(first, int):
            self._released_us = first
        else:
            out(first)

    def released(self) -> int | None:
        time_us, self._released_us = self._released_us, None
        return time_us


def bench_of(operator: Due | Calling, *, inputs: int = 2, **options: Any) -> Bench:
    b = bench(inputs=inputs, **options)
    b.subtask.chain = Chain([Link(Uid("op"), "op", operator)], b.subtask._gate.emit)  # type: ignore[arg-type]
    return b


def read(b: Bench) -> list[Any]:
    """All that comes out, by a reader who takes one element at a time."""
    taken: list[Any] = []
    for _ in range(1_000):
        b.subtask.step()
        if b.out_channel.inbox:
            taken.append(numbers(b.out_channel.pop()))
    return taken


def test_no_more_is_made_than_the_output_has_room_for() -> None:
    b = bench_of(Due(1, 2, 3, 4, 5), capacity=1)
    for channel in b.inputs:
        feed(channel, Watermark(7))
    b.steps()
    assert b.subtask.step() is Activity.BLOCKED
    assert b.output == [[1]] and [len(lane.waiting) for lane in b.subtask._gate._lanes] == [1]
    assert read(b) == [[1], [2], [3], [4], [5], Watermark(7)]


def test_rows_and_barriers_wait_for_the_watermark_before_them() -> None:
    operator = Due(1, 2, 3)
    b = bench_of(operator, capacity=1)
    for channel in b.inputs:
        feed(channel, Watermark(7), [10], barrier(1))
    b.steps()
    assert operator.taken == [] and b.answers == []
    taken = read(b)
    assert taken == [[1], [2], [3], Watermark(7), barrier(1)]
    assert sorted(operator.taken) == [[10], [10]] and b.answers == [("taken", 1)]


def test_others_have_their_turn_when_it_takes_long() -> None:
    b = bench_of(Due(*range(6)))
    b.clock.now_ms = iter(range(0, 1_000, 2)).__next__  # type: ignore[method-assign]
    for channel in b.inputs:
        feed(channel, Watermark(7))
    while not b.subtask.chain.is_busy:
        assert b.subtask.step() is Activity.BUSY
    assert 0 < len(b.output) < 6
    steps = 0
    while b.subtask.chain.is_busy:
        assert b.subtask.step() is Activity.BUSY
        steps += 1
    assert steps > 1 and b.output == [[0], [1], [2], [3], [4], [5], Watermark(7)]


def test_a_barrier_waits_also_for_what_the_clock_sets_off() -> None:
    operator = Due(by_clock=3)
    b = bench_of(operator, inputs=1, capacity=1)
    feed(b.inputs[0], barrier(1))
    assert read(b) == [[0], [1], [2], barrier(1)]


def test_rows_and_barriers_have_their_turn_although_the_clock_always_sets_off_more() -> None:
    operator = Due(by_clock=3, for_ever=True)
    b = bench_of(operator, inputs=1, capacity=1)
    feed(b.inputs[0], [10], barrier(1), [11])
    assert barrier(1) in read(b)
    assert operator.taken == [[10], [11]] and b.answers == [("taken", 1)]


def test_the_end_waits_for_all_that_comes_before_it() -> None:
    b = bench_of(Due(1, 2, by_clock=2, at_end=2), capacity=1)
    for channel in b.inputs:
        feed(channel, [5], EndOfInput())
    taken = read(b)
    assert taken == [[0], [1], [1], [2], [0], [1], EndOfInput()]
    assert b.subtask.finished and b.subtask.watermark_us == END_US


def test_a_watermark_that_was_held_back_goes_on_also_when_the_input_has_ended_meanwhile() -> None:
    operator = Calling()
    b = bench_of(operator, inputs=1)
    feed(b.inputs[0], [1], Watermark(7), [2], EndOfInput())
    b.steps()
    assert b.output == [] and not b.subtask.finished
    operator.may_go = True
    for _ in range(10):
        b.subtask.step()
    assert b.output == [[1], Watermark(7), [2], EndOfInput()]
    assert b.subtask.finished and b.subtask.watermark_us == END_US


def test_a_checkpoint_that_is_given_up_meanwhile_lets_nothing_in_between() -> None:
    b = bench_of(Due(1, 2, 3), capacity=1)
    feed(b.inputs[0], Watermark(7), barrier(1))
    feed(b.inputs[1], Watermark(7), barrier(2))
    b.steps()
    b.subtask.abort(checkpoint(1))
    feed(b.inputs[0], barrier(2))
    assert read(b) == [[1], [2], [3], Watermark(7), BarrierCancelled(checkpoint(1)), barrier(2)]
    assert b.answers == [("declined", 1), ("taken", 2)]


def test_what_is_left_behind_rows_is_done_before_more_come_and_others_have_their_turn_in_between() -> None:
    operator = Due(behind_rows=3)
    b = bench_of(operator, rows_max=1)
    feed(b.inputs[0], [1], [2], barrier(1))
    feed(b.inputs[1], barrier(1))
    steps = 0
    while not b.output:
        assert b.answers == []
        assert b.subtask.step() is Activity.BUSY
        steps += 1
    pieces = ["piece 0", "piece 1", "piece 2"]
    assert operator.taken == [[1], *pieces, [2], *pieces]
    assert steps > 4


def test_whoever_gives_more_rows_without_asking_has_it_done_with_these() -> None:
    operator = Due(behind_rows=2)
    operator.process(rows(1), lambda batch: None)
    operator.process(rows(2), lambda batch: None)
    assert operator.taken == [[1], "piece 0", "piece 1", [2]]
    left = operator.tending()
    assert left is not None and operator.tending() is None


def test_a_chain_that_is_busy_refuses_what_must_wait() -> None:
    chain = Chain(
        [Link(Uid("op"), "op", Due(1, 2)), Link(Uid("next"), "next", Recording("next", []))], lambda batch: None
    )
    assert chain.watermark(1) is None and chain.is_busy and chain.is_waiting
    with pytest.raises(ProtocolViolation, match="busy was told of another watermark"):
        chain.watermark(2)
    assert chain.go_on() is None
    assert chain.go_on() == 1 and not chain.is_busy
    with pytest.raises(ProtocolViolation, match="nothing to go on with"):
        chain.go_on()
