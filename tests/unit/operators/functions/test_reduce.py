"""The running reduce."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.states import table_of
from tests.unit.operators.running import KeyedRun, cut, opened, rows, run
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.functions.reduce import ReduceRows

BATCH = pa.record_batch({"key": ["a", "b", "a", None, "a", None], "value": [1, 2, 3, 4, 5, 6]})
SUMS = [("a", 1), ("b", 2), ("a", 4), (None, 4), ("a", 9), (None, 10)]


def as_tuple(so_far: Any, row: Any) -> Any:
    return so_far.key, so_far.value + row.value


def as_dict(so_far: Any, row: Any) -> Any:
    return {"value": so_far.value + row.value, "key": row.key}


def as_row(so_far: Any, row: Any) -> Any:
    return row._replace(value=so_far.value + row.value)


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("function", [as_tuple, as_dict, as_row])
def test_each_row_gives_its_keys_row_so_far_however_the_stream_is_cut(function: Callable[..., Any], size: int) -> None:
    assert rows(run(ReduceRows(["key"], function), *cut(BATCH, size))) == SUMS


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 5), (3, 1)])
def test_a_snapshot_restores_at_another_parallelism(before: int, after: int) -> None:
    rng = np.random.default_rng(3)
    moments = pa.array(rng.integers(0, 1 << 50, 400), pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = {
        "key": pa.array(rng.integers(0, 30, 400)),
        "at": moments,
        "value": pa.array(rng.random(400).astype(np.float32)),
        "tags": pa.array([[int(n)] for n in rng.integers(0, 9, 400)], pa.list_(pa.int64())),
    }
    batches = cut(pa.record_batch(columns), 80)

    def fold(so_far: Any, row: Any) -> Any:
        so_far.tags.append(row.tags[0])  # Changing what one was given in place must harm nothing.
        return row.key, max(so_far.at, row.at), so_far.value + row.value, so_far.tags

    spec = ReduceRows(["key"], fold)
    spec.schema([batches[0].schema])
    reference = KeyedRun(spec, ["key"], parallelism=1)
    expected = [reference.process(batch) for batch in batches]
    first = KeyedRun(spec, ["key"], parallelism=before)
    got = [first.process(batch) for batch in batches[:2]]
    second = KeyedRun(spec, ["key"], parallelism=after, tables=first.freeze())
    got += [second.process(batch) for batch in batches[2:]]
    assert [sorted(out) for out in got] == [sorted(out) for out in expected]
    small = KeyedRun(spec, ["key"], parallelism=1)
    in_small_parts = [[row for part in cut(batch, 7) for row in small.process(part)] for batch in batches]
    assert in_small_parts == expected


def test_the_state_is_a_table_of_rows() -> None:
    operator, _ = opened(ReduceRows(["key"], as_tuple), BATCH.schema)
    operator.process(BATCH, lambda batch: None)
    table = table_of(operator.freeze().states["reduced"])
    assert table.schema.field("value").type == pa.struct(list(BATCH.schema))
    assert sorted(map(str, table.column("value").to_pylist())) == sorted(
        map(str, [{"key": "a", "value": 9}, {"key": "b", "value": 2}, {"key": None, "value": 10}])
    )


def test_an_exception_names_operator_row_and_key() -> None:
    with pytest.raises(UserCodeError) as caught:
        run(ReduceRows(["key"], lambda so_far, row: 1 // (row.value - 5)), BATCH.slice(2))
    text = str(caught.value)
    assert "operator 'the-name' (uid 'the-uid') failed: ZeroDivisionError" in text
    assert "key: 'a'" in text
    assert "row: Row(key='a', value=5)" in text
    assert "weir/operators" not in text


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (("a", 1.5), "field 'value' is declared bigint, but the function returned 1.5 (float)"),
        (("a", 2**64), "field 'value' is declared bigint"),
        (("a",), "it has 1 values"),
        ({"key": "a"}, "field 'value' is missing"),
        (7, "neither a tuple nor a dict"),
        (None, "neither a tuple nor a dict"),
    ],
)
def test_a_result_that_is_not_a_row_of_the_input_is_refused(result: Any, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        run(ReduceRows(["key"], lambda so_far, row: result), BATCH)
    assert problem in str(caught.value)
    assert "operator 'the-name' (uid 'the-uid')" in str(caught.value)


def test_times_in_the_state_are_the_same_moments_before_and_after_a_restore() -> None:
    batch = pa.record_batch(
        {"key": [1, 1], "at": pa.array([datetime.datetime(2024, 1, 1)] * 2, pa.timestamp("ms", "Europe/Berlin"))}
    )
    seen: list[Any] = []

    def later(so_far: Any, row: Any) -> Any:
        seen.append(so_far.at)
        return row.key, so_far.at + datetime.timedelta(milliseconds=2)

    spec = ReduceRows(["key"], later)
    spec.schema([batch.schema])
    whole = KeyedRun(spec, ["key"], parallelism=1)
    whole.process(batch)
    whole.process(batch)
    uninterrupted, seen = seen, []
    first = KeyedRun(spec, ["key"], parallelism=1)
    first.process(batch)
    KeyedRun(spec, ["key"], parallelism=1, tables=first.freeze()).process(batch)
    assert seen == uninterrupted


def test_what_cannot_be_reduced_is_refused_when_built() -> None:
    with pytest.raises(PlanError, match=r"expected a function of \(so_far, row\)"):
        ReduceRows(["key"], 3)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no column 'kee'"):
        ReduceRows(["kee"], as_tuple).schema([BATCH.schema])
    with pytest.raises(SchemaError, match="cannot be keyed by type"):
        ReduceRows(["l"], as_tuple).schema([pa.schema([("l", pa.list_(pa.int64()))])])
