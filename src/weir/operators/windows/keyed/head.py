"""Rows that came since the last snapshot and wait, behind an index by key.

Comes in: new rows, by key and then in the order in which they came. Goes out: the rows of some
keys; and all of them sorted, for segments, a piece at a time. Adding, finding and forgetting
rows cost those rows; now and then what is gone is left out of a copy of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.windows.buffer import placed
from weir.operators.windows.kept import ALL_TIME, BufferLayout
from weir.operators.windows.keyed.chunks import Chunks
from weir.operators.windows.keyed.stretches import Stretches
from weir.operators.windows.pieces import expanded
from weir.state.columns.key_order import stable_order
from weir.state.columns.segments.grouping import stretches
from weir.state.columns.segments.rows import SegmentLayout, SortedRows
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words

GONE_ROWS_MIN = 4_096
"""So many rows that are gone may lie among the others; or as many as there are others."""

NEW_ROWS_MAX = 65_536
"""So many rows may come before their keys are told of them, if nobody asks for rows."""

PIECE_ROWS = 65_536
"""About so many rows are sorted into a segment at once."""

ROWS_MAX = 1 << 31
"""Places are numbers of 32 bits."""


class KeyedHead:
    """Rows by slot. Those of a key are numbered without a gap."""

    def __init__(self) -> None:
        self._stretches = Stretches()
        self._new: list[tuple[Ints, Ints | None, Ints, Ints]] = []
        """What the stretches are to be told yet: as `Stretches.append` takes it, or by row."""
        self._new_rows = 0
        self._chunks = Chunks()
        self._numbers: list[Ints] = []
        """The rows' numbers among all rows of the operator, by place."""
        self._alive = 0

    def clear_new(self) -> None:
        """Forget all rows, all of which are new."""
        self._new, self._new_rows, self._alive = [], 0, 0
        self._chunks, self._numbers = Chunks(), []

    def __len__(self) -> int:
        """How many rows wait."""
        return self._alive

    @property
    def size_bytes(self) -> int:
        return self._chunks.size_bytes + 8 * len(self._chunks) + self._stretches.size_bytes

    @property
    def is_full(self) -> bool:
        return len(self._chunks) >= ROWS_MAX

    def put(self, slots: Ints, counts: Ints, begin: Ints, batch: pa.RecordBatch, rows: Ints, numbers: Ints) -> None:
        """Take a batch: of each key so many rows, the first of which has the number `begin` in its key. `rows`: those
        of the batch, by key; `numbers`: all of them, as they lie in the batch."""
        first = self._chunks.add(batch)
        self._numbers.append(numbers)
        self._note((slots, counts, begin, rows + first if first else rows))

    def put_whole(self, slots: Ints, begin: Ints, batch: pa.RecordBatch, numbers: Ints) -> None:
        """The same where slots are by row, as is the number that the first row of the batch has in the row's key."""
        first = self._chunks.add(batch)
        self._numbers.append(numbers)
        self._note((slots, None, begin, np.arange(first, first + len(slots))))

    def _note(self, new: tuple[Ints, Ints | None, Ints, Ints]) -> None:
        self._new.append(new)
        count = len(new[3])
        self._new_rows += count
        self._alive += count
        if self._new_rows >= NEW_ROWS_MAX:
            self.settle()

    def grow(self, count: int) -> None:
        """There are so many slots by now."""
        self._stretches.grow(count)

    @property
    def stretches(self) -> Stretches:
        """Where the rows of each key are."""
        self.settle()
        return self._stretches

    def settle(self) -> None:
        """Tell the keys of rows that have come, but look at none."""
        if self._new:
            self._stretches.append(*self._by_key())
            self._new, self._new_rows = [], 0

    def _by_key(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What the stretches are to be told, as `Stretches.append` takes it."""
        slots, counts, numbers, places = self._new[0]
        if len(self._new) > 1 or counts is None:
            new = self._new
            places = np.concatenate([places for _, _, _, places in new])
            slots = np.concatenate([slots if counts is None else slots.repeat(counts) for slots, counts, _, _ in new])
            # Of each key only that of the first row matters.
            numbers = np.concatenate([begin if counts is None else begin.repeat(counts) for _, counts, begin, _ in new])
            order = stable_order(slots, len(self._stretches.held))
            if order is not None:
                places, slots, numbers = places[order], slots[order], numbers[order]
            heads = np.concatenate((np.zeros(1, np.int64), (slots[1:] != slots[:-1]).nonzero()[0] + 1))
            slots, counts, numbers = slots[heads], np.diff(heads, append=len(slots)), numbers[heads]
            self._new = [(slots, counts, numbers, places)]
        return slots, counts, numbers, places

    def all_new(self) -> tuple[Ints, Ints, Ints] | None:
        """The keys of all rows, how many each has, and the rows' places by key; None: not all of them are new."""
        if not self._new or self._new_rows < self._alive:
            return None
        slots, counts, _, places = self._by_key()
        return slots, counts, places

    def taken(self, slots: Ints, counts: Ints) -> tuple[Sequence[pa.RecordBatch], Ints | None]:
        """The last rows of keys, so many of each: batches that have them, and maybe others; and where in them each
        is, if not one by one."""
        return self._chunks.taken(self.stretches.places(slots, counts))

    def rows(self, places: Ints) -> pa.RecordBatch:
        """Rows by place; there is one at least."""
        batches, where = self._chunks.taken(places)
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return batch if where is None else take_rows(batch, where)

    def numbers(self, places: Ints) -> Ints:
        """By place, the numbers of rows among all of the operator."""
        self._numbers = [np.concatenate(self._numbers)]
        return self._numbers[0][places]

    def seal(self) -> None:
        """No more rows come; from now on another thread may read, too."""
        self.settle()
        self._chunks.seal()

    def drop(self, slots: Ints, left: Ints) -> None:
        """Forget rows of keys but for the last, of which so many are left."""
        self._alive -= int(np.add.reduce(self.stretches.held[slots] - left))
        self.stretches.drop(slots, left)

    def tidy(self) -> None:
        """Leave out what is gone, if it is much."""
        if len(self._chunks) - self._alive <= max(self._alive, GONE_ROWS_MIN):
            return
        slots = self.stretches.slots()
        held = self.stretches.held[slots]
        places = self.stretches.places(slots, held)
        numbers, self._numbers = self.numbers(places), []
        rows, self._chunks = self.rows(places) if len(places) else None, Chunks()
        if rows is not None:
            self._chunks.add(rows)
            self._numbers.append(numbers)
            self.stretches.renumber(slots, held, np.arange(len(places)))


@dataclass(eq=False)
class SealedHead:
    """A head that takes no more rows, until its segments are there."""

    head: KeyedHead
    hashes: Words
    """Of the keys, by slot."""
    layout: BufferLayout
    segments: SegmentLayout
    is_numbered: bool
    """Whether the marks of its rows are their numbers among those of their keys."""
    slots: Ints | None = None
    """By row as it lies in the segments, once they are there: which key it has,"""
    in_key: Ints | None = None
    """and its number there."""
    is_touched: bool = False
    """Whether rows may have gone since."""

    def pieces(self) -> Iterator[tuple[int, SortedRows]]:
        """All rows, sorted. For any thread, but one at a time."""
        held_by = self.head.stretches
        slots = held_by.slots()
        orders = placed(self.hashes[slots], self.segments.max_parallelism)
        sorting = np.argsort(orders, kind="stable")
        slots, orders = slots[sorting], orders[sorting]
        held = held_by.held[slots]
        places, in_key = held_by.places(slots, held), expanded(held_by.begin[slots], held)
        of_row, order, numbers = np.repeat(slots, held), np.repeat(orders, held), self.head.numbers(places)
        # Of two keys that have one order the rows lie as they came.
        arranged = self.segments.arranged(order, numbers)
        places, order, numbers = places[arranged], order[arranged], numbers[arranged]
        self.slots, self.in_key = of_row[arranged], in_key[arranged]
        marks = self.in_key if self.is_numbered else np.zeros(len(order), np.int64)
        for start, stop in stretches(order, PIECE_ROWS):
            rows = self.head.rows(places[start:stop])
            kept = self.layout.with_numbers(rows, marks[start:stop], numbers[start:stop])
            yield ALL_TIME, SortedRows(order[start:stop], numbers[start:stop], kept)
