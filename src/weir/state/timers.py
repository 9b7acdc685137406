"""Timers: which key wants to be called at which time.

Comes in: keys and times, of event time and of processing time. Goes out: those that are
due, in the order of their times, and tables for snapshots (key group, keys, time, domain).
A key has at most one timer for each time of each domain. Never looks at a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.snapshot.parts import StatePart
from weir.state.backend import Backend
from weir.state.declared.cursor import Key
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState, RestoredState, StateWriter, write_tables
from weir.state.keys.codec import KeyCodec
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.values.conversion import to_list

TIMERS = "timers"
"""The name of the state."""

TimeDomain: TypeAlias = Literal["event", "processing"]
EVENT: TimeDomain = "event"
PROCESSING: TimeDomain = "processing"

PIECE_ROWS = 10_000
"""Timers that become rows, or the other way round, at once."""

LISTED_KEYS_MAX = 8
"""Up to so many keys of one time are a list, which takes a third of a dictionary's memory."""

STALE_TIMES_MIN = 1_024
"""With fewer times that no timer has any more, the heap is left as it is."""

Bucket: TypeAlias = "list[Key] | dict[Key, None]"


class TimerQueue:
    """The timers of one domain, by time."""

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}
        self._times: list[int] = []
        """A heap. A time may be in it that has no bucket any more, and more than once."""
        self._copied: set[int] = set()
        """Times whose buckets no frozen view has."""
        self._views = 0
        self.count = 0

    @property
    def next_us(self) -> int | None:
        """The earliest time."""
        while self._times and self._times[0] not in self._buckets:
            heapq.heappop(self._times)
        return self._times[0] if self._times else None

    def add(self, time_us: int, key: Key) -> None:
        """Nothing changes when it is there already."""
        bucket = self._buckets.get(time_us)
        if bucket is None:
            self._buckets[time_us] = [key]
            if self._views:
                self._copied.add(time_us)
            heapq.heappush(self._times, time_us)
        elif key in bucket:
            return
        elif isinstance(bucket, dict):
            self._own(time_us, bucket)[key] = None
        elif len(bucket) < LISTED_KEYS_MAX:
            self._own(time_us, bucket).append(key)
        else:
            self._buckets[time_us] = dict.fromkeys([*bucket, key])
            if self._views:
                self._copied.add(time_us)
        self.count += 1

    def discard(self, time_us: int, key: Key) -> None:
        """Nothing changes when it is not there."""
        bucket = self._buckets.get(time_us)
        if bucket is None or key not in bucket:
            return
        self.count -= 1
        if len(bucket) == 1:
            del self._buckets[time_us]
            self._tidy()
            return
        own = self._own(time_us, bucket)
        if isinstance(own, dict):
            del own[key]
        else:
            own.remove(key)

    def due(self, until_us: int, timers_max: int) -> list[int]:
        """The earliest times up to `until_us`, in order, of about so many timers; those stay until `pop`."""
        times: list[int] = []
        found = 0
        while found < timers_max and (time_us := self.next_us) is not None and time_us <= until_us:
            bucket = self._buckets[time_us]
            if times and found + len(bucket) > timers_max:
                break
            times.append(heapq.heappop(self._times))
            found += len(bucket)
        return times

    def keys(self, time_us: int) -> list[Key]:
        """Whose timers a time has."""
        return list(self._buckets.get(time_us, ()))

    def pop(self, time_us: int) -> list[Key]:
        """The same, and they are gone."""
        keys = list(self._buckets.pop(time_us, ()))
        self.count -= len(keys)
        return keys

    def freeze(self) -> dict[int, Bucket]:
        """All buckets as they are now: later changes are made to copies, until `release`."""
        self._views += 1
        self._copied = set()
        return dict(self._buckets)

    def release(self) -> None:
        self._views -= 1
        if not self._views:
            self._copied = set()

    def _own(self, time_us: int, bucket: Any) -> Any:
        """The bucket, for changes."""
        if self._views and time_us not in self._copied:
            bucket = self._buckets[time_us] = bucket.copy()
            self._copied.add(time_us)
        return bucket

    def _tidy(self) -> None:
        # Timers that are put off again and again would leave a heap of times behind that nobody waits for.
        if len(self._times) > 2 * len(self._buckets) + STALE_TIMES_MIN:
            self._times = list(self._buckets)
            heapq.heapify(self._times)


