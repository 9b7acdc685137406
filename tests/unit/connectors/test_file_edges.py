"""Files at the edges: outages while they are read, and lines and records that are not what their format says."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.sinks import context
from tests.contract.sources import as_table, drain, numbered_rows
from weir.connectors import Files
from weir.connectors.encode import encode
from weir.errors import DataError, StorageUnavailable
from weir.operators.source import SourceReader
from weir.runtime.ranged_reads import ranged_file
from weir.runtime.storage import MemoryStorage, register_scheme


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
    register_scheme("away", lambda uri: storage)
    reader = reader_of(Files("away://somewhere", schema=table.schema, split_size=data.size // 2))
    assert reader.poll(10) is not None
    storage.is_away = True
    with pytest.raises(StorageUnavailable, match="connection reset"):
        drain(reader, 10_000)
    if format != "jsonl":
        with pytest.raises(StorageUnavailable, match="connection reset"):
            assert Files("away://somewhere").schema


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
