"""Integers in expressions never wrap around in silence."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.unit.operators.running import context, run
from weir.errors import DataError
from weir.operators.aggregates import named as of
from weir.operators.aggregates.running import RunningAggregate
from weir.operators.expressions.checked_arithmetic import checks_of
from weir.operators.expressions.select import Filter, Select, WithColumns

MAX = (1 << 63) - 1
MIN = -MAX - 1
A, B, SHORT = pl.col("a"), pl.col("b"), pl.col("i")
SCHEMA = pa.schema({"a": pa.int64(), "b": pa.int64(), "i": pa.int32(), "x": pa.float64(), "l": pa.list_(pa.int64())})


def batch(*rows: tuple[Any, Any, Any], element: int = MAX) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"a": a, "b": b, "i": i, "x": 0.5, "l": [None, element]} for a, b, i in rows], schema=SCHEMA
    )


@pytest.mark.parametrize(
    ("expression", "row"),
    [
        (A + 1, (MAX, 0, 0)),
        (A - B, (MIN, 1, 0)),
        (B * A, (1 << 32, 1 << 31, 0)),
        (-A, (MIN, 0, 0)),
        (SHORT + SHORT, (0, 0, (1 << 31) - 1)),
        (SHORT * SHORT + A, (0, 0, 1 << 20)),
        ((A + B) / 2, (MAX, 1, 0)),
        ((A + B) % 7 + 1, (MAX, 1, 0)),
        ((A * B).cast(pl.Float64) * 0.5, (MAX, 2, 0)),
        ((A + B).alias("c"), (MAX, MAX, 0)),
        (pl.lit(2) * A, (MAX, 0, 0)),
        (A.abs() + 1, (MAX, 0, 0)),
        (A // -1, (MIN, 0, 0)),
        (A // B + 1, (MIN, -1, 0)),
        (A**2, (1 << 32, 0, 0)),
        (A**B, (-3, 41, 0)),
        (A**B, (2, (1 << 32) - 1, 0)),
        (pl.lit(10).cast(pl.Int64) ** B, (0, 19, 0)),
        (A.abs(), (MIN, 0, 0)),
        (pl.when(A > 0).then(A * B).otherwise(0), (MAX, 2, 0)),
        (pl.when(A > 0).then(0).otherwise(A - B), (MIN, 1, 0)),
        (pl.when(A > 0).then(0).when(B > 0).then(A - B).otherwise(A + B), (MIN, 1, 0)),
        (pl.when(A * B > 0).then(1).otherwise(1), (MAX, 2, 0)),
        (((A * B > 0) & (B == 2)).cast(pl.Int64), (MAX, 2, 0)),
        (((B == 2) & (A * B > 0)).cast(pl.Int64), (MAX, 2, 0)),
        (((A * B > 0) | (B == 3)).cast(pl.Int64), (MAX, 2, 0)),
        (((A * B > 0) & (A * B + 1 > 0)).cast(pl.Int64), (MAX, 2, 0)),
        ((A * B) & 1, (MAX, 2, 0)),
        (((A * B > 0) ^ (B == 2)).cast(pl.Int64), (MAX, 2, 0)),
        ((A * B).is_between(0, 10).cast(pl.Int64), (MAX, 2, 0)),
        ((A * B).eq_missing(3).cast(pl.Int64), (MAX, 2, 0)),
        ((A * B).fill_null(0), (MAX, 2, 0)),
        ((A * B).clip(0, 10), (MAX, 2, 0)),
        (pl.coalesce(A * B, 0), (MAX, 2, 0)),
        (pl.coalesce(pl.when(B < 2).then(B), A * B, 0), (MAX, 2, 0)),
        (pl.max_horizontal(A * B, 0), (MAX, 2, 0)),
        (pl.all_horizontal(A * B > 0, B == 2).cast(pl.Int64), (MAX, 2, 0)),
        (pl.any_horizontal(B == 3, A * B > 0).cast(pl.Int64), (MAX, 2, 0)),
        (pl.sum_horizontal("a", "b"), (MAX, 2, 0)),
        (pl.sum_horizontal("a", "b", ignore_nulls=False), (MAX, 2, 0)),
        (A + (B == 2), (MAX, 2, 0)),
        ((pl.col("l") * B).list.len().cast(pl.Int64), (1, 2, 0)),
        ((pl.col("l") + pl.col("l")).list.first().fill_null(0) % 5, (1, 2, 0)),
    ],
)
def test_an_operation_that_leaves_its_type_is_an_error_with_its_operands(expression: pl.Expr, row: Any) -> None:
    rows = [(1, 1, 1), (None, None, None), row]
    with pytest.raises(DataError, match=r"'the-name'.* is beyond the range of its type"):
        run(WithColumns([expression.alias("out")]), batch(*rows))
    with pytest.raises(DataError, match="is beyond the range"):
        run(Select([expression.alias("out")]), batch(row))
    with pytest.raises(DataError, match="is beyond the range"):
        run(Filter(expression > 3), batch(*rows))
    assert run(WithColumns([expression.alias("out")]), batch((1, 1, 1), element=1))


def test_operands_that_are_large_apart_are_computed_once_more_and_pass() -> None:
    rows = batch((MAX, 1, 0), (1, MAX, 0), (None, 5, 0))
    (found,) = run(Select([(A * B).alias("p"), (A - 1 + B - B).alias("q"), (-A).alias("n")]), rows.slice(0, 1))
    assert found.to_pylist() == [{"p": MAX, "q": MAX - 1, "n": -MAX}]
    (found,) = run(Select([(A * B).alias("p")]), rows)
    assert found.column("p").to_pylist() == [MAX, MAX, None]


def test_an_operand_in_between_counts_too() -> None:
    with pytest.raises(DataError, match=rf"{MAX} \+ 1 is beyond"):
        run(Select([(A + 1 - 1).alias("out")]), batch((MAX, 0, 0)))


def test_what_a_condition_guards_is_left_to_it() -> None:
    guarded = pl.when(A < 100).then(A * 1_000).otherwise(0).alias("out")
    (found,) = run(Select([guarded]), batch((MAX, 0, 0), (5, 0, 0)))
    assert found.column("out").to_pylist() == [0, 5_000]
    guarded = pl.when(A < 100).then(0).when(B < 100).then(B * 1_000).otherwise(A).alias("out")
    (found,) = run(Select([guarded]), batch((MAX, 5, 0), (5, MAX, 0), (None, 5, 0)))
    assert found.column("out").to_pylist() == [5_000, 0, 5_000]
    rows = batch((MAX, 0, 0), (5, 0, 0))
    assert [len(found) for found in run(Filter((A < 100) & (A * 2 == 10)), rows)] == [1]
    assert [len(found) for found in run(Filter((A * 2 == 10) & (A < 100)), rows)] == [1]
    assert [len(found) for found in run(Filter((A >= 100) | (A * 2 == 10)), rows)] == [2]


def test_sides_that_guard_each_other_in_different_rows_pass() -> None:
    low, high = batch((MAX, 1, 0), (1, MAX, 0)), (A * 2 < 10) & (B * 2 < 10)
    with pytest.raises(DataError, match="is beyond the range"):
        run(Filter(high), low)  # neither says in its row what the other must be
    both = (A < 10) & (A * 2 < 10) & (B < 10) & (B * 2 < 10)
    assert run(Filter(both), low) == []
    assert run(Filter((A * 2 > 5) & (A < 10) | (B * 2 > 5) & (B < 10)), batch((1, 1, 0), (MAX, MAX, 0))) == []


def test_what_is_not_picked_does_not_count() -> None:
    rows = batch((MAX, 2, 0), (5, 3, 0), (None, 4, 0))
    for expression, expected in (
        (pl.coalesce(A, A * B), [MAX, 5, None]),
        (A.fill_null(A * B), [MAX, 5, None]),
        (pl.coalesce(A.clip(0, 9), pl.when(A > 9).then(A * B)), [9, 5, None]),
        (pl.all_horizontal(B > 2, A * B > 0, B > 0).cast(pl.Int64), [0, 1, None]),
        (pl.any_horizontal(A * B > 100, B == 2).cast(pl.Int64), [1, 0, None]),
        (pl.sum_horizontal("a", -B, "b"), [MAX, 5, 0]),
        (A + (B > 2), [MAX, 6, None]),
    ):
        (found,) = run(Select([expression.alias("out")]), rows)
        assert found.column("out").to_pylist() == expected


def test_the_operands_are_those_of_the_first_row_that_counts() -> None:
    rows = batch((MAX, 1, 0), (MAX, 3, 0), (MAX, 4, 0))
    with pytest.raises(DataError, match=rf"{MAX} \* 3 is beyond"):
        run(Select([pl.when(B < 2).then(0).otherwise(A * B).alias("out")]), rows)
    with pytest.raises(DataError, match=rf"sum_horizontal\({MAX}, 4\) is beyond"):
        run(Filter((B > 3) & (pl.sum_horizontal("a", "b") > 0)), rows)
    with pytest.raises(DataError, match=rf"{MAX} \+ 3 is beyond"):
        run(Select([((pl.col("l") + B).alias("out"))]), rows.slice(1))


def test_powers_within_their_type_are_what_python_says() -> None:
    rows = batch((-2, 63, 0), (-1, (1 << 32) - 1, 0), (0, 0, 0), (3, 39, 0), (None, 1, 0))
    (found,) = run(Select([(A**B).alias("out")]), rows)
    assert found.column("out").to_pylist() == [MIN, -1, 1, 3**39, None]


def test_elements_selectors_and_functions_are_not_looked_into() -> None:
    rows = batch((1, 2, 3))
    assert run(Select([pl.col("l").list.eval(pl.element() + 1).alias("out")]), rows)
    assert run(Select([pl.col("a", "b") + 1]), rows)
    assert run(Select([A.map_batches(lambda s: s + 1, return_dtype=pl.Int64).alias("out")]), rows)


def test_inputs_of_aggregates_are_checked_too() -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    for aggregate in (of.sum(pl.col("v") * 2), of.max(pl.col("v") + pl.col("k"))):
        running = RunningAggregate(["k"], {"out": aggregate}, schema, False).make()
        running.open(context(), None)
        running.process(pa.record_batch({"k": [1], "v": [5]}, schema=schema), lambda _: None)
        with pytest.raises(DataError, match=r"'the-name'.*beyond the range of its type"):
            running.process(pa.record_batch({"k": [1], "v": [MAX]}, schema=schema), lambda _: None)


@pytest.mark.parametrize("seed", seeds(120))
def test_random_expressions_fail_exactly_where_python_leaves_the_range(seed: int) -> None:
    rng = random.Random(seed)
    ends = [MAX, MIN, 0, 1, -1, 1 << 32, -(1 << 31), rng.randint(MIN, MAX)]
    rows = [(rng.choice(ends), rng.choice(ends)) for _ in range(rng.choice([1, 2, 4]))]
    fits = True

    def made(depth: int) -> tuple[pl.Expr, list[int | None]]:
        nonlocal fits
        if depth == 0:
            number = rng.randrange(2)
            return (A, B)[number], [row[number] for row in rows]
        (left, ones), (right, others) = made(depth - 1), made(rng.randrange(depth))
        do = rng.choice([operator.add, operator.sub, operator.mul, operator.floordiv])
        results = [calculated(do, *pair) for pair in zip(ones, others, strict=True)]
        fits = fits and all(result is None or MIN <= result <= MAX for result in results)
        return do(left, right), results

    expression, expected = made(rng.choice([1, 2]))
    values = batch(*((a, b, 0) for a, b in rows))
    if fits:
        (found,) = run(Select([expression.alias("out")]), values)
        assert found.column("out").to_pylist() == expected
    else:
        with pytest.raises(DataError, match="beyond the range"):
            run(Select([expression.alias("out")]), values)


def calculated(do: Callable[[Any, Any], int], one: int | None, other: int | None) -> int | None:
    nothing = one is None or other is None or (do is operator.floordiv and other == 0)
    return None if nothing else do(one, other)


def test_an_expression_is_looked_at_once_for_each_schema() -> None:
    expression = A + B
    first = checks_of([expression], SCHEMA)._checks
    assert checks_of([expression], SCHEMA)._checks[0] is first[0]
