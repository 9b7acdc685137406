"""What a Polars expression needs, and whether it fits a stream.

Comes in: expressions. Goes out: the columns that they read, or a PlanError when
their result would depend on how the stream is cut into batches. Evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from weir.errors import PlanError


def as_expression(value: str | pl.Expr) -> pl.Expr:
    """A string is the name of a column."""
    if isinstance(value, str):
        return pl.col(value)
    if isinstance(value, pl.Expr):
        return value
    raise PlanError(f"expected a Polars expression or a column name, found {value!r}; wrap a constant in pl.lit()")


def is_wild(expression: pl.Expr) -> bool:
    """Whether it holds a selector such as pl.all(): which columns it reads is known only with the schema."""
    return expression.meta.has_multiple_outputs()


def columns_read(expressions: Iterable[pl.Expr]) -> list[str] | None:
    """The names of the columns that the expressions read; None: possibly all."""
    names: dict[str, None] = {}
    for expression in expressions:
        if is_wild(expression):
            return None
        # Inside list.eval() and its kin, the element is a column without a name.
        names.update((name, None) for name in expression.meta.root_names() if name)
    return list(names)


def check_separable(expression: pl.Expr, operator: str) -> None:
    """Refuse what looks at other rows, as far as Polars can tell.

    It cannot tell inside a selector (pl.all().cum_sum()) or a Python function (map_batches):
    there, the expression sees one batch at a time.
    """
    if is_wild(expression):
        return
    culprit = _first_inseparable(expression)
    if culprit is not None:
        raise PlanError(
            f"{operator}: the result of {culprit} depends on other rows, and so on how the stream is cut into batches;"
            " for aggregates use key_by(…).agg(…), and for parsing give the format"
        )


def _first_inseparable(expression: pl.Expr) -> pl.Expr | None:
    meta = expression.meta
    if meta.is_literal():
        return None
    inputs = meta.pop()
    if inputs and not any(meta.root_names()) and all(_is_constant(part) for part in inputs):
        return None
    try:
        if not meta.is_row_separable():
            return expression
    except pl.exceptions.PolarsError:
        # A Python function, or list.eval() and its kin: what happens to elements stays within one row.
        inputs = [part for part in inputs if any(part.meta.root_names())]
    return next((found for part in inputs if (found := _first_inseparable(part)) is not None), None)


def _is_constant(expression: pl.Expr) -> bool:
    if expression.meta.is_literal():
        return True
    inputs = expression.meta.pop()
    return bool(inputs) and all(map(_is_constant, inputs))


def keeps_length(expression: pl.Expr) -> bool:
    """Whether one row goes out for each that comes in; what Polars cannot tell counts as yes."""
    if is_wild(expression):
        return True
    try:
        return expression.meta.is_length_preserving()
    except pl.exceptions.PolarsError:
        return True


def is_scalar(expression: pl.Expr) -> bool:
    """Whether it is one value for all rows: after `check_separable`, a constant."""
    if is_wild(expression):
        return False
    try:
        return expression.meta.is_scalar()
    except pl.exceptions.PolarsError:
        return False
