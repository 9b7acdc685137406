"""Functions of whole batches."""

from __future__ import annotations

import datetime
import decimal
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.operators.running import rows, run
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.batches.functions import MapBatches

DAY = datetime.date(2024, 1, 1)
BATCH = pa.record_batch({"a": [1, 2, 3], "s": ["x", "y", None]})
SAME = "a long, s string"


def test_arrow_functions_get_and_return_batches_or_tables() -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "a", pc.multiply(batch.column("a"), 2))

    expected = [(2, "x"), (4, "y"), (6, None)]
    assert rows(run(MapBatches(double, SAME), BATCH)) == expected
    assert rows(run(MapBatches(lambda batch: pa.table(double(batch)), SAME), BATCH)) == expected


def test_polars_and_pandas_functions_get_frames() -> None:
    by_polars = MapBatches(lambda frame: frame.with_columns(pl.col("a") * 2), SAME, "polars")
    by_pandas = MapBatches(lambda frame: frame.assign(a=frame.a * 2), SAME, "pandas")
    assert rows(run(by_polars, BATCH)) == rows(run(by_pandas, BATCH)) == [(2, "x"), (4, "y"), (6, None)]


def test_columns_are_matched_by_name_and_strings_may_have_any_layout() -> None:
    def reorder(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"s": batch.column("s").cast(pa.large_string()), "a": batch.column("a")})

    assert rows(run(MapBatches(reorder, SAME), BATCH)) == rows([BATCH])


def test_none_and_empty_results_emit_nothing() -> None:
    for nothing in (lambda batch: None, lambda batch: batch.slice(0, 0), lambda batch: [], lambda batch: iter([None])):
        assert run(MapBatches(nothing, SAME), BATCH) == []


def test_a_function_may_yield_several_batches() -> None:
    def each_row(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for i in range(batch.num_rows):
            yield batch.slice(i, 1)

    assert [out.num_rows for out in run(MapBatches(each_row, SAME), BATCH)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (pa.record_batch({"a": [1.5], "s": ["x"]}), "column 'a' of type double"),
        (pa.record_batch({"a": [1]}), "found columns a"),
        (pl.DataFrame({"a": [1], "s": ["x"], "t": [1]}), "found columns a, s, t"),
        (pl.DataFrame({"a": ["1"], "s": ["x"]}), "column 'a' of type string"),
        ("text", "found a str"),
    ],
)
def test_a_result_that_does_not_fit_names_operator_expectation_and_finding(result: Any, found: str) -> None:
    with pytest.raises(SchemaError) as caught:
        run(MapBatches(lambda batch: result, SAME), BATCH)
    assert "operator 'the-name' (uid 'the-uid')" in str(caught.value)
    assert "a bigint, s string" in str(caught.value)
    assert found in str(caught.value)


def test_nulls_are_refused_where_the_schema_allows_none() -> None:
    with pytest.raises(SchemaError, match="a null in column 's'"):
        run(MapBatches(lambda batch: batch, "a long, s string not null"), BATCH)


def test_pandas_floats_become_integers_only_without_loss() -> None:
    nulls = MapBatches(lambda frame: frame.assign(a=[1.0, None, 3.0]), SAME, "pandas")
    assert [row[0] for row in rows(run(nulls, BATCH))] == [1, None, 3]
    with pytest.raises(SchemaError, match="column 'a' of dtype float64"):
        run(MapBatches(lambda frame: frame.assign(a=[1.5, 2.0, 3.0]), SAME, "pandas"), BATCH)


def test_an_exception_shows_the_users_lines_and_not_ours() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError("missing")

    with pytest.raises(UserCodeError, match=r"(?s)operator 'the-name'.*KeyError: 'missing'.*in broken") as caught:
        run(MapBatches(broken, SAME), BATCH)
    assert "operators/batches/functions.py" not in str(caught.value)


def test_pandas_doubles_do_not_become_infinite_floats() -> None:
    spec = MapBatches(lambda frame: frame.assign(x=[1e300, 0.5, math.inf])[["x"]], "x float", "pandas")
    with pytest.raises(SchemaError, match="too large for a float"):
        run(spec, BATCH)


