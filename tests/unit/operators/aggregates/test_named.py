"""What each aggregate says about types, and what it refuses when the job is built."""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from weir.errors import DataError, PlanError, SchemaError
from weir.operators.aggregates import named as of

SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.decimal128(10, 2),
        "wide": pa.decimal128(35, 3),
        "s": pa.large_string(),
        "v": pa.string_view(),
        "c": pa.dictionary(pa.int32(), pa.string()),
        "b": pa.bool_(),
        "t": pa.timestamp("ms"),
        "p": pa.duration("us"),
        "l": pa.list_(pa.int64()),
        "r": pa.struct({"x": pa.int64()}),
    }
)
FREE = of.aggregate(partial={"n": pl.len()}, merge={"n": pl.col("n").sum()})


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (of.count(), pa.int64()),
        (of.count("s"), pa.int64()),
        (of.sum("i"), pa.int64()),
        (of.sum("u"), pa.int64()),
        (of.sum("b"), pa.int64()),
        (of.sum("f"), pa.float64()),
        (of.sum("d"), pa.decimal128(20, 2)),
        (of.sum("wide"), pa.decimal128(38, 3)),
        (of.sum("p"), pa.duration("us")),
        (of.sum(pl.col("i") * pl.col("f")), pa.float64()),
        (of.avg("i"), pa.float64()),
        (of.avg("d"), pa.float64()),
        (of.min("i"), pa.int32()),
        (of.max("t"), pa.timestamp("ms")),
        (of.min("s"), pa.string()),
        (of.max("v"), pa.string()),
        (of.first("c"), pa.string()),
        (of.last("l"), pa.list_(pa.int64())),
        (of.last("r"), pa.struct({"x": pa.int64()})),
        (of.max(pl.col("s").str.len_chars()), pa.uint32()),
        (FREE, pa.int64()),
    ],
)
def test_the_type_of_the_output_follows_from_that_of_the_column(aggregate: of.Aggregate, expected: pa.DataType) -> None:
    copy = pickle.loads(pickle.dumps(aggregate))
    assert copy.output_type(SCHEMA) == expected
    empty = SCHEMA.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=SCHEMA)]
    lifted = copy.lift(empty[0])
    assert [array.type for array in lifted] == [field.type for field in copy.accumulators(SCHEMA)]
    assert copy.final(lifted).type == expected


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (of.sum("nothing"), r"sum\('nothing'\).*the columns are i, u, f"),
        (of.count("nothing"), r"count\('nothing'\).*the columns are"),
        (of.sum(pl.col("nothing") + 1), r"nothing.*the columns are i, u, f"),
        (of.sum("s"), "expected numbers, found"),
        (of.avg("t"), "expected numbers, found"),
        (of.avg("p"), "durations"),
        (of.max("l"), "no order"),
        (of.min(3), "expected the name of a column"),  # type: ignore[arg-type]
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(aggregate: of.Aggregate, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        aggregate.output_type(SCHEMA)


def test_an_expression_that_looks_at_other_rows_is_refused() -> None:
    with pytest.raises(PlanError, match="depends on other rows"):
        of.sum(pl.col("i").cum_sum()).output_type(SCHEMA)


def test_a_constant_counts_for_every_row() -> None:
    batch = pa.record_batch({"i": [1, 2, 3]})
    assert of.sum(pl.lit(2)).lift(batch)[0].to_pylist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"partial": {"n": pl.len()}, "merge": {"m": pl.col("m").sum()}}, "name the same in both"),
        ({"partial": {}, "merge": {}}, "name the same in both"),
        ({"partial": {"a": pl.len(), "b": pl.len()}, "merge": {"a": pl.len(), "b": pl.len()}}, "final="),
    ],
)
def test_a_custom_aggregate_must_be_complete(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        of.aggregate(**parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"partial": {"n": pl.col("zzz").sum()}, "merge": {"n": pl.col("n").sum()}}, "partial: .*zzz"),
        ({"partial": {"n": pl.len()}, "merge": {"n": pl.col("zzz").sum()}}, "merge: .*zzz"),
        ({"partial": {"n": pl.len()}, "merge": {"n": pl.col("n").sum()}, "final": pl.col("zzz")}, "final: .*zzz"),
        ({"partial": {"n": pl.len()}, "merge": {"n": pl.col("n").mean()}}, r"'n' is int64 .* double"),
    ],
)
def test_a_mistake_in_a_custom_aggregate_shows_when_the_job_is_built(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        of.aggregate(**parts).output_type(SCHEMA)


def test_lifting_a_custom_aggregate_gives_one_accumulator_for_each_row_in_order() -> None:
    ends = of.aggregate(
        partial={"low": pl.col("i").min(), "n": pl.len()},
        merge={"low": pl.col("low").min(), "n": pl.col("n").sum()},
        final=pl.col("low") * pl.col("n"),
    )
    batch = pa.record_batch({"i": list(range(100, 0, -1))})
    assert [array.to_pylist() for array in ends.lift(batch)] == [list(range(100, 0, -1)), [1] * 100]


def test_unsigned_values_beyond_int64_cannot_be_summed() -> None:
    with pytest.raises(DataError, match=r"sum\('u'\)"):
        of.sum("u").lift(pa.record_batch({"u": pa.array([1 << 63], pa.uint64())}))
