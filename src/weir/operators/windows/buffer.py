"""Rows that wait for their windows, in segments: sorted by key, and by when they came.

Comes in: batches. Goes out: the rows of keys, or of stretches of time, in pieces; and all of
it as a frozen state. New rows lie as they came, until somebody looks for some, or they are
many: then they are sorted. Columns only; knows no windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.operators.base import OperatorContext, Restored
from weir.operators.user_code import operator_label
from weir.operators.windows.kept import BufferLayout
from weir.operators.windows.pieces import MARK, ORDER, Piece, pieces_by_range, pieces_of_keys
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.columns.segments.lot import Lot
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, places
from weir.state.columns.segments.segment import Run, Segment
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import FrozenState
from weir.state.keys.hashing import hash_keys, take_rows
from weir.state.keys.xxhash64 import Ints, Words

HEAD_ROWS_MAX = 131_072
"""So many rows lie as they came, and are sorted at once, at most."""

HEAD_SHARE = 0.25
"""Of what an operator may hold in memory: for rows as they came."""

GONE_SHARE_MIN = 8
"""When one of so many rows was forgotten, it is looked at whether some lie in segments of which most were."""


@dataclass(frozen=True, eq=False)
class _Fresh:
    """Rows as they came."""

    batch: pa.RecordBatch
    times: Ints
    marks: Ints
    numbers: Ints


class RowBuffer:
    """The rows of one operator of one subtask."""

    def __init__(self, layout: BufferLayout, state: str, context: OperatorContext) -> None:
        self.layout = layout
        self._state = state
        self._context = context
        self._budget = ShelfBudget(context.place)
        self._segments = layout.segments(context.max_parallelism)
        self.store = SegmentStore(self._segments, self._budget, name=state)
        self._head: list[_Fresh] = []
        self._head_rows = 0
        self._head_bytes = 0
        self._sealed: list[Lot] = []
        self._changed: list[Segment] = []
        """Made of rows that were marked, and not merged with others yet."""
        self._thinned: set[int] = set()
        """The buckets of which rows were forgotten since they were last merged."""
        self._forgotten = 0
        """How many."""
        self.numbered = 0
        """Rows that come have higher numbers than those before."""

    @property
    def held_bytes_max(self) -> int | None:
        """What may be held in memory; None: there is no limit."""
        return None if self._budget.directory is None else self._budget.held_bytes_max

    def __bool__(self) -> bool:
        return bool(self._head or self._sealed or len(self.store))

    # --- Rows come ---

    def add(self, batch: pa.RecordBatch, times: Ints, marks: Ints | None = None) -> None:
        """Take rows; `marks`: a number that the operator keeps with each."""
        count = batch.num_rows
        marks = np.zeros(count, np.int64) if marks is None else marks
        self._take(_Fresh(batch, times, marks, np.arange(self.numbered, self.numbered + count)))
        self.numbered += count

    def orders(self, batch: pa.RecordBatch) -> Words:
        """By which rows are found: each key has one, which seldom is another one's, too."""
        return self.placed(hash_keys(self.layout.key_columns(batch)))

    def placed(self, hashes: Words) -> Words:
        """The same by the hashes of keys."""
        return placed(hashes, self._context.max_parallelism)

    def times(self, batch: pa.RecordBatch) -> Ints:
        """The event times of rows; zeros where they have none."""
        return self.layout.times(batch, self._context)

    def settle(self) -> None:
        """Sort what has come, and merge what is due: all rows are in segments of the store."""
        self._adopt(wait=True)
        new = [self.store.new(*piece) for piece in self._sorted(self._take_head())]
        self.store.add(new)
        self.store.merge([*self._changed, *new])
        self._changed = []
        self._rewrite_thinned()

    def tend(self, rows: int) -> None:
        """Between batches, of so many rows the last, where these are kept elsewhere: go on with merges, a bounded
        piece."""
        if GONE_SHARE_MIN * self._forgotten > len(self.store):
            self._rewrite_thinned()
        self.store.go_on(rows)

    def _rewrite_thinned(self) -> None:
        for bucket_us in self._thinned:
            self.store.rewrite(bucket_us, _is_mostly_gone)
        self._thinned, self._forgotten = set(), 0

    # --- Rows are looked at; only once they are settled ---

    def all(self) -> Iterator[Piece]:
        """All rows, by ranges of keys."""
        return self.between(NEVER_US, END_US)

    def between(self, first_us: int, last_us: int) -> Iterator[Piece]:
        """Rows of these times, by ranges of keys; there may be others among them."""
        return pieces_by_range(self._between(first_us, last_us), self.layout.key_positions)

    def of_keys(self, orders: Words, first_us: int = NEVER_US, last_us: int = END_US) -> Iterator[Piece]:
        """The same of some keys."""
        return pieces_of_keys(self._between(first_us, last_us), np.unique(orders), self.layout.key_positions)

    def _between(self, first_us: int, last_us: int) -> list[Segment]:
        if self.layout.by_time:
            return list(self.store.between(first_us, last_us))
        buckets = self.layout.buckets
        length_us = 0 if buckets is None else buckets.pane_us_max
        wanted = sorted(b for b in self.store if buckets is None or (b <= last_us and b + length_us > first_us))
        return [segment for bucket_us in wanted for segment in self.store.at(bucket_us)]

    # --- Rows change, or go ---

    def forget(self, piece: Piece, rows: Ints) -> None:
        """Nobody needs these rows of a piece any more."""
        origin, positions = piece.origin[rows], piece.positions[rows]
        for number, segment in enumerate(piece.segments):
            found = positions[origin == number]
            if len(found):
                self.forget_in(segment, found)

    def forget_in(self, segment: Segment, rows: Ints) -> None:
        """The same of a segment."""
        self.store.mark(segment, rows)
        self._thinned.add(segment.bucket_us)
        self._forgotten += len(rows)

    def mark(self, piece: Piece, rows: Ints) -> None:
        """Set the mark of these rows of a piece to one."""
        self.forget(piece, rows)
        taken = take_rows(piece.kept, rows)
        batch = self.layout.without_numbers(taken)
        fresh = _Fresh(batch, self.times(batch), np.ones(len(rows), np.int64), taken.column(ORDER).to_numpy())
        new = [self.store.new(*made) for made in self._sorted([fresh])]
        self.store.add(new)
        self._changed += new

    def drop(self, buckets: Sequence[int]) -> None:
        """Forget buckets as a whole."""
        for bucket_us in buckets:
            self.store.drop(bucket_us)

    # --- Snapshots ---

    def freeze(self) -> FrozenState:
        """All rows as they are now: those that have just come are sorted by whoever writes them."""
        self._adopt(wait=False)
        if self._head:
            self._sealed.append(self.store.seal(partial(_sorted_rows, self.layout, self._segments, self._take_head())))
        return self.store.freeze()

    def restore(self, restored: Restored) -> None:
        """Take over what a checkpoint holds."""
        self.numbered = max((known.rows_numbered for known in restored.all_inline(Progress)), default=0)
        if self._state not in restored.states or self.store.restore(restored.states[self._state]):
            return
        for table in restored.tables(self._state):
            if refusal := self.layout.refusal(table.schema):
                raise CheckpointError(
                    f"{operator_label(self._context)}: the checkpoint's state does not fit: {refusal}"
                )
            for stored in table.select(self.layout.stored.names).cast(self.layout.stored).to_batches():
                self._take_over(stored)
        self.settle()
        self.store.settle()

    def _take_over(self, stored: pa.RecordBatch) -> None:
        schema = self.layout.input_schema
        batch = stored.select(schema.names).cast(schema)
        marks, numbers = (np.array(stored.column(name).to_numpy()) for name in (MARK, ORDER))
        self.numbered = max(self.numbered, 1 + int(numbers.max(initial=-1)))
        self._take(_Fresh(batch, self.times(batch), marks, numbers))

    # --- Inside ---

    def _take(self, fresh: _Fresh) -> None:
        self._head.append(fresh)
        self._head_rows += len(fresh.numbers)
        self._head_bytes += fresh.batch.nbytes
        limited = self._budget.directory is not None
        if self._head_rows >= HEAD_ROWS_MAX or (
            limited and self._head_bytes > HEAD_SHARE * self._budget.held_bytes_max
        ):
            self.settle()
        elif self._sealed:
            self._adopt(wait=False)
            self.store.relax()

    def _take_head(self) -> list[_Fresh]:
        head, self._head, self._head_rows, self._head_bytes = self._head, [], 0, 0
        return head

    def _adopt(self, *, wait: bool) -> None:
        if self._sealed:
            del self._sealed[: len(self.store.adopt(wait=wait))]

    def _sorted(self, head: Sequence[_Fresh]) -> Iterator[tuple[int, SortedRows]]:
        return _sorted_rows(self.layout, self._segments, head)