def returned(column: Any, kind: str) -> list[Any]:
    """What becomes of a column of a pandas frame that a function returns."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": column(pandas) if callable(column) else column})
    return [row[0] for row in rows(run(MapBatches(lambda given: frame, f"x {kind}", "pandas"), BATCH))]


ZONED = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (lambda pandas: pandas.Series([1.5], dtype=object), "long"),
        (lambda pandas: pandas.Series([True], dtype=object), "long"),
        (lambda pandas: pandas.Series([ZONED], dtype=object), "timestamp_ntz"),
        (lambda pandas: pandas.Series([ZONED.replace(tzinfo=None)], dtype=object), "date"),
        (lambda pandas: pandas.to_datetime(["2024-01-01 23:59"]), "date"),
        (lambda pandas: pandas.to_datetime(["2024-01-01 12:00+02:00"]), "timestamp_ntz"),
        (lambda pandas: pandas.to_datetime(["2024-01-01 12:00+02:00"]), "date"),
        (lambda pandas: pandas.to_datetime(["2024-01-01T12:00:00.123456789Z"]), "timestamp"),
        (lambda pandas: pandas.to_datetime(["2024-01-01"]), "long"),
        (lambda pandas: pandas.to_timedelta(["1s"]), "long"),
        ([[1.5, 2.7]], "array<long>"),
        ([np.array([1.5])], "array<long>"),
        ([{"a": 1.5}], "struct<a:long>"),
        ([{"b": 1}], "struct<a:long>"),
        ([[ZONED]], "array<timestamp_ntz>"),
        ([np.array(["2024-01-01T00:00:00.000000001"], "M8[ns]")], "array<timestamp>"),
        ([True], "long"),
        ([True], "double"),
        ([1.5], "long"),
        ([2**53 + 1], "double"),
        ([300], "tinyint"),
        ([b"ab"], "string"),
        (["ab"], "array<string>"),
        ([5], "string"),
    ],
)
def test_values_of_pandas_are_refused_and_not_bent(column: Any, kind: str) -> None:
    with pytest.raises(SchemaError, match="column 'x'"):
        returned(column, kind)


@pytest.mark.parametrize(
    ("column", "kind", "kept"),
    [
        ([1.0, math.nan], "long", [1, None]),
        ([0.5, math.nan], "double", [0.5, None]),
        (lambda pandas: pandas.Series([1, pandas.NA, math.nan], dtype=object), "long", [1, None, None]),
        (lambda pandas: pandas.Series([1, None], dtype="Int64"), "int", [1, None]),
        (lambda pandas: pandas.Series(["a", None]).astype("category"), "string", ["a", None]),
        (lambda pandas: pandas.to_datetime(["2024-01-01", None]).astype("M8[ns]"), "date", [DAY, None]),
        (lambda pandas: pandas.to_datetime([ZONED]).astype("M8[ns, UTC]"), "timestamp", [ZONED]),
        (lambda pandas: [pandas.Timestamp(ZONED), pandas.NaT], "timestamp", [ZONED, None]),
        (lambda pandas: [[1, pandas.NA, math.nan]], "array<long>", [[1, None, None]]),
        ([np.array([1.0, math.nan])], "array<long>", [[1, None]]),
        ([np.array(["2024-01-01"], "M8[ns]")], "array<timestamp_ntz>", [[datetime.datetime(2024, 1, 1)]]),
        ([[("a", math.nan)]], "map<string,long>", [[("a", None)]]),
    ],
)
def test_what_pandas_cannot_say_otherwise_is_taken_where_nothing_is_lost(column: Any, kind: str, kept: Any) -> None:
    assert returned(column, kind) == kept


def test_what_a_pandas_function_is_given_it_may_return() -> None:
    pytest.importorskip("pandas")
    columns = {
        "a": pa.array([1, None]),
        "d": pa.array([DAY, None]),
        "n": pa.array([decimal.Decimal("1.5"), None], pa.decimal128(5, 2)),
        "l": pa.array([[1, None], None]),
        "deep": pa.array([[[1, None], None], None]),
        "m": pa.array([[("a", [1, None]), ("b", None)], None], pa.map_(pa.string(), pa.list_(pa.int64()))),
        "s": pa.array([{"a": 1, "b": [1.5, None]}, {"a": None, "b": None}]),
        "t": pa.array([ZONED, None], pa.timestamp("us", "UTC")),
        "ms": pa.array([ZONED, None], pa.timestamp("ms", "Europe/Berlin")),
        "ts": pa.array([[ZONED, None], None], pa.list_(pa.timestamp("us", "UTC"))),
        "b": pa.array([b"x", None]),
        "flag": pa.array([True, None]),
        "flags": pa.array([[True, None], None]),
        "words": pa.array([["é", None], None]),
        "time": pa.array([datetime.time(1), None]),
        "wait": pa.array([datetime.timedelta(1), None], pa.duration("ms")),
        "x": pa.array([1.5, None], pa.float32()),
    }
    batch = pa.record_batch(columns)
    (found,) = run(MapBatches(lambda frame: frame, batch.schema, "pandas"), batch)
    assert found.equals(batch)


def test_missing_pandas_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PlanError, match="pip install pandas"):
        MapBatches(lambda frame: frame, SAME, "pandas")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PlanError, match="'numpy' is not one of arrow, polars, pandas"):
        MapBatches(lambda frame: frame, SAME, "numpy")  # type: ignore[arg-type]
