"""Files at the edges: outages while they are read, and lines and records that are not what their format says."""

from __future__ import annotations

import io
import struct
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.contract.sinks import context
from tests.contract.sources import as_table, drain, numbered_rows
from tests.unit.connectors.files.elsewhere import FilesIn
from weir.connectors import Files
from weir.connectors.formats.csv import CsvParser
from weir.connectors.formats.encode import encode
from weir.errors import DataError, SchemaError, StorageUnavailable
from weir.operators.source import SourceReader
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.storage.stores.ranged_reads import ranged_file


def reader_of(source: Files) -> SourceReader:
    source.validate("in")
    reader = source.reader()
    reader.open(context(), None)
    return reader


# --- Outages ----------------------------------------------------------------------------------------


class Remote(MemoryStorage):
    """Files that are read in parts, until it is away."""

    is_away = False

    def open_input(self, path: str) -> pa.NativeFile:
        data = self.read(path)

        def fetch(start: int, end: int) -> bytes:
            if self.is_away:
                raise StorageUnavailable("connection reset")
            return bytes(data[start:end])

        return ranged_file(fetch, data.size)


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_an_outage_in_the_middle_of_a_file_is_no_damage(format: Any) -> None:
    table = as_table(numbered_rows(50_000))
    data = encode(table.to_batches(max_chunksize=10_000), format)
    storage = Remote(1 << 24)
    storage.write(f"a.{format}", data)
    reader = reader_of(FilesIn(storage, schema=table.schema, split_size=data.size // 2))
    assert reader.poll(10) is not None
    storage.is_away = True
    with pytest.raises(StorageUnavailable, match="connection reset"):
        drain(reader, 10_000)
    if format != "jsonl":
        with pytest.raises(StorageUnavailable, match="connection reset"):
            assert FilesIn(storage).schema


# --- Lines of JSON ----------------------------------------------------------------------------------


def rows_of(path: Path, schema: str, **settings: Any) -> list[tuple[Any, ...]]:
    return drain(reader_of(Files(path, schema=schema, **settings)), 100)


NO_OBJECT = ("null", " null", "[1]", "1", '"x"', "true", "}", "\f")
SEVERAL_OBJECTS = ('{"n": 7}{"n": 8}', '{"n": 7} null {"n": 8}', '{"n": 7},', '{"n": 7}\r{"n": 8}')
SEVERAL_LINES = ('{"n":\n7}', '{\n"n": 7\n}', '{"n": 7, "s":\n{"x": 1}}', '{"n": 7, "s":\n{}}\n{}{}')


@pytest.mark.parametrize("line", [*NO_OBJECT, *SEVERAL_OBJECTS, *SEVERAL_LINES])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_line_is_one_object_however_a_file_is_split(tmp_path: Path, line: str, place: int) -> None:
    good = [f'{{"n": {number}}}' for number in range(4)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*good[:place], line, *good[place:]]) + "\n", newline="")
    for split_size in (1, 9, 20, 1000):
        with pytest.raises(DataError, match=rf"a.jsonl, line {place + 1}: "):
            rows_of(path, "n long", split_size=split_size)
        found = rows_of(path, "n long", split_size=split_size, on_error="skip")
        # Of several lines that are no objects, one may be.
        assert [row for row in found if row != (None,)] == [(0,), (1,), (2,), (3,)], split_size


def test_blank_lines_and_space_around_objects_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\r\n {"n": 1}\r\n\n\t{"n": 2} \t\r\n  \n{}\n{"n": 3}')
    for split_size in (1, 5, 1000):
        assert rows_of(path, "n long", split_size=split_size) == [(1,), (2,), (None,), (3,)]
    path.write_bytes(b" \n\r\n")
    assert rows_of(path, "n long") == []


