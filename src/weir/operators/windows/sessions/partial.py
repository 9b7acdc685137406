"""Aggregates over sessions: the first half, before the exchange.

Comes in: rows of users. Goes out: pieces of sessions, each of rows of a key that follow each
other closely, where that makes them fewer. Keeps nothing beyond a flush.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa

from weir.operators.aggregates.layout import check_same_columns
from weir.operators.aggregates.numbering import RowNumbers, of_whole_keys
from weir.operators.aggregates.partial import PartialOperator
from weir.operators.aggregates.state import Accumulators, in_batches
from weir.operators.base import OperatorContext, OperatorSpec
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import SessionWindows
from weir.operators.windows.sessions.pieces import FIRST, LAST
from weir.operators.windows.sessions.store import SessionStore
from weir.state.keys.xxhash64 import Ints


@dataclass(frozen=True, eq=False)
class SessionSpec(OperatorSpec):
    """What both halves know."""

    of: WindowDefinition

    @cached_property
    def gap_us(self) -> int:
        assert isinstance(self.of.windows, SessionWindows)
        return self.of.windows.gap_us

    @cached_property
    def combined(self) -> pa.Schema:
        """What travels: times, keys and accumulators."""
        return pa.schema([pa.field(FIRST, pa.int64()), pa.field(LAST, pa.int64()), *self.of.layout.combined])


class PartialSessionAggregate(SessionSpec):
    """Rows to pieces of sessions, as far as that pays."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.of.input_schema, inputs, "the first half of a session window")
        return self.combined

    def make(self) -> PartialOperator:
        return PartialOperator(self.of.layout, partial(_HeldSessions, self))


class _HeldSessions:
    """Pieces of sessions, until they are sent."""

    def __init__(self, spec: PartialSessionAggregate, context: OperatorContext) -> None:
        self._spec = spec
        self._context = context
        self._store = SessionStore(spec.of.layout, context, spec.gap_us)
        self._numbers = RowNumbers(spec.of.layout)
        self._lifting = Accumulators(spec.of.layout, context)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def remembered(self) -> int:
        return self._store.remembered

    def combine(self, batch: pa.RecordBatch) -> bool:
        return self._store.combine_rows(self._numbers.of_rows(batch), self._times(batch))

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        moments = pa.array(self._times(batch))
        accumulators = self._lifting.lift(self._numbers.of_rows(batch))
        columns = [moments, moments, *self._spec.of.layout.keys_of(batch), *accumulators]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)

    def take(self) -> Iterator[pa.RecordBatch]:
        store, alive = self._store, self._store.alive
        parts = in_batches(alive)
        if self._numbers.are_asked_for:
            parts = (alive[rows] for rows in of_whole_keys(store.hashes(alive)))
        for slots in parts:
            times = [pa.array(store.starts(slots)), pa.array(store.lasts(slots))]
            columns = [*times, *store.keys(slots), *store.accumulators.read(slots)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)
        store.forget_sessions()

    def forget_keys(self) -> None:
        self._store.forget_keys()

    def _times(self, batch: pa.RecordBatch) -> Ints:
        return self._spec.of.times_of(batch, self._context)
