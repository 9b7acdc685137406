"""A chain of operators that run as one: each hands its batches straight to the next.

Comes in: batches for the first operator. Goes out: batches of the last one, through
`emit`. Counts rows and bytes per operator; never touches channels or snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from weir.ids import Uid
from weir.operators.base import Emit, Operator, WaitingOperator


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
        self._waiting = [link.operator for link in self.links if isinstance(link.operator, WaitingOperator)]

    @property
    def is_full(self) -> bool:
        """Whether an operator can take no more rows for now."""
        return any(operator.is_full for operator in self._waiting)

    @property
    def is_waiting(self) -> bool:
        """Whether an operator waits for what is still to come of its rows."""
        return any(operator.is_waiting for operator in self._waiting)

    @property
    def holding(self) -> bool:
        """Whether rows went in since the last flush, so that an operator may hold some back."""
        return self._holding

    def process(self, batch: pa.RecordBatch) -> None:
        self._holding = True
        self._first(batch)

    def process_from(self, number: int, batch: pa.RecordBatch) -> None:
        """The same for one of several inputs of the first operator."""
        if number == 0 or not self.links:
            self.process(batch)
            return
        self._holding = True
        first = self.links[0]
        first.counters.took(batch)
        first.operator.process_from(number, batch, first.out)

    def watermark(self, time_us: int, *, behind: int = -1) -> int | None:
        """Event time has come this far, for the operators behind one of them. What goes on behind the last."""
        self.flush()
        for link in self.links[behind + 1 :]:
            # What the one before has emitted for this watermark goes on before the watermark does.
            link.operator.flush(link.out)
            self._holding = True
            passed = link.operator.watermark(time_us, link.out)
            if passed is None:
                return None
            time_us = passed
        return time_us

    @property
    def wake_ms(self) -> float | None:
        """When an operator wants `tick`."""
        wakes_ms = [wake_ms for link in self.links if (wake_ms := link.operator.wake_ms) is not None]
        return min(wakes_ms, default=None)

    def tick(self, now_ms: float) -> int | None:
        """Tell those who want to know that so much time has passed. The watermark that goes on behind the last, if one
        was held back until now."""
        passed_us = None
        for index, link in enumerate(self.links):
            wake_ms = link.operator.wake_ms
            if wake_ms is not None and now_ms >= wake_ms:
                self._holding = True
                link.operator.tick(now_ms, link.out)
            if isinstance(link.operator, WaitingOperator) and (time_us := link.operator.released()) is not None:
                behind_us = self.watermark(time_us, behind=index)
                passed_us = passed_us if behind_us is None else behind_us
        return passed_us

    def flush(self) -> None:
        """Push out what operators hold back, from the first to the last."""
        if self._holding:
            self._holding = False
            for link in self.links:
                link.operator.flush(link.out)

    def end(self) -> None:
        """No more rows will come."""
        for step in self.ending():
            step()

    def ending(self) -> list[Callable[[], None]]:
        """The same in steps, one for each operator: before each, nobody may be waiting."""
        return [self.flush, *(lambda index=index: self._end(index) for index in range(len(self.links)))]

    def _end(self, index: int) -> None:
        link = self.links[index]
        link.operator.end(link.out)
        for later in self.links[index + 1 :]:
            later.operator.flush(later.out)

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


def _counting(counters: Counters, following: Emit) -> Emit:
    def out(batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            counters.gave(batch)
            following(batch)

    return out
