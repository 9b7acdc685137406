"""Rows in which integers would wrap around: as exact arithmetic says, and at a cost that grows with the expression."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from weir.errors import DataError
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.integer_operations import BINARY, SUM, SUM_WITH_NULLS, UNARY, first_beyond, rows_beyond

MAX = (1 << 63) - 1
MIN = -MAX - 1
VALUES = [0, 1, -1, 2, 5, 1 << 31, 1 << 62, MAX, MIN, None]
CONDITIONS = 14
ROWS = 65_536

Row: TypeAlias = "dict[str, int | None]"
Meaning: TypeAlias = "Callable[[Row], Any]"
"""What an expression comes to in a row, worked out exactly and only as far as it matters."""


class Wrapped(Exception):
    pass


def within(value: int) -> int:
    if not MIN <= value <= MAX:
        raise Wrapped
    return value


class Drawn:
    """Random expressions, each with its meaning."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def number(self, depth: int) -> tuple[pl.Expr, Meaning]:
        if depth == 0 or self._rng.random() < 0.15:
            name = self._rng.choice("ab")
            return pl.col(name), lambda row: row[name]
        kind = self._rng.choice(["binary", "binary", "binary", "unary", "power", "when", "coalesce", "sum", "constant"])
        if kind == "constant":
            value = self._rng.choice([0, 1, -1, 2, 10])
            return pl.lit(value, pl.Int64), lambda row: value
        (one, first), (other, second) = self.number(depth - 1), self.number(depth - 1)
        if kind == "unary":
            turned = self._rng.choice([abs, operator.neg])
            return turned(one), lambda row: None if (value := first(row)) is None else within(turned(value))
        if kind == "power":
            exponent = self._rng.choice([0, 1, 2, 3])
            return one**exponent, lambda row: None if (value := first(row)) is None else within(value**exponent)
        if kind == "when":
            condition, holds = self.condition(depth - 1)
            return (
                pl.when(condition).then(one).otherwise(other),
                lambda row: first(row) if holds(row) is True else second(row),
            )
        if kind == "coalesce":
            expression = self._rng.choice([pl.coalesce(one, other), one.fill_null(other)])
            return expression, lambda row: second(row) if (value := first(row)) is None else value
        if kind == "sum":
            return pl.sum_horizontal(one, other), lambda row: within((first(row) or 0) + (second(row) or 0))
        do = self._rng.choice([operator.add, operator.sub, operator.mul, operator.floordiv])

        def result(row: Row) -> Any:
            values = first(row), second(row)
            return None if None in values or (do is operator.floordiv and values[1] == 0) else within(do(*values))

        return do(one, other), result

    def condition(self, depth: int) -> tuple[pl.Expr, Meaning]:
        if depth <= 0 or self._rng.random() < 0.4:
            (one, first), (other, second) = self.number(max(depth - 1, 0)), self.number(0)
            return one > other, lambda row: None if None in (pair := (first(row), second(row))) else pair[0] > pair[1]
        sides = [self.condition(depth - 1) for _ in range(self._rng.choice([2, 2, 3]))]
        deciding = self._rng.random() < 0.5

        def holds(row: Row) -> Any:
            found = []
            for _, meaning in sides:
                try:
                    found.append(meaning(row))
                except Wrapped:
                    found.append(Wrapped)
            if any(one is deciding for one in found):
                return deciding
            if Wrapped in found:
                raise Wrapped
            return None if None in found else not deciding

        parts = [side for side, _ in sides]
        if len(parts) == 2 and self._rng.random() < 0.8:
            return (parts[0] | parts[1] if deciding else parts[0] & parts[1]), holds
        return (pl.any_horizontal(*parts) if deciding else pl.all_horizontal(*parts)), holds


@pytest.mark.parametrize("seed", seeds(300))
def test_random_expressions_fail_exactly_where_a_row_comes_to_a_number_that_leaves_its_type(seed: int) -> None:
    rng = random.Random(seed)
    drawn = Drawn(rng)
    expression, meaning = drawn.number(3) if rng.random() < 0.5 else drawn.condition(3)
    rows: list[Row] = [{"a": rng.choice(VALUES), "b": rng.choice(VALUES)} for _ in range(rng.choice([1, 2, 5]))]
    table = pa.Table.from_pylist(rows, schema=pa.schema({"a": pa.int64(), "b": pa.int64()}))
    checks = checks_of([expression], table.schema)
    try:
        expected = [meaning(row) for row in rows]
    except Wrapped:
        with pytest.raises(DataError, match="beyond the range"):
            checks.run(pl.DataFrame(table))
        return
    checks.run(pl.DataFrame(table))
    found = pl.DataFrame(table).with_columns(out=expression).get_column("out").to_list()
    assert found == expected


