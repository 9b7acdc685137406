"""The aggregates that come with Weir.

Comes in: the name of a column, or an expression. Goes out: accumulators and kernels,
in NumPy for numbers, times and booleans, in Polars for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import DataError, SchemaError
from weir.operators.aggregates.base import Aggregate, Input, input_type, read_input, show_input
from weir.operators.aggregates.frames import FrameKernel
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.schema import format_type
from weir.state.columns.kernels import FixedKernel, Kernel, Rule, is_fixed_width

_DECIMAL_DIGITS_MAX = 38
_DECIMAL_SUM_DIGITS = 10
"""Digits that a sum has more than its column, as in Spark."""


@dataclass(frozen=True, eq=False)
class Count(Aggregate):
    """Rows, or values that are not null."""

    column: Input | None = None

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        if self.column is not None:
            input_type(self.column, input_schema, "count")
        return pa.int64()

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        return [pa.field("count", self.output_type(input_schema))]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if self.column is None:
            return [pa.array(np.ones(batch.num_rows, np.int64))]
        return [_count_valid(read_input(self.column, batch))]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return FixedKernel([pa.int64()], ["add"], name)

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


@dataclass(frozen=True, eq=False)
class Sum(Aggregate):
    """The sum of integers (int64), floats (double), decimals or durations."""

    column: Input

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        return _sum_type(input_type(self.column, input_schema, "sum"), "sum", self.column)

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        return [pa.field("sum", self.output_type(input_schema))]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        array = read_input(self.column, batch)
        return [_cast(array, _sum_type(array.type, "sum", self.column), f"sum({show_input(self.column)})")]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return make_kernel(self.accumulators(input_schema), ["add"], name)

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


@dataclass(frozen=True, eq=False)
class Average(Aggregate):
    """The mean: a sum (of decimals exact, else double, as in Spark) and a count."""

    column: Input

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        kind = input_type(self.column, input_schema, "avg")
        if pa.types.is_duration(kind):
            raise SchemaError(
                f"avg({show_input(self.column)}): durations have no average here; cast the column to long"
            )
        _sum_type(kind, "avg", self.column)
        return pa.float64()

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        self.output_type(input_schema)
        return [
            pa.field("sum", self._sum_type(input_type(self.column, input_schema, "avg"))),
            pa.field("count", pa.int64()),
        ]

    def _sum_type(self, kind: pa.DataType) -> pa.DataType:
        return _sum_type(kind, "avg", self.column) if pa.types.is_decimal(kind) else pa.float64()

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        array = read_input(self.column, batch)
        counts = _count_valid(array)
        return [array.cast(self._sum_type(array.type), safe=False), counts]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return make_kernel(self.accumulators(input_schema), ["add", "add"], name)

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        # Arrow's own cast from decimal to double is off by a bit; Polars rounds correctly.
        sums = pl.Series(accumulators[0]).cast(pl.Float64).fill_null(0.0).to_numpy()
        counts = accumulators[1].to_numpy()
        empty = counts == 0
        return pa.array(sums / np.where(empty, 1, counts), mask=empty if empty.any() else None)


@dataclass(frozen=True, eq=False)
class Extreme(Aggregate):
    """The least or the greatest value."""

    column: Input
    rule: Rule

    @property
    def kind(self) -> str:
        return self.rule

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        kind = in_flight_type(input_type(self.column, input_schema, self.rule))
        if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
            raise SchemaError(
                f"{self.rule}({show_input(self.column)}): values of type {format_type(kind)} have no order"
            )
        return kind

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        return [pa.field("value", self.output_type(input_schema))]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [in_flight(read_input(self.column, batch))]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return make_kernel(self.accumulators(input_schema), [self.rule], name)

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


def make_kernel(fields: Sequence[pa.Field], rules: Sequence[Rule], name: str) -> Kernel:
    """A kernel of accumulators of any types, each with a rule of its own."""
    if all(is_fixed_width(field.type) for field in fields):
        return FixedKernel([field.type for field in fields], rules, name)
    expressions: Mapping[str, Mapping[Rule, pl.Expr]] = {
        field.name: {
            # Polars' sum of nothing but nulls is zero; ours is null.
            "add": pl.when(pl.col(field.name).count() > 0).then(pl.col(field.name).sum()),
            "min": pl.col(field.name).min(),
            "max": pl.col(field.name).max(),
            "first": pl.col(field.name).first(),
            "last": pl.col(field.name).last(),
        }
        for field in fields
    }
    merge = {field.name: expressions[field.name][rule] for field, rule in zip(fields, rules, strict=True)}
    return FrameKernel(fields, merge, sums_of=name if "add" in rules else None, rules=rules)


def in_flight(array: pa.Array) -> pa.Array:
    """The same in the type that it has in flight."""
    kind = in_flight_type(array.type)
    return array if array.type == kind else array.cast(kind)


def _sum_type(kind: pa.DataType, function: str, column: Input) -> pa.DataType:
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind):
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_duration(kind):
        return kind
    if types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX:
        digits = kind.precision + _DECIMAL_SUM_DIGITS
        return pa.decimal128(min(digits, _DECIMAL_DIGITS_MAX), kind.scale)
    raise SchemaError(f"{function}({show_input(column)}): expected numbers, found {format_type(kind)}")


def _cast(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(f"{what}: a value does not fit into {format_type(kind)}: {error}") from None


def _count_valid(array: pa.Array) -> pa.Array:
    if not array.null_count:
        return pa.array(np.ones(len(array), np.int64))
    return array.is_valid().cast(pa.int64())
