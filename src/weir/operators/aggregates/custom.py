"""Aggregates that users make of Polars expressions.

Comes in: expressions for the three parts. Goes out: an `Aggregate`. The expressions
are tried on an empty frame when the job is built, so that most mistakes show there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import SchemaError
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.frames import SLOT, FrameKernel
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.checked_groups import GroupChecks
from weir.operators.expressions.polars_bridge import arrow_schema, series_to_arrow, to_polars
from weir.state.columns.kernels import Kernel
from weir.state.keys.xxhash64 import Ints

_CHECKS_KEPT_MAX = 64


def aggregate(
    *, partial: Mapping[str, pl.Expr], merge: Mapping[str, pl.Expr], final: pl.Expr | None = None
) -> Aggregate:
    """An aggregate of your own, in Polars expressions.

    partial: accumulators of some rows of a key, by name: expressions over the columns of the rows.
    merge:   the same accumulators from several of them: expressions over the accumulators.
    final:   the value, from the accumulators; may be left out where there is only one.

    >>> spread = aggregate(
    ...     partial={"low": pl.col("price").min(), "high": pl.col("price").max()},
    ...     merge={"low": pl.col("low").min(), "high": pl.col("high").max()},
    ...     final=pl.col("high") - pl.col("low"),
    ... )
    >>> spread.output_type(pa.schema({"price": pa.int64()}))
    DataType(int64)
    """
    if not partial or set(partial) != set(merge):
        raise SchemaError(
            f"aggregate(): partial has {sorted(partial)}, merge has {sorted(merge)}; name the same in both"
        )
    if SLOT in partial:
        raise SchemaError(f"aggregate(): an accumulator cannot be called {SLOT!r}")
    if final is None and len(partial) > 1:
        raise SchemaError(f"aggregate(): say with final= how {sorted(partial)} become one value")
    return CustomAggregate(dict(partial), dict(merge), pl.col(next(iter(partial))) if final is None else final)


@dataclass(frozen=True, eq=False)
class CustomAggregate(Aggregate):
    """An aggregate in the user's expressions."""

    partial: Mapping[str, pl.Expr]
    merge: Mapping[str, pl.Expr]
    finish: pl.Expr

    @property
    def lifts_rows(self) -> bool:
        return False

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        fields = self.accumulators(input_schema)
        empty = pl.DataFrame(pa.schema(fields).empty_table())
        merged = _tried("merge", lambda: _grouped(empty.with_columns(pl.lit(0).alias(SLOT)), self.merge), empty.columns)
        for field, found in zip(fields, arrow_schema(_widened(merged.drop(SLOT)).select(empty.columns)), strict=True):
            if field.type != found.type:
                raise SchemaError(
                    f"aggregate(): accumulator {field.name!r} is {field.type} after partial"
                    f" and {found.type} after merge; cast one of them"
                )
        frame = _tried("final", lambda: empty.select(self.finish.alias("value")), empty.columns)
        return arrow_schema(frame).field("value").type

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        empty = pl.DataFrame(input_schema.empty_table()).with_columns(pl.lit(0).alias(SLOT))
        frame = _tried("partial", lambda: _grouped(empty, self.partial), input_schema.names)
        return list(arrow_schema(_widened(frame.drop(SLOT))))

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        slots, arrays = self.lift_grouped(batch, np.arange(batch.num_rows))
        order = pa.array(np.argsort(slots))
        return [array.take(order) for array in arrays]

    def lift_grouped(self, batch: pa.RecordBatch, slots: Ints) -> tuple[Ints, list[pa.Array]]:
        rows = to_polars(batch).with_columns(pl.Series(SLOT, slots))
        _checks_of(self, batch.schema).run(rows, SLOT)
        frame = _grouped(rows, self.partial)
        widened = _widened(frame.drop(SLOT))
        fields = arrow_schema(widened)
        arrays = [series_to_arrow(widened.get_column(field.name), field.type) for field in fields]
        return frame.get_column(SLOT).to_numpy(), arrays

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        fields = self.accumulators(input_schema)
        merge = {key: self.merge[key] for key in self.partial}
        return FrameKernel(fields, merge, checks=GroupChecks(list(merge.values()), pa.schema(fields)))

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        columns = [pl.Series(name, array) for name, array in zip(self.partial, accumulators, strict=True)]
        frame = pl.DataFrame(columns)
        schema = pa.schema([(name, array.type) for name, array in zip(self.partial, accumulators, strict=True)])
        checks_of([self.finish], schema).run(frame)
        frame = frame.select(self.finish.alias("value"))
        return series_to_arrow(frame.get_column("value"), arrow_schema(frame.clear()).field("value").type)


@lru_cache(maxsize=_CHECKS_KEPT_MAX)
def _checks_of(aggregate: CustomAggregate, schema: pa.Schema) -> GroupChecks:
    return GroupChecks(list(aggregate.partial.values()), schema)


def _grouped(frame: pl.DataFrame, expressions: Mapping[str, pl.Expr]) -> pl.DataFrame:
    return frame.group_by(SLOT).agg(expression.alias(name) for name, expression in expressions.items())


def _widened(frame: pl.DataFrame) -> pl.DataFrame:
    """Small integers as int64: pl.len() has 32 bits, and a stream has more rows than that."""
    small = (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32)
    return frame.with_columns(pl.col(small).cast(pl.Int64))


def _tried(part: str, evaluate: Callable[[], pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    try:
        return evaluate()
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"aggregate(): {part}: {error}; the columns there are {', '.join(columns)}") from None
