"""A table that changes, by key and event time: its versions, as far as they are needed.

Comes in: rows, each a new version of its key's row from its time on. Goes out: for keys
and times, the newest version at or before. Versions are kept in segments, sorted by key
and time; what a newer version has replaced, behind the watermark, is dropped as they merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.base import OperatorContext, Restored
from weir.operators.joins.panes import check_restored
from weir.operators.joins.side import JoinSide, equal_keys
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, places
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words

ALL_TIME = 0
"""The one bucket: a version holds until a newer one comes, however long that takes."""


@dataclass(frozen=True)
class Found:
    """Versions of one run, for some of the rows that asked."""

    rows: Ints
    versions: pa.RecordBatch


class Versions:
    """All versions of one subtask."""

    store: SegmentStore

    def __init__(self, side: JoinSide) -> None:
        self.side = side
        self._watermark_us = NEVER_US

    def open(
        self, state: str, context: OperatorContext, *, restored: Restored | None, budget: ShelfBudget, watermark_us: int
    ) -> None:
        """Get ready, with what a checkpoint holds."""
        self._watermark_us = watermark_us
        self._max_parallelism = context.max_parallelism
        self._layout = SegmentLayout(
            self.side.schema, self.side.stored, max_parallelism=context.max_parallelism, by_time=True
        )
        self.store = SegmentStore(self._layout, budget, name=state, combine=self._without_replaced)
        if restored is None or state not in restored.states or self.store.restore(restored.states[state]):
            return
        for table in restored.tables(state):  # which come in the order of age
            check_restored(table.schema, self.side.stored, context)
            for batch in table.to_batches():
                self.store.merge(
                    self.add(batch.select(self.side.schema.names).cast(self.side.schema), watermark_us=watermark_us)
                )
        self.store.settle()

    def add(self, batch: pa.RecordBatch, *, watermark_us: int) -> Sequence[Segment]:
        """Take new versions; the segments that they are in, which are to be merged. Rows with a null in their key are
        left out: they are never asked for."""
        self._watermark_us = self.store.time_us = watermark_us
        whole = self.side.whole_keys(batch)
        if whole is not None:
            batch = take_rows(batch, np.flatnonzero(whole))
        if not batch.num_rows:
            return ()
        order = places(self.side.hashes(batch), self._max_parallelism)
        rows = self._layout.sorted(order, self.side.times(batch), batch)
        new = self.store.new(ALL_TIME, self._without_replaced(rows))
        self.store.add([new])
        return (new,)

    def drop_replaced(self, watermark_us: int) -> None:
        """Drop what newer versions have replaced in runs that were made before the watermark came by."""
        self._watermark_us = self.store.time_us = watermark_us
        # Those whose rows were mostly not behind the watermark then.
        self.store.rewrite(
            ALL_TIME, lambda run: (run.first_us + run.last_us) // 2 > run.made_us and run.last_us <= watermark_us
        )

    def find(self, batch: pa.RecordBatch, side: JoinSide, times: Ints) -> Iterator[Found | None]:
        """The newest version, at or before its time, of each row's key; rows without one are in none of the answers.
        None stands between pieces of the work."""
        order = places(side.hashes(batch), self._max_parallelism)
        by_order = np.argsort(order)
        order = order[by_order]
        best_us = np.full(len(times), NEVER_US, np.int64)
        chosen = np.full(len(times), -1, np.int64)
        positions = np.zeros(len(times), np.int64)
        segments = self.store.at(ALL_TIME)
        for number, segment in enumerate(segments):
            # A large run is many segments, and each has the versions of few keys.
            start = int(np.searchsorted(order, np.uint64(segment.bounds.low)))
            stop = int(np.searchsorted(order, np.uint64(segment.bounds.high), side="right"))
            if start == stop:
                continue
            rows, found = self._newest(segment, batch, side, by_order[start:stop], order[start:stop], times)
            found_us = segment.times[found]
            # Of equal times what came last holds.
            better = np.flatnonzero(found_us >= best_us[rows])
            rows, found = rows[better], found[better]
            best_us[rows], chosen[rows], positions[rows] = found_us[better], number, found
            yield None
        for number, segment in enumerate(segments):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                yield Found(rows, take_rows(segment.batch, positions[rows]))

    def _without_replaced(self, rows: SortedRows) -> SortedRows:
        """Without the versions that newer ones have replaced for every row yet to come."""
        followed = (rows.order[1:] == rows.order[:-1]) & (rows.times[1:] <= self._watermark_us)
        candidates = np.flatnonzero(followed)
        if not len(candidates):
            return rows
        keys = [self.side.key_columns(take_rows(rows.batch, candidates + shift)) for shift in (0, 1)]
        equal = equal_keys(keys[0], keys[1])
        kept = np.ones(len(rows), np.bool_)
        kept[candidates if equal is None else candidates[equal]] = False
        return rows.take(np.flatnonzero(kept))

    def _newest(
        self, segment: Segment, batch: pa.RecordBatch, side: JoinSide, rows: Ints, order: Words, times: Ints
    ) -> tuple[Ints, Ints]:
        """Of some rows, in their order, those that find a version in a segment, and where."""
        versions = segment.kept.rows()
        starts = np.searchsorted(versions.order, order)
        known = np.flatnonzero(versions.order.take(starts, mode="clip") == order)
        rows, starts = rows[known], starts[known]
        stops = np.searchsorted(versions.order, order[known], side="right")
        positions = _last_until(versions.times, starts, stops, times[rows]) - 1
        return self._of_same_key(versions, batch, side, rows=rows, starts=starts, positions=positions)

    def _of_same_key(
        self, versions: SortedRows, batch: pa.RecordBatch, side: JoinSide, *, rows: Ints, starts: Ints, positions: Ints
    ) -> tuple[Ints, Ints]:
        """Move on to older versions where another key has the same hash."""
        done: list[tuple[Ints, Ints]] = [(rows[:0], rows[:0])]
        while True:
            inside = np.flatnonzero(positions >= starts)
            rows, starts, positions = rows[inside], starts[inside], positions[inside]
            if not len(rows):
                break
            theirs = self.side.key_columns(take_rows(versions.batch, positions))
            equal = equal_keys(side.key_columns(take_rows(batch, rows)), theirs)
            if equal is None:
                done.append((rows, positions))
                break
            done.append((rows[equal], positions[equal]))
            rows, starts, positions = rows[~equal], starts[~equal], positions[~equal] - 1
        return np.concatenate([found for found, _ in done]), np.concatenate([place for _, place in done])


def _last_until(times: Ints, starts: Ints, stops: Ints, until: Ints) -> Ints:
    """For each stretch of ascending times: where the first is that is later than `until`."""
    first, stop = starts.copy(), stops.copy()
    for _ in range(int((stop - first).max(initial=0)).bit_length()):
        middle = (first + stop) >> 1
        inside = first < stop
        earlier = inside & (times.take(middle, mode="clip") <= until)
        first = np.where(earlier, middle + 1, first)
        stop = np.where(inside & ~earlier, middle, stop)
    return first
