"""Aggregates over windows of event time, in two halves around the exchange.

`PartialWindowAggregate` combines rows by key and pane before they are sent;
`WindowAggregate` merges what arrives into the panes, and emits a window when the
watermark has passed its end. Windows that overlap share panes. Behind its last window,
and the lateness that is allowed, a pane is gone as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, ProtocolViolation
from weir.operators.aggregate import JUDGED_ROWS_MIN, PASSED_ROWS, WORTHWHILE_RATIO_MAX
from weir.operators.aggregate_frames import distinct
from weir.operators.aggregate_layout import AggregateLayout, check_same_columns
from weir.operators.aggregate_state import Accumulators, blamed, in_batches
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.user_code import operator_label
from weir.operators.window_definition import WindowDefinition, shown
from weir.operators.windows import AlignedWindows
from weir.snapshot.watermarks import NEVER_US
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.key_index import KeyIndex
from weir.state.pane_snapshot import FrozenPane, FrozenPanes
from weir.state.xxhash64 import Ints

STATE = "panes"
"""The name of the state table."""

PANE = "__pane"
"""The column with the start of a pane, in microseconds."""

HELD_KEYS_MAX = 262_144
"""Keys, over all panes, that the first half holds before it emits them unasked."""


@dataclass(frozen=True, eq=False)
class _WindowSpec(OperatorSpec):
    """What both halves know."""

    of: WindowDefinition

    @cached_property
    def windows(self) -> AlignedWindows:
        assert isinstance(self.of.windows, AlignedWindows)
        return self.of.windows

    @cached_property
    def combined(self) -> pa.Schema:
        """What travels: the pane, keys and accumulators."""
        return pa.schema([pa.field(PANE, pa.int64()), *self.of.layout.combined])


class PartialWindowAggregate(_WindowSpec):
    """Rows to accumulators by pane, combined by key as far as that pays."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.of.input_schema, inputs, "the first half of a window")
        return self.combined

    def make(self) -> PartialWindowAggregateOperator:
        return PartialWindowAggregateOperator(self)


@dataclass(frozen=True, eq=False)
class WindowAggregate(_WindowSpec):
    """Panes to windows.

    lateness_us: how long behind its end a window is kept, and emitted again when late rows change it
    late:        the tag of the side output for rows that are too late; then this takes rows, without a first half
    """

    lateness_us: int = 0
    late: str | None = None

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        expected = self.combined if self.late is None else self.of.input_schema
        check_same_columns(expected, inputs, "the second half of a window")
        return self.of.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: shown(self.of.input_schema)}

    @cached_property
    def stored(self) -> pa.Schema:
        """The state table: key group, keys, pane, accumulators."""
        fields, width = list(self.of.layout.stored), 1 + len(self.of.layout.keys)
        return pa.schema([*fields[:width], pa.field(PANE, pa.int64()), *fields[width:]])

    def make(self) -> WindowAggregateOperator:
        return WindowAggregateOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        plain = pa.schema([field for field in stored if field.name != PANE])
        if len(plain) == len(stored):
            return "it is not the state of a window; give the operator another uid"
        return self.of.layout.refusal(plain) or ("same" if stored.names == self.stored.names else "evolved")


