"""Sorted runs of rows, and how rows of two runs find each other.

Comes in: batches of one side and one pane of time. Goes out: runs, sorted by hash and
then by time, and pairs of rows of two runs. A run's rows never change, so that a snapshot
may hold it as it is; runs are merged into larger ones, like in an LSM tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.joins.side import JoinSide, equal_keys, gathered
from weir.state.columns.rows import FrozenRun
from weir.state.keys.hashing import take_rows
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints, Words

TIME_BITS = 32
_TIME_MAX = (1 << TIME_BITS) - 1
_HASH = np.uint64(_TIME_MAX << TIME_BITS)
"""The bits of the order that are the key's; below are those of the time within the pane."""

_OTHER_NULLS = np.uint64(0x5555_5555 << TIME_BITS)
"""Keys with a null equal nothing: those of the left side are put where those of the right side are not, or else each
would be looked at with each."""

RATIO = 4
"""A run is at least so many times larger than the next, so that there are few of them."""


@dataclass
class SortedRun:
    """Rows of one pane, sorted."""

    order: Words
    """By what they are sorted: 32 bits of the key's hash, 32 bits of the time behind the start of the pane."""
    times: Ints
    batch: pa.RecordBatch
    pane_us: int
    settled: Mask | None = None
    """With an outer join: which rows need not come out by themselves any more."""
    first_us: int = field(init=False)
    last_us: int = field(init=False)
    frozen: FrozenRun | None = None
    """As it was at the last snapshot, while nothing has changed since."""

    def __post_init__(self) -> None:
        self.first_us = int(self.times.min())
        self.last_us = int(self.times.max())

    def __len__(self) -> int:
        return len(self.order)

    def settle(self, rows: Ints) -> None:
        if self.settled is not None and not self.settled[rows].all():
            self.settled[rows] = True
            self.frozen = None


@dataclass(frozen=True)
class RunLayout:
    """How the runs of one side are made. `shift`: how many bits of the time in a pane the order leaves out."""

    side: JoinSide
    shift: int
    is_left: bool
    settles: bool

    @staticmethod
    def of(side: JoinSide, pane_us: int, *, is_left: bool, settles: bool) -> RunLayout:
        return RunLayout(side, max(0, (pane_us - 1).bit_length() - TIME_BITS), is_left, settles)

    def run(self, batch: pa.RecordBatch, times: Ints, *, pane_us: int, settled: Mask | None = None) -> SortedRun:
        """A run of the rows of one pane."""
        hashes = self.side.hashes(batch) & _HASH
        whole = self.side.whole_keys(batch) if self.is_left else None
        if whole is not None:
            hashes ^= np.where(whole, np.uint64(0), _OTHER_NULLS)
        unsorted = hashes | ((times - pane_us) >> self.shift).view(np.uint64)
        if self.settles and settled is None:
            settled = np.zeros(len(times), np.bool_)
        return _sorted(unsorted, times, batch, pane_us=pane_us, settled=settled)


def merge_runs(runs: Sequence[SortedRun]) -> SortedRun:
    """One run of the rows of several, all of one pane."""
    order = np.concatenate([run.order for run in runs])
    times = np.concatenate([run.times for run in runs])
    flags = [run.settled for run in runs if run.settled is not None]
    settled = np.concatenate(flags) if flags else None
    return _sorted(order, times, gathered([run.batch for run in runs]), pane_us=runs[0].pane_us, settled=settled)


def _sorted(order: Words, times: Ints, batch: pa.RecordBatch, *, pane_us: int, settled: Mask | None) -> SortedRun:
    rows = np.argsort(order)
    flags = None if settled is None else settled[rows]
    return SortedRun(order[rows], times[rows], take_rows(batch, rows), pane_us, flags)


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
    """Rows of two runs that belong together, side by side."""

    rows: Ints
    """In the run that asked."""
    partners: Ints
    """In the other."""
    batch: pa.RecordBatch
    """The rows of the one."""
    other: pa.RecordBatch
    """The rows of the other."""


def matches(
    run: SortedRun, side: JoinSide, other: SortedRun, of: RunLayout, *, within: Between | None
) -> Iterator[Pairs]:
    """The pairs of a run's rows with those of another run, in pieces of at most BATCH_ROWS_MAX."""
    if within is None:
        found = _find(other.order, run.order & _HASH, run.order | np.uint64(_TIME_MAX))
    else:
        found = _find_between(run, other, of.shift, within)
    for rows, partners in _expanded(*found):
        if within is not None and of.shift:
            ahead = other.times[partners] - run.times[rows]
            exact = np.flatnonzero((ahead >= within.lower_us) & (ahead <= within.upper_us))
            rows, partners = rows[exact], partners[exact]
        batch, mates = take_rows(run.batch, rows), take_rows(other.batch, partners)
        # The order has only half of the hash, and a hash is not the key.
        equal = equal_keys(side.key_columns(batch), of.side.key_columns(mates))
        if equal is not None:
            kept = np.flatnonzero(equal)
            rows, partners = rows[kept], partners[kept]
            batch, mates = take_rows(batch, kept), take_rows(mates, kept)
        if len(rows):
            yield Pairs(rows, partners, batch, mates)


def _find_between(run: SortedRun, other: SortedRun, shift: int, within: Between) -> tuple[Ints, Ints, Ints]:
    lowest = run.times + (within.lower_us - other.pane_us)
    highest = run.times + (within.upper_us - other.pane_us)
    if run.first_us + within.upper_us < other.first_us or run.last_us + within.lower_us > other.last_us:
        rows = np.flatnonzero((highest >= other.first_us - other.pane_us) & (lowest <= other.last_us - other.pane_us))
        hashes, lowest, highest = run.order[rows] & _HASH, lowest[rows], highest[rows]
    else:
        rows, hashes = None, run.order & _HASH
    first = (np.maximum(lowest, 0) >> shift).view(np.uint64)
    last = np.minimum(highest >> shift, _TIME_MAX).view(np.uint64)
    found, starts, counts = _find(other.order, hashes | first, hashes | last)
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
