"""Aggregates over sessions, in two halves around the exchange.

`PartialSessionAggregate` combines rows of a key that follow each other closely before
they are sent; `SessionAggregate` merges what arrives with the open sessions, and emits
one when the watermark is so far behind its last row that none can follow. Then it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, ProtocolViolation
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.aggregates.partial import PartialOperator
from weir.operators.aggregates.state import Accumulators, in_batches
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.user_code import operator_label
from weir.operators.windows.definition import WindowDefinition, shown
from weir.operators.windows.event_time import SessionWindows
from weir.operators.windows.sessions import SessionStore
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.panes import FrozenPane, FrozenPanes
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.xxhash64 import Ints

STATE = "sessions"
"""The name of the state table."""

FIRST, LAST = "__first", "__last"
"""The columns with the times of a session's first and last row, in microseconds."""


@dataclass(frozen=True, eq=False)
class _SessionSpec(OperatorSpec):
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


class PartialSessionAggregate(_SessionSpec):
    """Rows to pieces of sessions, as far as that pays."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.of.input_schema, inputs, "the first half of a session window")
        return self.combined

    def make(self) -> PartialOperator:
        return PartialOperator(self.of.layout, partial(_HeldSessions, self))


@dataclass(frozen=True, eq=False)
class SessionAggregate(_SessionSpec):
    """Pieces of sessions to sessions; `lateness_us` and `late` as for WindowAggregate."""

    lateness_us: int = 0
    late: str | None = None

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        expected = self.combined if self.late is None else self.of.input_schema
        check_same_columns(expected, inputs, "the second half of a session window")
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: shown(self.of.input_schema)}

    @cached_property
    def stored(self) -> pa.Schema:
        """The state table: key group, keys, times, accumulators."""
        fields, width = list(self.of.layout.stored), 1 + len(self.of.layout.keys)
        return pa.schema([*fields[:width], pa.field(FIRST, pa.int64()), pa.field(LAST, pa.int64()), *fields[width:]])

    def make(self) -> SessionAggregateOperator:
        return SessionAggregateOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        plain = pa.schema([field for field in stored if field.name not in (FIRST, LAST)])
        if len(plain) != len(stored) - 2:
            return "it is not the state of a session window; give the operator another uid"
        return self.of.layout.refusal(plain) or ("same" if stored.names == self.stored.names else "evolved")


class _HeldSessions:
    """Pieces of sessions, until they are sent."""

    def __init__(self, spec: PartialSessionAggregate, context: OperatorContext) -> None:
        self._spec = spec
        self._context = context
        self._store = SessionStore(spec.of.layout, context, spec.gap_us)
        self._lifting = Accumulators(spec.of.layout, context)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def remembered(self) -> int:
        return self._store.remembered

    def combine(self, batch: pa.RecordBatch) -> bool:
        return self._store.combine_rows(batch, self._times(batch))

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        moments = pa.array(self._times(batch))
        columns = [moments, moments, *self._spec.of.layout.keys_of(batch), *self._lifting.lift(batch)]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)

    def take(self) -> Iterator[pa.RecordBatch]:
        store = self._store
        for slots in in_batches(store.alive):
            times = [pa.array(store.starts(slots)), pa.array(store.lasts(slots))]
            columns = [*times, *store.keys(slots), *store.accumulators.read(slots)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)
        store.forget_sessions()

    def forget_keys(self) -> None:
        self._store.forget_keys()

    def _times(self, batch: pa.RecordBatch) -> Ints:
        return self._spec.of.times_of(batch, self._context)


class SessionAggregateOperator(Operator):
    """Holds the sessions that are open, or whose lateness has not passed."""

    def __init__(self, spec: SessionAggregate) -> None:
        self._spec = spec
        self._watermark_us = NEVER_US
        self._changed: list[Ints] = []
        """Sessions that rows were added to since the last flush, where some were ended already."""
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._store = SessionStore(self._spec.of.layout, context, self._spec.gap_us)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        own = restored.inline_for(context.index, context.parallelism, Progress)
        self.rows_late = sum(progress.rows_late for progress in own)
        for table in restored.tables(STATE):
            self._take_over(table)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        if self._spec.late is not None:
            firsts = lasts = self._spec.of.times_of(batch, self._context)
            slots = self._store.add_rows(batch, lasts)
        else:
            columns, width = batch.columns, 2 + len(self._spec.of.keys)
            firsts, lasts = columns[0].to_numpy(), columns[1].to_numpy()
            slots = self._store.merge(columns[2:width], firsts, lasts, columns=columns[width:])
        earliest_us = int(lasts.min())
        if earliest_us <= self._ended_us(self._spec.lateness_us):
            self._leave_out(batch, slots)
        elif self._spec.lateness_us and earliest_us <= self._ended_us(0):
            self._changed.append(slots)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        before_us, self._watermark_us = self._ended_us(0), max(self._watermark_us, time_us)
        ended = self._store.ended_by(self._ended_us(0))
        lasts = self._store.lasts(ended)
        due = np.flatnonzero(lasts > before_us)
        self._emit(ended[due[np.argsort(lasts[due], kind="stable")]], out)
        self._store.remove(ended[lasts <= self._ended_us(self._spec.lateness_us)])
        self._store.compact()
        return time_us

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        if not self._changed:
            return
        changed, self._changed = self._store.still_alive(np.concatenate(self._changed)), []
        self._emit(changed[self._store.lasts(changed) <= self._ended_us(0)], out)

    def freeze(self) -> Frozen:
        if self._changed:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        inline = Progress(self._watermark_us, self.rows_late)
        store, slots = self._store, self._store.alive
        keys, numbers = store.freeze()
        times = [pa.array(store.starts(slots)), pa.array(store.lasts(slots))]
        pane = FrozenPane("sessions", keys, [*times, *store.accumulators.read(slots)], numbers=numbers)
        return Frozen(inline, {STATE: FrozenPanes(self._spec.stored, [pane], self._context.max_parallelism)})

    def _ended_us(self, lateness_us: int) -> int:
        """Where a session's last row is at most here, so much lateness has passed since its end."""
        return max(NEVER_US, self._watermark_us - self._spec.gap_us - lateness_us)

    def _leave_out(self, batch: pa.RecordBatch, slots: Ints) -> None:
        """Remove sessions that are nothing but late rows. One that was there before is not: its end is further on."""
        store = self._store
        late = store.ended_by(self._ended_us(self._spec.lateness_us))
        if self._spec.late is None:
            self.rows_late += int(store.accumulators.read_of(self._spec.of.rows_at, late).to_numpy().sum())
        else:
            part = batch.filter(pa.array(np.isin(slots, late)))
            self.rows_late += part.num_rows
            if part.num_rows and (side := self.sides.get(self._spec.late)) is not None:
                side(part.select(shown(self._spec.of.input_schema).names))
        kept = slots[~np.isin(slots, late)]
        if self._spec.lateness_us and len(kept):
            self._changed.append(kept)
        store.remove(late)

    def _emit(self, chosen: Ints, out: Emit) -> None:
        store, of = self._store, self._spec.of
        for slots in in_batches(chosen):
            ends = store.lasts(slots) + self._spec.gap_us
            out(of.result(store.keys(slots), store.starts(slots), ends, values=store.accumulators.values(slots)))

    def _take_over(self, table: pa.Table) -> None:
        if (verdict := self._spec.verdict(STATE, table.schema)) not in ("same", "evolved"):
            raise CheckpointError(f"{operator_label(self._context)}: the checkpoint's state does not fit: {verdict}")
        table = table.select(self._spec.stored.names).cast(self._spec.stored).drop_columns([KEY_GROUP_COLUMN])
        width = len(self._spec.of.keys)
        for batch in table.to_batches():
            if batch.num_rows:
                columns = batch.columns
                firsts, lasts = columns[width].to_numpy(), columns[width + 1].to_numpy()
                self._store.merge(columns[:width], firsts, lasts, columns=columns[width + 2 :])
