"""Accumulators of keys in panes as sorted rows, and what several of them come to.

Comes in: groups of panes, and sorted rows of accumulators. Goes out: the same as segments
want them, and one row for each key and pane, or for each key and window. Holds no panes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import Accumulators
from weir.operators.base import OperatorContext
from weir.operators.windows.event_time import TimeWindows
from weir.operators.windows.panes import PaneGroup, PaneStore
from weir.state.columns.kernels import Rule
from weir.state.columns.segments.grouping import grouped, stretches, together
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, joined, places
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words

STRETCH_PANES = 64
"""Panes that are not large share a bucket of segments; so many, if there are rows in each."""

PIECE_ROWS = 16_384
"""Slots that become rows at once."""

_SHARED_US = -(1 << 62)
"""Buckets that are shared are numbered from here on: no pane begins then."""


class Partials:
    """Merges accumulators. For one thread."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext) -> None:
        self._keys = layout.keys
        self._accumulators = Accumulators(layout, context)
        rules, fields = self._accumulators.rules, list(layout.combined)[len(layout.keys) :]
        self.rules: dict[str, Rule] | None = (
            None if rules is None else {field.name: rule for field, rule in zip(fields, rules, strict=True)}
        )
        """How each accumulator is merged; None: anybody else cannot."""

    def combined(self, rows: SortedRows) -> SortedRows:
        """One row for each key and time, in the same order. Rows of one key and time are given the oldest first."""
        equal = grouped(rows, self._keys)
        if equal is None:
            return rows
        rows, firsts, width = equal.rows, equal.firsts, len(self._keys)
        self._accumulators.clear()
        self._accumulators.merge(rows.batch.columns[width:], equal.of, count=len(firsts))
        keys = take_rows(rows.batch.select(list(self._keys)), firsts).columns
        arrays = [*keys, *self._accumulators.read(np.arange(len(firsts)))]
        self._accumulators.clear()
        batch = pa.RecordBatch.from_arrays(arrays, schema=rows.batch.schema)
        return SortedRows(rows.order[firsts], rows.times[firsts], batch)

    def values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The final values."""
        return self._accumulators.values_of(batch.columns[len(self._keys) :])


def in_windows(times: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Which rows each of some windows has, those of earlier panes first, and the start of the window. `times`: the
    panes of the rows.

    >>> in_windows(np.array([20, 10, 10]), np.array([0, 10]), np.array([20, 30]))
    (array([1, 2, 1, 2, 0]), array([ 0,  0, 10, 10, 10]))
    """
    by_time = np.argsort(times, kind="stable")
    ordered = times[by_time]
    first = np.searchsorted(ordered, starts)
    counts = np.searchsorted(ordered, ends) - first
    before = np.cumsum(counts) - counts
    rows = by_time[np.repeat(first - before, counts) + np.arange(int(counts.sum()))]
    return rows, np.repeat(starts, counts)


def by_window(parts: Sequence[SortedRows], starts: Ints, windows: TimeWindows, layout: SegmentLayout) -> SortedRows:
    """Rows of panes, the oldest first, as rows of those windows that they are in, whose starts are their times."""
    rows = joined(parts)
    picked, found = in_windows(rows.times, starts, windows.ends(starts))
    order = rows.order[picked]
    at = layout.arranged(order, found)
    return SortedRows(order[at], found[at], take_rows(rows.batch, picked[at]))


def sorted_rows(group: PaneGroup, slots: Ints, layout: SegmentLayout) -> SortedRows:
    """Slots of a group as segments hold them."""
    return _taken(group, slots, *_sorting(group, slots, layout), layout)


def sorted_pieces(group: PaneGroup, slots: Ints, layout: SegmentLayout) -> Iterator[SortedRows]:
    """The same in pieces, none of which ends within a key."""
    at, order = _sorting(group, slots, layout)
    for start, stop in stretches(order, PIECE_ROWS):
        yield _taken(group, slots, at[start:stop], order[start:stop], layout)


def _sorting(group: PaneGroup, slots: Ints, layout: SegmentLayout) -> tuple[Ints, Words]:
    """Where the slots of the rows are, in their order, and that order."""
    order = places(group.hashes_of(slots), layout.max_parallelism)
    at = layout.arranged(order, group.panes_of(slots))
    return at, order[at]


def _taken(group: PaneGroup, slots: Ints, at: Ints, order: Words, layout: SegmentLayout) -> SortedRows:
    slots = slots[at]
    batch = pa.RecordBatch.from_arrays([*group.keys_of(slots), *group.accumulators.read(slots)], schema=layout.batches)
    return SortedRows(order, group.panes_of(slots), batch)


def shared_bucket(panes: Ints, stretch_us: int) -> Ints:
    """The bucket that panes of a stretch of time share."""
    return panes - panes % stretch_us + _SHARED_US


def is_shared(bucket_us: int) -> bool:
    return bucket_us < _SHARED_US // 2


def by_bucket(
    panes: PaneStore, layout: SegmentLayout, *, own: frozenset[int], stretch_us: int
) -> Iterator[tuple[int, SortedRows]]:
    """All panes, as segments hold them, in pieces. `own`: those with a bucket of their own; large ones have one."""
    concerned: dict[int, list[tuple[PaneGroup, Ints]]] = {}
    apart = np.array(sorted(own), np.int64)
    for group in panes.groups:
        if group.only_us is not None:
            concerned[group.only_us] = [(group, group.slots_of())]
            continue
        slots = group.slots_of()
        of_slots = group.panes_of(slots)
        buckets = np.where(np.isin(of_slots, apart), of_slots, shared_bucket(of_slots, stretch_us))
        order = np.argsort(buckets, kind="stable")
        present, begins = np.unique(buckets[order], return_index=True)
        for bucket_us, some in zip(present.tolist(), np.split(slots[order], begins[1:])):
            concerned.setdefault(bucket_us, []).append((group, some))
    for bucket_us, found in concerned.items():
        found = [(group, slots) for group, slots in found if len(slots)]
        if len(found) == 1:
            yield from ((bucket_us, rows) for rows in sorted_pieces(*found[0], layout))
        elif found:
            yield bucket_us, together([sorted_rows(group, slots, layout) for group, slots in found], layout)
