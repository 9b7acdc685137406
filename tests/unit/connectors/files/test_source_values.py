"""Values that a file holds and a declared type cannot, and values that a format has no form for."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.contract.sources import drain, opened
from weir.connectors import Files
from weir.connectors.formats.encode import encode
from weir.errors import DataError


def rows_of(path: Path, schema: str, **settings: Any) -> list[tuple[Any, ...]]:
    return drain(opened(Files(path, None, schema, **settings), parallelism=1)[0], 100)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_double_too_large_for_a_float_names_file_column_row_and_value(tmp_path: Path, format: str) -> None:
    table = pa.table({"n": range(100), "x": [math.inf] * 70 + [1e300] + [0.5] * 29})
    if format == "parquet":
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    else:
        (tmp_path / "a.arrow").write_bytes(encode(table.to_batches(max_chunksize=20), "arrow").to_pybytes())
    with pytest.raises(DataError, match=r"a\.\w+, row 70 .*'x' has 1e\+300, which does not fit into float"):
        rows_of(tmp_path, "n long, x float", split_size=200)
    # An infinity is one in either type.
    assert rows_of(tmp_path, "n long, x double")[0] == (0, math.inf)


def test_a_double_inside_nested_values_is_checked_too(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [[1.0], [2.0, -1e300]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1 .*'x' has \[2.0, -1e\+300\], which does not fit into array<float>"):
        rows_of(tmp_path, "x array<float>")


def test_an_integer_that_does_not_fit_names_its_row(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"n": [1, 2, 2**40, 3]}), tmp_path / "a.parquet", row_group_size=1)
    with pytest.raises(DataError, match=r"a.parquet, row 2 .*'n' has 1099511627776, which does not fit into int"):
        rows_of(tmp_path, "n int", split_size=100)


@pytest.mark.parametrize(
    ("name", "content", "kind", "part"),
    [
        ("a.jsonl", '{"x": 1}\n{"x": 1e39}\n', "float", "1e\\+39.*does not fit into float"),
        ("a.jsonl", '{"x": [1]}\n{"x": [1e39]}\n', "array<float>", "does not fit into array<float>"),
        ("a.jsonl", '{"x": 1}\n{"x": 1e999}\n', "double", "too big"),
        ("a.csv", "x\n1\n", "float", ""),
        ("a.csv", "x\ninf\n1e39\n", "float", "'1e39' does not fit into float"),
        ("a.csv", "x\n-Infinity\n-1e999\n", "double", "'-1e999' does not fit into double"),
        ("a.csv", "x\n16\n0x10\n", "long", "'0x10' is no decimal number"),
        ("a.csv", "x\n16\n0X1F\n", "short", "'0X1F' is no decimal number"),
        ("a.csv", "x\n16\n0x10\n", "double", "invalid value '0x10'"),
        ("a.csv", "x\n0x10\n", "string", ""),
    ],
)
def test_text_is_a_number_only_if_the_type_can_hold_it(
    tmp_path: Path, name: str, content: str, kind: str, part: str
) -> None:
    write(tmp_path / name, content)
    if not part:
        assert len(rows_of(tmp_path, f"x {kind}")) == 1
        return
    lines = content.count("\n")
    with pytest.raises(DataError, match=rf"{name}, line {lines}: .*{part}"):
        rows_of(tmp_path, f"x {kind}")
    good = rows_of(tmp_path, f"x {kind}", on_error="skip")
    assert len(good) == 1


def test_floats_that_json_has_no_numbers_for_are_strings_and_come_back(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf, 1.5, None]
    table = pa.table({"x": values, "s": ["NaN", "Infinity", "x", "NaN", None], "l": [[v] for v in values]})
    data = encode(table.to_batches(), "jsonl").to_pybytes()
    assert json.loads(data.splitlines()[1]) == {"x": "Infinity", "s": "Infinity", "l": ["Infinity"]}
    assert json.loads(data.splitlines()[3]) == {"x": 1.5, "s": "NaN", "l": [1.5]}
    (tmp_path / "a.jsonl").write_bytes(data)
    found = rows_of(tmp_path, "x double, s string, l array<double>")
    assert repr(found) == repr([tuple(row.values()) for row in table.to_pylist()])
    # The same at every cut of the batches.
    assert b"".join(encode([batch], "jsonl").to_pybytes() for batch in table.to_batches(max_chunksize=1)) == data


def test_bare_nan_and_infinity_are_read_too(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"x": NaN}\n{"x": -Infinity}\n{"x": "Infinity"}\n')
    assert repr(rows_of(tmp_path, "x double")) == "[(nan,), (-inf,), (inf,)]"


def test_maps_are_objects_in_json(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.float64()))
    table = pa.table({"m": pa.array([[("a", [1.0, math.inf]), ("b", None)], [], None], kind)})
    data = encode(table.to_batches(), "jsonl").to_pybytes()
    assert json.loads(data.splitlines()[0]) == {"m": {"a": [1.0, "Infinity"], "b": None}}
    (tmp_path / "a.jsonl").write_bytes(data)
    assert rows_of(tmp_path, "m map<string, array<double>>") == [(row,) for row in table["m"].to_pylist()]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_years_that_text_has_no_digits_for_are_refused_when_written(format: str) -> None:
    for kind, number in ((pa.date32(), 3_000_000), (pa.timestamp("us"), -(2**62)), (pa.timestamp("ms", "UTC"), 2**50)):
        table = pa.table({"t": pa.array([0, number], kind)})
        with pytest.raises(DataError, match=r"'t': .* outside of the years 1 to 9999"):
            encode(table.to_batches(), format)


def test_nanoseconds_come_back_from_csv(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1, 1_000_000_001], pa.timestamp("ns", "UTC"))})
    (tmp_path / "a.csv").write_bytes(encode(table.to_batches(), "csv").to_pybytes())
    source = Files(tmp_path, "csv", table.schema)
    batch = opened(source, parallelism=1)[0].poll(10)
    assert batch is not None and batch.column("t").cast(pa.int64()).to_pylist() == [1, 1_000_000_001]


def test_a_map_with_a_key_twice_is_a_malformed_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"m":{"a":1,"a":2}}\n{"m":{"b":1}}\n')
    source = Files(tmp_path, "jsonl", "m map<string,long>", on_error="skip")
    assert drain(opened(source, parallelism=1)[0], 100) == [([("b", 1)],)]
    with pytest.raises(DataError, match='a map has the key "a" more than once'):
        drain(opened(Files(tmp_path, "jsonl", "m map<string,long>"), parallelism=1)[0], 100)


def test_jsonl_has_no_form_for_a_map_with_a_key_twice() -> None:
    once = pa.array([[("a", 1)], [("a", 1)], None, []], pa.map_(pa.string(), pa.int64()))
    twice = pa.array([None, [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    assert encode([pa.record_batch({"m": once})], "jsonl")
    for column in (
        twice,
        pa.array([twice.to_pylist()], pa.list_(twice.type)),
        pa.StructArray.from_arrays([twice], ["s"]),
    ):
        with pytest.raises(DataError, match=r"column 'm': .* has a key more than once"):
            encode([pa.record_batch({"m": column})], "jsonl")


def test_instants_of_zones_whose_offset_has_seconds_stay_where_they_are_in_jsonl() -> None:
    kind = pa.timestamp("us", "Africa/Monrovia")
    noon = datetime.datetime(1971, 5, 1, 12, tzinfo=datetime.timezone.utc)
    batch = pa.record_batch({"t": pa.array([noon], kind), "l": pa.array([[noon]], pa.list_(kind))})
    (line,) = encode([batch], "jsonl").to_pybytes().splitlines()
    found = json.loads(line)
    assert [datetime.datetime.fromisoformat(text) for text in (found["t"], *found["l"])] == [noon, noon]
