"""Functions of whole batches."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.operators.running import rows, run
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.batches import MapBatches

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
    assert "operators/batches.py" not in str(caught.value)


def test_pandas_doubles_do_not_become_infinite_floats() -> None:
    spec = MapBatches(lambda frame: frame.assign(x=[1e300, 0.5, math.inf])[["x"]], "x float", "pandas")
    with pytest.raises(SchemaError, match="too large for a float"):
        run(spec, BATCH)


def test_missing_pandas_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PlanError, match="pip install pandas"):
        MapBatches(lambda frame: frame, SAME, "pandas")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PlanError, match="'numpy' is not one of arrow, polars, pandas"):
        MapBatches(lambda frame: frame, SAME, "numpy")  # type: ignore[arg-type]
