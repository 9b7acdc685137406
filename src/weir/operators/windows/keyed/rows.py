"""Rows that wait by key: how many there are of each, and where they lie.

Comes in: batches; which of a key's rows are still needed. Goes out: the rows of keys whose windows
come out; and all of it as a frozen state. A key's rows lie in segments, then in heads that were
sealed for a snapshot, then in the head; few keys have them in more than one. Knows no windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from weir.operators.base import OperatorContext, Restored
from weir.operators.windows.buffer import HEAD_ROWS_MAX, HEAD_SHARE, RowBuffer
from weir.operators.windows.kept import ALL_TIME, BufferLayout
from weir.operators.windows.keyed.gathering import Arrived, Gathered, Sources
from weir.operators.windows.keyed.head import KeyedHead, SealedHead
from weir.operators.windows.keyed.older import counts_by_mark, counts_left, older_rows
from weir.operators.windows.keyed.waiting import KnownWaiting, PieceOfWaiting, WaitingKeys
from weir.operators.windows.pieces import MARK, PIECE_ROWS, expanded, parts_of
from weir.state.columns.growing import grown
from weir.state.columns.key_order import stable_order
from weir.state.columns.segments.lot import Lot
from weir.state.frozen import FrozenState
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints

SEALED_HEADS_MAX = 4
"""So many snapshots may be on their way into segments."""

ROW_BYTES = 24
"""What is remembered of a row in the head, besides itself."""

SPARE_KEYS = 8_192
"""So many keys without rows may be remembered; or as many as there are with some."""


class KeyedRows:
    """The rows of one operator of one subtask. Those of a key are numbered; the ones that wait, without a gap."""

    def __init__(
        self,
        layout: BufferLayout,
        state: str,
        context: OperatorContext,
        *,
        first_needed: Callable[[Ints], Ints] | None,
    ) -> None:
        """`first_needed`: of keys that have had so many rows, the number of the first that a later window may need.
        Numbers are kept as marks then. None: they begin anew where nobody remembers the key."""
        self._layout = layout
        self._first_needed = first_needed
        self._buffer = RowBuffer(layout, state, context)
        self._store = self._buffer.store
        self._limited = self._buffer.held_bytes_max
        self._segments = layout.segments(context.max_parallelism)
        self._schema = pa.schema([layout.input_schema.field(position) for position in layout.key_positions])
        self._has_older = False
        """Whether there may be rows elsewhere than in the head."""
        self._forget_keys()

    def _forget_keys(self) -> None:
        """All of them, when all rows are in segments."""
        self._hides = bool(len(self._store))
        """Whether segments may have rows of keys that are not in the index."""
        self._index = KeyIndex(self._schema)
        self._head = KeyedHead()
        self._came_bytes = 0
        """What the head takes at most; counted where memory is limited."""
        self._sealed: list[tuple[Lot, SealedHead]] = []
        """The oldest first."""
        self._first = np.zeros(0, np.int64)
        """By slot: the number of the first row that waits,"""
        self._count = np.zeros(0, np.int64)
        """how many rows there have been,"""
        self._filed = np.zeros(0, np.int64)
        """and below which number those that wait lie in segments."""
        self._keys_max = SPARE_KEYS

    @property
    def numbered(self) -> int:
        """Rows that come have higher numbers than those before."""
        return self._buffer.numbered

    def __bool__(self) -> bool:
        return bool(len(self._head) or self._sealed or len(self._store))

    # --- Rows come ---

    def add_quietly(self, batch: pa.RecordBatch, slots: Ints, *, every: int) -> bool:
        """Take a batch if no key comes to a multiple of `every` rows by it: that is found without sorting it."""
        before = self._count[slots]
        np.add.at(self._count, slots, 1)
        if bool((self._count[slots] // every != before // every).any()):
            self._count[slots] = before
            return False
        first = self._buffer.numbered
        self._buffer.numbered += len(slots)
        self._head.put_whole(slots, before, batch, np.arange(first, first + len(slots)))
        self._tend(batch)
        return True

    def add(self, batch: pa.RecordBatch, slots: Ints) -> Arrived:
        """Count the rows of a batch; `keep` is to be called next, when what comes out has been gathered."""
        rows = stable_order(slots, len(self._index))
        ordered = slots if rows is None else slots[rows]
        begins = np.empty(len(slots), np.bool_)
        begins[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
        starts = begins.nonzero()[0]
        counts = np.empty(len(starts), np.int64)
        np.subtract(starts[1:], starts[:-1], out=counts[:-1])
        counts[-1] = len(slots) - starts[-1]
        keys = ordered[starts]
        before = self._count[keys]
        after = before + counts
        self._count[keys] = after
        numbered = self._buffer.numbered
        self._buffer.numbered += len(slots)
        rows = np.arange(len(slots)) if rows is None else rows
        return Arrived(batch, keys, rows, starts, counts, before, after, self._first[keys], numbered)

    def slots(self, batch: pa.RecordBatch) -> Ints:
        """The keys of the rows of a batch, which is to be added next."""
        known = len(self._index)
        slots = self._index.slots(self._layout.key_columns(batch))
        count = len(self._index)
        if count > known:
            self._first, self._count, self._filed = (
                grown(column, count, 0) for column in (self._first, self._count, self._filed)
            )
            self._head.grow(count)
            if self._hides:
                self._recall(np.arange(known, count))
        return slots

    def _recall(self, slots: Ints) -> None:
        """Look for keys in segments."""
        self._hides = bool(len(self._store))
        if not self._hides:
            return
        if self._first_needed is None:
            counts = counts_left(self._buffer, self._index, slots)
        else:
            counts = counts_by_mark(self._buffer, self._index, slots)
            self._first[slots] = np.minimum(self._first_needed(counts), counts)
        self._count[slots] = self._filed[slots] = counts

    def keep(self, arrived: Arrived, needed: Ints) -> None:
        """Take the rows of the batch, and forget those of its keys that have numbers below `needed`."""
        rows, batch, slots, counts = arrived.rows, arrived.batch, arrived.slots, arrived.counts
        before = arrived.before
        moved = (needed > arrived.first).nonzero()[0]
        if len(moved):
            self._drop(slots[moved], before[moved], needed[moved])
            counts = np.minimum(arrived.after - needed, counts)
            some = counts.nonzero()[0]
            slots, counts, before = slots[some], counts[some], arrived.after[some] - counts[some]
            rows = rows[expanded(arrived.starts[some] + arrived.counts[some] - counts, counts)]
        if 2 * len(rows) > batch.num_rows:
            numbers: Ints = np.arange(arrived.numbered, arrived.numbered + batch.num_rows)
            self._head.put(slots, counts, before, batch, rows, numbers)
        elif len(rows):
            self._head.put(slots, counts, before, take_rows(batch, rows), np.arange(len(rows)), arrived.numbered + rows)
        self._tend(arrived.batch)

    def _drop(self, slots: Ints, before: Ints, needed: Ints) -> None:
        """Forget older rows of keys with numbers below `needed`; `before`: the numbers of those that have just come."""
        self._first[slots] = needed
        held = self._head.stretches.held[slots]
        some = held.nonzero()[0]
        if len(some):
            left = np.minimum(np.maximum(before[some] - needed[some], 0), held[some])
            self._head.drop(slots[some], left)
            self._head.tidy()

    # --- Rows are looked at ---

    def gathered(self, arrived: Arrived, which: Ints, needed: Ints) -> Iterator[tuple[slice, Gathered]]:
        """All rows of some keys of a batch: of `which`, a part of them at a time. Those with numbers below `needed`
        are not asked for again."""
        first, after = arrived.first[which], arrived.after[which]
        parts = [slice(0, len(which))]
        if int(np.add.reduce(after - first)) > PIECE_ROWS:
            parts = list(parts_of(after - first, PIECE_ROWS))
        for part in parts:
            yield part, self._gather(arrived, which[part], needed[part])

    def _gather(self, arrived: Arrived, which: Ints, needed: Ints) -> Gathered:
        found = self._found(arrived.slots[which], arrived.first[which], needed)
        return found.with_batch(arrived, which)

    def _found(self, slots: Ints, first: Ints, needed: Ints) -> Sources:
        found = Sources(len(slots))
        if self._has_older:
            self._gather_older(found, slots, first, needed)
        # What waits in the head is all that it holds.
        found.add(self._head, slots, self._head.stretches.held[slots])
        return found

    def waiting(self) -> Iterator[WaitingKeys]:
        """All keys that have rows, some at a time."""
        self._hides = self._hides and bool(len(self._store))
        if self._hides:
            # Of some keys nothing is known yet: all rows are looked at where the rows of these lie.
            self._put_into_segments()
            yield from (PieceOfWaiting(self._buffer, piece) for piece in self._buffer.all())
            self._forget_keys()
            return
        new = None if self._has_older or len(self._head) > PIECE_ROWS else self._head.all_new()
        if new is not None:
            slots, counts, places = new
            yield KnownWaiting(counts, partial(self._taken_of_new, slots, counts, places))
            return
        slots = np.flatnonzero(self._count[: len(self._index)] > self._first[: len(self._index)])
        counts = self._count[slots] - self._first[slots]
        for part in parts_of(counts, PIECE_ROWS):
            yield KnownWaiting(counts[part], partial(self._taken, slots[part]))

    def _taken_of_new(self, slots: Ints, counts: Ints, places: Ints, which: Ints) -> Gathered:
        """Where all keys come out, nobody need be told where their rows are."""
        if len(which) < len(slots):
            return self._taken(slots, which)
        rows = self._head.rows(places)
        self._first[slots] = self._count[slots]
        self._head.clear_new()
        return Gathered(rows, np.arange(len(places)), counts.cumsum() - counts, np.zeros(len(slots), np.int64))

    def _taken(self, slots: Ints, which: Ints) -> Gathered:
        slots = slots[which]
        after = self._count[slots]
        found = self._found(slots, self._first[slots], after).all(after)
        self._drop(slots, after, after)
        return found

    def _gather_older(self, found: Sources, slots: Ints, first: Ints, needed: Ints) -> None:
        self._has_older = bool(len(self._store) or self._sealed)
        filed = self._filed[slots]
        older = np.flatnonzero(filed > first)
        if len(older):
            rows = older_rows(self._buffer, self._index, slots[older], ends=filed[older], needed=needed[older])
            found.add_some(rows.rows, older, rows.starts, rows.counts)
        for _, sealed in self._sealed:
            if found.add(sealed.head, slots, sealed.head.stretches.counted(slots, first)):
                sealed.is_touched = True

    # --- Between batches ---

    def _tend(self, batch: pa.RecordBatch) -> None:
        """A batch has come: keep memory within its bounds, and go on with what is due."""
        if self._has_older:
            self._adopt()
            self._buffer.tend(batch.num_rows)
        limited = self._limited
        if limited is not None:
            self._came_bytes += batch.nbytes + ROW_BYTES * batch.num_rows
        if self._head.is_full or (limited is not None and self._is_too_much(limited)):
            self._put_into_segments()
        if limited is not None and self._keys_bytes > HEAD_SHARE * limited:
            self._put_into_segments()
            self._forget_keys()
        elif len(self._index) > self._keys_max and not self._sealed:
            self._forget_keys_without_rows()

    def _put_into_segments(self) -> None:
        self._seal()
        self._adopt(wait=True)
        # That is often where memory is short: there are to be few segments to be searched.
        self._store.merge(self._store.at(ALL_TIME)[-1:])

    def _is_too_much(self, limited: int) -> bool:
        if len(self._head) >= HEAD_ROWS_MAX:
            return True
        if self._came_bytes <= HEAD_SHARE * limited:
            return False
        self._came_bytes = self._head.size_bytes
        return self._came_bytes > HEAD_SHARE * limited

    @property
    def _keys_bytes(self) -> int:
        return self._index.size_bytes + 3 * self._count.nbytes + 5 * self._count.nbytes

    def _forget_keys_without_rows(self) -> None:
        count = len(self._index)
        slots = np.flatnonzero(self._count[:count] > self._first[:count])
        self._keys_max = 2 * len(slots) + SPARE_KEYS
        if count <= self._keys_max:
            self._keys_max = max(2 * count, SPARE_KEYS)
            return
        index = KeyIndex(self._schema)
        by_slot = np.empty(len(slots), np.int64)
        if len(slots):
            by_slot[index.slots(self._index.keys(slots))] = slots
        self._index = index
        self._first, self._count, self._filed = self._first[by_slot], self._count[by_slot], self._filed[by_slot]
        self._head.stretches.moved(by_slot)

    # --- Snapshots ---

    def freeze(self) -> FrozenState:
        """All rows as they are now; copies nothing, and looks at no row."""
        self._adopt()
        # What has gone of a head that nobody has made segments of can be told by these only.
        self._adopt(wait=len(self._sealed) >= SEALED_HEADS_MAX or any(sealed.is_touched for _, sealed in self._sealed))
        self._seal()
        return self._store.freeze()

    def restore(self, restored: Restored) -> None:
        """Take over what a checkpoint holds."""
        self._buffer.restore(restored)
        self._hides = self._has_older = bool(len(self._store))
        if self._first_needed is None:
            # Of another trigger, which kept what had come out.
            for segment in self._store.at(ALL_TIME):
                self._buffer.forget_in(segment, np.flatnonzero(segment.batch.column(MARK).to_numpy()))

    def _seal(self) -> None:
        if not len(self._head):
            return
        self._head.seal()
        sealed = SealedHead(
            self._head, self._index.hashes, self._layout, self._segments, self._first_needed is not None
        )
        self._head, self._came_bytes = KeyedHead(), 0
        self._head.grow(len(self._count))
        self._sealed.append((self._store.seal(sealed.pieces), sealed))
        self._has_older = True

    def _adopt(self, *, wait: bool = False) -> None:
        """Go over to the segments of heads that were sealed, where they are made."""
        while self._sealed and (wait or self._sealed[0][0].is_made):
            lot, sealed = self._sealed.pop(0)
            self._mark_gone(lot, sealed)
            self._store.adopt(lots=1)
            held_by = sealed.head.stretches
            slots = held_by.slots()
            self._filed[slots] = held_by.begin[slots] + held_by.held[slots]

    def _mark_gone(self, lot: Lot, sealed: SealedHead) -> None:
        segments = [segment for run in lot.runs() for segment in run]
        if not sealed.is_touched:
            return
        assert sealed.slots is not None and sealed.in_key is not None
        gone, stop = sealed.in_key < self._first[sealed.slots], 0
        for segment in segments:
            start, stop = stop, stop + len(segment)
            self._buffer.forget_in(segment, np.flatnonzero(gone[start:stop]))
