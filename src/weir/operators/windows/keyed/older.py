"""Rows by key that lie in segments: whose they are, and how many.

Comes in: keys by slot. Goes out: their rows that are left, and how many rows keys have had
about which nothing else is known. Looks at no rows of other keys, but for those of the same hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.kept import ALL_TIME
from weir.operators.windows.pieces import MARK, PIECE_ROWS, Piece, expanded
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints

WIDER = 8
"""So many times more rows are looked at, where the last ones are of another key."""


class Wanted:
    """Keys that are looked for in segments."""

    def __init__(self, buffer: RowBuffer, index: KeyIndex, slots: Ints) -> None:
        self.orders = buffer.placed(index.hashes[slots])
        self._buffer = buffer
        schema = buffer.layout.input_schema
        self._own = KeyIndex(pa.schema([schema.field(position) for position in buffer.layout.key_positions]))
        self._slots = self._own.slots(index.keys(slots))
        self._numbers = np.empty(len(slots), np.int64)
        self._numbers[self._slots] = np.arange(len(slots))

    def __len__(self) -> int:
        return len(self._slots)

    def numbers(self, batch: pa.RecordBatch) -> Ints:
        """By row: which of the keys it has; -1: none of them."""
        slots = self._own.slots(self._buffer.layout.key_columns(batch))
        found: Ints = self._numbers.take(slots, mode="clip")
        found[slots >= len(self)] = -1
        return found


@dataclass(frozen=True, eq=False)
class OlderRows:
    """What was found of some keys."""

    rows: list[pa.RecordBatch]
    starts: Ints
    """By key: where in all of them its first row is; the others follow."""
    counts: Ints


def keys_in(piece: Piece, wanted: Wanted) -> tuple[Ints, Ints, Ints]:
    """Which of the keys a piece has rows of, where they begin, and how many there are."""
    heads = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), piece.slots[1:] != piece.slots[:-1])))
    counts = np.diff(np.append(heads, len(piece)))
    which = wanted.numbers(take_rows(piece.kept, heads))
    ours = np.flatnonzero(which >= 0)
    return which[ours], heads[ours], counts[ours]


def older_rows(buffer: RowBuffer, index: KeyIndex, slots: Ints, *, ends: Ints, needed: Ints) -> OlderRows:
    """The rows of keys, of which the last has the number before `ends` in its key. Those with numbers below `needed`
    are forgotten."""
    wanted = Wanted(buffer, index, slots)
    found = OlderRows([], np.zeros(len(slots), np.int64), np.zeros(len(slots), np.int64))
    before = 0
    for piece in buffer.of_keys(wanted.orders):
        which, starts, counts = keys_in(piece, wanted)
        found.rows.append(piece.rows)
        found.starts[which], found.counts[which] = before + starts, counts
        before += len(piece)
        gone = np.minimum(np.maximum(needed[which] - (ends[which] - counts), 0), counts)
        if gone.any():
            buffer.forget(piece, expanded(starts, gone))
    return found


def counts_left(buffer: RowBuffer, index: KeyIndex, slots: Ints) -> Ints:
    """How many rows of keys are left."""
    wanted, left = Wanted(buffer, index, slots), np.zeros(len(slots), np.int64)
    for piece in buffer.of_keys(wanted.orders):
        which, _, counts = keys_in(piece, wanted)
        left[which] = counts
    return left


def counts_by_mark(buffer: RowBuffer, index: KeyIndex, slots: Ints) -> Ints:
    """How many rows keys have had, told by the mark of the last. Of keys of which no row is left it is forgotten:
    their next window begins with the next row."""
    wanted = Wanted(buffer, index, slots)
    counts = np.zeros(len(slots), np.int64)
    sorting = np.argsort(wanted.orders)
    orders = wanted.orders[sorting]
    for segment in buffer.store.at(ALL_TIME):
        gone, starts = segment.marks.bits, np.searchsorted(segment.order, orders)
        which, stops, width = sorting, np.searchsorted(segment.order, orders, side="right"), 1
        while len(inside := np.flatnonzero(stops > starts)):
            which, starts, stops = which[inside], starts[inside], stops[inside]
            begins = np.maximum(starts, stops - width)
            rows, of = expanded(begins, stops - begins), np.arange(len(which)).repeat(stops - begins)
            found = take_rows(segment.batch, rows)
            same = wanted.numbers(found) == which[of]
            # When the last row of a key was forgotten, all of them were.
            alive = same if gone is None else same & ~gone[rows]
            marks = found.column(MARK).to_numpy()[alive] + 1
            np.maximum.at(counts, which[of[alive]], marks)
            # Where another key has the same order, on to the rows before: more and more of them, as it may have many.
            left = np.ones(len(which), np.bool_)
            left[of[same]] = False
            which, starts, stops = which[left], starts[left], begins[left]
            width = min(WIDER * width, max(PIECE_ROWS // max(len(which), 1), 1))
    return counts