TYPES = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Int128]


@pytest.mark.parametrize("seed", seeds(100))
def test_rows_beyond_a_type_are_those_that_exact_arithmetic_finds(seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(TYPES)
    low, high = pl.select(kind.min()).item(), pl.select(kind.max()).item()
    near = [low, low + 1, low // 2, high, high - 1, high // 2 + 1, int(high**0.5), int(high**0.5) + 1, 0, 1, 2, 3, None]
    near += [-1, -2, -int(high**0.5)] if low < 0 else []
    sign = rng.choice([*BINARY, *UNARY, SUM, SUM_WITH_NULLS])
    count = 3 if sign in (SUM, SUM_WITH_NULLS) else 2 if sign in BINARY and (sign != "-" or rng.random() < 0.5) else 1
    columns = [pl.Series([rng.choice(near) for _ in range(200)], dtype=kind) for _ in range(count)]
    one_by_one = [
        first_beyond(sign, [column.slice(row, 1) for column in columns], (low, high)) is not None for row in range(200)
    ]
    assert rows_beyond(sign, columns, (low, high)).tolist() == one_by_one


def test_elements_of_lists_are_looked_at_with_the_row_that_they_are_in() -> None:
    lists = pl.Series([[1, 2], [], None, [None, MAX], [None]], dtype=pl.List(pl.Int64))
    others = pl.Series([MAX, MAX, MAX, 1, MAX])
    assert rows_beyond("+", [lists, others], (MIN, MAX)).tolist() == [True, False, False, True, False]
    assert rows_beyond("*", [lists, pl.Series([2])], (MIN, MAX)).tolist() == [False, False, False, True, False]
    assert rows_beyond("+", [lists, lists], (MIN, MAX)).tolist() == [False, False, False, True, False]
    nested = pl.Series([[[1], [MAX]], [[2]]])
    assert rows_beyond("+", [nested, pl.Series([1])], (MIN, MAX)).tolist() == [True, False]


def seconds_of(expression: pl.Expr, table: pa.Table) -> float:
    """The least processor time of a few checks."""
    checks, frame = checks_of([expression], table.schema), pl.DataFrame(table)
    taken_s = []
    for _ in range(3):
        started_s = time.process_time()
        checks.run(frame)
        taken_s.append(time.process_time() - started_s)
    return min(taken_s)


def chain(last: pl.Expr) -> pl.Expr:
    expression: Any = pl.when(pl.col("code") == 0).then(pl.lit(0))
    for code in range(1, CONDITIONS):
        expression = expression.when(pl.col("code") == code).then(pl.lit(code))
    return expression.otherwise(last)  # type: ignore[no-any-return]


def conjunction(first: pl.Expr) -> pl.Expr:
    for code in range(1, CONDITIONS):
        first = first & (pl.col("code") != 100 + code)
    return first & (pl.col("code") != 0)


@pytest.mark.parametrize("large", [1, 1 << 62], ids=["nothing wraps", "what would wrap is guarded"])
@pytest.mark.parametrize("made", [chain, lambda last: conjunction(last > 0)], ids=["when", "and"])
def test_many_conditions_cost_little(made: Callable[[pl.Expr], pl.Expr], large: int) -> None:
    codes = [row % 30 for row in range(ROWS)]
    table = pa.table({"code": codes, "a": [large if code == 0 else row for row, code in enumerate(codes)]})
    assert seconds_of(made(pl.col("a") * 10), table) < (0.05 if large == 1 else 0.2)


def test_sides_that_guard_each_other_row_by_row_cost_little() -> None:
    table = pa.table({"a": [1 << 62, -1] * (ROWS // 2), "b": [-1, 1 << 62] * (ROWS // 2)})
    assert seconds_of((pl.col("a") * 10 > 0) & (pl.col("b") * 10 > 0), table) < 0.1