class KeyedTimers:
    """The timers of one operator in one subtask."""

    def __init__(self, backend: Backend, key_schema: pa.Schema, *, max_parallelism: int, own: range) -> None:
        self.event = TimerQueue()
        self.processing = TimerQueue()
        self._backend = backend
        self._schema = timer_schema(key_schema)
        self._max_parallelism = max_parallelism
        self._own = own

    def of(self, domain: TimeDomain) -> TimerQueue:
        return self.event if domain == EVENT else self.processing

    def freeze(self) -> FrozenState:
        """O(times), at a few nanoseconds each."""
        return _FrozenTimers(
            self._schema,
            {EVENT: self.event.freeze(), PROCESSING: self.processing.freeze()},
            columns_of=self._backend.columns,
            max_parallelism=self._max_parallelism,
            release=self._release,
        )

    def restore(self, restored: RestoredState) -> None:
        for table in restored.tables():
            for batch in table.to_batches(max_chunksize=PIECE_ROWS):
                self._take_over(batch)

    def _take_over(self, batch: pa.RecordBatch) -> None:
        groups = batch.column(0).to_numpy()
        if len(groups) and not (self._own.start <= groups.min() and groups.max() < self._own.stop):
            raise ProtocolViolation(
                f"timers were restored with key groups {groups.min()} to {groups.max()}, but this subtask owns"
                f" {self._own.start} to {self._own.stop - 1}"
            )
        keys = self._backend.keys(batch.columns[1:-2])
        times = to_list(batch.column(batch.num_columns - 2).view(pa.int64()))
        for key, time_us, domain in zip(keys, times, to_list(batch.column(batch.num_columns - 1))):
            self.of(domain).add(time_us, key)

    def _release(self) -> None:
        self.event.release()
        self.processing.release()


def timer_schema(key_schema: pa.Schema) -> pa.Schema:
    """The table of timers; a key column of the same name pushes `time` to `_time`."""
    taken = set(key_schema.names)
    return pa.schema(
        [
            pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False),
            *KeyCodec(key_schema).schema,
            pa.field(_free("time", taken), pa.timestamp("us"), nullable=False),
            pa.field(_free("domain", taken), pa.string(), nullable=False),
        ]
    )


def timer_verdict(key_schema: pa.Schema, stored: pa.Schema) -> str:
    """OperatorSpec.verdict for timers."""
    expected = timer_schema(key_schema)
    if stored.names == expected.names and stored.types == expected.types:
        return "same"
    return (
        f"its columns are {', '.join(stored.names)}, and the timers of this function have {', '.join(expected.names)}"
    )


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


class _FrozenTimers(FrozenState):
    def __init__(
        self,
        schema: pa.Schema,
        buckets: Mapping[TimeDomain, Mapping[int, Bucket]],
        *,
        columns_of: Callable[[Sequence[Key]], list[pa.Array]],
        max_parallelism: int,
        release: Callable[[], None],
    ) -> None:
        self._schema = schema
        self._buckets = buckets
        self._columns_of = columns_of
        self._max_parallelism = max_parallelism
        self._release = release

    def tables(self) -> Iterator[pa.Table]:
        return self._tables(lambda: None)

    def write(self, out: StateWriter) -> StatePart:
        return write_tables(self._tables(out.breathe), out)

    def export(self, out: StateWriter) -> StatePart:
        return self.write(out)

    def released(self) -> None:
        self._release()

    def _tables(self, breathe: Callable[[], None]) -> Iterator[pa.Table]:
        made = False
        for domain, buckets in self._buckets.items():
            for times, keys in _in_pieces(buckets):
                yield self._table(domain, times, keys)
                made = True
                breathe()
        if not made:
            yield self._schema.empty_table()

    def _table(self, domain: TimeDomain, times: list[int], keys: list[Key]) -> pa.Table:
        """Sorted by key group."""
        columns = self._columns_of(keys)
        groups = key_groups(hash_keys(columns), self._max_parallelism)
        order = pa.array(np.argsort(groups, kind="stable"))
        instants = pa.array(times, pa.int64()).view(pa.timestamp("us"))
        arrays = [pa.array(groups), *columns, instants, pa.repeat(pa.scalar(domain), len(keys))]
        return pa.table([array.take(order) for array in arrays], schema=self._schema)


def _in_pieces(buckets: Mapping[int, Bucket]) -> Iterator[tuple[list[int], list[Key]]]:
    times: list[int] = []
    keys: list[Key] = []
    for time_us, bucket in buckets.items():
        listed = list(bucket)
        for start in range(0, len(listed), PIECE_ROWS):
            some = listed[start : start + PIECE_ROWS]
            keys += some
            times += [time_us] * len(some)
            if len(keys) >= PIECE_ROWS:
                yield times, keys
                times, keys = [], []
    if keys:
        yield times, keys
