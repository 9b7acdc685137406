"""The contract of an aggregate that can be computed in pieces.

Rows are lifted to accumulators, accumulators are merged by key, and a final value is
made of what they come to. Comes in: a schema, batches. Goes out: types, accumulators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from weir.errors import SchemaError
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.polars_bridge import arrow_schema, series_to_arrow, to_polars
from weir.operators.expressions.separable import check_separable
from weir.state.columns.kernels import Kernel
from weir.state.keys.xxhash64 import Ints

Input: TypeAlias = "str | pl.Expr"
"""The name of a column, or a Polars expression over the columns of a row."""


class Aggregate(ABC):
    """A decomposable aggregate. Frozen and picklable; `input_schema` is that of the rows."""

    @property
    def kind(self) -> str:
        """What is computed, as state tables remember it: another kind cannot take its accumulators over."""
        return type(self).__name__.lower()

    @property
    def lifts_rows(self) -> bool:
        """Whether lifting single rows is cheap, so that rows may go through the exchange uncombined."""
        return True

    @property
    def numbered(self) -> Aggregate:
        """The same where partial results come together in another order than the rows came, if that matters to it."""
        return self

    @property
    def reads_arrival(self) -> bool:
        """Whether it reads the numbers of rows."""
        return False

    @abstractmethod
    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        """The type of the final value, or SchemaError."""

    @abstractmethod
    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        """The accumulators that travel and are kept."""

    @abstractmethod
    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The accumulators of each row by itself."""

    def lift_grouped(self, batch: pa.RecordBatch, slots: Ints) -> tuple[Ints, list[pa.Array]]:
        """Slots and their accumulators, rows of one slot merged or not, whichever is cheaper."""
        return slots, self.lift(batch)

    @abstractmethod
    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        """A fresh kernel; `name` is the output column, for messages."""

    @abstractmethod
    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        """The values that accumulators come to."""


def input_type(column: Input, input_schema: pa.Schema, function: str) -> pa.DataType:
    """The type of what an aggregate reads, or SchemaError with the columns that exist."""
    if isinstance(column, str):
        if column not in input_schema.names:
            exist = ", ".join(input_schema.names)
            raise SchemaError(f"{function}({column!r}): there is no column {column!r}; the columns are {exist}")
        return input_schema.field(column).type
    if not isinstance(column, pl.Expr):
        raise SchemaError(f"{function}({column!r}): expected the name of a column or a Polars expression")
    check_separable(column, f"{function}({column})")
    try:
        selected = pl.DataFrame(input_schema.empty_table()).select(column.alias("value"))
    except pl.exceptions.PolarsError as error:
        exist = ", ".join(input_schema.names)
        raise SchemaError(f"{function}({column}): {error}; the columns are {exist}") from None
    return arrow_schema(selected).field("value").type


def read_input(column: Input, batch: pa.RecordBatch) -> pa.Array:
    """What an aggregate reads, one value per row."""
    if isinstance(column, str):
        return batch.column(column)
    whole = to_polars(batch)
    checks_of((column,), batch.schema).run(whole)
    frame = whole.select(column.alias("value"))
    if len(frame) != batch.num_rows:
        frame = pl.select(pl.repeat(frame.item(), batch.num_rows, dtype=frame.dtypes[0]).alias("value"))
    return series_to_arrow(frame.get_column("value"), arrow_schema(frame.clear()).field("value").type)


def show_input(column: Input) -> str:
    """An aggregate's input for messages."""
    return repr(column) if isinstance(column, str) else str(column)
