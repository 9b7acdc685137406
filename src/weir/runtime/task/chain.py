"""A chain of operators that run as one: each hands its batches straight to the next.

Comes in: batches for the first operator. Goes out: batches of the last one, through
`emit`. What time, the end and rows set off is done in pieces: while some are left the chain is *busy*,
and wants nothing but to go on. Counts rows and bytes per operator; never touches channels or snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.ids import Uid
from weir.operators.base import Course, Emit, Operator, PiecewiseOperator, WaitingOperator
from weir.state.pieces import run_through


@dataclass
class Counters:
    """What went through one operator."""

    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows_late: int = 0

    def took(self, batch: pa.RecordBatch) -> None:
        self.rows_in += batch.num_rows
        self.bytes_in += batch.nbytes

    def gave(self, batch: pa.RecordBatch) -> None:
        self.rows_out += batch.num_rows
        self.bytes_out += batch.nbytes


@dataclass
class Link:
    """One operator of a chain, with where its output goes."""

    uid: Uid
    name: str
    operator: Operator
    counters: Counters = field(default_factory=Counters)
    out: Emit = lambda batch: None

    def process(self, batch: pa.RecordBatch) -> None:
        self.counters.took(batch)
        self.operator.process(batch, self.out)


class Chain:
    """Operators in a row. `emit` takes what the last one puts out."""

    def __init__(self, links: Sequence[Link], emit: Emit) -> None:
        self.links = tuple(links)
        self._emit = emit
        following = emit
        for link in reversed(self.links):
            link.out = _counting(link.counters, following)
            following = link.process
        self._first = following
        self._holding = False
        self._course: Course | None = None
        """What is left of a watermark, a tick or an end, or to be done behind rows."""
        self._piecewise = [link.operator for link in self.links if isinstance(link.operator, PiecewiseOperator)]
        self._waiting = [link.operator for link in self.links if isinstance(link.operator, WaitingOperator)]

    @property
    def is_full(self) -> bool:
        """Whether an operator can take no more rows for now."""
        return any(operator.is_full for operator in self._waiting)

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to come of what went in."""
        return self.is_busy or any(operator.is_waiting for operator in self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether only a part is done of what event time, the clock, the end or rows have set off. Until all is,
        nothing else may happen here: neither rows nor a barrier may come in between, and no operator is told the
        time."""
        return self._course is not None

    def go_on(self) -> int | None:
        """Do a piece more. The watermark that goes on behind the last, where that was all of it."""
        if self._course is None:
            raise ProtocolViolation("a chain that is not busy has nothing to go on with")
        return self._do(self._course)

    @property
    def holding(self) -> bool:
        """Whether rows went in since the last flush, so that an operator may hold some back."""
        return self._holding

    def process(self, batch: pa.RecordBatch) -> None:
        self._holding = True
        self._first(batch)
        self._tend()

    def process_from(self, number: int, batch: pa.RecordBatch) -> None:
        """The same for one of several inputs of the first operator."""
        if number == 0 or not self.links:
            self.process(batch)
            return
        self._holding = True
        first = self.links[0]
        first.counters.took(batch)
        first.operator.process_from(number, batch, first.out)
        self._tend()

    def _tend(self) -> None:
        left = [course for operator in self._piecewise if (course := operator.tending()) is not None]
        if left:
            self._begin(_one_by_one(left))

    def watermark(self, time_us: int, *, behind: int = -1) -> int | None:
        """Event time has come this far, for the operators behind one of them. What goes on behind the last; None:
        nothing, or not yet."""
        return self._begin(self._advancing(time_us, behind))

    def _advancing(self, time_us: int, behind: int) -> Course:
        yield from self._flushing()
        for link in self.links[behind + 1 :]:
            # What the one before has emitted for this watermark goes on before the watermark does.
            yield from link.operator.flushing(link.out)
            self._holding = True
            passed = yield from link.operator.advance(time_us, link.out)
            if passed is None:
                return None
            time_us = passed
        for operator in self._piecewise:
            if (left := operator.tending()) is not None:
                yield from left
        return time_us

    def _begin(self, course: Course) -> int | None:
        if self._course is not None:
            raise ProtocolViolation("a chain that is busy was told of another watermark, or of the end")
        return self._do(course)

    def _do(self, course: Course) -> int | None:
        self._course = course
        try:
            next(course)
        except StopIteration as over:
            self._course = None
            passed_us: int | None = over.value
            return passed_us
        return None

    @property
    def wake_ms(self) -> float | None:
        """When an operator wants `tick`."""
        wakes_ms = [wake_ms for link in self.links if (wake_ms := link.operator.wake_ms) is not None]
        return min(wakes_ms, default=None)

    def tick(self, now_ms: float) -> int | None:
        """Tell those who want to know that so much time has passed. The watermark that goes on behind the last, if one
        was held back until now, and is not under way yet."""
        return self._begin(self._ticking(now_ms))

    def _ticking(self, now_ms: float) -> Course:
        passed_us = None
        for index, link in enumerate(self.links):
            wake_ms = link.operator.wake_ms
            if wake_ms is not None and now_ms >= wake_ms:
                self._holding = True
                yield from link.operator.ticking(now_ms, link.out)
            if isinstance(link.operator, WaitingOperator) and (time_us := link.operator.released()) is not None:
                behind_us = yield from self._advancing(time_us, index)
                passed_us = passed_us if behind_us is None else behind_us
        return passed_us

    def flush(self) -> None:
        """Push out what operators hold back, from the first to the last."""
        run_through(self._flushing())

    def begin_flush(self) -> None:
        """The same in pieces, the first now."""
        self._begin(self._flushing())

    def _flushing(self) -> Course:
        if self._holding:
            self._holding = False
            for link in self.links:
                yield from link.operator.flushing(link.out)
        return None

    def end(self) -> None:
        """No more rows will come."""
        for step in self.ending():
            step()
            while self.is_busy:
                self.go_on()

    def ending(self) -> list[Callable[[], object]]:
        """The same in steps, one for each operator: before each, nobody may be waiting."""
        ends = (self._ending(index) for index in range(len(self.links)))
        return [self.begin_flush, *(partial(self._begin, end) for end in ends)]

    def _ending(self, index: int) -> Course:
        link = self.links[index]
        yield from link.operator.ending(link.out)
        for later in self.links[index + 1 :]:
            yield from later.operator.flushing(later.out)
        return None

    def close(self) -> None:
        """Close every operator, also when one of them fails to; the first error is raised at the end."""
        error: BaseException | None = None
        for link in self.links:
            try:
                link.operator.close()
            except Exception as caught:
                error = error or caught
        if error is not None:
            raise error


def _one_by_one(courses: Sequence[Course]) -> Course:
    for course in courses:
        yield from course
    return None


def _counting(counters: Counters, following: Emit) -> Emit:
    def out(batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            counters.gave(batch)
            following(batch)

    return out
