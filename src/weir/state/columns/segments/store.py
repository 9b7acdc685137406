"""The segments of one state of one subtask, by buckets of event time.

Comes in: sorted rows and the bucket of each lot. Goes out: the segments of buckets, for
whoever searches them, and frozen states. A bucket's runs merge like an LSM tree, a bounded
piece with each batch; behind its time a bucket is gone as a whole. Knows no operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.lot import Lot, Make
from weir.state.columns.segments.merging import AT_ONCE_ROWS_MAX, Merge, merged
from weir.state.columns.segments.rows import Combine, Mask, SegmentLayout, SortedRows
from weir.state.columns.segments.segment import Bounds, Run, Segment, segment_number
from weir.state.columns.segments.shelf import KeptRows, Shelf, ShelfBudget
from weir.state.columns.segments.slices import Slices
from weir.state.columns.segments.snapshot import (
    FrozenSegment,
    FrozenSegments,
    StoredMarks,
    fits,
    marks_in,
    opened,
    since_of,
)
from weir.state.frozen import RestoredSlice, RestoredState
from weir.state.keys.xxhash64 import Ints
from weir.state.pieces import Pieces, run_through

RATIO = 2
"""A run is at least so many times larger than the next, so that there are few of them. With four there would be fewer,
but rows would be merged more often."""

STEP_ROWS = 16_384
"""Rows that are merged with each batch, while there is something to merge."""

STEP_RATIO = 4
"""And so many for each row that has come, and for each merge that its bucket has under way: a row is merged as often as
there are sizes of runs, so that larger state needs more."""

TENDED_ROWS, TENDED_RATIO = 4_096, 4
"""The same where rows come by lots, which are merged while other rows come: less at once, so that none waits long."""

TENDED_BEHIND_MAX = 2
"""So many times as much at most, where a bucket has several merges under way: else runs of large state pile up."""

TENDED_AT_ONCE_ROWS_MAX = 32_768
"""Of lots that are adopted, all buckets together; the rest is merged a piece at a time."""


class SegmentStore:
    """All segments of one state. `combine`: what becomes of rows that are merged; `combine_all`: the same where
    nothing older is in their bucket."""

    def __init__(
        self,
        layout: SegmentLayout,
        budget: ShelfBudget,
        *,
        name: str,
        combine: Combine | None = None,
        shown: Combine | None = None,
        combine_all: Combine | None = None,
    ) -> None:
        """`shown`: what rows of one key and time, of all segments, become in a table; it is called by any thread."""
        self.layout = layout
        self._budget = budget
        self._shelf = Shelf(budget, layout, name)
        self._combine = combine
        self._shown = shown
        self._combine_all = combine_all or combine
        self._buckets: dict[int, list[Run]] = {}
        self._merges: dict[int, list[Merge]] = {}
        """By bucket: those that go on a piece at a time, each of younger runs than the one before it."""
        self.time_us = NEVER_US
        """How far event time has come, where the operator says so."""
        self.since_us = NEVER_US
        """Rows from before this time are gone, where the operator says so; their segments go when they can."""
        self._owed_rows = 0
        """That are to be merged in proportion to the rows that were adopted."""
        self._numbers = itertools.count()
        self._lots: list[Lot] = []
        """Those that were not adopted yet, the oldest first."""
        self._marks = StoredMarks()

    def __len__(self) -> int:
        return sum(len(run) for runs in self._buckets.values() for run in runs)

    def __iter__(self) -> Iterator[int]:
        """The buckets that have rows."""
        return iter(list(self._buckets))

    # --- Rows come ---

    def new(self, bucket_us: int, rows: SortedRows, marks: Mask | None = None) -> Segment:
        """A segment that is not kept among the others yet."""
        return self._segment(bucket_us, self._shelf.keep(rows), Bounds.of(rows), marks)

    def add(self, segments: Sequence[Segment]) -> None:
        """Keep segments, each as a run of its own, younger than what is there."""
        self._add_runs([[segment] for segment in segments])

    def _add_runs(self, runs: Sequence[Sequence[Segment]]) -> None:
        for run in runs:
            self._buckets.setdefault(run[0].bucket_us, []).append(Run(run, self.time_us))

    def seal(self, make: Make, made: Callable[[Segment], None] | None = None) -> Lot:
        """Take over a head that takes no more rows, without a look at them: they are sorted where they are wanted
        first, mostly by the thread that writes a snapshot. Younger than what is there. `made`: told of each segment,
        by that thread."""
        lot = Lot(make, partial(_handed_in, self._shelf, self._numbers, made))
        self._lots.append(lot)
        return lot

    def adopt(self, *, wait: bool = False, lots: int | None = None) -> Sequence[Lot]:
        """Keep the segments of lots that are made, in the order of sealing; `wait`: of all, made here if need be.
        `lots`: of so many exactly. What the lots returned were made of need not be searched any more. Writes nothing:
        whoever adopts settles as soon as nobody works with rows."""
        if lots is not None:
            adopted = self._lots[:lots]
        else:
            adopted = list(self._lots) if wait else list(itertools.takewhile(lambda lot: lot.is_made, self._lots))
        runs = [run for lot in adopted for run in lot.freeze().runs()]
        del self._lots[: len(adopted)]
        for run in runs:
            for segment in run:
                self._shelf.count(segment.kept)
        self._add_runs(runs)
        for lot in adopted:
            lot.is_adopted = True
        if adopted:
            left = TENDED_AT_ONCE_ROWS_MAX
            for bucket_us in {run[0].bucket_us for run in runs}:
                left -= self._merge_tail(bucket_us, at_once_max=left)
            self._owed_rows += STEP_RATIO * max(self._behind, 1) * sum(len(segment) for run in runs for segment in run)
        return adopted

    def tend(self, rows: int) -> None:
        """Between batches, of so many rows the last: adopt what is made, and go on with merges, a bounded piece."""
        if self._lots:
            self.adopt()
        self.go_on(rows)

    def go_on(self, rows: int) -> None:
        """The same for an operator that adopts by itself."""
        run_through(self.going_on(rows))

    def going_on(self, rows: int) -> Pieces:
        """The same, in pieces."""
        if self._merges:
            ratio = TENDED_RATIO * min(self._behind, TENDED_BEHIND_MAX)
            step = min(max(self._owed_rows, TENDED_ROWS), ratio * rows + TENDED_ROWS)
            self._owed_rows = max(self._owed_rows - step, 0)
            yield from self.working(step)
        yield from self.relaxing()

    def making(self) -> Pieces:
        """Make the segments of all lots, in pieces; `adopt` is quick behind that."""
        for lot in list(self._lots):
            yield from lot.making()

    def merge(self, segments: Sequence[Segment]) -> None:
        """Rows were added lately: merge them with what was there, where that is due, or begin to."""
        run_through(self.merging(segments))

    def merging(self, segments: Sequence[Segment]) -> Pieces:
        """The same, in pieces."""
        for bucket_us in {segment.bucket_us for segment in segments}:
            self._merge_tail(bucket_us)
        if self._merges:
            yield from self.working(STEP_ROWS + STEP_RATIO * self._behind * sum(map(len, segments)))
        yield from self.relaxing()

    @property
    def _behind(self) -> int:
        """How many merges are under way in the bucket that has most of them."""
        return max(map(len, self._merges.values()), default=0)

    def relax(self) -> None:
        """Nobody works with rows just now: put some into files, where they are too many for the memory."""
        run_through(self.relaxing())

    def relaxing(self) -> Pieces:
        """The same, in pieces."""
        yield from self._budget.settling()

    def work(self, rows: int) -> None:
        """Go on with merges that are under way, by about so many rows."""
        run_through(self.working(rows))

    def working(self, rows: int) -> Pieces:
        """The same, in pieces."""
        while self._merges and rows > 0:
            bucket_us, merges = next(iter(self._merges.items()))
            # The youngest runs are the smallest: who looks for rows has fewest to look into when those go first.
            rows -= merges[-1].step(min(rows, STEP_ROWS))
            if merges[-1].is_done:
                rows -= self._finish(bucket_us, at_once_max=max(rows, 0))
            yield

    def settle(self) -> None:
        """Finish all merges."""
        while self._merges:
            self.work(AT_ONCE_ROWS_MAX)
            self._budget.settle()

    # --- Rows are looked at ---

    def at(self, bucket_us: int) -> list[Segment]:
        """The segments of a bucket, the oldest first."""
        return [segment for run in self._buckets.get(bucket_us, ()) for segment in run.segments]

    def runs(self, bucket_us: int) -> Sequence[Run]:
        """The same by run: of each, a row's key is in one segment at most."""
        return self._buckets.get(bucket_us, ())

    def between(self, first_us: int, last_us: int) -> Iterator[Segment]:
        """The segments that have rows of these times, both included."""
        for runs in self._buckets.values():
            for run in runs:
                yield from (s for s in run.segments if s.first_us <= last_us and first_us <= s.last_us)

    def mark(self, segment: Segment, rows: Ints) -> None:
        """Set the marks of some rows of a segment."""
        if segment.marks.set(rows):
            self._marks.changed()

    # --- Rows go ---

    def drop(self, bucket_us: int) -> None:
        """Forget a bucket."""
        for lot in self._lots:
            lot.drop(bucket_us)
        self._drop_adopted(bucket_us)

    def _drop_adopted(self, bucket_us: int) -> None:
        self._buckets.pop(bucket_us, None)
        for merge in self._merges.pop(bucket_us, ()):
            merge.give_up()

    def drop_before(self, time_us: int) -> None:
        """Forget the buckets whose rows are all from before this time."""
        for lot in self._lots:
            lot.drop_before(time_us)
        for bucket_us, runs in list(self._buckets.items()):
            if all(segment.last_us < time_us for run in runs for segment in run.segments):
                self._drop_adopted(bucket_us)  # a lot may have later rows of the same bucket

    def prune(self, bucket_us: int, before_us: int) -> None:
        """Forget the segments of a bucket whose rows are all from before this time. A lot may bring some again."""
        held = self._buckets.get(bucket_us, [])
        if all(run.last_us < before_us for run in held):
            self._drop_adopted(bucket_us)
            return
        for run in held:
            if not run.is_merging:
                run.segments = [segment for segment in run.segments if segment.last_us >= before_us]
        self._buckets[bucket_us] = [run for run in held if run.segments]

    def rewrite(self, bucket_us: int, is_due: Callable[[Run], bool]) -> None:
        """Merge some runs each by itself: what `combine` leaves out now is gone then."""
        due = [run for run in self._buckets.get(bucket_us, ()) if not run.is_merging and is_due(run)]
        for run in due:
            if len(run) <= AT_ONCE_ROWS_MAX:
                self._merge_at_once(bucket_us, [run])
            elif bucket_us not in self._merges:  # else some younger runs may be on their way already
                self._begin(bucket_us, [run])
        if due:
            self._merge_tail(bucket_us)

    # --- Snapshots ---

    def freeze(self, useless: list[object] | None = None) -> FrozenSegments:
        """All segments as they are now; copies nothing. `useless`: what the thread that writes is to let go of."""
        runs = [
            [FrozenSegment(segment, segment.marks.freeze()) for segment in run.segments]
            for held in self._buckets.values()
            for run in held
        ]
        return FrozenSegments(
            self.layout,
            runs,
            [lot.freeze() for lot in self._lots],
            marks=self._marks,
            since_us=self.since_us,
            shown=self._shown,
            useless=useless,
        )

    def restore(self, restored: RestoredState) -> bool:
        """Take over the files of a part that was of exactly these key groups, or out of several parts the rows that
        fall to these; False: it has to be read as tables."""
        whole = restored.whole
        if whole is None:
            return self._restore_slices(restored.slices())
        if not fits(whole, self.layout):
            return False
        marks = marks_in(whole)
        runs = opened(whole, self.layout, self._shelf, marks=marks)
        for run in runs:
            self._buckets.setdefault(run.segments[0].bucket_us, []).append(run)
        # The file of marks may name segments that are gone, and stays while no mark is set: none has such a name again.
        numbers = [*(s.number for run in runs for s in run.segments), *map(segment_number, marks)]
        self._numbers = itertools.count(1 + max(numbers, default=-1))
        self._marks.restored(whole.part)
        self.since_us = since_of(whole.part)
        return True

    def _restore_slices(self, slices: Sequence[RestoredSlice]) -> bool:
        if not slices or not all(fits(each.part, self.layout) for each in slices):
            return False
        taken = Slices(self.layout, self._shelf)
        for each in slices:
            for bucket_us, rank, rows in taken.out_of(each):
                segment = self._segment(bucket_us, rows.kept, rows.bounds, rows.marks)
                runs = self._buckets.setdefault(bucket_us, [])
                # Those of other parts have other keys, so that it does not matter which of them are older.
                runs += [Run([]) for _ in range(rank + 1 - len(runs))]
                runs[rank].segments = [*runs[rank].segments, segment]
                self._budget.settle()
        # A bucket that comes first in one part may have rows that are younger than those of another one in the next.
        self._buckets = {b: [run for run in runs if run.segments] for b, runs in sorted(self._buckets.items())}
        return True

    # --- Merging ---

    def _segment(self, bucket_us: int, kept: KeptRows, bounds: Bounds, marks: Mask | None) -> Segment:
        return Segment(next(self._numbers), bucket_us, kept, bounds=bounds, marks=marks)

    def _merge_tail(self, bucket_us: int, *, at_once_max: int | None = None) -> int:
        """The runs that are not small enough beside those behind them become one: at once, if that is no more than
        `at_once_max` rows. How many were merged so."""
        held = self._buckets.get(bucket_us, [])
        first = max((index + 1 for index, run in enumerate(held) if run.is_merging), default=0)
        count = len(held)
        while count - 1 > first and len(held[count - 2]) < RATIO * sum(map(len, held[count - 1 :])):
            count -= 1
        if count == len(held):
            return 0
        runs = held[count - 1 :]
        rows = sum(map(len, runs))
        if rows <= (AT_ONCE_ROWS_MAX if at_once_max is None else at_once_max):
            self._merge_at_once(bucket_us, runs)
            return rows
        self._begin(bucket_us, runs)
        return 0

    def _merge_at_once(self, bucket_us: int, runs: Sequence[Run]) -> None:
        rows, marks = merged(runs, self.layout, self._combining(bucket_us, runs))
        self._replace(bucket_us, runs, [self.new(bucket_us, rows, marks)] if len(rows) else [])

    def _begin(self, bucket_us: int, runs: Sequence[Run]) -> None:
        combine = self._combining(bucket_us, runs)
        merge = Merge(runs, self.layout, combine=combine, shelf=self._shelf)
        self._merges.setdefault(bucket_us, []).append(merge)

    def _combining(self, bucket_us: int, runs: Sequence[Run]) -> Combine | None:
        return self._combine_all if runs[0] is self._buckets[bucket_us][0] else self._combine

    def _finish(self, bucket_us: int, *, at_once_max: int) -> int:
        """The end of the youngest merge. How many rows were merged at once behind it."""
        merge = self._merges[bucket_us].pop()
        if not self._merges[bucket_us]:
            del self._merges[bucket_us]
        if merge.is_void:
            merge.give_up()
            return 0
        made = [self._segment(bucket_us, made.kept, made.bounds, made.marks) for made in merge.finish()]
        self._replace(bucket_us, merge.runs, made)
        return self._merge_tail(bucket_us, at_once_max=at_once_max)

    def _replace(self, bucket_us: int, runs: Sequence[Run], by: Sequence[Segment]) -> None:
        held = self._buckets[bucket_us]
        first = next(index for index, run in enumerate(held) if run is runs[0])
        held[first : first + len(runs)] = [Run(by, self.time_us)] if by else []
        if any(segment.marks.bits is not None for segment in by):
            self._marks.changed()
        if not held:
            del self._buckets[bucket_us]


def _handed_in(
    shelf: Shelf, numbers: Iterator[int], made: Callable[[Segment], None] | None, bucket_us: int, rows: SortedRows
) -> Segment:
    """For any thread; it refers to no store, so that one that is let go of is gone with its files at once."""
    segment = Segment(next(numbers), bucket_us, shelf.hand_in(rows), bounds=Bounds.of(rows))
    if made is not None:
        made(segment)
    return segment
