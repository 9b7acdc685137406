"""Aggregates over windows of event time, in two halves around the exchange.

`PartialWindowAggregate` combines rows by key and pane before they are sent;
`WindowAggregate` merges what arrives into the panes, and emits a window when the
watermark has passed its end. Windows that overlap share panes. Behind its last window,
and the lateness that is allowed, a pane is gone as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, ProtocolViolation
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.aggregates.numbering import RowNumbers, of_whole_keys
from weir.operators.aggregates.partial import PartialOperator
from weir.operators.aggregates.state import Accumulators, in_batches
from weir.operators.base import (
    Course,
    Emit,
    Frozen,
    OperatorContext,
    OperatorSpec,
    PiecewiseOperator,
    Restored,
    run_through,
)
from weir.operators.user_code import operator_label
from weir.operators.windows.definition import WindowDefinition, shown
from weir.operators.windows.event_time import TimeWindows
from weir.operators.windows.kept_panes import KeptPanes
from weir.operators.windows.panes import PaneGroup, PaneStore
from weir.operators.windows.partials import by_window, in_windows
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.grouping import in_key_ranges
from weir.state.columns.segments.rows import SortedRows, places
from weir.state.frozen import KEY_GROUP_COLUMN, RestoredState
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

STATE = "panes"
"""The name of the state table."""

PANE = "__pane"
"""The column with the start of a pane, in microseconds."""

MERGED_SLOTS_MAX = 1_048_576
"""Keys, over windows that end together, that are merged at once."""


@dataclass(frozen=True, eq=False)
class _WindowSpec(OperatorSpec):
    """What both halves know."""

    of: WindowDefinition

    @cached_property
    def windows(self) -> TimeWindows:
        assert isinstance(self.of.windows, TimeWindows)
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

    def make(self) -> PartialOperator:
        return PartialOperator(self.of.layout, partial(_HeldPanes, self))


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


class _HeldPanes:
    """Accumulators of keys in panes, until they are sent."""

    def __init__(self, spec: PartialWindowAggregate, context: OperatorContext) -> None:
        self._spec = spec
        self._context = context
        self._store = PaneStore(spec.of.layout, context, spec.windows.step_us)
        self._numbers = RowNumbers(spec.of.layout)
        self._lifting = Accumulators(spec.of.layout, context)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def remembered(self) -> int:
        return len(self._store)

    def combine(self, batch: pa.RecordBatch) -> bool:
        return self._store.combine_rows(self._numbers.of_rows(batch), self._panes(batch))

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._spec.of.layout.keys_of(batch)
        accumulators = self._lifting.lift(self._numbers.of_rows(batch))
        columns = [pa.array(self._panes(batch)), *keys, *accumulators]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)

    def take(self) -> Iterator[pa.RecordBatch]:
        if self._numbers.are_asked_for:
            parts = [(group, group.slots_of()) for group in self._store.groups]
            whole = pa.concat_batches([self._read(group, slots) for group, slots in parts])
            hashes = np.concatenate([group.hashes_of(slots) for group, slots in parts])
            yield from (take_rows(whole, rows) for rows in of_whole_keys(hashes))
        else:
            for group in self._store.groups:
                yield from (self._read(group, slots) for slots in in_batches(group.slots_of()))
        self._store.clear()

    def _read(self, group: PaneGroup, slots: Ints) -> pa.RecordBatch:
        columns = [pa.array(group.panes_of(slots)), *group.keys_of(slots), *group.accumulators.read(slots)]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.combined)

    def forget_keys(self) -> None:
        """They went with their panes."""

    def _panes(self, batch: pa.RecordBatch) -> Ints:
        return self._spec.windows.panes(self._spec.of.times_of(batch, self._context))


class WindowAggregateOperator(PiecewiseOperator):
    """Holds the panes that some window still needs."""

    def __init__(self, spec: WindowAggregate) -> None:
        self._spec = spec
        self._windows = spec.windows
        self._watermark_us = NEVER_US
        self._changed: list[_Changed] = []
        """What late rows have changed since the last flush, in windows that were emitted before."""
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._kept = KeptPanes(
            self._spec.of.layout, self._spec.stored, self._windows, context=context, state=STATE, time=PANE
        )
        self._numbers = RowNumbers(self._spec.of.layout, restored)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        own = restored.inline_for(context.index, context.parallelism, Progress)
        self.rows_late = sum(progress.rows_late for progress in own)
        if STATE in restored.states:
            self._restore(restored.states[STATE])

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self._catch_up()
        if not batch.num_rows:
            return
        takes_rows = self._spec.late is not None
        batch = self._numbers.of_rows(batch) if takes_rows else self._numbers.of_accumulators(batch)
        panes: Ints = (
            self._windows.panes(self._spec.of.times_of(batch, self._context))
            if takes_rows
            else batch.column(PANE).to_numpy()
        )
        earliest_us = int(panes.min())
        if self._windows.last_end(earliest_us) + self._spec.lateness_us <= self._watermark_us:
            in_time = self._windows.last_ends(panes) + self._spec.lateness_us > self._watermark_us
            self._leave_out(batch.filter(pa.array(~in_time)))
            batch, panes = batch.filter(pa.array(in_time)), panes[in_time]
            if not batch.num_rows:
                return
        head = self._kept.head
        touched = head.add_rows(batch, panes) if takes_rows else head.merge(_after_pane(batch), panes)
        if self._spec.lateness_us and next(self._windows.windows(earliest_us))[1] <= self._watermark_us:
            self._changed += [self._changed_in(group, slots) for group, slots in touched]
        self._leave(self._kept.tending(batch.num_rows))

    def advance(self, time_us: int, out: Emit) -> Course:
        yield from self._catching_up()
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        panes = self._kept.panes
        starts = self._windows.starts(panes)
        ends = self._windows.ends(starts)
        yield from self._fire(np.unique(starts[(ends > before_us) & (ends <= self._watermark_us)]), out)
        self._kept.drop(panes[self._windows.last_ends(panes) + self._spec.lateness_us <= self._watermark_us])
        return time_us

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        changed, self._changed = self._changed, []
        if not changed:
            return
        panes = np.unique(np.concatenate([part.panes for part in changed]))
        starts = np.unique(self._windows.starts(panes))
        ends = self._windows.ends(starts)
        # Of windows that are over, lateness and all, panes may be gone already.
        kept = (ends <= self._watermark_us) & (ends + self._spec.lateness_us > self._watermark_us)
        run_through(self._fire_merged(starts[kept], out, only=changed))

    def freeze(self) -> Frozen:
        self._catch_up()
        if self._changed:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        inline = Progress(self._watermark_us, self.rows_late, rows_numbered=self._numbers.numbered)
        return Frozen(inline, {STATE: self._kept.freeze()})

    def _leave_out(self, part: pa.RecordBatch) -> None:
        if self._spec.late is None:
            counts = part.column(1 + len(self._spec.of.keys) + self._spec.of.rows_at)
            self.rows_late += int(counts.to_numpy().sum())
            return
        self.rows_late += part.num_rows
        if (side := self.sides.get(self._spec.late)) is not None:
            side(part.select(shown(self._spec.of.input_schema).names))

    def _fire(self, starts: Ints, out: Emit) -> Course:
        """Emit windows, given by their starts, in order."""
        sealed = self._kept.are_sealed(starts, self._windows.ends(starts))
        yield from self._fire_merged(starts[sealed], out)
        yield from self._fire_head(starts[~sealed], out)
        return None

    def _fire_head(self, starts: Ints, out: Emit) -> Course:
        """Emit windows of which nothing was sealed."""
        windows, head = self._windows, self._kept.head
        if not len(starts):
            return None
        if not windows.overlaps:
            for group in head.groups:
                slots = group.slots_of(starts)
                yield from self._emit(group, slots[np.argsort(group.panes_of(slots), kind="stable")], out)
            return None
        # Few enough at once that what they are merged into stays small.
        copies = windows.windows_per_pane * len(head)
        for part in np.array_split(starts, 1 + copies // MERGED_SLOTS_MAX):
            if len(part):
                whole = self._merged(part)
                slots = np.arange(len(whole))
                yield from self._emit(whole, slots[np.argsort(whole.panes_of(slots), kind="stable")], out)
        return None

    def _merged(self, starts: Ints) -> PaneGroup:
        """Windows of all their panes: a group in which each has the place of a pane."""
        alone = int(starts[0]) if len(starts) == 1 else None
        whole = PaneGroup(self._spec.of.layout, self._context, step_us=self._windows.step_us, only_us=alone)
        first_us, last_us = int(starts[0]), int(self._windows.ends(starts[-1:])[0])
        for group in self._kept.head.groups:
            panes = group.panes
            panes = panes[(panes >= first_us) & (panes < last_us)]
            for slots in in_batches(group.slots_of(panes)):
                # A group of one pane is in a window as a whole.
                of_rows = group.panes_of(slots) if group.only_us is None else panes
                for found in self._windows.each_start(of_rows):
                    inside = np.isin(found, starts) & (of_rows < self._windows.ends(found))
                    if inside.all():
                        rows = slots
                    elif inside.any():
                        rows, found = slots[inside], found[inside]
                    else:
                        continue
                    into = whole.find(group.keys_of(rows), found if len(found) == len(rows) else int(found[0]))
                    group.accumulators.pour(rows, whole.accumulators, into, count=len(whole))
        return whole

    def _emit(self, group: PaneGroup, chosen: Ints, out: Emit) -> Course:
        for slots in in_batches(chosen):
            starts = group.panes_of(slots)
            ends = self._windows.ends(starts)
            out(self._spec.of.result(group.keys_of(slots), starts, ends, values=group.accumulators.values(slots)))
            yield
        return None

    def _fire_merged(self, starts: Ints, out: Emit, *, only: Sequence[_Changed] | None = None) -> Course:
        """Emit windows of whatever their panes lie in, a range of keys at a time. `only`: what was changed."""
        if not len(starts):
            return None
        wanted = None if only is None else np.unique(np.concatenate([part.orders for part in only]))
        copies = self._windows.windows_per_pane * self._kept.count_between(*self._stretch(starts))
        for part in np.array_split(starts, min(1 + copies // MERGED_SLOTS_MAX, len(starts))):
            chosen = None if only is None else self._pairs(only, part)
            count = 0 if chosen is None else len(chosen)
            for parts in in_key_ranges(self._kept.between(*self._stretch(part), wanted)):
                rows = self._kept.combined(by_window(parts, part, self._windows, self._kept.segments))
                if chosen is not None:
                    slots = chosen.slots([pa.array(rows.order), pa.array(rows.times)])
                    rows = rows.take(np.flatnonzero(slots < count))
                self._emit_rows(rows, out)
                yield from self._kept.relaxing()
                yield
        return None

    def _stretch(self, starts: Ints) -> tuple[int, int]:
        return int(starts[0]), int(self._windows.ends(starts[-1:])[0])

    def _emit_rows(self, rows: SortedRows, out: Emit) -> None:
        order, width = np.argsort(rows.times, kind="stable"), len(self._spec.of.layout.keys)
        for some in in_batches(order):
            part = rows.take(some)
            values, ends = self._kept.values(part.batch), self._windows.ends(part.times)
            out(self._spec.of.result(part.batch.columns[:width], part.times, ends, values=values))

    def _changed_in(self, group: PaneGroup, slots: Ints) -> _Changed:
        return _Changed(group.panes_of(slots), places(group.hashes_of(slots), self._context.max_parallelism))

    def _pairs(self, only: Sequence[_Changed], starts: Ints) -> KeyIndex:
        """What was changed, by order and window."""
        index = KeyIndex(pa.schema([("order", pa.uint64()), ("window", pa.int64())]))
        for part in only:
            rows, found = in_windows(part.panes, starts, self._windows.ends(starts))
            index.slots([pa.array(part.orders[rows]), pa.array(found)])
        return index

    def _restore(self, state: RestoredState) -> None:
        if self._kept.restore(state):
            return
        for table in state.tables():
            if (verdict := self._spec.verdict(STATE, table.schema)) not in ("same", "evolved"):
                raise CheckpointError(
                    f"{operator_label(self._context)}: the checkpoint's state does not fit: {verdict}"
                )
            table = self._spec.of.layout.with_arrivals(table, PANE)
            table = table.select(self._spec.stored.names).cast(self._spec.stored).drop_columns([KEY_GROUP_COLUMN])
            for batch in table.to_batches():
                if batch.num_rows:
                    self._kept.head.merge(batch.drop_columns([PANE]), batch.column(PANE).to_numpy())
                    run_through(self._kept.tending(batch.num_rows))


@dataclass(frozen=True)
class _Changed:
    """Keys in panes that late rows have come to, by the orders of the keys."""

    panes: Ints
    orders: Words


def _after_pane(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns([PANE])
