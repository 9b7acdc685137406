"""Select, with_columns and filter over Polars expressions."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

from tests.unit.operators.running import cut, opened, rows, run
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.expressions.select import Filter, Select, WithColumns

BATCH = pa.record_batch(
    {
        "a": pa.array([1, 2, 3, None], pa.int64()),
        "s": pa.array(["x y", "z", None, "yy"], pa.string()),
        "l": pa.array([[1], [2, 3], [], None], pa.list_(pa.int32())),
    }
)
col = pl.col


def test_select_keeps_renames_and_computes_columns_in_the_order_written() -> None:
    [out] = run(Select([col("s").alias("t"), "a", (col("a") * 2).alias("b")]), BATCH)
    assert out.schema.names == ["t", "a", "b"]
    assert rows([out]) == [("x y", 1, 2), ("z", 2, 4), (None, 3, 6), ("yy", None, None)]


def test_columns_that_are_not_computed_are_handed_on_without_a_copy() -> None:
    [out] = run(WithColumns([(col("a") + 1).alias("b")]), BATCH)
    assert out.column("s").buffers()[2].address == BATCH.column("s").buffers()[2].address


def test_computed_strings_and_lists_have_the_types_that_are_used_in_flight() -> None:
    [out] = run(Select([col("s").str.to_uppercase(), col("s").str.split(" ").alias("w"), col("l").list.sum()]), BATCH)
    assert out.schema.types == [pa.string(), pa.list_(pa.string()), pa.int32()]


def test_what_a_source_declared_stays_as_it_is() -> None:
    batch = BATCH.set_column(1, "s", BATCH.column("s").cast(pa.large_string()))
    [out] = run(WithColumns([(col("a") + 1).alias("b")]), batch)
    assert out.schema.field("s").type == pa.large_string()


def test_with_columns_replaces_in_place_and_appends() -> None:
    [out] = run(WithColumns([col("a") * 10, pl.lit("q").alias("constant")]), BATCH)
    assert out.schema.names == ["a", "s", "l", "constant"]
    assert out.column("a").to_pylist() == [10, 20, 30, None]
    assert out.column("constant").to_pylist() == ["q"] * 4


def test_a_constant_alone_has_one_row_for_each_row() -> None:
    [out] = run(Select([pl.lit(7).alias("seven")]), BATCH)
    assert rows([out]) == [(7,)] * 4


def test_explode_alone_makes_more_rows() -> None:
    [out] = run(Select([col("s").str.split(" ").explode().alias("word")]), BATCH.slice(0, 2))
    assert rows([out]) == [("x",), ("y",), ("z",)]


def test_selectors_work() -> None:
    [out] = run(Select([pl.all()]), BATCH)
    assert out.equals(BATCH)
    [out] = run(Select([cs.numeric() + 1]), BATCH)
    assert rows([out]) == [(2,), (3,), (4,), (None,)]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_filter_keeps_what_is_true_however_the_stream_is_cut(size: int) -> None:
    assert rows(run(Filter(col("a") > 1), *cut(BATCH, size))) == [(2, "z", [2, 3]), (3, None, [])]


def test_filter_emits_nothing_when_nothing_passes_and_the_same_batch_when_all_does() -> None:
    assert run(Filter(col("a") > 100), BATCH) == []
    operator, _ = opened(Filter(pl.col("l").is_null() | (pl.lit(1) == 1)), BATCH.schema)
    emitted: list[pa.RecordBatch] = []
    operator.process(BATCH, emitted.append)
    assert emitted[0] is BATCH


def test_filter_takes_constants_and_several_conditions_at_once() -> None:
    assert run(Filter(pl.lit(False)), BATCH) == []
    assert run(Filter(pl.lit(True)), BATCH) == [BATCH]
    assert rows(run(Filter(pl.all().is_not_null()), BATCH)) == [(1, "x y", [1]), (2, "z", [2, 3])]


def test_filter_passes_on_types_that_polars_or_arrow_cannot_handle() -> None:
    views = BATCH.set_column(1, "s", BATCH.column("s").cast(pa.string_view()))
    assert rows(run(Filter(col("a") == 2), views)) == [(2, "z", [2, 3])]
    intervals = BATCH.append_column("i", pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()))
    assert run(Filter(col("a") == 2), intervals)[0].num_rows == 1


def test_a_wrong_column_is_named_with_those_that_exist() -> None:
    for spec in (Select(["nope"]), WithColumns([col("nope") + 1]), Filter(col("nope") > 1), Filter(cs.by_name("nope"))):
        with pytest.raises(SchemaError, match=r"nope.*the columns are: a, s, l"):
            spec.schema([BATCH.schema])


def test_a_condition_that_is_not_boolean_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"col\(\"a\"\) is int64; it must be boolean"):
        Filter(col("a")).schema([BATCH.schema])


def test_types_that_do_not_go_together_are_refused_when_built() -> None:
    with pytest.raises(SchemaError, match="not supported for dtypes"):
        Select([col("s") + col("l")]).schema([BATCH.schema])
    with pytest.raises(SchemaError, match="two columns are called 'a'"):
        Select(["a", col("s").alias("a")]).schema([BATCH.schema])
    with pytest.raises(SchemaError, match="Int128"):
        Select([col("a").cast(pl.Int128)]).schema([BATCH.schema])


@pytest.mark.parametrize(
    "expression",
    [
        col("a").sum(),
        col("a") - col("a").mean(),
        col("a").cum_sum(),
        col("a").sum().over("s"),
        col("a").sort(),
        pl.len(),
        pl.when(col("a") > 1).then(col("a").max()).otherwise(0),
        (cs.numeric()).sum(),
    ],
    ids=str,
)
def test_what_depends_on_how_the_stream_is_cut_is_refused(expression: pl.Expr) -> None:
    with pytest.raises(PlanError, match=r"key_by\(…\)\.agg"):
        Select([expression.alias("x") if not isinstance(expression, cs.Selector) else expression]).schema(
            [BATCH.schema]
        )


@pytest.mark.parametrize(
    "expression",
    [
        col("a").is_in([1, 2]),
        col("a").is_in(pl.Series([1, 2]).implode()),
        col("l").list.eval(pl.element().cum_sum()),
        col("l").list.sum(),
        col("a").map_elements(lambda x: len(str(x)), return_dtype=pl.Int64),
        pl.struct("a", "s"),
        pl.coalesce("a", pl.lit(0)),
        col("s").str.to_datetime("%Y", strict=False),
    ],
    ids=str,
)
def test_what_looks_at_one_row_only_is_not_refused(expression: pl.Expr) -> None:
    assert Select([expression.alias("x")]).schema([BATCH.schema]).names == ["x"]


def test_expressions_of_different_lengths_are_refused() -> None:
    with pytest.raises(PlanError, match="number of rows"):
        Select(["a", col("l").explode()]).schema([BATCH.schema])
    with pytest.raises(PlanError, match="number of rows"):
        WithColumns([col("l").explode()]).schema([BATCH.schema])


def test_an_expression_that_fails_on_a_value_names_the_operator_and_the_value() -> None:
    with pytest.raises(UserCodeError, match=r"(?s)operator 'the-name' \(uid 'the-uid'\).*\"x y\"") as caught:
        run(WithColumns([col("s").cast(pl.Int64)]), BATCH)
    assert "polars/" not in str(caught.value)


def test_a_python_function_in_an_expression_shows_its_own_lines() -> None:
    def fragile(value: int) -> int:
        return sum(1 // (n - 2) for n in range(value, value + 1))

    with pytest.raises(UserCodeError, match=r"(?s)ZeroDivisionError.*in fragile\n"):
        run(Select([col("a").map_elements(fragile, return_dtype=pl.Int64)]), BATCH)