class _Pane:
    """The accumulators of the keys of one pane."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext) -> None:
        self.index = KeyIndex(layout.key_schema)
        self.accumulators = Accumulators(layout, context)
        self._layout = layout
        self._context = context
        self.frozen: FrozenPane | None = None
        """As it was at the last snapshot, while nothing has changed since."""

    def __len__(self) -> int:
        return len(self.index)

    def add_rows(self, batch: pa.RecordBatch) -> Ints:
        slots = self.index.slots([batch.column(key) for key in self._layout.keys])
        self.accumulators.add_rows(batch, slots, count=len(self.index))
        self.frozen = None
        return slots

    def merge(self, columns: Sequence[pa.Array]) -> Ints:
        """Keys and accumulators; returns the slot of each row."""
        width = len(self._layout.keys)
        slots = self.index.slots(columns[:width])
        self.accumulators.merge(columns[width:], slots, count=len(self.index))
        self.frozen = None
        return slots

    def columns(self, slots: Ints) -> list[pa.Array]:
        """Keys and accumulators of these slots."""
        return [*self.index.keys(slots), *self.accumulators.read(slots)]

    def freeze(self, pane_us: int) -> FrozenPane:
        if self.frozen is None:
            everything = np.arange(len(self))
            starts = pa.array(np.full(len(self), pane_us, np.int64))
            columns = [starts, *self.accumulators.read(everything)]
            self.frozen = FrozenPane(f"p{pane_us % (1 << 64):x}", self.index.freeze(), columns)
        return self.frozen


class PartialWindowAggregateOperator(Operator):
    """Holds accumulators between two flushes only, so that it has no state of its own."""

    def __init__(self, spec: PartialWindowAggregate) -> None:
        self._spec = spec
        self._layout = spec.of.layout
        self._may_pass = all(aggregate.lifts_rows for aggregate in spec.of.layout.aggregates.values())
        self._held: dict[int, _Pane] = {}
        self._rows_in = 0
        self._rows_to_pass = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        panes = self._spec.windows.panes(self._spec.of.times_of(batch))
        if self._rows_to_pass <= 0 and sum(map(len, self._held.values())) + batch.num_rows > HELD_KEYS_MAX:
            self.flush(out)
        if self._rows_to_pass > 0:  # nothing is held now, so that no row overtakes another
            self._rows_to_pass -= batch.num_rows
            out(self._lifted(batch, panes))
            return
        for pane_us, part in by_pane(batch, panes):
            if pane_us not in self._held:
                self._held[pane_us] = _Pane(self._layout, self._context)
            self._held[pane_us].add_rows(part)
        self._rows_in += batch.num_rows

    def flush(self, out: Emit) -> None:
        keys = 0
        for pane_us, pane in self._held.items():
            keys += len(pane)
            for slots in in_batches(np.arange(len(pane))):
                column = pa.array(np.full(len(slots), pane_us, np.int64))
                out(pa.RecordBatch.from_arrays([column, *pane.columns(slots)], schema=self._spec.combined))
        self._held = {}
        if self._may_pass and self._rows_in >= JUDGED_ROWS_MIN and keys > WORTHWHILE_RATIO_MAX * self._rows_in:
            self._rows_to_pass = PASSED_ROWS
        self._rows_in = 0

    def end(self, out: Emit) -> None:
        self.flush(out)

    def freeze(self) -> Frozen:
        if self._held:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        return Frozen()

    def _lifted(self, batch: pa.RecordBatch, panes: Ints) -> pa.RecordBatch:
        keys = [batch.column(field.name).cast(field.type) for field in self._layout.key_schema]
        with blamed(self._context):
            arrays = [array for aggregate in self._layout.aggregates.values() for array in aggregate.lift(batch)]
        return pa.RecordBatch.from_arrays([pa.array(panes), *keys, *arrays], schema=self._spec.combined)


class WindowAggregateOperator(Operator):
    """Holds the panes that some window still needs."""

    def __init__(self, spec: WindowAggregate) -> None:
        self._spec = spec
        self._windows = spec.windows
        self._panes: dict[int, _Pane] = {}
        self._watermark_us = NEVER_US
        self._changed: dict[int, list[Ints]] = {}
        """By pane: slots that late rows have changed since the last flush, in windows that were emitted before."""
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if restored is None:
            return
        known = [part.value for part in restored.inline if part.value is not None]
        self._watermark_us = min((value["watermark_us"] for value in known), default=NEVER_US)
        own = restored.inline_for(context.index, context.parallelism)
        self.rows_late = sum(value["rows_late"] for value in own)
        for table in restored.tables(STATE):
            self._take_over(table)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        takes_rows = self._spec.late is not None
        panes: Ints = (
            self._spec.windows.panes(self._spec.of.times_of(batch)) if takes_rows else batch.column(PANE).to_numpy()
        )
        for pane_us, part in by_pane(batch, panes):
            if self._is_late(pane_us):
                self._leave_out(part)
                continue
            pane = self._panes.get(pane_us)
            if pane is None:
                pane = self._panes[pane_us] = _Pane(self._spec.of.layout, self._context)
            slots = pane.add_rows(part) if takes_rows else pane.merge(part.columns[1:])
            if self._spec.lateness_us and next(self._windows.windows(pane_us))[1] <= self._watermark_us:
                self._changed.setdefault(pane_us, []).append(slots)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        due = {window for pane_us in self._panes for window in self._windows.windows(pane_us)}
        for start_us, end_us in sorted(due):
            if before_us < end_us <= self._watermark_us:
                self._fire(start_us, end_us, out)
        for pane_us in [pane_us for pane_us in self._panes if self._is_late(pane_us)]:
            del self._panes[pane_us]
        return time_us

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        changed, self._changed = self._changed, {}
        again: dict[tuple[int, int], list[list[pa.Array]]] = {}
        for pane_us, touched in changed.items():
            pane = self._panes[pane_us]
            keys = pane.index.keys(distinct(np.concatenate(touched), len(pane)))
            for window in self._windows.windows(pane_us):
                if window[1] <= self._watermark_us:
                    again.setdefault(window, []).append(keys)
        for (start_us, end_us), keys_of_panes in sorted(again.items()):
            keys = [pa.concat_arrays(column) for column in zip(*keys_of_panes, strict=True)]
            self._fire(start_us, end_us, out, only=keys)

    def freeze(self) -> Frozen:
        if self._changed:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        inline = {"watermark_us": self._watermark_us, "rows_late": self.rows_late}
        panes = [pane.freeze(pane_us) for pane_us, pane in sorted(self._panes.items())]
        return Frozen(inline, {STATE: FrozenPanes(self._spec.stored, panes, self._context.max_parallelism)})

    def _is_late(self, pane_us: int) -> bool:
        """Whether no window needs the pane any more."""
        return self._windows.last_end(pane_us) + self._spec.lateness_us <= self._watermark_us

    def _leave_out(self, part: pa.RecordBatch) -> None:
        if self._spec.late is None:
            self.rows_late += int(part.column(1 + len(self._spec.of.keys) + self._spec.of.rows_at).to_numpy().sum())
            return
        self.rows_late += part.num_rows
        if (side := self.sides.get(self._spec.late)) is not None:
            side(part.select(shown(self._spec.of.input_schema).names))

    def _fire(self, start_us: int, end_us: int, out: Emit, *, only: Sequence[pa.Array] | None = None) -> None:
        """Emit a window. `only`: of these keys, which may repeat themselves."""
        parts = [pane for start in self._windows.pane_starts(start_us) if (pane := self._panes.get(start)) is not None]
        if len(parts) == 1 and only is None:
            whole, chosen = parts[0], np.arange(len(parts[0]))
        else:
            whole = _Pane(self._spec.of.layout, self._context)
            for part in parts:
                for slots in in_batches(np.arange(len(part))):
                    whole.merge(part.columns(slots))
            chosen = np.arange(len(whole))
            if only is not None:
                # Every one of these keys is in a pane of the window, so looking them up adds none.
                chosen = distinct(whole.index.slots(only), len(whole.index))
        for slots in in_batches(chosen):
            out(self._result(whole, slots, start_us=start_us, end_us=end_us))

    def _result(self, pane: _Pane, slots: Ints, *, start_us: int, end_us: int) -> pa.RecordBatch:
        bounds = [np.full(len(slots), bound, np.int64) for bound in (start_us, end_us)]
        return self._spec.of.result(pane.index.keys(slots), *bounds, values=pane.accumulators.values(slots))

    def _take_over(self, table: pa.Table) -> None:
        if (verdict := self._spec.verdict(STATE, table.schema)) not in ("same", "evolved"):
            raise CheckpointError(f"{operator_label(self._context)}: the checkpoint's state does not fit: {verdict}")
        table = table.select(self._spec.stored.names).cast(self._spec.stored).drop_columns([KEY_GROUP_COLUMN])
        for batch in table.to_batches():
            panes: Ints = batch.column(PANE).to_numpy()
            for pane_us, part in by_pane(batch.drop_columns([PANE]), panes):
                if pane_us not in self._panes:
                    self._panes[pane_us] = _Pane(self._spec.of.layout, self._context)
                self._panes[pane_us].merge(part.columns)


def by_pane(batch: pa.RecordBatch, panes: Ints) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each pane, in their order."""
    first, last = int(panes.min()), int(panes.max())
    if first == last:
        yield first, batch
        return
    order = np.argsort(panes, kind="stable")
    ordered = panes[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    sorted_batch = batch.take(pa.array(order))
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), sorted_batch.slice(start, stop - start)
