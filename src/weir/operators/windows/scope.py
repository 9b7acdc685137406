"""Which of the rows that wait have to be looked at: for windows that end, and for windows that rows came to.

Comes in: how far event time has come, and rows. Goes out: pieces with all rows of those
windows, and which windows these are. One class for each sort of windows. Emits nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from weir.operators.windows.assigned import Assigned, by_gap, by_key, by_time
from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.ended import ended_keys
from weir.operators.windows.event_time import AlignedWindows, GlobalWindows, SessionWindows, TimeWindows
from weir.operators.windows.pieces import Piece
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.keys.xxhash64 import Ints, Words

BUCKET_US_MIN = 1_000_000
"""Rows of shorter stretches of time lie together: a batch may have rows of thousands."""

BUCKETS_PER_GAP = 16
"""So many buckets are as long as the gap of sessions: a few of them have the rows whose sessions may just be over."""


class Scope(ABC):
    """How windows of one sort are found among the rows. `buffer` is settled before it is read."""

    forgets_rows = True
    """Whether rows of windows that are over are forgotten one by one, rather than with their buckets."""

    def __init__(self, buffer: RowBuffer) -> None:
        self.buffer = buffer

    @abstractmethod
    def assigned(self, piece: Piece, *, after_us: int = NEVER_US, until_us: int = END_US) -> Assigned:
        """The windows of a piece; those that end behind `after_us`, and not behind `until_us`, at least."""

    @abstractmethod
    def due(self, after_us: int, until_us: int) -> Iterator[Piece]:
        """All rows of the windows that end behind `after_us` and not behind `until_us`; maybe others, too."""

    @abstractmethod
    def of_rows(self, orders: Words, times: Ints) -> Iterator[Piece]:
        """All rows of the windows that rows of these keys and times are in."""

    def over(self, times: Ints, limit_us: int) -> Ints | None:
        """Which of some rows, by their times, can be in no window that ends behind the limit; None: none. They may
        be in one nevertheless if others are among the rows that wait: where `forgets_rows`."""
        return None

    def expire(self, after_us: int, limit_us: int) -> None:
        """Forget rows of windows that end behind `after_us` and not behind the limit, and of no others."""
        for piece in self.due(after_us, limit_us):
            assigned = self.assigned(piece)
            over = assigned.only(assigned.ends <= limit_us).rows
            if len(over):
                self.buffer.forget(piece, over)


class TimeScope(Scope):
    """Windows whose bounds do not depend on the rows."""

    forgets_rows = False

    def __init__(self, buffer: RowBuffer, windows: TimeWindows) -> None:
        super().__init__(buffer)
        self._windows = windows

    @staticmethod
    def buckets(windows: TimeWindows) -> TimeWindows:
        """By which rows lie: panes, or several of them."""
        if not isinstance(windows, AlignedWindows):
            return windows
        bucket_us = -(-BUCKET_US_MIN // windows.pane_us) * windows.pane_us
        return AlignedWindows(bucket_us, bucket_us, windows.offset_us)

    def assigned(self, piece: Piece, *, after_us: int = NEVER_US, until_us: int = END_US) -> Assigned:
        times = self.buffer.times(piece.rows)
        return by_time(self._windows, times, piece.slots, after_us=after_us, until_us=until_us)

    def due(self, after_us: int, until_us: int) -> Iterator[Piece]:
        # A window ends where a pane does.
        if NEVER_US < until_us < END_US and self._windows.pane_of(until_us) <= after_us:
            return
        self.buffer.settle()
        first_us = NEVER_US if after_us == NEVER_US else after_us - self._windows.span_us
        yield from self.buffer.between(first_us, until_us)

    def of_rows(self, orders: Words, times: Ints) -> Iterator[Piece]:
        span_us = self._windows.span_us
        self.buffer.settle()
        yield from self.buffer.of_keys(orders, int(times.min()) - span_us, int(times.max()) + span_us)

    def over(self, times: Ints, limit_us: int) -> Ints | None:
        if int(times.min()) > limit_us:
            return None
        rows = np.flatnonzero(self._windows.last_ends(self._windows.panes(times)) <= limit_us)
        return rows if len(rows) else None

    def expire(self, after_us: int, limit_us: int) -> None:
        if NEVER_US < limit_us < END_US and self._windows.pane_of(limit_us) <= after_us:
            return
        self.buffer.settle()
        held = np.array(sorted(self.buffer.store), np.int64)
        if limit_us == END_US:
            self.buffer.drop(held.tolist())
            return
        first, last = self._last_ends(held), self._last_ends(self._last_times(held))
        self.buffer.drop(held[last <= limit_us].tolist())
        for bucket_us in held[(first <= limit_us) & (last > limit_us)].tolist():
            for piece in self.buffer.between(bucket_us, bucket_us):
                rows = self.over(self.buffer.times(piece.rows), limit_us)
                if rows is not None:
                    self.buffer.forget(piece, rows)

    def _last_ends(self, times: Ints) -> Ints:
        return self._windows.last_ends(self._windows.panes(times)) if len(times) else times

    def _last_times(self, buckets: Ints) -> Ints:
        own = self.buffer.layout.buckets
        return buckets + own.pane_us_max - 1 if isinstance(own, AlignedWindows) else buckets


class SessionScope(Scope):
    """Sessions: known by their rows only."""

    def __init__(self, buffer: RowBuffer, windows: SessionWindows) -> None:
        super().__init__(buffer)
        self._gap_us = windows.gap_us

    @staticmethod
    def buckets(windows: SessionWindows) -> TimeWindows:
        """By which rows lie."""
        bucket_us = max(windows.gap_us // BUCKETS_PER_GAP, BUCKET_US_MIN)
        return AlignedWindows(bucket_us, bucket_us)

    def assigned(self, piece: Piece, *, after_us: int = NEVER_US, until_us: int = END_US) -> Assigned:
        return by_gap(self.buffer.times(piece.rows), piece.slots, gap_us=self._gap_us)

    def due(self, after_us: int, until_us: int) -> Iterator[Piece]:
        self.buffer.settle()
        if until_us == END_US:
            yield from self.buffer.all()
            return
        first_us = NEVER_US if after_us == NEVER_US else after_us - self._gap_us + 1
        orders = ended_keys(self.buffer, first_us, until_us - self._gap_us, gap_us=self._gap_us)
        if len(orders):
            # A row behind that, and what follows on it, is of no session that ends by then.
            yield from self.buffer.of_keys(orders, NEVER_US, until_us)

    def of_rows(self, orders: Words, times: Ints) -> Iterator[Piece]:
        self.buffer.settle()
        yield from self.buffer.of_keys(orders)

    def over(self, times: Ints, limit_us: int) -> Ints | None:
        rows = np.flatnonzero(times + self._gap_us <= limit_us)
        return rows if len(rows) else None


class GlobalScope(Scope):
    """One window for each key, which ends with the input."""

    def assigned(self, piece: Piece, *, after_us: int = NEVER_US, until_us: int = END_US) -> Assigned:
        return by_key(piece.slots)

    def due(self, after_us: int, until_us: int) -> Iterator[Piece]:
        if until_us == END_US:
            self.buffer.settle()
            yield from self.buffer.all()

    def of_rows(self, orders: Words, times: Ints) -> Iterator[Piece]:
        self.buffer.settle()
        yield from self.buffer.of_keys(orders)


def scope_of(windows: TimeWindows | SessionWindows | GlobalWindows, buffer: RowBuffer) -> Scope:
    """That of windows."""
    if isinstance(windows, TimeWindows):
        return TimeScope(buffer, windows)
    if isinstance(windows, SessionWindows):
        return SessionScope(buffer, windows)
    return GlobalScope(buffer)
