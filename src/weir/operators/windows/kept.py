"""What is kept of rows that wait for their windows, and by what they are sorted.

Comes in: the schema of the rows. Goes out: the schemas of segments and of the state table,
and the columns that rows are found by. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.operators.base import OperatorContext
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.operators.windows.definition import event_times
from weir.operators.windows.event_time import TimeWindows
from weir.operators.windows.pieces import MARK, ORDER
from weir.state.columns.segments.rows import SegmentLayout
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.xxhash64 import Ints

ALL_TIME = 0
"""The one bucket of rows that no time parts."""


@dataclass(frozen=True, eq=False)
class BufferLayout:
    """What is kept of rows.

    time:    the column of event time; None: there is none
    buckets: the stretches of time whose rows lie apart, and go as a whole; None: all lie together
    by_time: the rows of a key lie by event time, rather than in the order in which they came
    """

    keys: tuple[str, ...]
    input_schema: pa.Schema
    time: str | None = None
    time_offset_us: int = 0
    buckets: TimeWindows | None = None
    by_time: bool = False

    @cached_property
    def key_positions(self) -> tuple[int, ...]:
        return tuple(self.input_schema.get_field_index(key) for key in self.keys)

    @cached_property
    def stored(self) -> pa.Schema:
        """The state table."""
        keys = [self.input_schema.field(key) for key in self.keys]
        keys = [pa.field(field.name, in_flight_type(field.type)) for field in keys]
        others = [field for field in self.input_schema if field.name not in self.keys]
        more = [pa.field(MARK, pa.int64()), pa.field(ORDER, pa.int64())]
        # Segments that lie otherwise are not taken over as they are.
        sorting = repr((self.time, self.time_offset_us, self.buckets, self.by_time))
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *keys, *others, *more], {"weir.sorting": sorting})

    def segments(self, max_parallelism: int) -> SegmentLayout:
        """How they lie."""
        kept = pa.schema([*self.input_schema, pa.field(MARK, pa.int64()), pa.field(ORDER, pa.int64())])
        return SegmentLayout(kept, self.stored, max_parallelism=max_parallelism, by_time=True)

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(position) for position in self.key_positions]

    def times(self, batch: pa.RecordBatch, context: OperatorContext) -> Ints:
        """The event times of rows; zeros where they have none."""
        if self.time is None:
            return np.zeros(batch.num_rows, np.int64)
        return event_times(batch, self.time, self.time_offset_us, context)

    def buckets_of(self, times: Ints) -> Ints:
        return np.full(len(times), ALL_TIME) if self.buckets is None else self.buckets.panes(times)

    def with_numbers(self, batch: pa.RecordBatch, marks: Ints, numbers: Ints) -> pa.RecordBatch:
        """Rows as they are kept."""
        schema = pa.schema([*self.input_schema, pa.field(MARK, pa.int64()), pa.field(ORDER, pa.int64())])
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(marks), pa.array(numbers)], schema=schema)

    def without_numbers(self, kept: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they came."""
        return pa.RecordBatch.from_arrays(kept.columns[:-2], schema=self.input_schema)

    def refusal(self, stored: pa.Schema) -> str | None:
        """Why a table of a checkpoint cannot be taken over; None: it can."""
        try:
            stored.empty_table().select(self.stored.names).cast(self.stored)
        except (KeyError, ValueError) as error:
            return f"it holds {stored.names}, the rows of this window have {self.stored.names}: {error}"
        return None
