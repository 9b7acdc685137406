"""Integers that would wrap around in a Polars expression are an error instead.

Comes in: expressions, a schema, frames. Goes out: nothing, or a DataError that names the operation. Polars computes
+, -, *, //, **, abs and sum_horizontal of integers modulo their type, in silence. What there is of these in an
expression is found once (here); frames are looked at before Polars computes them (wrapped_rows.py).

What is not looked into: what other functions compute themselves, selectors such as pl.all(), and list.eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import polars as pl
import pyarrow as pa

from weir.operators.expressions.integer_operations import BINARY, SUM, SUM_WITH_NULLS, UNARY, Range, range_in
from weir.operators.expressions.separable import columns_read, is_wild
from weir.operators.expressions.wrapped_rows import (
    Branch,
    Check,
    Every,
    Findings,
    Operand,
    Operation,
    Replaced,
    Side,
    Sides,
)

_CHECKS_KEPT_MAX = 512


class Checks:
    """The integer operations of some expressions over one schema."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = checks

    def run(self, frame: pl.DataFrame) -> None:
        """Raise DataError if an operation leaves its type in any row."""
        findings = Findings(frame)
        for check in self._checks:
            rows = findings.rows(check)
            if rows is not None:
                raise findings.error(check, int(rows.argmax()))


class _ById:
    """An expression as a key: the same one is the same object, and == builds another."""

    def __init__(self, expression: pl.Expr) -> None:
        self.expression = expression

    def __hash__(self) -> int:
        return id(self.expression)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.expression is other.expression


def checks_of(expressions: Sequence[pl.Expr], schema: pa.Schema) -> Checks:
    """The operations to check; worked out once for each expression and schema."""
    found = (_check_in(_ById(one), schema) for one in expressions)
    return Checks([check for check in found if check is not None])


@lru_cache(maxsize=_CHECKS_KEPT_MAX)
def _check_in(key: _ById, schema: pa.Schema) -> Check | None:
    if is_wild(key.expression):
        return None
    reads = columns_read([key.expression]) or []
    if any(name not in schema.names for name in reads):
        return None
    return _found(key.expression, pl.DataFrame(schema.empty_table().select(reads)))


def _found(expression: pl.Expr, empty: pl.DataFrame) -> Check | None:
    """The operations inside an expression; None: there are none."""
    operation = _as_operation(expression, empty)
    if operation is not None:
        return operation
    inputs = expression.meta.pop()[::-1]
    inside = [_found(one, empty) for one in inputs]
    parts = tuple(one for one in inside if one is not None)
    if not parts:
        return None
    return (_as_choice(expression, inputs, inside, empty) if len(inputs) > 1 else None) or Every(parts)


def _as_choice(
    expression: pl.Expr, inputs: list[pl.Expr], inside: list[Check | None], empty: pl.DataFrame
) -> Check | None:
    """Of a function that throws away some of what goes in; None: it uses all of it."""
    is_same, is_pair = expression.meta.eq, len(inputs) == 2
    if len(inputs) == 3 and is_same(pl.when(inputs[2]).then(inputs[0]).otherwise(inputs[1])):
        return Branch(inputs[2], inside[2], inside[0], inside[1])
    if is_pair and is_same(inputs[0].filter(inputs[1])):
        return Branch(inputs[1], inside[1], inside[0], None)
    sides = tuple(Side(*one) for one in zip(inputs, inside, strict=True))
    if is_same(pl.coalesce(*inputs)) or (is_pair and is_same(inputs[0].fill_null(inputs[1]))):
        return Replaced(sides)
    deciding: bool
    if is_same(pl.all_horizontal(*inputs)) or (is_pair and is_same(inputs[0] & inputs[1])):
        deciding = False
    elif is_same(pl.any_horizontal(*inputs)) or (is_pair and is_same(inputs[0] | inputs[1])):
        deciding = True
    else:
        return None
    # Of bits, all count.
    return Sides(sides, deciding) if empty.select(expression).dtypes[0] == pl.Boolean else None


def _as_operation(expression: pl.Expr, empty: pl.DataFrame) -> Operation | None:
    inputs = expression.meta.pop()[::-1]
    sign = _sign(expression, inputs) if inputs else None
    if sign is None:
        return None
    bounds = _bounds(expression, empty)
    if bounds is None or any(_bounds(one, empty) is None for one in inputs):
        return None
    operands = tuple(_as_operation(one, empty) or _as_operand(one, empty) for one in inputs)
    return Operation(expression, sign, operands, bounds)


def _sign(expression: pl.Expr, inputs: list[pl.Expr]) -> str | None:
    is_same = expression.meta.eq
    if len(inputs) == 1:
        return next((sign for sign, do in UNARY.items() if is_same(do(inputs[0]))), None)
    if len(inputs) == 2 and (found := next((sign for sign, do in BINARY.items() if is_same(do(*inputs))), None)):
        return found
    if is_same(pl.sum_horizontal(*inputs)):
        return SUM
    return SUM_WITH_NULLS if is_same(pl.sum_horizontal(*inputs, ignore_nulls=False)) else None


def _as_operand(expression: pl.Expr, empty: pl.DataFrame) -> Operand:
    roots = expression.meta.root_names()
    column = roots[0] if len(roots) == 1 and expression.meta.eq(pl.col(roots[0])) else None
    constant = range_in(pl.select(expression).to_series()) if expression.meta.is_literal() else None
    return Operand(expression, column, constant, _found(expression, empty))


def _bounds(expression: pl.Expr, empty: pl.DataFrame) -> Range | None:
    """The least and the greatest value of an integer expression, or of the elements of its lists; None: it is none, or
    has no meaning by itself. True counts as 1."""
    try:
        kind = empty.select(expression).dtypes[0]
    except pl.exceptions.PolarsError:
        return None
    while isinstance(kind, pl.List | pl.Array):
        kind = kind.inner  # type: ignore[assignment]
    if kind == pl.Boolean:
        return 0, 1
    if not kind.is_integer():
        return None
    return pl.select(kind.min()).item(), pl.select(kind.max()).item()  # type: ignore[attr-defined]
