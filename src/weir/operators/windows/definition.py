"""What both halves of an aggregate over windows know: keys, aggregates, columns and event time.

Comes in: what the user asked for, and the schema of the rows. Goes out: the columns that
travel, are stored and come out, checked; and the times of rows. Holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import DataError, SchemaError
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.builtin import Count
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.base import OperatorContext
from weir.operators.time.watermarks import check_time_column, times_us
from weir.operators.user_code import operator_label
from weir.operators.windows.event_time import SessionWindows, TimeWindows
from weir.state.keys.xxhash64 import Ints

ROWS = "__rows"
"""The hidden aggregate that counts rows, so that late ones can be counted."""

START, END = "window_start", "window_end"

ALL = "__all"
"""The one key of a stream that is not keyed; never shown."""


@dataclass(frozen=True, eq=False)
class WindowDefinition:
    """What both halves know. `time_offset_us` is added to the column of times."""

    windows: TimeWindows | SessionWindows
    keys: Sequence[str]
    aggregates: Mapping[str, Aggregate]
    input_schema: pa.Schema
    time: str
    time_offset_us: int = 0

    @cached_property
    def layout(self) -> AggregateLayout:
        """Of the accumulators of a key in a pane or session."""
        check_time_column(self.time, self.input_schema)
        hidden = {} if self._counting is not None else {ROWS: Count()}
        named = {name: of.numbered if self._mixes_order else of for name, of in self.aggregates.items()}
        layout = AggregateLayout(tuple(self.keys), {**named, **hidden}, self.input_schema)
        layout.check()
        if taken := {START, END} & {*self.keys, *self.aggregates}:
            raise SchemaError(f"a window has a column {sorted(taken)[0]!r} of its own; rename the other")
        return layout

    @property
    def _mixes_order(self) -> bool:
        """Whether a window is made of several panes or pieces, which meet in another order than their rows came."""
        return isinstance(self.windows, SessionWindows) or self.windows.overlaps

    @cached_property
    def _counting(self) -> str | None:
        """An aggregate of the user that counts rows anyway."""
        plain = (name for name, of in self.aggregates.items() if type(of) is Count and of.column is None)
        return next(plain, None)

    @cached_property
    def rows_at(self) -> int:
        """Which of the accumulators, side by side, counts rows."""
        names = [output for output, fields in self.layout.accumulators.items() for _ in fields]
        return names.index(self._counting or ROWS)

    @cached_property
    def output(self) -> pa.Schema:
        """Keys, the bounds of the window, and values."""
        width = len(self.keys)
        fields = list(self.layout.output)[: width + len(self.aggregates)]
        keys = [field for field in fields[:width] if field.name != ALL]
        kind = pa.timestamp("us", self.input_schema.field(self.time).type.tz)
        return pa.schema([*keys, pa.field(START, kind), pa.field(END, kind), *fields[width:]])

    def times_of(self, batch: pa.RecordBatch, context: OperatorContext) -> Ints:
        """The event times of rows."""
        return event_times(batch, self.time, self.time_offset_us, context)

    def result(
        self, keys: Sequence[pa.Array], starts_us: Ints, ends_us: Ints, *, values: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Rows that come out; the values of hidden aggregates are left out."""
        kind = self.output.field(START).type
        bounds = [pa.array(np.ascontiguousarray(bound, np.int64)).view(kind) for bound in (starts_us, ends_us)]
        if ALL in self.keys:
            keys = []
        arrays = [*keys, *bounds, *values[: len(self.aggregates)]]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


def shown(schema: pa.Schema) -> pa.Schema:
    """Without the key that only Weir knows of."""
    return pa.schema([field for field in schema if field.name != ALL])


def event_times(batch: pa.RecordBatch, column: str, offset_us: int, context: OperatorContext) -> Ints:
    """The event times of rows, in microseconds; `offset_us` is added."""
    array = batch.column(column)
    if array.null_count:
        rows = batch.drop_columns([ALL]) if ALL in batch.schema.names else batch
        row = rows.slice(array.is_null().index(True).as_py(), 1).to_pylist()[0]
        raise DataError(
            f"{operator_label(context)}: row {row} has no time in {column!r}; leave such rows out before with filter()"
        )
    times: Ints = times_us(array).to_numpy()
    return times + offset_us if offset_us else times
