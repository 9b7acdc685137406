"""Runs that become one: at once where they are small, otherwise a piece at a time between batches.

Comes in: runs of one bucket, the oldest first. Goes out: their rows in one order, cut into
segments. While a merge goes on, its runs stay what is searched, frozen and marked; what is
marked meanwhile is carried over at its end. Holds up nobody for longer than a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir.state.columns.segments.rows import SEGMENT_BYTES_MAX, Combine, Mask, SegmentLayout, SortedRows, joined
from weir.state.columns.segments.segment import Bounds, Run
from weir.state.columns.segments.shelf import KeptRows, Shelf
from weir.state.keys.xxhash64 import Ints

AT_ONCE_ROWS_MAX = 32_768
"""Runs of so many rows together are merged at once."""


@dataclass
class Made:
    """Rows that are to be a segment."""

    kept: KeptRows
    bounds: Bounds
    marks: Mask | None


def merged(runs: Sequence[Run], layout: SegmentLayout, combine: Combine | None) -> tuple[SortedRows, Mask | None]:
    """The rows of several small runs, with their marks."""
    segments = [segment for run in runs for segment in run.segments]
    parts = [(segment.kept.rows(), segment.marks.bits) for segment in segments]
    rows, marks = joined([rows for rows, _ in parts]), _all_marks(parts)
    order = layout.arranged(rows.order, rows.times)
    if marks is not None and layout.mark is None:
        order, marks = order[~marks[order]], None
    rows = rows.take(order)
    return rows if combine is None else combine(rows), None if marks is None else marks[order]


class _Cursor:
    """How far one run has come. Rows of one key never lie in two of its segments."""

    def __init__(self, run: Run, first: int) -> None:
        self._segments = run.segments
        self._at = 0
        self._position = 0
        self._base = first
        self.left = len(run)

    @property
    def is_done(self) -> bool:
        return not self.left

    def limit(self, rows: int) -> int:
        """The order of a row that is about so far ahead; never behind the end of a segment."""
        order = self._segments[self._at].order
        return int(order[min(self._position + rows, len(order)) - 1])

    def take(self, until: int) -> tuple[SortedRows, Mask | None, Ints] | None:
        """The rows of this order and below, with their marks and their numbers in the whole merge."""
        segment = self._segments[self._at]
        rows = segment.kept.rows()
        start, stop = self._position, int(np.searchsorted(rows.order, np.uint64(until), side="right"))
        if stop <= start:
            return None
        marks = segment.marks.bits
        numbers = np.arange(self._base + start, self._base + stop)
        self._position = stop
        self.left -= stop - start
        if stop == len(rows):
            self._at, self._position = self._at + 1, 0
            self._base += len(rows)
        return rows.slice(start, stop), None if marks is None else marks[start:stop], numbers


class Merge:
    """Several runs on their way into one."""

    def __init__(self, runs: Sequence[Run], layout: SegmentLayout, *, combine: Combine | None, shelf: Shelf) -> None:
        self.runs = list(runs)
        self._layout = layout
        self._combine = combine
        self._shelf = shelf
        self._shared = (1 << layout.shared) - 1
        self._loose: list[tuple[SortedRows, Mask | None]] = []
        self._loose_bytes = 0
        self._made: list[Made] = []
        self._numbers: list[Ints] = []
        """By row that was made: its number among all that went in; kept where marks are to be carried over."""
        self._carries = combine is None
        self._cursors: list[_Cursor] = []
        first = 0
        for run in self.runs:
            run.is_merging = True
            self._cursors.append(_Cursor(run, first))
            first += len(run)
            for segment in run.segments:
                segment.marks.log = []

    def step(self, rows_max: int) -> int:
        """Merge about so many rows more; how many they were."""
        cursors = [cursor for cursor in self._cursors if not cursor.is_done]
        if not cursors:
            return 0
        left = sum(cursor.left for cursor in cursors)
        # Keys lie in all runs alike, so that of each a share by its size is about as far.
        shares = (-(-rows_max * cursor.left // left) for cursor in cursors)
        until = min(cursor.limit(share) for cursor, share in zip(cursors, shares, strict=True)) | self._shared
        self._add([part for cursor in cursors if (part := cursor.take(until)) is not None])
        return left - sum(cursor.left for cursor in cursors)

    @property
    def is_done(self) -> bool:
        return all(cursor.is_done for cursor in self._cursors)

    @property
    def is_void(self) -> bool:
        """Whether rows were marked meanwhile that have been added up with others: nobody can tell them apart now."""
        logs = (segment.marks.log for run in self.runs for segment in run.segments)
        return not self._carries and any(logs)

    def finish(self) -> list[Made]:
        """What the runs have become."""
        self._seal()
        self._carry_marks()
        self.give_up()
        return self._made

    def give_up(self) -> None:
        """Nobody wants the result; or it is there."""
        for run in self.runs:
            run.is_merging = False
            for segment in run.segments:
                segment.marks.log = None

    def _add(self, parts: Sequence[tuple[SortedRows, Mask | None, Ints]]) -> None:
        rows, marks, numbers = _together(parts)
        if marks is not None and self._layout.mark is None:
            alive = np.flatnonzero(~marks)
            rows, numbers, marks = rows.take(alive), numbers[alive], None
        # Those of one run are copied, too: else they would keep alive what they were cut out of.
        order = self._layout.arranged(rows.order, rows.times) if len(parts) > 1 else np.arange(len(rows))
        rows, numbers, marks = rows.take(order), numbers[order], None if marks is None else marks[order]
        if self._combine is not None:
            rows = self._combine(rows)
        elif self._carries:
            self._numbers.append(numbers)
        if len(rows):
            self._loose.append((rows, marks))
            self._loose_bytes += rows.size_bytes
            if self._loose_bytes >= SEGMENT_BYTES_MAX:
                self._seal()

    def _seal(self) -> None:
        if self._loose:
            rows = joined([rows for rows, _ in self._loose])
            self._made.append(Made(self._shelf.keep(rows), Bounds.of(rows), _all_marks(self._loose)))
        self._loose, self._loose_bytes = [], 0

    def _carry_marks(self) -> None:
        """Mark what was marked behind the merge's back."""
        late: list[Ints] = []
        first = 0
        for run in self.runs:
            for segment in run.segments:
                late += [rows + first for rows in segment.marks.log or ()]
                first += len(segment)
        if not late:
            return
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty(0, np.int64)
        marked = np.zeros(first, np.bool_)
        marked[np.concatenate(late)] = True
        flagged = np.flatnonzero(marked[numbers])
        start = 0
        for made in self._made:
            stop = start + made.bounds.rows
            inside = flagged[(flagged >= start) & (flagged < stop)]
            if len(inside):
                made.marks = np.zeros(made.bounds.rows, np.bool_) if made.marks is None else made.marks
                made.marks[inside - start] = True
            start = stop


def _together(parts: Sequence[tuple[SortedRows, Mask | None, Ints]]) -> tuple[SortedRows, Mask | None, Ints]:
    rows = joined([rows for rows, _, _ in parts])
    marks = _all_marks([(rows, marks) for rows, marks, _ in parts])
    return rows, marks, np.concatenate([numbers for _, _, numbers in parts])


def _all_marks(parts: Sequence[tuple[SortedRows, Mask | None]]) -> Mask | None:
    if all(marks is None for _, marks in parts):
        return None
    return np.concatenate([np.zeros(len(rows), np.bool_) if marks is None else marks for rows, marks in parts])