@pytest.mark.parametrize(("name", "line"), [("a.jsonl", '{{"t": "{}"}}'), ("a.csv", "{}")])
def test_a_time_with_a_zone_does_not_become_one_without(tmp_path: Path, name: str, line: str) -> None:
    path, head = tmp_path / name, "t\n" if name.endswith("csv") else ""
    times = ["2020-01-01T10:00:00", "2020-01-01", "2020-01-01T10:00:00+02:00", "2020-01-01T10:00:00Z"]
    path.write_text(head + "".join(line.format(time) + "\n" for time in times))
    assert rows_of(path, "t timestamp_ntz", on_error="skip") == [(datetime(2020, 1, 1, 10),), (datetime(2020, 1, 1),)]
    with pytest.raises(DataError, match="zone offset"):
        rows_of(path, "t timestamp_ntz")


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_column_of_instants_is_not_declared_without_its_zone(tmp_path: Path, format: str, nested: bool) -> None:
    path, instant = tmp_path / f"a.{format}", datetime(2020, 1, 1, 10, tzinfo=timezone.utc)
    table = pa.table({"t": [[instant]] if nested else [instant]})
    if format == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    kind = "array<{}>" if nested else "{}"
    assert rows_of(path, f"t {kind.format('timestamp')}") == [([instant] if nested else instant,)]
    with pytest.raises(
        SchemaError, match=r"column 't' is .*timestamp.* in the file, and .*timestamp_ntz.* in the schema"
    ):
        rows_of(path, f"t {kind.format('timestamp_ntz')}")


# --- Records of CSV ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"a,b\r1,2\r3,4\r", b"a,b\r1,2\n3,4\n", b'"a",b\r"1",2\n'])
def test_a_header_that_ends_in_a_lone_return_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"'in': .*x.csv: the header ends in a carriage return without a newline"):
        rows_of(path, "a long, b long")


def test_a_lone_return_ends_a_record_also_where_one_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\r\n1,x\rtwo,x\r3,"y\rz"\r\n4,x\n\r5,x\r')
    expected = [(1, "x"), (3, "y\rz"), (4, "x"), (5, "x")]
    for split_size in (1, 5, 1000):
        assert rows_of(path, "a long, b string", split_size=split_size, on_error="skip") == expected


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.arrow"])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array([number]) for number in range(4)], names=["a", "b", "b", "c"])
    format: Any = name.split(".")[1]
    data = b"a,b,b,c\n0,1,2,3\n" if format == "csv" else encode(table.to_batches(), format).to_pybytes()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SchemaError, match=rf"{name}: .* has column 'b' more than once"):
        rows_of(tmp_path / name, "a long, b long")
    assert rows_of(tmp_path / name, "a long, c long") == [(0, 3)]


DAYS = ("2020-01-01", "20200101", "2020-01", "2020-13-01", "")
CLOCKS = ("", "T10", " 10:30", "T10:30:15", " 10:30:15.123456", "T10:30:15.1234567", "T25:00", "t10", "T1030", "T")
ZONES = (
    "",
    "Z",
    "z",
    "+02",
    "-02",
    "+0230",
    "-02:30",
    "+2",
    "+24",
    "+023",
    "+99:99",
    " Z",
    " +02:00",
    "UTC",
    "ZZ",
    " ",
)


def test_every_form_of_an_instant_means_the_same_whatever_was_read_before() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])

    def read(line: str, *before: str) -> Any:
        parser = CsvParser(schema, ["t"], ",")
        for other in before:
            parser.parse(other.encode())
        try:
            return parser.parse(line.encode())["t"].cast(pa.int64()).to_pylist()
        except ValueError:
            return "malformed"

    kept = 0
    for form in map("".join, product(DAYS, CLOCKS, ZONES)):
        found = read(form + "\n")
        kept += found != "malformed"
        for before in (["2020-01-01T10:00:00\n"], ["2020-01-01\n2020-01-01T10:00:00Z\n"]):
            assert read(form + "\n", *before) == found, form
        if found != "malformed":
            for other in ("2020-01-01", "2020-01-01T00:00:00+00"):
                assert read(f"{form}\n{other}\n") == found + read(f"{other}\n"), form
    assert kept > 20


