"""Which rows of a piece make up which windows.

Comes in: the key and the time of each row. Goes out: windows with their rows, in the order
in which they came. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.operators.windows.event_time import TimeWindows
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.keys.xxhash64 import Ints

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Assigned:
    """Rows by window: those of window i are rows[bounds[i]:bounds[i + 1]]."""

    rows: Ints
    bounds: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, rows: Ints, changes: Mask, starts: Ints, ends: Ints) -> Assigned:
        """`changes`: whether a row is of another window than the one before; starts and ends are by row."""
        heads = np.flatnonzero(np.concatenate(([True], changes))) if len(rows) else np.empty(0, np.int64)
        return cls(rows, np.append(heads, len(rows)), starts[heads], ends[heads])

    def counted(self, mask: Mask) -> Ints:
        """By window: how many of its rows are in a mask over all rows."""
        sums: Ints = np.concatenate(([0], np.cumsum(mask[self.rows])))
        return sums[self.bounds[1:]] - sums[self.bounds[:-1]]

    def only(self, chosen: Mask, among: Mask | None = None) -> Assigned:
        """These windows; `among`: with these rows only."""
        if among is None and chosen.all():
            return self
        of_row = np.repeat(np.arange(len(chosen)), np.diff(self.bounds))
        kept = chosen[of_row] if among is None else chosen[of_row] & among[self.rows]
        counts = np.bincount(of_row[kept], minlength=len(chosen))[chosen]
        bounds = np.concatenate(([0], np.cumsum(counts)))
        return Assigned(self.rows[kept], bounds, self.starts[chosen], self.ends[chosen])

    def between(self, first: int, stop: int) -> Assigned:
        """Windows by their numbers."""
        low, high = int(self.bounds[first]), int(self.bounds[stop])
        bounds = self.bounds[first : stop + 1] - low
        return Assigned(self.rows[low:high], bounds, self.starts[first:stop], self.ends[first:stop])


def by_time(windows: TimeWindows, times: Ints, slots: Ints, *, after_us: int, until_us: int) -> Assigned:
    """The windows that end behind `after_us` and not behind `until_us`. Slots ascend."""
    copies: list[tuple[Ints, Ints]] = []
    for start in windows.each_start(windows.panes(times)):
        ends = windows.ends(start)
        inside = np.flatnonzero((times < ends) & (ends > after_us) & (ends <= until_us))
        copies.append((inside, start[inside]))
    rows, starts = (np.concatenate(column) for column in zip(*copies, strict=True))
    if len(copies) > 1 or (len(starts) and int(starts.min()) != int(starts.max())):
        order = np.lexsort((rows, starts))
        rows, starts = rows[order], starts[order]
    keys = slots[rows]
    changes = (keys[1:] != keys[:-1]) | (starts[1:] != starts[:-1])
    return Assigned.of(rows, changes, starts, windows.ends(starts))


def by_gap(times: Ints, slots: Ints, *, gap_us: int) -> Assigned:
    """Sessions."""
    order = np.lexsort((times, slots))
    sorted_slots, sorted_times = slots[order], times[order]
    cuts = (sorted_slots[1:] != sorted_slots[:-1]) | (sorted_times[1:] - sorted_times[:-1] >= gap_us)
    groups = np.zeros(len(order), np.int64)
    np.cumsum(cuts, out=groups[1:])
    heads = np.flatnonzero(np.concatenate(([True], cuts)))
    tails = np.append(heads[1:], len(order)) - 1
    starts, ends = sorted_times[heads], sorted_times[tails] + gap_us
    again = np.lexsort((order, groups))
    groups = groups[again]
    return Assigned.of(order[again], groups[1:] != groups[:-1], starts[groups], ends[groups])


def by_key(slots: Ints) -> Assigned:
    """One window for each key. Slots ascend."""
    count = len(slots)
    return Assigned.of(
        np.arange(count), slots[1:] != slots[:-1], np.full(count, NEVER_US), np.full(count, END_US, np.int64)
    )
