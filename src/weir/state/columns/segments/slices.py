"""Segments of other subtasks, at another parallelism: the rows that fall to this one.

Comes in: the parts of old subtasks, and which of their key groups are this one's. Goes out: the
slice of each segment that has some, one after the other, so that no more than one of them is in
memory twice. Nothing is merged: that is the store's, as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir.state.columns.segments.grouping import between
from weir.state.columns.segments.rows import WORD_BITS, Mask, SegmentLayout, group_bits
from weir.state.columns.segments.segment import Bounds, segment_name
from weir.state.columns.segments.shelf import KeptRows, Shelf
from weir.state.columns.segments.snapshot import kept_out_of, marks_in, since_of
from weir.state.frozen import RestoredPart, RestoredSlice


@dataclass(frozen=True)
class SlicedRows:
    """What a segment is made of."""

    kept: KeptRows
    bounds: Bounds
    marks: Mask | None


class Slices:
    """Takes slices out of parts of one layout."""

    def __init__(self, layout: SegmentLayout, shelf: Shelf) -> None:
        self._layout = layout
        self._shelf = shelf

    def out_of(self, slice: RestoredSlice) -> Iterator[tuple[int, int, SlicedRows]]:
        """By bucket, and by the rank of their run in it: the oldest is 0. In the order of keys where ranks are equal.
        Files without such rows are not read."""
        part, low, high = slice.part, *orders_of(slice.own, self._layout.max_parallelism)
        marks, since_us = marks_in(part), since_of(part.part)
        ranks: Counter[int] = Counter()
        for run in part.part.detail["runs"]:
            bucket_us = run[0][1]
            for of in run:
                found = self._slice(part, of, range(low, high + 1), marks.get(segment_name(of[0])), since_us)
                if found is not None:
                    yield bucket_us, ranks[bucket_us], found
            ranks[bucket_us] += 1

    def _slice(
        self, part: RestoredPart, of: Sequence[Any], orders: range, marks: Mask | None, since_us: int
    ) -> SlicedRows | None:
        number, _, *described = of
        bounds = Bounds(*described)
        if bounds.high < orders.start or orders.stop <= bounds.low or bounds.last_us < since_us:
            return None
        kept = kept_out_of(part, segment_name(number), self._layout, self._shelf)
        marks = None if marks is None else marks[: bounds.rows].copy()
        if orders.start <= bounds.low and bounds.high < orders.stop and bounds.first_us >= since_us:
            return SlicedRows(kept, bounds, marks)
        rows = kept.holding.rows()
        here = np.arange(*between(rows.order, orders.start, orders.stop - 1))
        here = here[rows.times[here] >= since_us]
        if marks is not None and self._layout.mark is None:
            here, marks = here[~marks[here]], None
        if not len(here):
            return None
        own = rows.take(here)
        return SlicedRows(self._shelf.keep(own), Bounds.of(own), None if marks is None else marks[here])


def orders_of(key_groups: range, max_parallelism: int) -> tuple[int, int]:
    """The lowest and the highest order of some key groups.

    >>> orders_of(range(0, 128), 128) == (0, (1 << 64) - 1), orders_of(range(1, 2), 2)[0] == 1 << 63
    (True, True)
    """
    bits = WORD_BITS - group_bits(max_parallelism)
    return key_groups.start << bits, min((key_groups.stop << bits) - 1, (1 << WORD_BITS) - 1)
