"""Select, with_columns and filter over Polars expressions.

Comes in: batches. Goes out: batches with exactly the schema that was worked out when
the dataflow was built, by running the expressions on no rows. An expression that
looks at other rows is refused as far as Polars can tell (see separable.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa

from weir.errors import DataError, PlanError, SchemaError, WeirError
from weir.operators.base import Emit, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.polars_bridge import filter_batch, to_polars
from weir.operators.expressions.projection import Projection, analyse, projection
from weir.operators.expressions.separable import as_expression, columns_read, is_scalar, keeps_length
from weir.operators.user_code import operator_label, user_code_error


class Select(OperatorSpec):
    """Keep or compute columns. Expressions that change the number of rows (explode) must all do so alike."""

    def __init__(self, expressions: Sequence[str | pl.Expr]) -> None:
        self.expressions = tuple(map(as_expression, expressions))
        if not self.expressions:
            raise PlanError("select: name at least one column or expression")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.projection(inputs[0]).schema

    def make(self) -> Operator:
        return _Project(self.projection)

    def kept_as(self, column: str, schema: pa.Schema) -> str | None:
        return self.projection(schema).kept_as(column)

    def projection(self, schema: pa.Schema) -> Projection:
        parts = [analyse(expression, schema, "select") for expression in self.expressions]
        lengths = {keeps_length(expression) for expression in self.expressions if not is_scalar(expression)}
        if len(lengths) > 1:
            raise PlanError(
                "select: some expressions change the number of rows and others do not; use flat_map or map_batches"
            )
        return projection(parts, [field for part in parts for field in part.fields], schema)


class WithColumns(OperatorSpec):
    """Add columns, or replace those of the same name."""

    def __init__(self, expressions: Sequence[str | pl.Expr]) -> None:
        self.expressions = tuple(map(as_expression, expressions))
        if not self.expressions:
            raise PlanError("with_columns: name at least one expression")

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.projection(inputs[0]).schema

    def make(self) -> Operator:
        return _Project(self.projection)

    def kept_as(self, column: str, schema: pa.Schema) -> str | None:
        return self.projection(schema).kept_as(column)

    def projection(self, schema: pa.Schema) -> Projection:
        parts = [analyse(expression, schema, "with_columns") for expression in self.expressions]
        _refuse_other_lengths(self.expressions, "with_columns")
        given = [field for part in parts for field in part.fields]
        replaced = {field.name: field for field in given}
        kept = [replaced.get(field.name, field) for field in schema]
        return projection(parts, [*kept, *(field for field in given if field.name not in schema.names)], schema)


class Filter(OperatorSpec):
    """Keep the rows for which an expression is true; null counts as false."""

    def __init__(self, expression: str | pl.Expr) -> None:
        self.expression = as_expression(expression)

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        part = analyse(self.expression, inputs[0], "filter")
        for field in part.fields:
            if not pa.types.is_boolean(field.type):
                raise SchemaError(f"the condition {self.expression} is {field.type}; it must be boolean")
        _refuse_other_lengths([self.expression], "filter")
        return inputs[0]

    def make(self) -> Operator:
        return _Filter(self.expression)


def _refuse_other_lengths(expressions: Sequence[pl.Expr], operator: str) -> None:
    for expression in expressions:
        if not (keeps_length(expression) or is_scalar(expression)):
            raise PlanError(f"{operator}: {expression} changes the number of rows; use select or flat_map")


class _Project(Operator):
    """Runs a projection."""

    def __init__(self, plan: Callable[[pa.Schema], Projection]) -> None:
        self._plan = plan
        self._projection: Projection | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        if self._projection is None:
            self._projection = self._plan(batch.schema)
        try:
            result = self._projection.run(batch)
        except DataError as error:
            label = operator_label(self._context)
            raise DataError(f"{label}: {error}", without_rows=f"{label} failed") from None
        except WeirError:
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            raise user_code_error(error, self._context, doing="an expression") from None
        if result.num_rows:
            out(result)


class _Filter(Operator):
    """Evaluates the condition on the columns that it reads, then filters whole batches."""

    def __init__(self, expression: pl.Expr) -> None:
        # Several conditions, as of pl.all().is_not_null(), must all hold.
        self._condition = pl.all_horizontal(expression)
        self._expressions = (expression,)
        self._reads = columns_read(self._expressions)

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        try:
            frame = to_polars(batch, self._reads)
            checks_of(self._expressions, batch.schema).run(frame)
            mask = frame.select(self._condition).to_series()
        except DataError as error:
            label = operator_label(self._context)
            raise DataError(f"{label}: {error}", without_rows=f"{label} failed") from None
        except (Exception, pl.exceptions.PanicException) as error:
            raise user_code_error(error, self._context, doing="the condition") from None
        passing = int(mask.sum())
        if passing == len(mask):
            out(batch)
        elif passing:
            out(filter_batch(batch, mask.to_arrow()))
