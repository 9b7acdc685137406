"""The panes of one subtask, in memory or on disk: those that change, over segments of what they were.

Comes in: rows or accumulators with the pane of each. Goes out: sorted rows of accumulators,
the oldest first, for whoever merges them into windows; and frozen states. A snapshot seals
the panes that changed without a look at them; so does a head that takes too much memory. What
was sealed is looked at where it lies, until its segments are made. Behind their time panes go
by whole segments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.base import Course, OperatorContext
from weir.operators.windows.event_time import TimeWindows
from weir.operators.windows.panes import PaneStore
from weir.operators.windows.partials import STRETCH_PANES, Partials, by_bucket, is_shared, shared_bucket, sorted_rows
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.grouping import at_orders, together
from weir.state.columns.segments.lot import Lot
from weir.state.columns.segments.rows import Mask, SegmentLayout, SortedRows
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import FrozenState, RestoredState
from weir.state.keys.xxhash64 import Ints, Words
from weir.state.pieces import Pieces

HEAD_SLOTS_MAX = 131_072
"""On disk, keys in panes that are in memory at most: to sort them holds up the stream."""

SHARED_ROWS_MAX = 262_144
"""A bucket that is shared takes no more panes with so many rows: those that come then have buckets of their own."""

SEALED_HEADS_MAX = 8
"""Where snapshots are given up before they are written, so many heads are kept whose segments nobody has made."""

Rows = Callable[[], SortedRows]


class KeptPanes:
    """All panes that some window still needs."""

    def __init__(
        self,
        layout: AggregateLayout,
        stored: pa.Schema,
        windows: TimeWindows,
        *,
        context: OperatorContext,
        state: str,
        time: str,
    ) -> None:
        """`stored`: the schema of the state table; `time`: its column with the pane."""
        self._layout = layout
        self._context = context
        self._step_us = windows.step_us
        self._stretch_us = STRETCH_PANES * windows.pane_us_max
        self._partials = Partials(layout, context)
        self.segments = SegmentLayout(
            layout.combined,
            stored,
            max_parallelism=context.max_parallelism,
            by_time=True,
            time=time,
            rules=self._partials.rules,
        )
        self._budget = ShelfBudget(context.place)
        self._store = SegmentStore(
            self.segments,
            self._budget,
            name=state,
            combine=self._without_gone,
            shown=lambda rows: Partials(layout, context).combined(rows),
        )
        self.head = self._new_head()
        """Takes rows; `tending` and `freeze` may put another in its place."""
        self._heads: list[tuple[Lot, PaneStore]] = []
        """Those that were sealed, and whose segments are not adopted yet; the oldest first."""
        self._sealed: Ints = np.empty(0, np.int64)
        """The panes that have rows elsewhere than in the head, in order."""
        self._own: set[int] = set()
        """Those of them that have a bucket of their own; what they had before is in one that is shared."""

    def _new_head(self, room: int = 0) -> PaneStore:
        return PaneStore(self._layout, self._context, self._step_us, room=room)

    @property
    def panes(self) -> Ints:
        """All panes, in order."""
        return np.union1d(self.head.panes, self._sealed) if len(self._sealed) else self.head.panes

    # --- Rows come and go ---

    def tending(self, rows: int) -> Course:
        """So many rows have come: keep memory within its bounds, and go on with what is due."""
        self._adopt()
        yield from self._store.going_on(rows)
        if self._budget.directory is not None and self._is_full():
            self._seal()
            yield from self._store.making()
            self._adopt(wait=True)
            yield from self._store.relaxing()
        return None

    def _is_full(self) -> bool:
        return len(self.head) > HEAD_SLOTS_MAX or 2 * self.head.size_bytes > self._budget.held_bytes_max

    def drop(self, panes: Ints) -> None:
        """Forget panes: no earlier ones are needed any more."""
        if not len(panes):
            return
        self.head.drop(np.array([pane_us for pane_us in panes.tolist() if self.head.holds(pane_us)], np.int64))
        if not len(self._sealed):
            return
        since_us = int(panes.max()) + 1
        self._sealed = self._sealed[self._sealed >= since_us]
        self._own = {pane_us for pane_us in self._own if pane_us >= since_us}
        self._store.since_us = max(self._store.since_us, since_us)
        self._store.drop_before(since_us)

    # --- Rows are looked at ---

    def are_sealed(self, starts: Ints, ends: Ints) -> Mask:
        """Which windows have panes that are not in the head alone."""
        inside: Mask = np.searchsorted(self._sealed, ends) > np.searchsorted(self._sealed, starts)
        return inside

    def between(self, first_us: int, end_us: int, wanted: Words | None = None) -> list[Rows]:
        """The rows of panes of this time, and of some others, the oldest first. `wanted`: only of these orders."""
        self._adopt()
        found: list[Rows] = [segment.kept.rows for segment in self._store.between(first_us, end_us - 1)]
        for head in self._all_heads():
            panes = head.panes
            some = self._of_head(head, panes[(panes >= first_us) & (panes < end_us)])
            if some is not None:
                found.append(partial(_itself, some))
        if wanted is None:
            return found
        return [partial(_itself, at_orders(rows(), wanted)) for rows in found]

    def count_between(self, first_us: int, end_us: int) -> int:
        """About how many rows `between` gives."""
        return sum(map(len, self._all_heads())) + sum(map(len, self._store.between(first_us, end_us - 1)))

    def combined(self, rows: SortedRows) -> SortedRows:
        """One row for each key and time."""
        return self._partials.combined(rows)

    def values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The final values of rows."""
        return self._partials.values(batch)

    def relaxing(self) -> Pieces:
        """Nobody looks at rows just now: give memory back, in pieces."""
        yield from self._store.relaxing()

    def _adopt(self, *, wait: bool = False) -> None:
        """Go over to the segments of heads that were sealed, where they are made."""
        self._store.adopt(wait=wait)
        self._heads = [(lot, head) for lot, head in self._heads if not lot.is_adopted]

    def _all_heads(self) -> list[PaneStore]:
        return [*(head for _, head in self._heads), self.head]

    def _of_head(self, head: PaneStore, panes: Ints) -> SortedRows | None:
        found = [(group, slots) for group in head.groups if len(slots := group.slots_of(panes))]
        parts = [sorted_rows(group, slots, self.segments) for group, slots in found]
        return together(parts, self.segments) if parts else None

    # --- Snapshots ---

    def freeze(self) -> FrozenState:
        """All panes as they are now; copies nothing, and looks at no row."""
        self._adopt(wait=len(self._heads) >= SEALED_HEADS_MAX)
        self._seal()
        return self._store.freeze()

    def restore(self, state: RestoredState) -> bool:
        """Take over files as they are; False: they have to be read as tables."""
        if not self._store.restore(state):
            return False
        self._forget_gone()
        shared = [segment.times for bucket in self._store if is_shared(bucket) for segment in self._store.at(bucket)]
        self._own = {bucket for bucket in self._store if not is_shared(bucket)}
        self._sealed = np.unique(np.concatenate([np.array(list(self._own), np.int64), *shared]))
        return True

    def _forget_gone(self) -> None:
        """Rid segments of panes that are gone: behind a drain event time begins anew, and they may come again."""
        since_us = self._store.since_us
        while some := [b for b in self._store if any(s.first_us < since_us for s in self._store.at(b))]:
            for bucket_us in some:
                self._store.rewrite(bucket_us, lambda run: run.first_us < since_us)
            self._store.settle()
        self._store.since_us = NEVER_US

    def _seal(self) -> None:
        if not self.head.groups:
            return
        head, self.head = self.head, self._new_head(self.head.slots_of_largest)
        self._own.update(group.only_us for group in head.groups if group.only_us is not None)
        panes = head.panes
        self._own.update(panes[self._have_no_room(panes)].tolist())
        self._sealed = np.union1d(self._sealed, panes)
        make = partial(by_bucket, head, self.segments, own=frozenset(self._own), stretch_us=self._stretch_us)
        self._heads.append((self._store.seal(make), head))

    def _have_no_room(self, panes: Ints) -> Mask:
        """Which panes find the bucket full that they would share."""
        full = [b for b in self._store if is_shared(b) and sum(map(len, self._store.runs(b))) > SHARED_ROWS_MAX]
        found: Mask = np.isin(shared_bucket(panes, self._stretch_us), np.array(full, np.int64))
        return found

    def _without_gone(self, rows: SortedRows) -> SortedRows:
        """What becomes of rows that are merged."""
        alive = rows.times >= self._store.since_us
        return self._partials.combined(rows if alive.all() else rows.take(np.flatnonzero(alive)))


def _itself(rows: SortedRows) -> SortedRows:
    return rows
