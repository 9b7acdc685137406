"""Windows of so many rows of a key.

Comes in: rows by key, in the order in which they come. Goes out: what the function makes
of the last rows of a key, whenever so many more have come. Rows are numbered by key; the
state is the rows that a later window needs, and how many each key had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError
from weir.operators.aggregates.frames import distinct
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions.row_codec import emit
from weir.operators.user_code import operator_label
from weir.operators.windows.buffer import BufferLayout, RowBuffer
from weir.operators.windows.event_time import CountWindows
from weir.operators.windows.functions import Groups, WindowFunction
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.panes import FrozenPane, FrozenPanes
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.xxhash64 import Ints

ROWS, COUNTS = "rows", "counts"
"""The names of the state tables."""


@dataclass(frozen=True, eq=False)
class CountedRows(OperatorSpec):
    """Call a function with the last rows of a key, whenever so many more have come."""

    windows: CountWindows
    function: WindowFunction

    @cached_property
    def buffer(self) -> BufferLayout:
        return BufferLayout(self.function.keys, self.function.input_schema)

    @cached_property
    def counted(self) -> pa.Schema:
        group, count = pa.field(KEY_GROUP_COLUMN, pa.int32()), pa.field("__count", pa.int64())
        return pa.schema([group, *self.buffer.key_schema, count])

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.function.input_schema, inputs, "count_window")
        return self.function.output

    def make(self) -> CountedRowsOperator:
        return CountedRowsOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (ROWS, COUNTS)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state == COUNTS:
            return (
                "same" if stored.names == self.counted.names else "its keys are others; give the operator another uid"
            )
        return self.buffer.refusal(stored) or ("same" if stored.names == self.buffer.stored.names else "evolved")


class CountedRowsOperator(Operator):
    """Holds rows. The mark of a row is its number among those of its key."""

    def __init__(self, spec: CountedRows) -> None:
        self._spec = spec
        self._size, self._every = spec.windows.size, spec.windows.every
        self._watermark_us = NEVER_US

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._call = self._spec.function.make(context)
        self._buffer = RowBuffer(self._spec.buffer)
        self._counts = np.zeros(1_024, np.int64)
        if restored is None:
            return
        for table in restored.tables(COUNTS):
            for batch in table.select(self._spec.counted.names).cast(self._spec.counted).to_batches():
                slots = self._buffer.index.slots(batch.columns[1:-1])
                self._grow()
                self._counts[slots] = batch.columns[-1].to_numpy()
        if tables := list(restored.tables(ROWS)):
            for table in tables:
                if refusal := self._spec.buffer.refusal(table.schema):
                    raise CheckpointError(f"{operator_label(context)}: the checkpoint's state does not fit: {refusal}")
            self._buffer.take_over(tables)
            self._grow()

    def watermark(self, time_us: int, out: Emit) -> int | None:
        self._watermark_us = time_us
        return time_us

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        numbers = np.empty(batch.num_rows, np.int64)
        slots = self._buffer.add(batch, numbers)
        self._grow()
        order = np.argsort(slots, kind="stable")
        heads = np.flatnonzero(np.concatenate(([True], slots[order][1:] != slots[order][:-1])))
        lengths = np.diff(np.append(heads, len(order)))
        numbers[order] = np.arange(len(order)) - np.repeat(heads, lengths) + self._counts[slots[order]]
        touched = distinct(slots, len(self._buffer.index))
        before = self._counts[touched] // self._every
        np.add.at(self._counts, slots, 1)
        times = self._counts[touched] // self._every - before
        if times.any():
            some = np.flatnonzero(times)
            self._fire(touched[some], before[some], times[some], out)

    def freeze(self) -> Frozen:
        index = self._buffer.index
        counts = FrozenPane("counts", index.freeze(), [pa.array(self._counts[: len(index)].copy())])
        frozen = FrozenPanes(self._spec.counted, [counts], self._context.max_parallelism)
        return Frozen(states={ROWS: self._buffer.freeze(self._context), COUNTS: frozen})

    def _fire(self, keys: Ints, before: Ints, times: Ints, out: Emit) -> None:
        """`times` windows of each key, behind the `before` that came out earlier."""
        place = np.full(len(self._buffer.index), -1, np.int64)
        place[keys] = np.arange(len(keys))
        of_row = place[self._buffer.slots]
        rows = np.flatnonzero(of_row >= 0)
        rows = rows[np.argsort(of_row[rows], kind="stable")]
        sizes = np.bincount(of_row[rows], minlength=len(keys))
        heads = np.cumsum(sizes) - sizes
        first = self._buffer.marks[rows[heads]]  # the rows of a key are numbered without a gap from here on
        window_key = np.repeat(np.arange(len(keys)), times)
        nth = np.arange(len(window_key)) - np.repeat(np.cumsum(times) - times, times)
        stops = (before[window_key] + 1 + nth) * self._every - first[window_key]
        starts = np.zeros(len(stops), np.int64) if self._size is None else np.maximum(stops - self._size, 0)
        bounds = np.concatenate(([0], np.cumsum(stops - starts)))
        at = np.repeat(heads[window_key] + starts - bounds[:-1], stops - starts) + np.arange(bounds[-1])
        groups = Groups(self._buffer.rows.take(pa.array(rows[at])), bounds, None, None, self._watermark_us)
        for batch in self._call(groups):
            emit(batch, out)
        if self._size is not None:
            needed_from = (before + times + 1) * self._every - self._size
            done = rows[self._buffer.marks[rows] < needed_from[of_row[rows]]]
            kept = np.ones(len(of_row), np.bool_)
            kept[done] = False
            self._buffer.keep(np.flatnonzero(kept), forget_keys=False)

    def _grow(self) -> None:
        if (count := len(self._buffer.index)) > len(self._counts):
            grown = np.zeros(2 * count, np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
