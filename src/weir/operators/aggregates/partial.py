"""The first half of an aggregate: rows are combined before they are sent, as far as that pays.

Comes in: rows of the user. Goes out: accumulators, combined or of each row by itself,
in the order in which the rows came. What they are combined by (keys, keys in panes,
pieces of sessions) is somebody else's; whether to combine is judged here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, Restored
from weir.operators.user_code import operator_label

HELD_KEYS_MAX = 262_144
"""Keys that the first half remembers; before there are more, it emits what it holds unasked, and forgets them."""

JUDGED_ROWS_MIN = 4_096
"""With fewer rows between two flushes it does not matter whether they were worth combining."""

WORTHWHILE_RATIO_MAX = 0.5
"""Combining pays when it leaves at most this share of the rows."""

PASSED_ROWS = 4_194_304
"""Rows that pass uncombined, after combining did not pay, before it is tried again."""


class Held(Protocol):
    """What rows are combined into between two flushes."""

    def __len__(self) -> int:
        """Rows that `take` would give."""

    @property
    def remembered(self) -> int:
        """Keys that take up room."""

    def combine(self, batch: pa.RecordBatch) -> bool:
        """Take rows of the user, unless the second half has to see them one by one: whether it did."""

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What would travel for each of these rows by itself."""

    def take(self) -> Iterator[pa.RecordBatch]:
        """All that is held, and forget it; keys may be remembered."""

    def forget_keys(self) -> None:
        """Free the room of the keys; only after `take`."""


class PartialOperator(Operator):
    """Holds accumulators between two flushes only, so that it has no state of its own."""

    def __init__(self, layout: AggregateLayout, hold: Callable[[OperatorContext], Held]) -> None:
        self._hold = hold
        self._may_pass = all(aggregate.lifts_rows for aggregate in layout.aggregates.values())
        self._rows_in = 0
        self._rows_to_pass = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._held = self._hold(context)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        if self._rows_to_pass <= 0 and self._held.remembered + batch.num_rows > HELD_KEYS_MAX:
            self.flush(out)
            self._held.forget_keys()
        if self._rows_to_pass > 0:  # nothing is held now, so that no row overtakes another
            self._rows_to_pass -= batch.num_rows
            out(self._held.lifted(batch))
        elif self._held.combine(batch):
            self._rows_in += batch.num_rows
        else:
            self.flush(out)
            out(self._held.lifted(batch))

    def flush(self, out: Emit) -> None:
        rows_out = len(self._held)
        if not rows_out:
            return
        for batch in self._held.take():
            out(batch)
        if self._may_pass and self._rows_in >= JUDGED_ROWS_MIN and rows_out > WORTHWHILE_RATIO_MAX * self._rows_in:
            self._rows_to_pass = PASSED_ROWS
        self._rows_in = 0

    def end(self, out: Emit) -> None:
        self.flush(out)

    def freeze(self) -> Frozen:
        if len(self._held):
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        return Frozen()
