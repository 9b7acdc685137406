"""From Polars expressions to a recipe for output batches, worked out once per schema.

Comes in: expressions and the schema of what they will see. Goes out: a Projection
that turns batches into batches, or the error that names what does not fit. Columns
that no expression computes are passed on untouched; only those read become Polars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.operators.expressions.checked_arithmetic import Checks, checks_of
from weir.operators.expressions.polars_bridge import arrow_schema, to_arrow, to_polars
from weir.operators.expressions.separable import check_separable, columns_read, is_scalar, is_wild

_PROBE_ROWS = 3
"""Rows of nulls that an expression with a selector is tried on, to see whether it keeps their number."""


@dataclass(frozen=True)
class Part:
    """What one expression gives: these fields; `passed` names the input columns that they are, if none is computed."""

    expression: pl.Expr
    fields: tuple[pa.Field, ...]
    passed: tuple[str, ...] | None


@dataclass(frozen=True)
class Projection:
    """How to make an output batch. `passed`: per output column, the input column that it is; None: a computed one."""

    schema: pa.Schema
    passed: tuple[str | None, ...]
    computed: tuple[pl.Expr, ...]
    computed_schema: pa.Schema
    reads: list[str] | None
    constant: bool
    """All that is computed is one value for all rows."""
    checks: Checks

    def kept_as(self, column: str) -> str | None:
        """The name under which an input column comes out as it was, its own if it may choose; None: it does not."""
        names = [field.name for field, source in zip(self.schema, self.passed, strict=True) if source == column]
        return column if column in names else next(iter(names), None)

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        computed = self._compute(batch) if self.computed else batch
        arrays = [
            computed.column(field.name) if name is None else batch.column(name)
            for field, name in zip(self.schema, self.passed)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = to_polars(batch, self.reads)
        self.checks.run(frame)
        computed = to_arrow(frame.select(self.computed), self.computed_schema)
        return computed.take(pa.array(np.zeros(batch.num_rows, np.int64))) if self.constant else computed


def projection(parts: Sequence[Part], fields: Sequence[pa.Field], schema: pa.Schema) -> Projection:
    """The recipe for output columns `fields`; what none of the parts gives is a column of that name of the input, whose
    schema is given."""
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"two columns are called {twice[0]!r}; rename one with .alias(…)")
    given: dict[str, str | None] = {}
    for part in parts:
        sources = part.passed if part.passed is not None else [None] * len(part.fields)
        given.update(zip((field.name for field in part.fields), sources))
    computed = [part for part in parts if part.passed is None]
    expressions = tuple(part.expression for part in computed)
    return Projection(
        schema=pa.schema(list(fields)),
        passed=tuple(given.get(name, name) for name in names),
        computed=expressions,
        computed_schema=pa.schema([field for part in computed for field in part.fields]),
        reads=columns_read(expressions),
        constant=all(map(is_scalar, expressions)),
        checks=checks_of(expressions, schema),
    )


def analyse(expression: pl.Expr, schema: pa.Schema, operator: str) -> Part:
    """Check an expression against a schema and find out what it gives."""
    reads = columns_read([expression])
    missing = [name for name in reads or () if name not in schema.names]
    if missing:
        raise SchemaError(f"no column {missing[0]!r}; {_columns(schema)}")
    check_separable(expression, operator)
    if reads and expression.meta.is_column_selection(allow_aliasing=True):
        field = schema.field(reads[0])
        return Part(expression, (field.with_name(expression.meta.output_name()),), (field.name,))
    seen = schema if reads is None else pa.schema([schema.field(name) for name in reads])
    try:
        result = to_polars(seen.empty_table()).select(expression)
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        reason = str(error).split("\n")[0]
        raise SchemaError(f"{expression}: {reason}; {_columns(schema)}") from None
    if is_wild(expression):
        if expression.meta.is_column_selection():
            return Part(expression, tuple(map(schema.field, result.columns)), tuple(result.columns))
        _check_length(expression, seen, operator)
    return Part(expression, tuple(arrow_schema(result)), None)


def _check_length(expression: pl.Expr, schema: pa.Schema, operator: str) -> None:
    """Polars says nothing about expressions with selectors, but an aggregate shows on a few rows."""
    nulls = pa.table([pa.nulls(_PROBE_ROWS, field.type) for field in schema], schema.names)
    try:
        height = to_polars(nulls).select(expression).height
    except Exception:
        return  # A function that cannot stand nulls says nothing about lengths.
    if height != _PROBE_ROWS:
        raise PlanError(f"{operator}: {expression} gives no row for each row; for aggregates use key_by(…).agg(…)")


def _columns(schema: pa.Schema) -> str:
    return "the columns are: " + ", ".join(schema.names)