# --- Parquet ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("value", "kind", "declared"),
    [
        ({"a": 1, "b": 2}, pa.struct({"a": pa.int64(), "b": pa.int64()}), "struct<a: long, c: long>"),
        ({"a": {"b": 1}}, pa.struct({"a": pa.struct({"b": pa.int64()})}), "struct<a: struct<c: long>>"),
        (["1"], pa.list_(pa.string()), "array<long>"),
        ([True], pa.list_(pa.bool_()), "array<string>"),
        ([1], pa.list_(pa.timestamp("us")), "array<long>"),
        ([[1.0]], pa.list_(pa.list_(pa.float64())), "array<array<long>>"),
        ([("k", "1")], pa.map_(pa.string(), pa.string()), "map<string, long>"),
        ({"a": 1}, pa.struct({"a": pa.int64()}), "array<long>"),
        ({"a": 1}, pa.struct({"a": pa.int64()}), "long"),
    ],
)
def test_what_is_inside_of_nested_columns_keeps_to_the_rules_of_columns(
    tmp_path: Path, format: Any, value: Any, kind: pa.DataType, declared: str
) -> None:
    table = pa.table({"x": pa.array([value], kind)})
    (tmp_path / f"a.{format}").write_bytes(encode(table.to_batches(), format).to_pybytes())
    with pytest.raises(SchemaError, match=rf"a.{format}: column 'x' is .* in the file, and .* in the schema"):
        rows_of(tmp_path, f"x {declared}")


def test_nested_columns_may_be_narrower_than_declared_and_in_another_order(tmp_path: Path) -> None:
    kind = pa.struct({"a": pa.int32(), "b": pa.large_list(pa.float32()), "c": pa.map_(pa.string(), pa.int32())})
    table = pa.table({"x": pa.array([{"a": 1, "b": [0.5], "c": [("k", 2)]}, None], kind)})
    (tmp_path / "a.parquet").write_bytes(encode(table.to_batches(), "parquet").to_pybytes())
    declared = "x struct<c: map<string, long>, b: array<double>, a: long>"
    assert rows_of(tmp_path, declared) == [({"c": [("k", 2)], "b": [0.5], "a": 1},), (None,)]


def test_a_row_group_is_read_whatever_the_order_of_its_columns_in_the_file(tmp_path: Path) -> None:
    table = pa.table({"a": range(10), "b": ["x" * 1_000] * 10})
    (tmp_path / "a.parquet").write_bytes(with_columns_swapped(table))
    assert parquet.read_table(tmp_path / "a.parquet").equals(table)
    for split_size in (100, 1_000_000):
        assert len(rows_of(tmp_path, "a long, b string", split_size=split_size)) == 10


def with_columns_swapped(table: pa.Table) -> bytes:
    """A parquet file with the second column before the first, as no writer at hand makes it, and each may."""
    out = io.BytesIO()
    parquet.write_table(table, out, compression="none", use_dictionary=False, write_statistics=False)
    data = out.getvalue()
    group = parquet.ParquetFile(out).metadata.row_group(0)
    end_of_first = 4 + group.column(0).total_compressed_size
    end_of_second = end_of_first + group.column(1).total_compressed_size
    first, second, footer = data[4:end_of_first], data[end_of_first:end_of_second], data[end_of_second:-8]
    # Where each begins stands in the footer.
    head, rest = footer.split(offset_field(4), 1)
    between, tail = rest.split(offset_field(end_of_first))
    footer = head + offset_field(4 + len(second)) + between + offset_field(4) + tail
    return b"PAR1" + second + first + footer + struct.pack("<I", len(footer)) + b"PAR1"


def offset_field(offset: int) -> bytes:
    """The offset of a column's first page, as Thrift writes it: two fields behind the last, and seven bits a byte."""
    number, field = 2 * offset, b"\x26"
    while number > 127:
        field += bytes([number & 127 | 128])
        number >>= 7
    return field + bytes([number])
