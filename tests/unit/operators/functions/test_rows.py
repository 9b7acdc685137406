"""Map, flat_map and filter with a function of one row."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.operators.running import rows, run
from weir.errors import DataError, PlanError, SchemaError, UserCodeError
from weir.operators.functions.row_codec import OUTPUT_ROWS_MAX
from weir.operators.functions.row_operator import PIECE_ROWS
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows

BATCH = pa.record_batch({"a": [1, 2, 3], "s": ["x y", "z", None], "my col": [0.5, 1.5, 2.5]})
UTC = datetime.timezone.utc


class Swapped(NamedTuple):
    s: str
    a: int


@pytest.mark.parametrize(
    "function",
    [
        lambda row: (row.a + 1, row.s),
        lambda row: {"s": row.s, "a": row.a + 1},
        lambda row: Swapped(row.s, row.a + 1),
        lambda row: (row.a + 1, row.s) if row.a % 2 else {"a": row.a + 1, "s": row.s},
        lambda row: (np.int64(row.a + 1), row.s),
    ],
    ids=["tuple", "dict", "named tuple in another order", "now one, now the other", "NumPy scalar"],
)
def test_map_takes_rows_in_every_form(function: Callable[[Any], Any]) -> None:
    assert rows(run(MapRows(function, "a long, s string"), BATCH)) == [(2, "x y"), (3, "z"), (4, None)]


def test_a_scalar_is_a_row_of_one_column() -> None:
    assert rows(run(MapRows(lambda row: row.a * 10, "x long"), BATCH)) == [(10,), (20,), (30,)]
    assert rows(run(MapRows(lambda row: [row.a], "x array<long>"), BATCH)) == [([1],), ([2],), ([3],)]
    assert rows(run(MapRows(lambda row: (row.a,), "x long"), BATCH)) == [(1,), (2,), (3,)]


def test_columns_whose_names_are_no_identifiers_are_called_by_position() -> None:
    assert rows(run(MapRows(lambda row: row._2 + row[2], "x double"), BATCH)) == [(1.0,), (3.0,), (5.0,)]


def test_rows_hold_python_values_and_come_back_as_they_were() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("n", pa.timestamp("us")),
            ("z", pa.timestamp("us", "Europe/Berlin")),
            ("d", pa.date32()),
            ("p", pa.duration("us")),
            ("b", pa.binary()),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("r", pa.struct([("x", pa.int8())])),
            ("f", pa.float32()),
            ("c", pa.decimal128(10, 2)),
        ]
    )
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1, 7)
    values = [
        {
            "t": moment.replace(tzinfo=UTC),
            "n": moment,
            "z": moment.replace(tzinfo=UTC),
            "d": moment.date(),
            "p": datetime.timedelta(days=1, microseconds=3),
            "b": b"\x00\xff",
            "m": {"k": 1},
            "r": {"x": 1},
            "f": 0.5,
            "c": 7,
        },
        dict.fromkeys(schema.names),
    ]
    batch = pa.RecordBatch.from_pylist(values, schema=schema)
    seen: list[Any] = []
    [out] = run(MapRows(lambda row: (seen.append(row), row)[1], schema), batch)
    assert out.equals(batch)
    assert seen[0].t == values[0]["t"] and seen[0].t.tzinfo is not None
    assert seen[0].d == values[0]["d"] and type(seen[0].d) is datetime.date
    assert seen[0].m == {"k": 1}
    assert all(value is None for value in seen[1])


def test_flat_map_takes_lists_iterators_and_generators() -> None:
    def words(row: Any) -> Iterator[Any]:
        yield from (row.s or "").split()

    expected = [("x",), ("y",), ("z",)]
    assert rows(run(FlatMapRows(words, "word string"), BATCH)) == expected
    assert rows(run(FlatMapRows(lambda row: (row.s or "").split(), "word string"), BATCH)) == expected
    assert rows(run(FlatMapRows(lambda row: iter((row.s or "").split()), "word string"), BATCH)) == expected
    assert run(FlatMapRows(lambda row: [], "word string"), BATCH) == []


def test_long_batches_are_taken_in_pieces_each_of_which_goes_on_at_once() -> None:
    batch = pa.record_batch({"a": range(2 * PIECE_ROWS + 1)})
    out = run(MapRows(lambda row: row.a + 1, "x long"), batch)
    assert [piece.num_rows for piece in out] == [PIECE_ROWS, PIECE_ROWS, 1]
    assert pa.Table.from_batches(out).column("x").to_pylist() == list(range(1, 2 * PIECE_ROWS + 2))
    with pytest.raises(UserCodeError, match=rf"row: Row\(a={PIECE_ROWS + 1}\)"):
        run(MapRows(lambda row: 1 // (row.a - PIECE_ROWS - 1), "x long"), batch)
    assert run(MapRows(lambda row: row.a, "x long"), batch.slice(0, 0), batch.slice(0, 1))[0].num_rows == 1


def test_flat_map_emits_long_results_in_several_batches() -> None:
    out = run(FlatMapRows(lambda row: range(50_000), "n long"), BATCH)
    assert [batch.num_rows for batch in out] == [OUTPUT_ROWS_MAX, OUTPUT_ROWS_MAX, 150_000 - 2 * OUTPUT_ROWS_MAX]
    assert rows(out) == [(n,) for n in range(50_000)] * 3


@pytest.mark.parametrize("result", ["text", None, {"word": "x"}, b"bytes"])
def test_flat_map_refuses_what_is_not_many_rows(result: Any) -> None:
    with pytest.raises(UserCodeError, match=r"return a list of rows"):
        run(FlatMapRows(lambda row: result, "word string"), BATCH)


def test_filter_keeps_rows_for_which_the_function_is_true() -> None:
    assert rows(run(FilterRows(lambda row: row.s), BATCH)) == [(1, "x y", 0.5), (2, "z", 1.5)]
    assert run(FilterRows(lambda row: False), BATCH) == []
    assert run(FilterRows(lambda row: 1), BATCH) == [BATCH]


def fails_at_two(row: Any) -> Any:
    if row.a == 2:
        raise ValueError("two is too many")
    return [(row.a,)]


def yields_then_fails(row: Any) -> Iterator[Any]:
    yield (row.a,)
    if row.a == 2:
        raise ValueError("two is too many")


@pytest.mark.parametrize(
    "spec",
    [
        MapRows(fails_at_two, "x long"),
        FlatMapRows(fails_at_two, "x long"),
        FlatMapRows(yields_then_fails, "x long"),
        FilterRows(fails_at_two),
    ],
    ids=["map", "flat_map", "flat_map with a generator", "filter"],
)
def test_an_exception_names_operator_and_row_and_shows_only_the_users_lines(spec: Any) -> None:
    with pytest.raises(UserCodeError) as caught:
        run(spec, BATCH)
    text = str(caught.value)
    assert "operator 'the-name' (uid 'the-uid') failed: ValueError: two is too many" in text
    assert "row: Row(a=2, s='z', _2=1.5)" in text
    assert 'raise ValueError("two is too many")' in text
    assert "weir/operators" not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_an_end_of_iteration_in_the_users_code_loses_no_rows_in_silence() -> None:
    def ends(row: Any) -> Any:
        return next(iter([])) if row.a == 2 else row.a

    for spec in (MapRows(ends, "x long"), FilterRows(ends), FlatMapRows(lambda row: [ends(row)], "x long")):
        with pytest.raises(UserCodeError, match="StopIteration"):
            run(spec, BATCH)


def test_long_rows_are_cut_in_messages() -> None:
    batch = pa.record_batch({"s": ["x" * 100_000]})
    with pytest.raises(UserCodeError) as caught:
        run(MapRows(lambda row: 1 / 0, "x long"), batch)
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize(
    ("result", "schema", "problem"),
    [
        ((1.5, "x"), "a long, s string", "field 'a' is declared bigint, but the function returned 1.5 (float)"),
        ((True, "x"), "a long, s string", "field 'a' is declared bigint, but the function returned True (bool)"),
        ((2**63, "x"), "a long, s string", "field 'a' is declared bigint"),
        (1e300, "x float", "field 'x' is declared float, but the function returned 1e+300 (float)"),
        (
            ([0.5, 1e39],),
            "x array<float>",
            "field 'x' is declared array<float>, but the function returned [0.5, 1e+39]",
        ),
        ((1, 2), "a long, s string", "field 's' is declared string, but the function returned 2 (int)"),
        ((1, None), "a long, s string not null", "field 's' is declared string not null"),
        ((1,), "a long, s string", "it has 1 values"),
        ((1, "x", 2), "a long, s string", "it has 3 values"),
        ({"a": 1}, "a long, s string", "field 's' is missing"),
        ({"a": 1, "s": "x", "t": 1}, "a long, s string", "field 't' is not in the schema"),
        ([1, "x"], "a long, s string", "neither a tuple nor a dict"),
        (None, "a long, s string", "neither a tuple nor a dict"),
        (([1.5],), "x array<long>", "but the function returned [1.5] (list): 1.5 (float) inside of it"),
        ({"x": {"y": 2.5}}, "x struct<y: long>", "2.5 (float) inside of it, where int64 is expected"),
        (
            datetime.datetime(2024, 1, 1, tzinfo=UTC),
            "t timestamp_ntz",
            "it has a time zone, and timestamp_ntz has none",
        ),
        (datetime.datetime(2024, 1, 1, 13), "d date", "a date keeps no time of day"),
        (1_700_000_000, "t timestamp", "field 't' is declared timestamp, but the function returned 1700000000 (int)"),
    ],
)
def test_a_result_that_does_not_fit_is_named_with_its_field_and_row(result: Any, schema: str, problem: str) -> None:
    good = (0, "good") if schema.startswith("a long") else None
    with pytest.raises(SchemaError) as caught:
        run(MapRows(lambda row: result if row.a == 3 else good, schema), BATCH)
    assert problem in str(caught.value)
    assert "operator 'the-name' (uid 'the-uid')" in str(caught.value)
    assert "row: Row(a=3, s=None, _2=2.5)" in str(caught.value)


def test_only_functions_are_taken() -> None:
    with pytest.raises(PlanError, match="expected a function of one row"):
        MapRows("a", "x long")  # type: ignore[arg-type]


def test_a_map_with_a_key_twice_is_an_error_that_names_operator_and_column() -> None:
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(
        DataError, match=r"operator 'the-name' \(uid 'the-uid'\): column 'm': .*a key more than once.*'a'"
    ):
        run(MapRows(lambda row: (len(row.m),), "n long"), pa.record_batch({"m": twice}))
