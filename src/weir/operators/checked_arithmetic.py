"""Integers that would wrap around in a Polars expression are an error instead.

Comes in: expressions, a schema, frames. Goes out: nothing, or a DataError that names the operation. Polars computes
+, -, *, //, ** and abs of integers modulo their type, in silence. Before it does, the least and the greatest
operand say whether any result could leave the type; only if so is the operation done once more, with more bits.

What a condition throws away does not count: of when/then only the branch that a row takes, and of & and | only what
the other side leaves open. What is not looked into: other functions, selectors such as pl.all(), and what is done to
elements of lists: there, an operand may not be what the rows come to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from weir.errors import DataError
from weir.operators.separable import columns_read, is_wild


def _power(base: Any, exponent: Any) -> Any:
    """Of expressions, or of numbers, where what no type holds is not worked out. Polars refuses negative exponents."""
    if isinstance(exponent, pl.Expr) or abs(base) < 2 or exponent <= _EXPONENT_MAX:
        return base ** (exponent if isinstance(exponent, pl.Expr) else max(exponent, 0))
    return abs(base) ** _EXPONENT_MAX * (-1 if base < 0 and exponent % 2 else 1)


_EXPONENT_MAX = 128
"""Two to the power of this is in no integer type."""

_CHECKED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "**": _power,
}
_UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "abs": abs}
_PASSED: tuple[Callable[[Any, Any], Any], ...] = (
    *_CHECKED.values(),
    *(operator.truediv, operator.mod),
    *(operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne),
)
"""What is done to both operands in every row, so that theirs count, too."""

_CHECKS_KEPT_MAX = 512

Range: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class _Operand:
    """What is computed elsewhere: a column, a constant or the result of a function. To select from a frame takes as
    long as to look at 50,000 numbers, so it is done for the last of these only."""

    expression: pl.Expr
    column: str | None
    constant: Range | None


@dataclass(frozen=True)
class _Operation:
    expression: pl.Expr
    sign: str
    operands: tuple[_Operation | _Operand, ...]
    bounds: Range


@dataclass(frozen=True)
class _Branch:
    """Operations that count only in the rows that the condition names."""

    condition: pl.Expr
    checks: tuple[_Check, ...]


@dataclass(frozen=True)
class _Sides:
    """Both sides of & or |: what is computed on one counts only where the other does not decide."""

    sides: tuple[pl.Expr, pl.Expr]
    checks: tuple[tuple[_Check, ...], tuple[_Check, ...]]
    deciding: bool
    """What decides: False for &, True for |."""


_Check: TypeAlias = "_Operation | _Branch | _Sides"


class Checks:
    """The integer operations of some expressions over one schema."""

    def __init__(self, checks: Sequence[_Check]) -> None:
        self._checks = checks

    def run(self, frame: pl.DataFrame) -> None:
        """Raise DataError if an operation leaves its type in any row."""
        _run(self._checks, frame)


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
    return Checks([check for one in expressions for check in _checks_in(_ById(one), schema)])


@lru_cache(maxsize=_CHECKS_KEPT_MAX)
def _checks_in(key: _ById, schema: pa.Schema) -> tuple[_Check, ...]:
    if is_wild(key.expression):
        return ()
    reads = columns_read([key.expression]) or []
    if any(name not in schema.names for name in reads):
        return ()
    return tuple(_found(key.expression, pl.DataFrame(schema.empty_table().select(reads))))


def _found(expression: pl.Expr, empty: pl.DataFrame) -> Iterator[_Check]:
    """The outermost operations inside an expression, those inside of operands first."""
    operation = _as_operation(expression, empty)
    if operation is not None:
        for operand in _operands_of(operation):
            yield from _found(operand.expression, empty)
        yield operation
        return
    inputs = expression.meta.pop()[::-1]
    if len(inputs) == 1 or (len(inputs) == 2 and any(expression.meta.eq(f(*inputs)) for f in _PASSED)):
        for one in inputs:
            yield from _found(one, empty)
    elif len(inputs) == 2:
        yield from _of_sides(expression, inputs, empty)
    elif len(inputs) == 3:
        yield from _of_branches(expression, inputs, empty)


def _of_sides(expression: pl.Expr, inputs: list[pl.Expr], empty: pl.DataFrame) -> Iterator[_Check]:
    left, right = inputs
    deciding = expression.meta.eq(left | right)
    if not deciding and not expression.meta.eq(left & right):
        return
    checks = tuple(_found(left, empty)), tuple(_found(right, empty))
    if empty.select(expression).dtypes[0] != pl.Boolean:
        yield from (check for side in checks for check in side)  # of bits, all of which count
    elif any(checks):
        yield _Sides((left, right), checks, deciding)


def _of_branches(expression: pl.Expr, inputs: list[pl.Expr], empty: pl.DataFrame) -> Iterator[_Check]:
    then, otherwise, condition = inputs
    if not expression.meta.eq(pl.when(condition).then(then).otherwise(otherwise)):
        return
    yield from _found(condition, empty)
    for branch, taken in ((then, condition), (otherwise, condition.ne_missing(True))):
        if checks := tuple(_found(branch, empty)):
            yield _Branch(taken, checks)


def _operands_of(operation: _Operation) -> Iterator[_Operand]:
    for one in operation.operands:
        if isinstance(one, _Operand):
            yield one
        else:
            yield from _operands_of(one)


def _as_operation(expression: pl.Expr, empty: pl.DataFrame) -> _Operation | None:
    bounds = _bounds(expression, empty)
    inputs = expression.meta.pop()[::-1]
    if bounds is None or not inputs or len(inputs) > 2:
        return None
    sign: str | None
    if len(inputs) == 1:
        sign = next((sign for sign, do in _UNARY.items() if expression.meta.eq(do(inputs[0]))), None)
    else:
        sign = next((sign for sign, do in _CHECKED.items() if expression.meta.eq(do(*inputs))), None)
    if sign is None or any(_bounds(one, empty) is None for one in inputs):
        return None
    operands = tuple(_as_operation(one, empty) or _as_operand(one) for one in inputs)
    return _Operation(expression, sign, operands, bounds)


def _as_operand(expression: pl.Expr) -> _Operand:
    roots = expression.meta.root_names()
    column = roots[0] if len(roots) == 1 and expression.meta.eq(pl.col(roots[0])) else None
    is_constant = expression.meta.is_literal()
    return _Operand(expression, column, _range_in(pl.select(expression).to_series()) if is_constant else None)


def _bounds(expression: pl.Expr, empty: pl.DataFrame) -> Range | None:
    """The least and the greatest value of an integer expression; None: it is none, or has no meaning by itself."""
    try:
        kind = empty.select(expression).dtypes[0]
    except pl.exceptions.PolarsError:
        return None
    if not kind.is_integer():
        return None
    return pl.select(kind.min()).item(), pl.select(kind.max()).item()  # type: ignore[attr-defined]


def _run(checks: Sequence[_Check], frame: pl.DataFrame) -> None:
    for check in checks:
        if isinstance(check, _Operation):
            _range_of(check, frame)
        elif isinstance(check, _Branch):
            _run_branch(check, frame)
        else:
            _run_sides(check, frame)


def _run_branch(branch: _Branch, frame: pl.DataFrame) -> None:
    """To pick rows takes longer than to look at all, so that is done when something was found."""
    if _problem(branch.checks, frame) is not None:
        _run(branch.checks, frame.filter(branch.condition))


def _run_sides(both: _Sides, frame: pl.DataFrame) -> None:
    problems = [_problem(checks, frame) for checks in both.checks]
    if all(problems) and frame.height > 1:
        # What each side comes to can be relied on in some rows only: in which, they tell one by one.
        for row in range(frame.height):
            _run_sides(both, frame.slice(row, 1))
        return
    for problem, checks, other in zip(problems, both.checks, reversed(both.sides), strict=True):
        if all(problems) and problem is not None:
            raise problem
        if problem is not None:
            _run(checks, frame.filter(other.ne_missing(both.deciding)))


def _problem(checks: Sequence[_Check], frame: pl.DataFrame) -> DataError | None:
    try:
        _run(checks, frame)
    except DataError as error:
        return error
    return None


def _range_of(node: _Operation | _Operand, frame: pl.DataFrame) -> Range | None:
    """What the values lie between; None: there are none."""
    if isinstance(node, _Operand):
        return node.constant or _range_in(_values_of(node, frame))
    ranges = [_range_of(operand, frame) for operand in node.operands]
    if any(one is None for one in ranges):
        return None
    low, high = _combined(node.sign, [one for one in ranges if one is not None])
    if node.bounds[0] <= low and high <= node.bounds[1]:
        return low, high
    return _computed(node, frame)


def _combined(sign: str, ranges: Sequence[Range]) -> Range:
    if len(ranges) == 1:
        ends = [_UNARY[sign](end) for end in ranges[0]]
        return min(0, *ends), max(ends)
    if sign == "//":
        return _quotients(*ranges)
    if sign == "**":
        highest = _power(max(map(abs, ranges[0])), ranges[1][1])
        return -highest if ranges[0][0] < 0 else 0, max(highest, 1)
    ends = [_CHECKED[sign](one, other) for one in ranges[0] for other in ranges[1]]
    return min(ends), max(ends)


def _quotients(dividend: Range, divisor: Range) -> Range:
    """No quotient is further from zero than its dividend, and only a negative divisor takes it to the other side."""
    low, high = min(dividend[0], 0), max(dividend[1], 0)
    return (low, high) if divisor[0] >= 0 else (min(low, -high), max(high, -low))


def _computed(node: _Operation, frame: pl.DataFrame) -> Range | None:
    """Once more with more bits, whatever the operands have."""
    columns = [_values_of(operand, frame) for operand in node.operands]
    height = max(map(len, columns))
    lists = [column.to_list() if len(column) == height else column.to_list() * height for column in columns]
    low: int | None = None
    high: int | None = None
    for values in zip(*lists, strict=True):
        if None in values or (node.sign == "//" and values[1] == 0):  # which Polars makes null
            continue
        result = (_UNARY if len(values) == 1 else _CHECKED)[node.sign](*values)
        if not node.bounds[0] <= result <= node.bounds[1]:
            shown = f"{node.sign}({values[0]})" if len(values) == 1 else f"{values[0]} {node.sign} {values[1]}"
            raise DataError(
                f"{node.expression}: {shown} is beyond the range of its type, {node.bounds[0]} to {node.bounds[1]}; "
                f"cast an operand to pl.Float64, pl.Int64 or pl.Decimal(38, 0) before; to wrap around, use map_batches"
            )
        low, high = result if low is None else min(low, result), result if high is None else max(high, result)
    return None if low is None or high is None else (low, high)


def _values_of(node: _Operation | _Operand, frame: pl.DataFrame) -> pl.Series:
    if isinstance(node, _Operand) and node.column is not None:
        return frame.get_column(node.column)
    return frame.select(node.expression).to_series()


def _range_in(series: pl.Series) -> Range | None:
    low, high = series.min(), series.max()
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None
