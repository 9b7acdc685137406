"""Rows that wait for their windows, in the order in which they came.

Comes in: batches. Goes out: all rows as one batch, with the slot of each row's key; and
the same as a frozen state. Columns only; knows no windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.operators.base import OperatorContext
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.state.columns.panes import FrozenPane, FrozenPanes
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints

MARK, ORDER = "__mark", "__order"
"""A number that the operator keeps with each row; and the row's place among the others."""

_SPARE_KEYS = 8_192


@dataclass(frozen=True, eq=False)
class BufferLayout:
    keys: tuple[str, ...]
    input_schema: pa.Schema

    @cached_property
    def key_schema(self) -> pa.Schema:
        fields = [self.input_schema.field(key) for key in self.keys]
        return pa.schema([pa.field(field.name, in_flight_type(field.type)) for field in fields])

    @cached_property
    def stored(self) -> pa.Schema:
        others = [field for field in self.input_schema if field.name not in self.keys]
        more = [pa.field(MARK, pa.int64()), pa.field(ORDER, pa.int64())]
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *self.key_schema, *others, *more])

    def refusal(self, stored: pa.Schema) -> str | None:
        try:
            stored.empty_table().select(self.stored.names).cast(self.stored)
        except (KeyError, ValueError) as error:
            return f"it holds {stored.names}, the rows of this window have {self.stored.names}: {error}"
        return None


class RowBuffer:
    """Rows, the slot of each row's key, and a mark for each."""

    def __init__(self, layout: BufferLayout) -> None:
        self._layout = layout
        self.index = KeyIndex(layout.key_schema)
        self._parts: list[pa.RecordBatch] = []
        self._slots: list[Ints] = []
        self._marks: list[Ints] = []

    def __len__(self) -> int:
        return sum(len(slots) for slots in self._slots)

    def add(self, batch: pa.RecordBatch, marks: Ints) -> Ints:
        """The slots of the rows."""
        slots = self.index.slots([batch.column(key) for key in self._layout.keys])
        self._parts.append(batch)
        self._slots.append(slots)
        self._marks.append(marks)
        return slots

    @property
    def rows(self) -> pa.RecordBatch:
        self._join()
        return self._parts[0]

    @property
    def slots(self) -> Ints:
        self._join()
        return self._slots[0]

    @property
    def marks(self) -> npt.NDArray[np.int64]:
        """May be changed in place."""
        self._join()
        return self._marks[0]

    def keep(self, rows: Ints, *, forget_keys: bool = True) -> None:
        """Only these rows, in their order. Slots may change where keys are forgotten."""
        self._join()
        taken = self._parts[0].take(pa.array(rows))
        self._parts, self._slots, self._marks = [taken], [self._slots[0][rows]], [self._marks[0][rows]]
        if forget_keys and len(self.index) > 2 * len(rows) + _SPARE_KEYS:
            self.index = KeyIndex(self._layout.key_schema)
            self._slots = [self.index.slots([taken.column(key) for key in self._layout.keys])]

    def freeze(self, context: OperatorContext) -> FrozenState:
        rows = self.rows
        others = [rows.column(name) for name in rows.schema.names if name not in self._layout.keys]
        columns = [*others, pa.array(self.marks.copy()), pa.array(np.arange(rows.num_rows))]
        pane = FrozenPane("rows", self.index.freeze(), columns, numbers=self.slots)
        return FrozenPanes(self._layout.stored, [pane], context.max_parallelism)

    def take_over(self, tables: Sequence[pa.Table]) -> None:
        """Rows of a key are in the order in which they came: a key comes from one of the tables."""
        stored = pa.concat_tables(
            [table.select(self._layout.stored.names).cast(self._layout.stored) for table in tables]
        )
        stored = stored.take(pa.array(np.argsort(stored.column(ORDER).to_numpy(), kind="stable")))
        for batch in stored.combine_chunks().to_batches():
            rows = batch.select(self._layout.input_schema.names).cast(self._layout.input_schema)
            self.add(rows, np.array(batch.column(MARK).to_numpy()))

    def _join(self) -> None:
        if len(self._parts) == 1:
            return
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._layout.input_schema], schema=self._layout.input_schema
        )
        self._parts = [pa.concat_batches([empty, *self._parts])]
        self._slots = [np.concatenate([np.empty(0, np.int64), *self._slots])]
        self._marks = [np.concatenate([np.empty(0, np.int64), *self._marks])]
