"""Integers of aggregates of one's own: exact, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from weir.errors import DataError
from weir.operators.aggregates.custom import aggregate
from weir.operators.expressions.checked_groups import GroupChecks

HALF = 2**62
V, N = pl.col("v"), pl.col("n")
FRAME = pl.DataFrame(
    {"group": [1, 1, 2, 2], "v": [HALF, HALF, -HALF, 5], "n": pl.Series([2**30, 2**30, 1, 1], dtype=pl.Int32)}
)
SCHEMA = pa.schema([("v", pa.int64()), ("n", pa.int32())])


def run(expression: pl.Expr) -> None:
    GroupChecks([expression], SCHEMA).run(FRAME, "group")


@pytest.mark.parametrize(
    "expression",
    [
        V.sum(),
        pl.sum("v"),
        V.filter(V > 0).sum(),
        V.sum() // pl.len(),
        V.sum() / 2,
        V.sum().alias("x").cast(pl.Float64),
        (V * 4).sum(),
        (V * 4).max(),
        V.max() * 2,
        V.max() + V.max(),
        V.min() * 2 - 1 + V.max(),
        -(V.min() * 2),
        (V.min() * 2).abs(),
        V.max() ** 2,
        V.product(),
        (V - V.min() + V).sum(),
        (V - (V.max() + HALF)).min(),
        N.sum(),
        pl.when(pl.len() == 2).then(V.sum()).otherwise(0),
        pl.when(V > 0).then(V).otherwise(0).sum(),
    ],
    ids=str,
)
def test_what_leaves_its_type_in_some_group_is_an_error(expression: pl.Expr) -> None:
    with pytest.raises(DataError, match="beyond the range of its type"):
        run(expression)


@pytest.mark.parametrize(
    "expression",
    [
        V.min(),
        V.mean(),
        V.filter(V < HALF).sum(),
        (V // 2).sum(),
        V.cast(pl.Float64).sum(),
        V.cast(pl.Int128).sum(),
        V.cast(pl.Decimal(38, 0)).sum(),
        V.max() // 2 + V.min() // 2,
        V.max() - 5,
        N.cast(pl.Int64).sum(),
        N.max() * 1,
        N.product().cast(pl.Int64),
        (V // HALF).product(),
        pl.len(),
        (V > 0).sum(),
        pl.when(pl.len() == 3).then(V.sum()).otherwise(0),
        pl.when(V < HALF).then(V).otherwise(0).sum(),
        pl.all().first(),
        pl.lit(3),
    ],
    ids=str,
)
def test_what_stays_within_its_type_in_every_group_is_none(expression: pl.Expr) -> None:
    run(expression)


def test_each_group_counts_by_itself() -> None:
    """All groups together are beyond the type, and so would be their least and greatest."""
    frame = pl.DataFrame({"group": [1, 2, 3], "v": [HALF, HALF, -HALF], "n": pl.Series([1, 1, 1], dtype=pl.Int32)})
    for expression in (V.sum(), V.sum() * 1, (V - V.min()).sum(), V.max() - V.min()):
        GroupChecks([expression], SCHEMA).run(frame, "group")


def sums() -> Any:
    return aggregate(partial={"s": V.sum()}, merge={"s": pl.col("s").sum()}, final=pl.col("s") * 2)


def test_a_custom_aggregate_checks_all_of_its_parts() -> None:
    schema = pa.schema([("v", pa.int64())])
    slots = np.array([0, 0])
    with pytest.raises(DataError, match=r"sum\(\): 9223372036854775808 is beyond the range"):
        sums().lift_grouped(pa.record_batch({"v": [HALF, HALF]}), slots)
    kernel = sums().kernel(schema, "s")
    kernel.merge(np.array([0]), [pa.array([HALF])], count=1)
    with pytest.raises(DataError, match=r"sum\(\): 9223372036854775808 is beyond the range"):
        kernel.merge(np.array([0]), [pa.array([HALF])], count=1)
    assert kernel.read(np.array([0]))[0].to_pylist() == [HALF]
    with pytest.raises(DataError, match=rf"{HALF} \* 2 is beyond the range"):
        sums().final([pa.array([HALF])])
    assert sums().final([pa.array([-HALF, 5, None])]).to_pylist() == [-(2**63), 10, None]
