"""Windows of so many rows of a key.

Comes in: rows by key, in the order in which they come. Goes out: what the function makes
of the last rows of a key, whenever so many more have come. Rows are numbered by key; the
state is the rows that a later window needs, of which the last tells how many there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import check_same_columns
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions.row_codec import emit
from weir.operators.functions.window_calls import Groups, check_window_states
from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.event_time import CountWindows
from weir.operators.windows.functions import WindowFunction
from weir.operators.windows.kept import ALL_TIME, BufferLayout
from weir.operators.windows.pieces import FIRED_ROWS_MAX, MARK, Piece, expanded, parts_of
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.keys.hashing import take_rows
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints, Words

ROWS, COUNTS = "rows", "counts"
"""The names of the state tables. Earlier versions kept in the second how many rows each key had had; the rows tell."""


NO_WINDOW_STATES = "a count window comes out once, and has no state of its own; keep it by key"


@dataclass(frozen=True, eq=False)
class CountedRows(OperatorSpec):
    """Call a function with the last rows of a key, whenever so many more have come."""

    windows: CountWindows
    function: WindowFunction

    @cached_property
    def buffer(self) -> BufferLayout:
        return BufferLayout(self.function.keys, self.function.input_schema)

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.function.input_schema, inputs, "count_window")
        check_window_states(self.function.states, NO_WINDOW_STATES)
        return self.function.output

    def make(self) -> CountedRowsOperator:
        return CountedRowsOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (ROWS, COUNTS, *self.function.states.names)

    @property
    def declares_in_open(self) -> bool:
        return self.function.states.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state not in (ROWS, COUNTS):
            return self.function.verdict(state, stored)
        if state == COUNTS:
            return "same"
        return self.buffer.refusal(stored) or ("same" if stored.names == self.buffer.stored.names else "evolved")


class CountedRowsOperator(Operator):
    """Holds rows. The mark of a row is its number among those of its key."""

    def __init__(self, spec: CountedRows) -> None:
        self._spec = spec
        self._size, self._every = spec.windows.size, spec.windows.every
        self._watermark_us = NEVER_US

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if self._spec.function.states.may_be_keyed:
            # They share its memory with the rows.
            context = replace(context, place=context.place.shared_by(2))
        held = {} if restored is None else {n: s for n, s in restored.states.items() if n not in (ROWS, COUNTS)}
        self._call = self._spec.function.make(context, held, NO_WINDOW_STATES)
        self._buffer = RowBuffer(self._spec.buffer, ROWS, context)
        if restored is not None:
            self._buffer.restore(restored)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        self._watermark_us = time_us
        return time_us

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        self._buffer.settle()
        orders, first = self._buffer.orders(batch), self._buffer.numbered
        marks = self._numbers(batch, orders)
        self._buffer.add(batch, self._buffer.times(batch), marks)
        # The last row of a window has this number.
        due = np.unique(orders[(marks + 1) % self._every == 0])
        if len(due):
            self._buffer.settle()
            for piece in self._buffer.of_keys(due):
                self._fire(piece, first, out)

    def freeze(self) -> Frozen:
        inline = Progress(self._watermark_us, rows_numbered=self._buffer.numbered)
        return Frozen(inline, {ROWS: self._buffer.freeze(), **self._call.freeze()})

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.close()

    def _numbers(self, batch: pa.RecordBatch, orders: Words) -> Ints:
        """The rows' numbers among those of their keys."""
        index = KeyIndex(pa.schema([batch.schema.field(key) for key in self._spec.buffer.key_positions]))
        slots = index.slots(self._spec.buffer.key_columns(batch))
        sorting = np.argsort(slots, kind="stable")
        heads = np.flatnonzero(np.concatenate(([True], slots[sorting][1:] != slots[sorting][:-1])))
        lengths = np.diff(np.append(heads, len(sorting)))
        before = self._counts(index, orders[sorting[heads]])
        numbers = np.empty(len(slots), np.int64)
        numbers[sorting] = np.arange(len(slots)) - np.repeat(heads, lengths) + np.repeat(before, lengths)
        return numbers

    def _counts(self, index: KeyIndex, orders: Words) -> Ints:
        """How many rows each key had, by slot; `orders` are those of the keys. Of keys of which no row is left it is
        forgotten: their next window begins with the next row."""
        counts = np.zeros(len(orders), np.int64)
        for segment in self._buffer.store.at(ALL_TIME):
            gone, starts = segment.marks.bits, np.searchsorted(segment.order, orders)
            which, last = np.arange(len(orders)), np.searchsorted(segment.order, orders, side="right") - 1
            while len(inside := np.flatnonzero(last >= starts)):
                which, starts, last = which[inside], starts[inside], last[inside]
                found = take_rows(segment.batch, last)
                same = index.slots(self._spec.buffer.key_columns(found)) == which
                # When the last row of a key was forgotten, all of them were.
                alive = same if gone is None else same & ~gone[last]
                marks = found.column(MARK).to_numpy()[alive] + 1
                counts[which[alive]] = np.maximum(counts[which[alive]], marks)
                # Where another key has the same order, on to the row before.
                which, starts, last = which[~same], starts[~same], last[~same] - 1
        return counts

    def _fire(self, piece: Piece, first: int, out: Emit) -> None:
        """The windows of a piece that end with rows from number `first` on."""
        slots, marks, every = piece.slots, piece.marks, self._every
        heads = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
        lowest, counts = marks[heads], marks[np.append(heads[1:], len(slots)) - 1] + 1  # there is no gap in between
        before = (counts - np.add.reduceat(piece.numbers >= first, heads, dtype=np.int64)) // every
        times = counts // every - before
        key = np.repeat(np.arange(len(heads)), times)
        nth = np.arange(len(key)) - np.repeat(np.cumsum(times) - times, times)
        stops = (before[key] + 1 + nth) * every - lowest[key]
        starts = np.zeros(len(stops), np.int64) if self._size is None else np.maximum(stops - self._size, 0)
        sizes, rows = stops - starts, piece.rows
        for some in parts_of(sizes, FIRED_ROWS_MAX):
            at = expanded(heads[key[some]] + starts[some], sizes[some])
            bounds = np.concatenate(([0], np.cumsum(sizes[some])))
            for result in self._call(Groups(take_rows(rows, at), bounds, None, None, self._watermark_us)):
                emit(result, out)
        if self._size is not None:
            needed_from = np.where(times > 0, (counts // every + 1) * every - self._size, 0)
            done = np.flatnonzero(marks < np.repeat(needed_from, np.diff(np.append(heads, len(slots)))))
            self._buffer.forget(piece, done)
