"""In which order rows of a join lie, and how rows of two segments find each other.

Comes in: batches of one side and one pane of time. Goes out: rows sorted by hash and then
by time, and pairs of rows of two segments. Keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.joins.side import SETTLED, JoinSide, equal_keys
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, group_bits, places
from weir.state.columns.segments.segment import Segment
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words

TIME_BITS = 32
_TIME_MAX = (1 << TIME_BITS) - 1
_PLACE = np.uint64(_TIME_MAX << TIME_BITS)
"""The bits of the order that are the key's; below are those of the time within the pane."""

_OTHER_NULLS = 0x5555_5555
"""Keys with a null equal nothing: those of the left side are put where those of the right side are not, or else each
would be looked at with each."""


@dataclass(frozen=True, eq=False)
class RunLayout:
    """How the rows of one side are sorted. `shift`: how many bits of the time in a pane the order leaves out."""

    side: JoinSide
    shift: int
    is_left: bool
    max_parallelism: int
    segments: SegmentLayout
    other_nulls: np.uint64 = field(init=False)

    def __post_init__(self) -> None:
        # The key group is kept: by that a segment is divided among subtasks.
        nulls = np.uint64(_OTHER_NULLS >> group_bits(self.max_parallelism) << TIME_BITS)
        object.__setattr__(self, "other_nulls", nulls)

    @staticmethod
    def of(side: JoinSide, pane_us: int, *, is_left: bool, settles: bool, max_parallelism: int) -> RunLayout:
        segments = SegmentLayout(
            side.schema,
            side.settling if settles else side.stored,
            max_parallelism=max_parallelism,
            mark=SETTLED if settles else None,
            shared=TIME_BITS,
        )
        shift = max(0, (pane_us - 1).bit_length() - TIME_BITS)
        return RunLayout(side, shift, is_left, max_parallelism, segments)

    def unsorted(self, batch: pa.RecordBatch, times: Ints, *, pane_us: int) -> SortedRows:
        """Rows of one pane, with what they are to be sorted by."""
        keys = places(self.side.hashes(batch), self.max_parallelism) & _PLACE
        whole = self.side.whole_keys(batch) if self.is_left else None
        if whole is not None:
            keys ^= np.where(whole, np.uint64(0), self.other_nulls)
        return SortedRows(keys | ((times - pane_us) >> self.shift).view(np.uint64), times, batch)


@dataclass(frozen=True)
class Between:
    """Partners have times from `lower_us` to `upper_us` behind a row's own, both included. None: any time."""

    lower_us: int
    upper_us: int

    @property
    def reversed(self) -> Between:
        """From the other side."""
        return Between(-self.upper_us, -self.lower_us)


@dataclass(frozen=True)
class Pairs:
    """Rows of two segments that belong together, side by side."""

    rows: Ints
    """In the segment that asked."""
    partners: Ints
    """In the other."""
    batch: pa.RecordBatch
    """The rows of the one."""
    other: pa.RecordBatch
    """The rows of the other."""


def matches(
    segment: Segment, side: JoinSide, other: Segment, of: RunLayout, *, within: Between | None
) -> Iterator[Pairs]:
    """The pairs of a segment's rows with those of another one, in pieces of at most BATCH_ROWS_MAX."""
    asking = segment.kept.rows()
    # A large run is many segments, and each has the rows of few keys.
    start = int(np.searchsorted(asking.order, np.uint64(other.bounds.low) & _PLACE))
    stop = int(np.searchsorted(asking.order, np.uint64(other.bounds.high | _TIME_MAX), side="right"))
    if start == stop:
        return
    asking, asked = asking.slice(start, stop), other.kept.rows()
    if within is None:
        found = _find(asked.order, asking.order & _PLACE, asking.order | np.uint64(_TIME_MAX))
    else:
        found = _find_between(asking, segment, asked.order, other, shift=of.shift, within=within)
    for rows, partners in _expanded(*found):
        if within is not None and of.shift:
            ahead = asked.times[partners] - asking.times[rows]
            exact = np.flatnonzero((ahead >= within.lower_us) & (ahead <= within.upper_us))
            rows, partners = rows[exact], partners[exact]
        batch, mates = take_rows(asking.batch, rows), take_rows(asked.batch, partners)
        # The order has only half of the hash, and a hash is not the key.
        equal = equal_keys(side.key_columns(batch), of.side.key_columns(mates))
        if equal is not None:
            kept = np.flatnonzero(equal)
            rows, partners = rows[kept], partners[kept]
            batch, mates = take_rows(batch, kept), take_rows(mates, kept)
        if len(rows):
            yield Pairs(rows + start, partners, batch, mates)


def _find_between(
    asking: SortedRows, segment: Segment, order: Words, other: Segment, *, shift: int, within: Between
) -> tuple[Ints, Ints, Ints]:
    pane_us, first_us, last_us = other.bucket_us, other.first_us, other.last_us
    lowest = asking.times + (within.lower_us - pane_us)
    highest = asking.times + (within.upper_us - pane_us)
    keys = asking.order & _PLACE
    rows = None
    if segment.first_us + within.upper_us < first_us or segment.last_us + within.lower_us > last_us:
        rows = np.flatnonzero((highest >= first_us - pane_us) & (lowest <= last_us - pane_us))
        keys, lowest, highest = keys[rows], lowest[rows], highest[rows]
    first = (np.maximum(lowest, 0) >> shift).view(np.uint64)
    last = np.minimum(highest >> shift, _TIME_MAX).view(np.uint64)
    found, starts, counts = _find(order, keys | first, keys | last)
    return (found if rows is None else rows[found]), starts, counts


def _find(order: Words, first: Words, last: Words) -> tuple[Ints, Ints, Ints]:
    """Where in a sorted order the values from `first` to `last` are: rows that find some, where from, how many."""
    starts = np.searchsorted(order, first)
    # Most rows find nothing in most runs; only the others are asked where it ends.
    rows = np.flatnonzero((starts < len(order)) & (order.take(starts, mode="clip") <= last))
    starts = starts[rows]
    return rows, starts, np.searchsorted(order, last[rows], side="right") - starts


def _expanded(rows: Ints, starts: Ints, counts: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Each row with each of its partners."""
    if not len(rows):
        return
    ends = np.cumsum(counts)
    total = int(ends[-1])
    for begin in range(0, total, BATCH_ROWS_MAX):
        stop = min(begin + BATCH_ROWS_MAX, total)
        first, last = np.searchsorted(ends, [begin, stop - 1], side="right")
        part = slice(int(first), int(last) + 1)
        skipped = np.maximum(begin - (ends[part] - counts[part]), 0)
        here = np.minimum(ends[part], stop) - np.maximum(ends[part] - counts[part], begin)
        offsets = np.arange(stop - begin) - np.repeat(np.cumsum(here) - here, here)
        yield np.repeat(rows[part], here), np.repeat(starts[part] + skipped, here) + offsets
