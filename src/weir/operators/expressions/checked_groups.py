"""Integers that would wrap around in a Polars expression over groups are an error instead.

Comes in: the expressions of an aggregate, a schema, frames with a column of groups. Goes out: nothing, or a DataError
that names the operation. What is computed row by row is left to `checked_arithmetic`; sums, products and what is done
to them are computed once more for each group, with twice the bits, unless the least and the greatest number say that
no sum could leave its type.

What is not looked into: inputs of other functions of several columns (`filter`, `sort_by`, `dot` of what was sorted …),
though the sum of what comes out of them is, and other functions that add up (`cum_sum`, `list.sum`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from weir.errors import DataError, PlanError
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.separable import check_separable, is_wild

_BINARY: tuple[Callable[[Any, Any], Any], ...] = (operator.add, operator.sub, operator.mul, operator.floordiv)
_PASSED: tuple[Callable[[Any, Any], Any], ...] = (
    *(*_BINARY, operator.pow, operator.truediv, operator.mod),
    *(operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne),
)
"""What is done to both operands, so that theirs count, too."""

_MARGIN = 1 + 1e-9
"""Products and powers are computed as floats, which are not exact: what comes so close to the limit is refused, too."""


@dataclass(frozen=True)
class _Exact:
    """A number of each group, or several, with more bits than it has in the aggregate."""

    expression: pl.Expr
    wide: pl.Expr
    low: int
    high: int
    added: pl.Expr | None = None
    """Of a sum: what is added up, if it can be told row by row."""


@dataclass(frozen=True)
class _ByRow:
    """What is computed row by row."""

    expression: pl.Expr


class GroupChecks:
    """The integer operations of some aggregating expressions over one schema."""

    def __init__(self, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
        empty = pl.DataFrame(schema.empty_table())
        found = [check for one in expressions if not is_wild(one) for check in _found(one, empty, None)]
        self._schema = schema
        self._rows = [check.expression for check in found if isinstance(check, _ByRow)]
        self._exact = [check for check in found if isinstance(check, _Exact)]

    def run(self, frame: pl.DataFrame, group: str) -> None:
        """Raise DataError if an operation leaves its type in any row or group."""
        checks_of(self._rows, self._schema).run(frame)
        doubtful = [check for check in self._exact if not _is_small(check, frame)]
        if not doubtful:
            return
        ends = [(one.wide.min().alias(f"low{i}"), one.wide.max().alias(f"high{i}")) for i, one in enumerate(doubtful)]
        groups = frame.group_by(group).agg(end for both in ends for end in both)
        for number, check in enumerate(doubtful):
            low, high = groups.get_column(f"low{number}").min(), groups.get_column(f"high{number}").max()
            for value in (low, high):
                if isinstance(value, (int, float)) and not check.low <= value <= check.high:
                    raise DataError(
                        f"{check.expression}: {value} is beyond the range of its type, {check.low} to {check.high}; "
                        f"cast to pl.Float64, pl.Int64 or pl.Decimal(38, 0) before"
                    )


def _is_small(check: _Exact, frame: pl.DataFrame) -> bool:
    """Whether a sum stays within its type even if all rows were of one group, and all like the greatest."""
    if check.added is None:
        return False
    low, high = frame.select(check.added.min().alias("low"), check.added.max().alias("high")).row(0)
    if low is None or high is None:
        return True
    return bool(check.low <= low * frame.height and high * frame.height <= check.high)


def _found(expression: pl.Expr, empty: pl.DataFrame, guard: pl.Expr | None) -> Iterator[_Exact | _ByRow]:
    """The operations inside an expression. `guard`: in which rows, or groups, what it comes to is used."""
    if _is_separable(expression):
        if guard is None:
            yield _ByRow(expression)
        return
    inputs = expression.meta.pop()[::-1]
    if len(inputs) == 1 or _binary_of(expression, inputs, _PASSED) is not None:
        for one in inputs:
            yield from _found(one, empty, guard)
    elif len(inputs) == 3:
        yield from _in_branches(expression, inputs, empty, guard)
    bounds = _bounds(expression, empty)
    wide = None if bounds is None else _wide(expression, inputs)
    if bounds is None or wide is None:
        return
    if guard is not None:
        wide = pl.when(guard).then(wide)
    is_sum = len(inputs) == 1 and expression.meta.eq(inputs[0].sum())
    added = inputs[0] if is_sum and _is_separable(inputs[0]) else None
    yield _Exact(expression, wide, *bounds, added=added)


def _in_branches(
    expression: pl.Expr, inputs: list[pl.Expr], empty: pl.DataFrame, guard: pl.Expr | None
) -> Iterator[_Exact | _ByRow]:
    then, otherwise, condition = inputs
    if not expression.meta.eq(pl.when(condition).then(then).otherwise(otherwise)):
        return
    yield from _found(condition, empty, guard)
    for branch, taken in ((then, condition), (otherwise, condition.ne_missing(True))):
        yield from _found(branch, empty, taken if guard is None else guard & taken)


def _wide(expression: pl.Expr, inputs: list[pl.Expr]) -> pl.Expr | None:
    """The same with twice the bits, or as a float where those would not do; None: it cannot leave its type."""
    wide = [one.cast(pl.Int128) for one in inputs]
    if len(inputs) == 1:
        if expression.meta.eq(inputs[0].sum()):
            return wide[0].sum()
        if expression.meta.eq(inputs[0].product()):
            return inputs[0].cast(pl.Float64).product() * _MARGIN
        negated = pl.lit(0, pl.Int128) - wide[0]  # Polars has no negation of these
        if expression.meta.eq(-inputs[0]):
            return negated
        return pl.max_horizontal(wide[0], negated) if expression.meta.eq(inputs[0].abs()) else None
    do = _binary_of(expression, inputs, (*_BINARY, operator.pow))
    if do is operator.pow:
        return inputs[0].cast(pl.Float64) ** inputs[1].cast(pl.Float64) * _MARGIN
    return None if do is None else do(*wide)


def _binary_of(
    expression: pl.Expr, inputs: list[pl.Expr], among: Sequence[Callable[[Any, Any], Any]]
) -> Callable[[Any, Any], Any] | None:
    if len(inputs) != 2:
        return None
    return next((do for do in among if expression.meta.eq(do(*inputs))), None)


def _is_separable(expression: pl.Expr) -> bool:
    try:
        check_separable(expression, "")
    except PlanError:
        return False
    return True


def _bounds(expression: pl.Expr, empty: pl.DataFrame) -> tuple[int, int] | None:
    """The least and the greatest value of an integer expression; None: it is none, or has no meaning by itself."""
    try:
        kind = empty.select(expression).dtypes[0]
    except pl.exceptions.PolarsError:
        return None
    if not kind.is_integer():
        return None
    return pl.select(kind.min()).item(), pl.select(kind.max()).item()  # type: ignore[attr-defined]
