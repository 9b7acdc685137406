"""The log of one bucket, read in its order, a bounded piece at a time.

Comes in: runs of sorted rows, the oldest first. Goes out: the timers that stand. Never
brings more of a segment into memory than was asked for, where that lies in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weir.state.columns.segments.rows import SortedRows, joined
from weir.state.columns.segments.segment import Run
from weir.state.timers.rows import standing

READ_ROWS = 16_384
"""Rows of the log that are read at once."""


@dataclass(frozen=True)
class Stretch:
    """A segment of a run: its first and its last order, and its rows."""

    low: int
    high: int
    rows: Callable[[], SortedRows]


def stretches(run: Run) -> list[Stretch]:
    """The segments of a run in memory or local files."""
    return [Stretch(segment.bounds.low, segment.bounds.high, segment.kept.rows) for segment in run.segments]


class BucketReader:
    """The log of one bucket behind some order."""

    def __init__(self, runs: Sequence[Sequence[Stretch]], after: int) -> None:
        self._cursors = [_Cursor(run, after) for run in runs]

    @property
    def next_order(self) -> int | None:
        """Of the next row, be it of a timer that stands or not; None: there is none."""
        return min((cursor.order for cursor in self._cursors if not cursor.is_done), default=None)

    def read(self, rows_max: int) -> tuple[SortedRows, int]:
        """The timers that stand among about so many rows, and the order of the last of those."""
        cursors = [cursor for cursor in self._cursors if not cursor.is_done]
        each = max(rows_max // len(cursors), 1)
        until = min(cursor.limit(each) for cursor in cursors)
        parts = [part for cursor in cursors if len(part := cursor.take(until))]
        rows = joined(parts)
        if len(parts) > 1:
            rows = rows.take(np.argsort(rows.order, kind="stable"))
        return standing(rows), until


class _Cursor:
    """How far one run has been read. Rows of one order never lie in two of its segments."""

    def __init__(self, run: Sequence[Stretch], after: int) -> None:
        self._run = [stretch for stretch in run if stretch.high > after]
        self._at = 0
        self._position = 0
        if self._run and self._run[0].low <= after:
            self._position = int(np.searchsorted(self._run[0].rows().order, np.uint64(after), side="right"))

    @property
    def is_done(self) -> bool:
        return self._at == len(self._run)

    @property
    def order(self) -> int:
        stretch = self._run[self._at]
        return int(stretch.rows().order[self._position]) if self._position else stretch.low

    def limit(self, rows: int) -> int:
        """The order of a row that is about so far ahead; never behind the end of a segment."""
        order = self._run[self._at].rows().order
        return int(order[min(self._position + rows, len(order)) - 1])

    def take(self, until: int) -> SortedRows:
        """The rows of this order and below."""
        rows = self._run[self._at].rows()
        start, stop = self._position, int(np.searchsorted(rows.order, np.uint64(until), side="right"))
        self._position = stop
        if stop == len(rows):
            self._at, self._position = self._at + 1, 0
        return rows.slice(start, stop)
