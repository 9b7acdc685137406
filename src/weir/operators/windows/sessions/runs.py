"""The sessions of one subtask that lie in segments, and the heads on their way there.

Comes in: stores that take no more rows, and how far event time has come. Goes out: the
pieces that are due, a bounded number at a time; and which pieces touch sessions elsewhere.
A piece that was taken out is marked, and its bucket is gone when all of it was. Emits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from weir.operators.windows.sessions.heads import Asked, RetiredHead, Touching
from weir.operators.windows.sessions.key_filter import KeyFilter, Sought
from weir.operators.windows.sessions.pieces import PieceLayout, SessionPieces
from weir.operators.windows.sessions.store import SessionStore, are_near, expanded
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.snapshot import FrozenSegments
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import RestoredState
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words
from weir.state.pieces import Pieces

HEADS_MAX = 4
"""Stores that are kept as they are, for as long as some of their sessions are open."""

DUE_ROWS_MAX = 32_768
"""Pieces that are taken out of segments at once."""

_SAMPLE_ROWS = 256
"""Rows that are looked at, for each part, to tell where keys are to be cut so that parts are about equal."""

_ORDER_MAX = (1 << 64) - 1


Sealing: TypeAlias = "Generator[None, None, bool]"
"""Heads are put into segments, in pieces; whether there was one."""


@dataclass(frozen=True)
class Step:
    """What is due, a part of it: the sessions that end behind one time and by another, of some keys."""

    after_us: int
    until_us: int
    pieces: SessionPieces | None
    low: int = 0
    high: int = _ORDER_MAX

    @property
    def has_all_keys(self) -> bool:
        return self.low == 0 and self.high == _ORDER_MAX


class SessionRuns:
    """All of them."""

    def __init__(self, layout: PieceLayout, budget: ShelfBudget, *, name: str, gap_us: int) -> None:
        self._layout = layout
        self._budget = budget
        self._gap_us = gap_us
        self._store = SegmentStore(layout.segments, budget, name=name, combine=layout.chained, shown=layout.chained)
        self._heads: list[RetiredHead] = []
        """The oldest first; those that are sealed before the others."""
        self._useless: list[object] = []
        """Of large heads that are no more: to free that much memory would hold up the stream."""
        self._filters: WeakKeyDictionary[Segment, KeyFilter] = WeakKeyDictionary()

    @property
    def is_empty(self) -> bool:
        return not self._heads and not len(self._store)

    # --- Sessions come ---

    @property
    def has_room(self) -> bool:
        """Whether another store may be kept as it is."""
        return len(self._heads) < HEADS_MAX

    def retire(self, store: SessionStore) -> None:
        """Take over a store that takes no more rows, as it is."""
        self._heads.append(RetiredHead(store, self._layout))

    def seal(self) -> None:
        """Stores become segments from now on; looks at none of their sessions."""
        for head in self._heads:
            if head.lot is None:
                head.seal(self._store)

    def adopt(self, *, wait: bool = False) -> bool:
        """Go over to the segments of heads that were sealed, where they are made; whether there were such."""
        adopted: list[RetiredHead] = []
        for head in self._heads:
            if head.lot is None or not (wait or head.lot.is_made):
                break  # which are made one after the other
            for run in head.lot.runs():
                for segment, rows in head.taken(run):
                    self._store.mark(segment, rows)
                    self._filters[segment] = head.filters[segment]
            adopted.append(head)
        if adopted:
            # Exactly these: the next may be made just now, and what was taken out of it is not marked yet.
            self._store.adopt(lots=len(adopted))
        self._let_go_of([*adopted, *self._empty_heads()])
        return bool(adopted)

    def tending(self, rows: int) -> Pieces:
        """Between batches, of so many rows the last: go on with what is to be merged, and free what is of no use."""
        yield from self._store.going_on(rows)
        self._let_go_of(self._empty_heads())
        if self._useless:
            self._useless.pop()

    def making(self) -> Pieces:
        """Make the segments of heads that were sealed."""
        yield from self._store.making()

    def _empty_heads(self) -> list[RetiredHead]:
        """Those that are not sealed, and of which nothing is left."""
        return [head for head in self._heads if head.lot is None and head.is_empty]

    def _let_go_of(self, heads: list[RetiredHead]) -> None:
        for head in heads:
            self._heads.remove(head)
            if self._budget.directory is None:  # else it is not much
                self._useless += head.parts()

    def take_over(self, pieces: SessionPieces) -> None:
        """Keep pieces out of a checkpoint."""
        segments = [self._store.new(bucket_us, rows) for bucket_us, rows in self._layout.rows_of(pieces)]
        self._store.add(segments)
        self._store.merge(segments)

    # --- Sessions are looked for ---

    def steps(self, after_us: int, until_us: int, seal: Callable[[], Sealing]) -> Iterator[Step | None]:
        """Take out all pieces that end in between, in the order of time, or, where too many for the memory end in one
        bucket, in that of their keys. The steps together are all sessions that end in between; None stands between
        pieces of the work for one. `seal`: puts all heads into segments, and says whether there was one; it may also
        be called between two steps."""
        while (bucket_us := self._first_due(after_us, until_us)) is not None:
            last_us = min(bucket_us + self._layout.bucket_us - 1, until_us)
            parts = self._parts(bucket_us, after_us, last_us)
            if len(parts) > 1 and (yield from seal()):
                continue  # else sessions of other keys could be put here, in a bucket that was passed, between parts
            heads = self._due_in_heads(after_us, last_us)
            for low, high in parts:
                found: list[SessionPieces] = []
                for segment in self._store.at(bucket_us):
                    if len(due := _due(segment, after_us, last_us, low, high)):
                        found.append(self._take(segment, due))
                        yield None
                found += heads  # which are younger
                yield Step(after_us, last_us, SessionPieces.joined(found) if found else None, low, high)
                heads = []
            after_us = last_us
            self._drop_if_taken(bucket_us)
            yield from self._budget.settling()
        heads = self._due_in_heads(after_us, until_us)
        yield Step(after_us, until_us, SessionPieces.joined(heads) if heads else None)

    def cuts(self, lasts: Ints, after_us: int, until_us: int) -> list[int]:
        """Times between which so many sessions end at most as are taken out at once, if they do not end together.
        `lasts`: of those elsewhere that end in between; what lies in segments is taken by its buckets."""
        found = np.concatenate([lasts, *(head.lasts_between(after_us, until_us) for head in self._heads)])
        at = np.arange(DUE_ROWS_MAX, len(found), DUE_ROWS_MAX)
        return np.unique(np.partition(found, at)[at]).tolist() if len(at) else []

    def touching(self, asked: Asked, taken_until_us: int) -> Generator[None, None, Touching]:
        """The pieces less than the gap away from sessions, looked for piece by piece. Those that end by
        `taken_until_us` are taken out, the oldest of a bucket first."""
        found = Touching()
        order = self._layout.order(asked.hashes)
        by_order = np.argsort(order)
        order = order[by_order]
        sought = Sought.of(order)
        earliest_us = int(asked.firsts.min()) - self._gap_us
        for segment in list(self._store.between(earliest_us + 1, END_US)):
            start = int(np.searchsorted(order, np.uint64(segment.bounds.low)))
            stop = int(np.searchsorted(order, np.uint64(segment.bounds.high), side="right"))
            if start == stop:
                continue
            likely = start + np.flatnonzero(self._filter(segment).may_have(sought.slice(start, stop)))
            if len(likely):
                self._touching_in(segment, asked, by_order[likely], order[likely], taken_until_us, found)
            yield
        for head in self._heads:  # which are younger
            head.touching(asked, self._gap_us, taken_until_us, found)
            yield
        yield from self._budget.settling()
        return found

    # --- Snapshots ---

    def freeze(self) -> FrozenSegments:
        useless, self._useless = self._useless, []
        return self._store.freeze(useless)

    def restore(self, restored: RestoredState) -> bool:
        """Whether the files of a checkpoint could be taken as they are."""
        if not self._store.restore(restored):
            return False
        for bucket_us in self._store:  # now, and not when the stream waits for the first session to end
            for segment in self._store.at(bucket_us):
                self._filter(segment)
            self._budget.settle()
        return True

    def settle(self) -> None:
        """Finish what is under way."""
        self._store.settle()

    # --- Helpers ---

    def _first_due(self, after_us: int, until_us: int) -> int | None:
        """The first bucket with pieces that end in between."""
        for bucket_us in sorted(bucket_us for bucket_us in self._store if bucket_us <= until_us):
            if any(len(_due(segment, after_us, until_us)) for segment in self._store.at(bucket_us)):
                return bucket_us
            self._drop_if_taken(bucket_us)
        return None

    def _parts(self, bucket_us: int, after_us: int, until_us: int) -> list[tuple[int, int]]:
        """Stretches of keys, each with about DUE_ROWS_MAX pieces at most that end in between."""
        segments = self._store.at(bucket_us)
        count = sum(len(_due(segment, after_us, until_us)) for segment in segments)
        parts = 1 if self._budget.directory is None else -(-count // DUE_ROWS_MAX)
        if parts <= 1:
            return [(0, _ORDER_MAX)]
        step = max(sum(map(len, segments)) // (parts * _SAMPLE_ROWS), 1)
        sample = np.sort(np.concatenate([segment.order[::step] for segment in segments]))
        bounds = np.unique(sample[np.arange(1, parts) * len(sample) // parts]).tolist()
        return list(zip([0, *(bound + 1 for bound in bounds)], [*bounds, _ORDER_MAX], strict=True))

    def _due_in_heads(self, after_us: int, until_us: int) -> list[SessionPieces]:
        found = (head.due(after_us, until_us) for head in self._heads)
        return [pieces for pieces in found if pieces is not None]

    def _touching_in(
        self, segment: Segment, asked: Asked, rows: Ints, order: Words, taken_until_us: int, found: Touching
    ) -> None:
        own = segment.order
        starts = np.searchsorted(own, order)
        counts = np.searchsorted(own, order, side="right") - starts
        which, at = expanded(starts, counts)
        if segment.marks.bits is not None:
            alive = ~segment.marks.bits[at]
            which, at = which[alive], at[alive]
        rows, lasts = rows[which], segment.times[at]
        firsts = self._layout.firsts_of(segment.batch)[at]
        near = np.flatnonzero(are_near(asked.firsts[rows], asked.lasts[rows], firsts, lasts, self._gap_us))
        if not len(near):
            return
        rows, at, lasts = rows[near], at[near], lasts[near]
        pieces = self._layout.pieces_of(take_rows(segment.batch, at))
        same = asked.number_of(pieces.keys) == asked.numbers[rows]  # a hash is not the key
        over = lasts <= taken_until_us
        found.goes_on(rows[same & ~over], lasts[same & ~over])
        if (same & over).any():
            found.pieces.append(self._take(segment, np.unique(at[same & over])))

    def _take(self, segment: Segment, rows: Ints) -> SessionPieces:
        self._store.mark(segment, rows)
        return self._layout.pieces_of(take_rows(segment.batch, rows))

    def _drop_if_taken(self, bucket_us: int) -> None:
        marks = [segment.marks.bits for segment in self._store.at(bucket_us)]
        is_sure = all(head.lot is None for head in self._heads)
        if is_sure and all(bits is not None and bits.all() for bits in marks):
            self._store.drop(bucket_us)

    def _filter(self, segment: Segment) -> KeyFilter:
        found = self._filters.get(segment)
        if found is None:
            found = self._filters[segment] = KeyFilter(segment.order)
        return found


def _due(segment: Segment, after_us: int, until_us: int, low: int = 0, high: int = _ORDER_MAX) -> Ints:
    """The rows that end in between, of some keys, and that were not taken."""
    if segment.first_us > until_us or segment.last_us <= after_us:
        return np.empty(0, np.int64)
    start, stop = 0, len(segment)
    if low > segment.bounds.low:
        start = int(np.searchsorted(segment.order, np.uint64(low)))
    if high < segment.bounds.high:
        stop = int(np.searchsorted(segment.order, np.uint64(high), side="right"))
    times, marks = segment.times[start:stop], segment.marks.bits
    due = (times > after_us) & (times <= until_us)
    if marks is not None:
        due &= ~marks[start:stop]
    return np.flatnonzero(due) + start
