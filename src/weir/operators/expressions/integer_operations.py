"""Operations on columns of integers: what they come to, and in which rows that is beyond a type.

Comes in: the sign of an operation, and ranges or columns of its operands. Goes out: the range of its results, and the
rows in which a result leaves its bounds. Floats say so for all rows at once, but for those whose results are so near to
a bound that a float cannot tell; these are worked out one by one, exactly. Never looks at expressions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Range: TypeAlias = "tuple[int, int]"
Rows: TypeAlias = "npt.NDArray[np.bool_]"
"""One for each row, or one for all."""
_Numbers: TypeAlias = "npt.NDArray[np.float64]"

SUM = "sum_horizontal"
SUM_WITH_NULLS = "sum_horizontal(ignore_nulls=False)"

_EXPONENT_MAX = 128
"""Two to the power of this is in no integer type."""
_NUMBER_MAX = 1e300
_ROUNDING = 2.0**-50
_ROUNDING_OF_POWERS = 2.0**-44
"""More than the part of its operands by which a result of floats can be wrong."""


def power(base: Any, exponent: Any) -> Any:
    """Of expressions, or of numbers, where what no type holds is not worked out. Polars refuses negative exponents."""
    if isinstance(exponent, pl.Expr) or abs(base) < 2 or exponent <= _EXPONENT_MAX:
        return base ** (exponent if isinstance(exponent, pl.Expr) else max(exponent, 0))
    return abs(base) ** _EXPONENT_MAX * (-1 if base < 0 and exponent % 2 else 1)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "**": power,
}
UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "abs": abs}


def range_in(column: pl.Series) -> Range | None:
    """What the values of a column lie between, also inside of lists; None: there are none."""
    while column.dtype.is_nested():
        column = column.explode()
    low, high = column.min(), column.max()
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def range_of(sign: str, operands: Sequence[Range | None]) -> Range | None:
    """What the results lie between, if operands lie between these; None: there are none."""
    if sign == SUM:
        known = [one or (0, 0) for one in operands]
        return sum(min(one[0], 0) for one in known), sum(max(one[1], 0) for one in known)
    ranges = [one for one in operands if one is not None]
    if len(ranges) < len(operands):
        return None
    if sign == SUM_WITH_NULLS:
        return sum(one[0] for one in ranges), sum(one[1] for one in ranges)
    if len(ranges) == 1:
        ends = [UNARY[sign](end) for end in ranges[0]]
        return min(0, *ends), max(ends)
    if sign == "//":
        return _quotients(*ranges)
    if sign == "**":
        highest = power(max(map(abs, ranges[0])), ranges[1][1])
        return -highest if ranges[0][0] < 0 else 0, max(highest, 1)
    ends = [BINARY[sign](one, other) for one in ranges[0] for other in ranges[1]]
    return min(ends), max(ends)


def _quotients(dividend: Range, divisor: Range) -> Range:
    """No quotient is further from zero than its dividend, and only a negative divisor takes it to the other side."""
    low, high = min(dividend[0], 0), max(dividend[1], 0)
    return (low, high) if divisor[0] >= 0 else (min(low, -high), max(high, -low))


def rows_beyond(sign: str, operands: Sequence[pl.Series], bounds: Range) -> Rows:
    """In which rows the result, or that of an element of a list, is beyond the bounds."""
    if any(column.dtype.is_nested() for column in operands):
        elements = _elements(operands)
        rows = np.zeros(max(map(len, operands)), np.bool_)
        columns = [elements.get_column(name) for name in elements.columns[1:]]
        rows[elements.to_series(0).to_numpy()[rows_beyond(sign, columns, bounds)]] = True
        return rows
    with np.errstate(all="ignore"):
        result, size = _about(sign, [column.cast(pl.Float64).to_numpy() for column in operands])
        unsure = np.minimum(size, _NUMBER_MAX) * (_ROUNDING_OF_POWERS if sign == "**" else _ROUNDING)
        result = np.clip(result, -_NUMBER_MAX, _NUMBER_MAX)
    # No comparison holds for NaN, which is null here.
    low, high = bounds[0] - 0.5, bounds[1] + 0.5
    beyond: Rows = (result > high + unsure) | (result < low - unsure)
    near = np.flatnonzero(((result > high - unsure) | (result < low + unsure)) & ~beyond)
    if len(near):
        beyond[near] = [
            not _is_within(_exact(sign, values), bounds) for values in zip(*_picked(operands, near), strict=True)
        ]
    return beyond


def first_beyond(sign: str, operands: Sequence[pl.Series], bounds: Range) -> tuple[Any, ...] | None:
    """The operands of the first result that is beyond the bounds."""
    if any(column.dtype.is_nested() for column in operands):
        elements = _elements(operands)
        operands = [elements.get_column(name) for name in elements.columns[1:]]
    every = np.arange(max(map(len, operands)))
    rows = zip(*_picked(operands, every), strict=True)
    return next((values for values in rows if not _is_within(_exact(sign, values), bounds)), None)


def _about(sign: str, numbers: Sequence[_Numbers]) -> tuple[_Numbers, _Numbers]:
    """The results as floats, and the size of what was rounded on the way. Null is NaN."""
    if sign in (SUM, SUM_WITH_NULLS):
        parts = [np.nan_to_num(one) for one in numbers] if sign == SUM else numbers
        return sum(parts[1:], start=parts[0]), sum(map(np.abs, parts[1:]), start=np.abs(parts[0]))
    if len(numbers) == 1:
        return (np.abs(numbers[0]) if sign == "abs" else -numbers[0]), np.abs(numbers[0])
    one, other = numbers
    if sign in "+-":
        return (one + other if sign == "+" else one - other), np.abs(one) + np.abs(other)
    if sign == "//":
        return np.floor(one / np.where(other == 0, np.nan, other)), np.abs(one)  # which Polars makes null
    result = one * other if sign == "*" else np.power(one, np.maximum(other, 0))
    return result, np.abs(result)


def _exact(sign: str, values: tuple[Any, ...]) -> int | None:
    if sign == SUM:
        return int(sum(value or 0 for value in values))
    if None in values or (sign == "//" and values[1] == 0):
        return None
    if sign == SUM_WITH_NULLS:
        return int(sum(values))
    return int((UNARY if len(values) == 1 else BINARY)[sign](*values))


def _is_within(result: int | None, bounds: Range) -> bool:
    return result is None or bounds[0] <= result <= bounds[1]


def _picked(columns: Sequence[pl.Series], rows: npt.NDArray[np.int64]) -> list[Any]:
    """The values in these rows. A column of one row has the same in all."""
    height = max(map(len, columns))
    return [
        column.gather(rows).to_list() if len(column) == height else repeat(column.to_list()[0], len(rows))
        for column in columns
    ]


def _elements(columns: Sequence[pl.Series]) -> pl.DataFrame:
    """The number of the row for each element of its lists, and the operands there."""
    height = max(map(len, columns))
    whole = [column if len(column) == height else column.new_from_index(0, height) for column in columns]
    names = [str(number) for number in range(len(columns))]
    frame = pl.DataFrame(dict(zip(names, whole, strict=True))).with_row_index("row").drop_nulls()
    while nested := [name for name, kind in frame.schema.items() if kind.is_nested()]:
        try:
            frame = frame.explode(nested)
        except pl.exceptions.PolarsError:  # lists of different lengths, which Polars refuses itself
            return pl.DataFrame(schema={"row": pl.UInt32, **dict.fromkeys(names, pl.Int64)})
    return frame
