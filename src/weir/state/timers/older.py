"""What one domain of timers remembers below its head: heads that were sealed, and segments.

Comes in: sealed heads, and the store of segments. Goes out: the timers that stand, in the order
of time. Up to its cursor everything has been handed out; what a segment still holds of that
counts no more. Of segments some rows are read ahead, as they are sorted; a sealed head is
searched as it was, until its rows are segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop

import pyarrow as pa

from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.store import SegmentStore
from weir.state.declared.cursor import Key
from weir.state.timers.reading import READ_ROWS, BucketReader, stretches
from weir.state.timers.rows import SealedTimers, begin_of, bucket_of, end_of, order_in, rank, time_at
from weir.state.timers.tables import DOMAINS, TimeDomain
from weir.state.values.conversion import to_list

ONE_TIME_MAX = 65_536
"""More timers of one time than that are not handed out together."""

FAR_US = 1 << 63
"""Behind all times."""

NOWHERE = begin_of(NEVER_US) - 1
"""The rank before all others."""


@dataclass
class SearchedHead(SealedTimers):
    """A sealed head whose rows are no segments yet. `times` is a heap, in which a time may be that has no
    timers, and more than once; it is the stream's thread's only."""

    times: list[int]

    @property
    def next_us(self) -> int:
        return self.times[0] if self.times else FAR_US

    def pop(self) -> int:
        """The earliest time; it is gone from the heap, as often as it was there."""
        time_us = heappop(self.times)
        while self.times and self.times[0] == time_us:
            heappop(self.times)
        return time_us


class Older:
    """The timers of one domain that are not in its head."""

    def __init__(
        self, store: SegmentStore, domain: TimeDomain, keys_of: Callable[[Sequence[pa.Array]], list[Key]]
    ) -> None:
        self._store = store
        self._domain = domain
        self._keys_of = keys_of
        self._heads: deque[SearchedHead] = deque()
        self._spans: dict[int, tuple[int, int]] = {}
        """By bucket that has segments: their first and last time."""
        self._prune_us = FAR_US
        """When a segment has been handed out as a whole."""
        self._cursor = NOWHERE
        self._read = NOWHERE
        self._ahead: deque[tuple[int, Key]] = deque()
        """What stands in segments behind the cursor, up to what was read."""
        self._unread_us = FAR_US
        """The time of the first row that was not read."""
        self.next_us = FAR_US
        """Nothing is due before."""
        self.is_there = False

    @property
    def cursor_us(self) -> int | None:
        """Up to here everything has been handed out, between two batches; None: nothing has."""
        return None if self._cursor == NOWHERE else time_at(self._cursor)

    @property
    def sealed_count(self) -> int:
        """Timers in sealed heads."""
        return sum(len(bucket) for head in self._heads for bucket in head.buckets.values())

    def is_behind(self, time_us: int) -> bool:
        """Whether timers of this time are the head's own, since the cursor has come to it."""
        return begin_of(time_us) <= self._cursor

    def holds(self, time_us: int, key: Key) -> bool:
        """Whether there may be such a timer."""
        if end_of(time_us) <= self._cursor:
            return False
        if any(key in head.buckets.get(time_us, ()) for head in self._heads):
            return True
        first_us, last_us = self._spans.get(bucket_of(time_us, self._domain), (FAR_US, NEVER_US))
        return first_us <= time_us <= last_us

    # --- What is there changes ---

    def seal(self, head: SearchedHead) -> None:
        """Keep a head, younger than what is there."""
        self._heads.append(head)
        self._look()

    def adopted(self, heads: int) -> None:
        """The rows of so many heads, the oldest, are segments now."""
        for _ in range(heads):
            self._heads.popleft()
        self._ahead.clear()
        self._read = self._cursor
        self._look_at_segments()
        self._prune()
        self._look()

    def restored(self, cursor_us: int | None) -> None:
        """The segments are those of a checkpoint."""
        self._cursor = self._read = NOWHERE if cursor_us is None else end_of(cursor_us)
        self._look_at_segments()
        self._prune()
        self._look()

    # --- What is due ---

    def take(self, until_us: int, *, alone: bool = False) -> Mapping[int, Sequence[Key]] | None:
        """Some timers that stand: all of the earliest times up to one that the cursor has come to then.

        None: a time has too many of them to be taken at once; `alone` says that no head has that time, so that they
        can be taken one part after the other.
        """
        self._read_ahead(until_us)
        end_us = min(until_us, self._unread_us - 1)
        if self._ahead and end_us < (first_us := self._ahead[0][0]) <= until_us:
            if not alone and not self.is_behind(first_us):
                return None
            found: dict[int, list[Key]] = {first_us: [key for _, key in self._ahead]}
            self._ahead.clear()
            self._cursor = self._read
        else:
            found = self._taken(end_us)
        self._prune()
        self._look()
        return found

    def _taken(self, end_us: int) -> dict[int, list[Key]]:
        """All up to a time, or up to an earlier one where sealed heads have many."""
        due: list[list[int]] = [[] for _ in self._heads]
        count = 0
        while self._heads:
            number, head = min(enumerate(self._heads), key=lambda of: of[1].next_us)
            if head.next_us > end_us:
                break
            time_us = head.pop()
            if time_us not in head.buckets:
                continue
            due[number].append(time_us)
            count += len(head.buckets[time_us])
            if count >= READ_ROWS:
                end_us = time_us
        found: dict[int, list[Key]] = {}
        while self._ahead and self._ahead[0][0] <= end_us:
            time_us, key = self._ahead.popleft()
            found.setdefault(time_us, []).append(key)
        for head, times in zip(self._heads, due):
            if head.gone:
                for time_us in found.keys() & head.gone.keys():
                    found[time_us] = [key for key in found[time_us] if key not in head.gone[time_us]]
            for time_us in times:
                found[time_us] = list(dict.fromkeys([*found.get(time_us, ()), *head.buckets[time_us]]))
        self._cursor = max(self._cursor, end_of(end_us))
        self._read = max(self._read, self._cursor)
        return found

    def _read_ahead(self, until_us: int) -> None:
        """So that all timers of the next time are known, unless they are too many."""
        while (
            self._unread_us <= until_us
            and len(self._ahead) < ONE_TIME_MAX
            and (not self._ahead or self._unread_us <= self._ahead[0][0])
        ):
            bucket_us, reader = self._reader()
            if reader.next_order is not None:  # else nothing of what was there is left, since it was merged
                rows, order = reader.read(READ_ROWS)
                self._ahead.extend(zip(to_list(pa.array(rows.times)), self._keys_of(rows.batch.columns[:-1])))
                self._read = rank(bucket_us, order)
            self._look_behind()

    # --- Looking ---

    def _reader(self) -> tuple[int, BucketReader]:
        """The first bucket that was not read to its end."""
        for bucket_us in sorted(self._spans):
            if end_of(self._spans[bucket_us][1]) > self._read:
                runs = [stretches(run) for run in self._store.runs(bucket_us)]
                reader = BucketReader(runs, order_in(bucket_us, self._read))
                if reader.next_order is not None:
                    return bucket_us, reader
        return 0, BucketReader((), -1)

    def _look_behind(self) -> None:
        bucket_us, reader = self._reader()
        order = reader.next_order
        self._unread_us = FAR_US if order is None else time_at(rank(bucket_us, order))

    def _look_at_segments(self) -> None:
        self._spans, self._prune_us = {}, FAR_US
        for bucket_us in self._store:
            if bucket_us & 1 == DOMAINS.index(self._domain):
                runs = self._store.runs(bucket_us)
                self._spans[bucket_us] = min(run.first_us for run in runs), max(run.last_us for run in runs)
                self._prune_us = min([self._prune_us, *(s.last_us for run in runs for s in run.segments)])
        self._look_behind()

    def _prune(self) -> None:
        """Forget the segments that have been handed out."""
        before_us = time_at(self._cursor + 1)
        if self._prune_us < before_us:
            for bucket_us, (first_us, _) in self._spans.items():
                if first_us < before_us:
                    self._store.prune(bucket_us, before_us)
            self._look_at_segments()

    def _look(self) -> None:
        in_segments = self._ahead[0][0] if self._ahead else self._unread_us
        self.next_us = min([in_segments, *(head.next_us for head in self._heads)])
        self.is_there = bool(self._heads or self._spans)
        if not self.is_there:
            self._cursor = self._read = NOWHERE