def placed(hashes: Words, max_parallelism: int) -> Words:
    """By which the rows of keys are found, by the keys' hashes. For any thread."""
    return places(hashes, max_parallelism)


def _sorted_rows(
    layout: BufferLayout, segments: SegmentLayout, head: Sequence[_Fresh]
) -> Iterator[tuple[int, SortedRows]]:
    """The rows of each bucket. For any thread."""
    head = [fresh for fresh in head if len(fresh.numbers)]
    if not head:
        return
    marks, numbers, times = (
        np.concatenate(columns) for columns in zip(*((f.marks, f.numbers, f.times) for f in head), strict=True)
    )
    batch = layout.with_numbers(pa.concat_batches([fresh.batch for fresh in head]), marks, numbers)
    order = places(hash_keys(layout.key_columns(batch)), segments.max_parallelism)
    sorting_times = times if layout.by_time else numbers
    for bucket_us, rows in _by_bucket(layout.buckets_of(times)):
        placed = segments.arranged(order[rows], sorting_times[rows])
        rows = rows[placed]
        yield bucket_us, SortedRows(order[rows], sorting_times[rows], take_rows(batch, rows))


def _by_bucket(buckets: Ints) -> Iterator[tuple[int, Ints]]:
    """The numbers of the rows of each bucket, in their order."""
    if int(buckets.min()) == int(buckets.max()):
        yield int(buckets[0]), np.arange(len(buckets))
        return
    order = np.argsort(buckets, kind="stable")
    ordered = buckets[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), order[start:stop]


def _is_mostly_gone(run: Run) -> bool:
    gone = sum(int(np.count_nonzero(s.marks.bits)) for s in run.segments if s.marks.bits is not None)
    return 2 * gone > len(run)
