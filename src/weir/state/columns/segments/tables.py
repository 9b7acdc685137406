"""Segments as the state table shows them.

Comes in: segments, wherever they lie. Goes out: tables in pieces. Where rows of one key and
time may be in several segments, these are put into one order, a range of keys at a time:
what is looked at is a slice of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.state.columns.segments.grouping import between, key_ranges, together
from weir.state.columns.segments.rows import Combine, Mask, SegmentLayout, SortedRows
from weir.state.columns.segments.segment import Bounds

PIECE_ROWS = 65_536


@dataclass(frozen=True)
class RowSource:
    """The rows of one segment."""

    bounds: Bounds
    rows: Callable[[], SortedRows]
    marks: Mask | None

    def since(self, since_us: int) -> tuple[SortedRows, Mask | None]:
        """Those that are not from before, and their marks."""
        rows, marks = self.rows(), self.marks
        if self.bounds.first_us < since_us:
            here = np.flatnonzero(rows.times >= since_us)
            rows, marks = rows.take(here), None if marks is None else marks[here]
        return rows, marks

    def left(self, since_us: int, low: int, high: int) -> SortedRows:
        """Of the rows of these orders the same, where a mark means that a row is gone."""
        rows = self.rows()
        start, stop = between(rows.order, low, high)
        rows, marks = rows.slice(start, stop), None if self.marks is None else self.marks[start:stop]
        if self.bounds.first_us < since_us:
            here = np.flatnonzero(rows.times >= since_us)
            rows, marks = rows.take(here), None if marks is None else marks[here]
        return rows if marks is None else rows.take(np.flatnonzero(~marks))


def tables_of(
    sources: Sequence[RowSource], layout: SegmentLayout, *, since_us: int, shown: Combine | None
) -> Iterator[pa.Table]:
    """The rows that are not from before `since_us`, the oldest first; rows of one key and time are what `shown` makes
    of them, if it is given."""
    yield layout.table.empty_table()
    sources = [source for source in sources if source.bounds.last_us >= since_us]
    if shown is None:
        for source in sources:
            yield from _in_pieces(layout, source, since_us)
        return
    for some in [sources] if layout.chain is not None else _overlapping(sources):
        for low, high in key_ranges([(source.bounds.low, source.bounds.high, source.bounds.rows) for source in some]):
            parts = [rows for source in some if len(rows := source.left(since_us, low, high))]
            if not parts:
                continue
            whole = shown(together(parts, layout))
            for start in range(0, len(whole), PIECE_ROWS):
                yield layout.as_table(whole.slice(start, min(start + PIECE_ROWS, len(whole))), None)


def _in_pieces(layout: SegmentLayout, source: RowSource, since_us: int) -> Iterator[pa.Table]:
    rows, marks = source.since(since_us)
    for start in range(0, len(rows), PIECE_ROWS):
        stop = min(start + PIECE_ROWS, len(rows))
        yield layout.as_table(rows.slice(start, stop), None if marks is None else marks[start:stop])


def _overlapping(sources: Sequence[RowSource]) -> Iterator[list[RowSource]]:
    """Those whose times overlap, together: no time is in two of the lists. Of each list the oldest first."""
    numbers = sorted(range(len(sources)), key=lambda number: sources[number].bounds.first_us)
    some: list[int] = []
    last_us = 0
    for number in numbers:
        bounds = sources[number].bounds
        if some and bounds.first_us > last_us:
            yield [sources[n] for n in sorted(some)]
            some = []
        last_us = max(last_us, bounds.last_us) if some else bounds.last_us
        some.append(number)
    if some:
        yield [sources[n] for n in sorted(some)]
