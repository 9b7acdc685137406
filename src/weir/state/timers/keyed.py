"""The timers of one operator in one subtask, of both domains.

Comes in: keys and times, snapshots. Goes out: the two queues, and frozen timers. Freezing
hands over the heads; so does a head that has outgrown its share of `memory_max`. Between two
batches, or two groups of timers that fire, their rows become segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.state.backend import Backend
from weir.state.columns.segments.lot import Lot
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import FrozenState, RestoredState
from weir.state.place import StatePlace
from weir.state.timers.older import Older
from weir.state.timers.queue import TimerQueue
from weir.state.timers.rows import PIECE_ROWS, SealedTimers, log_layout, newest, sorted_log, standing
from weir.state.timers.snapshot import FrozenTimers, StoredTimers
from weir.state.timers.tables import DOMAINS, EVENT, PROCESSING, TIMERS, TimeDomain
from weir.state.values.conversion import to_list

HEAD_TIMER_BYTES = 400
"""What a timer takes in the head, at most mostly: its time, its key, a list of it, and a place in two tables."""

HEAD_SHARE = 0.5
"""Of what may lie in memory and in no file; the rest is for segments."""

SEALED_HEADS_MAX = 8
"""So many sealed heads are searched, then they are made into segments, though that holds up the stream."""


class KeyedTimers:
    """The timers of one operator in one subtask."""

    def __init__(
        self,
        backend: Backend,
        key_schema: pa.Schema,
        *,
        max_parallelism: int,
        own: range,
        place: StatePlace | None = None,
    ) -> None:
        self._backend = backend
        self._own = own
        self._layout = log_layout(key_schema, max_parallelism)
        self._budget = ShelfBudget(place or StatePlace())
        self._store = SegmentStore(self._layout, self._budget, name=TIMERS, combine=newest, combine_all=standing)
        self._older: dict[TimeDomain, Older] = {domain: Older(self._store, domain, backend.keys) for domain in DOMAINS}
        self.event = TimerQueue(self._older[EVENT], self._consolidate)
        self.processing = TimerQueue(self._older[PROCESSING], self._consolidate)
        self._sealed = 0
        """Heads of either domain that are no segments yet."""
        self._head_max: int | None = None
        if self._budget.directory is not None:
            self._head_max = int(self._budget.held_bytes_max * HEAD_SHARE) // HEAD_TIMER_BYTES

    def of(self, domain: TimeDomain) -> TimerQueue:
        return self.event if domain == EVENT else self.processing

    @property
    def count_max(self) -> int:
        """There are no more timers than that."""
        heads = sum(self.of(domain).count + self._older[domain].sealed_count for domain in DOMAINS)
        return heads + len(self._store)

    def settle(self, rows: int) -> None:
        """To be called between two batches, of so many rows the last: keep the heads within their share, and the log
        in shape."""
        if self._sealed > SEALED_HEADS_MAX or (self._head_max is not None and self._head_count > self._head_max):
            self._consolidate()
        if self._sealed:
            self._adopted(self._store.adopt())
        self._store.go_on(rows)

    def freeze(self) -> FrozenState:
        """Hands over the heads; nothing is copied but what is due and has not fired."""
        self._seal()
        return FrozenTimers(
            self._layout,
            self._store.freeze(),
            cursors={domain: older.cursor_us for domain, older in self._older.items()},
            behind={domain: self.of(domain).listed() for domain in DOMAINS},
            columns_of=self._backend.columns,
        )

    # --- Restoring ---

    def restore(self, restored: RestoredState) -> None:
        whole = restored.whole
        stored = None if whole is None else StoredTimers.of(whole)
        if stored is not None and self._store.restore(stored):
            for domain, older in self._older.items():
                older.restored(stored.cursors[domain])
            restored = stored
        for table in restored.tables():
            for batch in table.to_batches(max_chunksize=PIECE_ROWS):
                self._take_over(batch)
                self.settle(batch.num_rows)

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

    # --- Heads become segments ---

    @property
    def _head_count(self) -> int:
        return sum(queue.count + queue.gone_count for queue in (self.event, self.processing))

    def _consolidate(self) -> None:
        self._seal()
        self._adopted(self._store.adopt(wait=True))

    def _seal(self) -> None:
        heads = {domain: self.of(domain).seal() for domain in DOMAINS}
        if not any(head.buckets or head.gone for head in heads.values()):
            return
        for domain, head in heads.items():
            self._older[domain].seal(head)
        # The heaps of times go on changing: what makes the rows does not know of them.
        sealed = {domain: SealedTimers(head.buckets, head.gone) for domain, head in heads.items()}
        self._store.seal(partial(sorted_log, sealed, self._layout, self._backend.columns))
        self._sealed += 1

    def _adopted(self, lots: Sequence[Lot]) -> None:
        if lots:
            self._sealed -= len(lots)
            for older in self._older.values():
                older.adopted(len(lots))
