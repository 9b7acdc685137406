"""The timers of one domain: a head in Python dictionaries, over what is older.

Comes in: keys and times. Goes out: those that are due, in the order of their times. A key has
at most one timer for each time. While nothing is older, which is so until the first
snapshot on heap, nothing else is asked. Never looks at a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeAlias

from weir.state.declared.cursor import Key
from weir.state.timers.older import FAR_US, Older, SearchedHead

LISTED_KEYS_MAX = 8
"""Up to so many keys of one time are a list, which takes a third of a dictionary's memory."""

STALE_TIMES_MIN = 1_024
"""With fewer times that no timer has any more, the heap is left as it is."""

Bucket: TypeAlias = "list[Key] | dict[Key, None]"


class TimerQueue:
    """The timers of one domain, by time."""

    def __init__(self, older: Older | None = None, consolidate: Callable[[], None] = lambda: None) -> None:
        """`consolidate`: makes segments of all heads."""
        self._older = older
        self._consolidate = consolidate
        self._buckets: dict[int, Bucket] = {}
        self._gone: dict[int, set[Key]] = {}
        """Timers that were deleted and that something older may have."""
        self._times: list[int] = []
        """A heap. A time may be in it that has no bucket any more, and more than once."""
        self.count = 0
        """Timers in the head."""
        self.gone_count = 0

    @property
    def next_us(self) -> int | None:
        """No timer is earlier; that of this time may turn out to be deleted, where it is an older one."""
        first_us = self.head_us if self._older is None else min(self.head_us, self._older.next_us)
        return None if first_us == FAR_US else first_us

    @property
    def head_us(self) -> int:
        """The earliest time in the head. What is set while others fire, and is due before those, is there."""
        times, buckets = self._times, self._buckets
        while times and times[0] not in buckets:
            heapq.heappop(times)
        return times[0] if times else FAR_US

    def add(self, time_us: int, key: Key) -> None:
        """Nothing changes when it is there already."""
        if self._gone and key in (gone := self._gone.get(time_us, ())):
            gone.discard(key)  # type: ignore[union-attr]
            self.gone_count -= 1
        bucket = self._buckets.get(time_us)
        if bucket is None:
            self._buckets[time_us] = [key]
            heapq.heappush(self._times, time_us)
        elif key in bucket:
            return
        elif isinstance(bucket, dict):
            bucket[key] = None
        elif len(bucket) < LISTED_KEYS_MAX:
            bucket.append(key)
        else:
            self._buckets[time_us] = dict.fromkeys([*bucket, key])
        self.count += 1

    def discard(self, time_us: int, key: Key) -> None:
        """Nothing changes when it is not there. What is older is not looked for."""
        if self._older is not None and self._older.is_there and self._older.holds(time_us, key):
            gone = self._gone.setdefault(time_us, set())
            self.gone_count += key not in gone
            gone.add(key)
        bucket = self._buckets.get(time_us)
        if bucket is None or key not in bucket:
            return
        self.count -= 1
        if len(bucket) == 1:
            del self._buckets[time_us]
            self._tidy()
        elif isinstance(bucket, dict):
            del bucket[key]
        else:
            bucket.remove(key)

    def due(self, until_us: int, timers_max: int) -> list[int]:
        """The earliest times up to `until_us`, in order, of about so many timers; those stay until `pop`."""
        if self._older is not None and self._older.next_us <= until_us:
            until_us = self._fetch(until_us)
        times: list[int] = []
        found = 0
        while found < timers_max and (time_us := self.head_us) <= until_us:
            bucket = self._buckets[time_us]
            if times and found + len(bucket) > timers_max:
                break
            times.append(heapq.heappop(self._times))
            found += len(bucket)
        return times

    def keys(self, time_us: int) -> list[Key]:
        """Whose timers a time has, of those that were found to be due."""
        return list(self._buckets.get(time_us, ()))

    def pop(self, time_us: int) -> list[Key]:
        """The same, and they are gone."""
        keys = list(self._buckets.pop(time_us, ()))
        self.count -= len(keys)
        return keys

    # --- Sealing ---

    def seal(self) -> SearchedHead:
        """What was set and deleted, for good: a new head begins. It keeps what lies behind the cursor of what is
        older."""
        kept: dict[int, Bucket] = {}
        count = 0
        if self._older is not None and self._older.is_there:
            while (time_us := self.head_us) != FAR_US and self._older.is_behind(time_us):
                kept[heapq.heappop(self._times)] = bucket = self._buckets.pop(time_us)
                count += len(bucket)
        head = SearchedHead(self._buckets, self._gone, self._times)
        self._buckets, self._gone, self._times = kept, {}, list(kept)
        self.count, self.gone_count = count, 0
        return head

    def listed(self) -> list[tuple[int, Sequence[Key]]]:
        """The head, copied."""
        return [(time_us, list(bucket)) for time_us, bucket in self._buckets.items()]

    # --- Fetching ---

    def _fetch(self, until_us: int) -> int:
        """Take what is due from what is older, as far as the head's own timers have to wait for it; until when the
        head has everything."""
        older = self._older
        if older is None:
            return until_us
        while (next_us := older.next_us) <= until_us:
            head_us = self.head_us
            # Where a time has too many timers to be taken at once, those that were taken come first.
            if head_us < next_us or (head_us == next_us and older.is_behind(next_us)):
                break
            found = older.take(until_us)
            if found is None:
                self._consolidate()
                found = older.take(until_us, alone=True) or {}
            for time_us, keys in found.items():
                self._take_over(time_us, keys)
        return min(until_us, max(next_us - 1, self.head_us))

    def _take_over(self, time_us: int, keys: Sequence[Key]) -> None:
        if self._gone:
            gone = self._gone.get(time_us)
            if gone:
                keys = [key for key in keys if key not in gone]
        if not keys:
            return
        if time_us in self._buckets:
            for key in keys:
                self.add(time_us, key)
            return
        self._buckets[time_us] = list(keys) if len(keys) <= LISTED_KEYS_MAX else dict.fromkeys(keys)
        heapq.heappush(self._times, time_us)
        self.count += len(keys)

    def _tidy(self) -> None:
        # Timers that are put off again and again would leave a heap of times behind that nobody waits for.
        if len(self._times) > 2 * len(self._buckets) + STALE_TIMES_MIN:
            self._times = list(self._buckets)
            heapq.heapify(self._times)
