"""Rows of several segments side by side: those of a key together, in the order in which they came.

Comes in: segments, and which keys are wanted. Goes out: pieces of bounded size, each with all
rows of its keys that are in these segments and were not forgotten. Changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.columns.segments.grouping import equal_at
from weir.state.columns.segments.rows import by_order_and_time
from weir.state.columns.segments.segment import Segment
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

MARK, ORDER = "__mark", "__order"
"""A number that the operator keeps with each row; and the row's place among the others."""

PIECE_ROWS = 131_072
"""A piece has about so many rows at most, unless a single key has more."""

FIRED_ROWS_MAX = 262_144
"""A function is given windows of about so many rows at once at most, unless a single one has more."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows, by key and then in the order in which they came."""

    kept: pa.RecordBatch
    """With their marks and numbers as the last columns."""
    slots: Ints
    """By row: which key it has; ascending."""
    segments: Sequence[Segment]
    origin: Ints
    """By row: which of the segments it lies in."""
    positions: Ints
    """And where."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def rows(self) -> pa.RecordBatch:
        """As they came in."""
        fields = list(self.kept.schema)[:-2]
        return pa.RecordBatch.from_arrays(self.kept.columns[:-2], schema=pa.schema(fields))

    @property
    def marks(self) -> Ints:
        marks: Ints = self.kept.column(self.kept.num_columns - 2).to_numpy()
        return marks

    @property
    def numbers(self) -> Ints:
        numbers: Ints = self.kept.column(self.kept.num_columns - 1).to_numpy()
        return numbers


def pieces_by_range(segments: Sequence[Segment], keys: Sequence[int]) -> Iterator[Piece]:
    """All rows, by ranges of keys. `keys`: the positions of the key columns."""
    if not segments:
        return
    low, high = min(s.bounds.low for s in segments), max(s.bounds.high for s in segments)
    count = -(-sum(map(len, segments)) // PIECE_ROWS)
    bounds = [low + (high + 1 - low) * number // count for number in range(count + 1)]
    for first, stop in itertools.pairwise(bounds):
        if first < stop:
            found = [(s, _alive(s, *_range(s.order, first, stop - 1))) for s in segments if s.bounds.high >= first]
            if (piece := _piece(found, keys)) is not None:
                yield piece


def pieces_of_keys(segments: Sequence[Segment], orders: Words, keys: Sequence[int]) -> Iterator[Piece]:
    """The rows of some keys: those of these `orders`, which ascend."""
    found: list[tuple[Segment, Ints, Ints, Ints]] = []
    totals = np.zeros(len(orders), np.int64)
    for segment in segments:
        starts = np.searchsorted(segment.order, orders)
        counts = np.searchsorted(segment.order, orders, side="right") - starts
        which = np.flatnonzero(counts)
        if len(which):
            found.append((segment, which, starts[which], counts[which]))
            totals += counts
    for keys_of_piece in parts_of(totals, PIECE_ROWS):
        parts: list[tuple[Segment, Ints]] = []
        for segment, which, starts, counts in found:
            some = slice(*np.searchsorted(which, [keys_of_piece.start, keys_of_piece.stop]).tolist())
            parts.append((segment, _only_alive(segment, expanded(starts[some], counts[some]))))
        if (piece := _piece(parts, keys)) is not None:
            yield piece


def parts_of(counts: Ints, rows_max: int) -> Iterator[slice]:
    """Which of the things that have so many rows each are done together.

    >>> [(some.start, some.stop) for some in parts_of(np.array([3, 3, 9, 1]), 6)]
    [(0, 2), (2, 4)]
    """
    if int(np.add.reduce(counts)) <= rows_max:
        if len(counts):
            yield slice(0, len(counts))
        return
    part = (np.cumsum(counts) - 1) // rows_max
    cuts = [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist(), len(part)] if len(part) else [0]
    for first, stop in itertools.pairwise(cuts):
        yield slice(first, stop)


def expanded(starts: Ints, counts: Ints) -> Ints:
    """The numbers from each start on.

    >>> expanded(np.array([5, 9]), np.array([2, 1])).tolist()
    [5, 6, 9]
    """
    ends = counts.cumsum()
    rows: Ints = (starts - ends + counts).repeat(counts)
    rows += np.arange(len(rows))
    return rows


def same_keys(columns: Sequence[pa.Array], some: Ints, others: Ints) -> Mask:
    """Whether rows have the keys of other rows of the same columns; a null equals a null."""
    same: Mask = np.logical_and.reduce([equal_at(column, some, others) for column in columns])
    return same


def _range(order: Words, low: int, high: int) -> tuple[int, int]:
    start = int(np.searchsorted(order, np.uint64(low)))
    return start, int(np.searchsorted(order, np.uint64(high), side="right"))


def _alive(segment: Segment, start: int, stop: int) -> Ints:
    gone = segment.marks.bits
    return np.arange(start, stop) if gone is None else start + np.flatnonzero(~gone[start:stop])


def _only_alive(segment: Segment, positions: Ints) -> Ints:
    gone = segment.marks.bits
    return positions if gone is None else positions[~gone[positions]]


def _taken(segment: Segment, positions: Ints) -> pa.RecordBatch:
    """Without a copy where they follow each other."""
    first = int(positions[0])
    if int(positions[-1]) - first + 1 == len(positions):
        return segment.batch.slice(first, len(positions))
    return take_rows(segment.batch, positions)


def _piece(parts: Sequence[tuple[Segment, Ints]], keys: Sequence[int]) -> Piece | None:
    parts = [(segment, positions) for segment, positions in parts if len(positions)]
    if not parts:
        return None
    batches = [_taken(*part) for part in parts]
    kept = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    orders = np.concatenate([segment.order[positions] for segment, positions in parts])
    positions = np.concatenate([positions for _, positions in parts])
    origin = np.repeat(np.arange(len(parts)), [len(positions) for _, positions in parts])
    segments = [segment for segment, _ in parts]
    numbers = kept.column(kept.num_columns - 1).to_numpy()
    sorting = by_order_and_time(orders, numbers)
    if not (sorting[1:] > sorting[:-1]).all():
        kept, orders, numbers = take_rows(kept, sorting), orders[sorting], numbers[sorting]
        positions, origin = positions[sorting], origin[sorting]
    begins = orders[1:] != orders[:-1]
    again = np.flatnonzero(~begins)
    columns = [kept.column(key) for key in keys]
    if len(again) and not same_keys(columns, again + 1, again).all():  # two keys have one order
        slots = KeyIndex(pa.schema([kept.schema.field(key) for key in keys])).slots(columns)
        sorting = by_order_and_time(slots.astype(np.uint64), numbers)
        return Piece(take_rows(kept, sorting), slots[sorting], segments, origin[sorting], positions[sorting])
    slots = np.concatenate((np.zeros(1, np.int64), np.cumsum(begins)))
    return Piece(kept, slots, segments, origin, positions)
