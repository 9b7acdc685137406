"""Files as a source: what is read, what is refused before the start, and a directory that is watched."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.contract.sources import as_table, drain, numbered_rows, opened, positions, write_file
from tests.unit.connectors.files.elsewhere import FilesIn
from tests.unit.connectors.files.reading import SCHEMA, lines, rows_of
from weir.connectors import Files
from weir.connectors.formats.encode import encode
from weir.connectors.formats.splits import owner_of, splits_of
from weir.errors import ConfigError, DataError, JobError, SchemaError
from weir.operators.source import SourceReader
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.schema import format_schema

# --- What is read -----------------------------------------------------------------------------------


def test_one_file_may_be_given_by_its_own_name(tmp_path: Path) -> None:
    lines(tmp_path / "a[1].jsonl", '{"n": 1, "word": "x"}')
    lines(tmp_path / "a1.jsonl", '{"n": 2, "word": "y"}')
    assert rows_of(Files(tmp_path / "a[1].jsonl", schema=SCHEMA)) == [(1, "x")]


def test_files_are_read_in_the_order_of_their_names_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.txt", "_temporary.txt", ".hidden.txt"):
        lines(tmp_path / name, name)
    (tmp_path / "directory.txt").mkdir()
    assert rows_of(Files(tmp_path)) == [("a.txt",), ("b.txt",), ("c.txt",)]
    assert rows_of(Files(tmp_path, pattern="[bc]*")) == [("b.txt",), ("c.txt",)]


def test_the_format_follows_from_each_files_ending(tmp_path: Path) -> None:
    for format in ("jsonl", "csv", "parquet"):
        write_file(tmp_path / f"x.{format}", format, [(1, format)])
    assert Counter(rows_of(Files(tmp_path, schema=SCHEMA))) == Counter([(1, "jsonl"), (1, "csv"), (1, "parquet")])


def test_what_the_sink_wrote_the_source_reads_back_with_every_type(tmp_path: Path) -> None:
    schema = (
        "t timestamp, l timestamp_ntz, d date, m decimal(10,2), s string, b boolean, i int, y byte, f float, g double"
    )
    row = (
        datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=timezone.utc),
        datetime(2024, 5, 6, 7, 8, 9, 11),
        date(2024, 5, 6),
        Decimal("-1.50"),
        'say "hi", é',
        True,
        -5,
        7,
        0.5,
        1e300,
    )
    expected = [row, tuple(None for _ in row)]
    source = Files(tmp_path, schema=schema)
    arrays = [
        pa.array(column, kind) for column, kind in zip(zip(*expected, strict=True), source.schema.types, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=source.schema)
    for format in ("jsonl", "csv", "parquet"):
        (tmp_path / f"x.{format}").write_bytes(encode(table.to_batches(), format).to_pybytes())
        assert rows_of(Files(tmp_path / f"x.{format}", schema=schema)) == expected, format


def test_nested_and_binary_values_come_back_from_jsonl(tmp_path: Path) -> None:
    schema = "b binary, l array<date>, s struct<x:long,y:array<string>>"
    expected = [(b"\xff\x00", [date(2024, 1, 2)], {"x": 1, "y": ["a"]}), (None, None, None)]
    source = Files(tmp_path, schema=schema)
    table = pa.Table.from_pylist([dict(zip("bls", row, strict=True)) for row in expected], source.schema)
    (tmp_path / "x.jsonl").write_bytes(encode(table.to_batches(), "jsonl").to_pybytes())
    assert rows_of(source) == expected


def test_csv_instants_may_lack_a_zone_and_are_then_utc(tmp_path: Path) -> None:
    lines(
        tmp_path / "x.csv",
        "t",
        "2024-01-01 00:00:00",
        "2024-01-01T01:00:00+01:00",
        "2024-01-01",
        "2024-01-01T00:00:00Z",
    )
    assert rows_of(Files(tmp_path, schema="t timestamp")) == [(datetime(2024, 1, 1, tzinfo=timezone.utc),)] * 4


def test_csv_columns_are_found_by_the_header_of_each_file(tmp_path: Path) -> None:
    lines(tmp_path / "a.csv", "word;other;n", "x;ignored;1")
    lines(tmp_path / "b.csv", "n;word", "2;y")
    assert rows_of(Files(tmp_path, schema=SCHEMA, delimiter=";")) == [(1, "x"), (2, "y")]


def test_csv_without_header_is_taken_by_position(tmp_path: Path) -> None:
    lines(tmp_path / "a.csv", "1,x", "2,", '3,""')
    assert rows_of(Files(tmp_path, schema=SCHEMA, header=False)) == [(1, "x"), (2, None), (3, "")]


def test_an_editors_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfn,word\r\n1,x\r\n")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbffirst\n")
    assert rows_of(Files(tmp_path, schema=SCHEMA, pattern="*.csv")) == [(1, "x")]
    assert rows_of(Files(tmp_path, pattern="*.txt")) == [("first",)]


def test_blank_lines_are_rows_of_text_only(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", "", '{"n": 1}', "", "   ")
    lines(tmp_path / "b.csv", "n,word", "", "1,x")
    lines(tmp_path / "c.txt", "", "x")
    assert rows_of(Files(tmp_path, schema=SCHEMA, pattern="a*")) == [(1, None)]
    assert rows_of(Files(tmp_path, schema=SCHEMA, pattern="b*")) == [(1, "x")]
    assert rows_of(Files(tmp_path, pattern="c*")) == [("",), ("x",)]


def test_a_line_longer_than_many_blocks_is_one_row(tmp_path: Path) -> None:
    lines(tmp_path / "a.txt", "x", "y" * 10_000, "z")
    source = Files(tmp_path, split_size=50)
    source.block_bytes = 10
    found = [row for reader in opened(source, parallelism=3) for row in drain(reader, 10)]
    assert Counter(found) == Counter([("x",), ("y" * 10_000,), ("z",)])


def test_a_large_file_is_spread_over_subtasks_and_a_compressed_one_is_not(tmp_path: Path) -> None:
    content = "".join(f"{number}\n" for number in range(10_000))
    (tmp_path / "a.txt").write_text(content)
    shares = [len(drain(reader, 10_000)) for reader in opened(Files(tmp_path, split_size=1000), parallelism=2)]
    assert sum(shares) == 10_000 and min(shares) > 2000
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    shares = [len(drain(reader, 10_000)) for reader in opened(Files(tmp_path, split_size=1000), parallelism=2)]
    assert sorted(shares) == [0, 10_000]


def test_the_owner_of_a_split_is_the_same_on_every_host() -> None:
    assert [owner_of(split.name, 4) for split in splits_of("a.csv", 40, 10)] == [1, 0, 3, 2]


def test_the_schema_is_taken_from_parquet_and_known_for_text(tmp_path: Path) -> None:
    write_file(tmp_path / "x.parquet", "parquet", [(1, "x")])
    assert format_schema(Files(tmp_path).schema) == "n bigint, word string"
    assert format_schema(Files(tmp_path / "any", "text").schema) == "value string"


def test_parquet_columns_may_be_narrower_than_declared_and_in_another_order(tmp_path: Path) -> None:
    table = pa.table({"extra": [1], "word": pa.array(["x"]).dictionary_encode(), "n": pa.array([1], pa.int32())})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert rows_of(Files(tmp_path, schema=SCHEMA)) == [(1, "x")]


def test_files_are_read_from_any_storage_by_its_uri() -> None:
    storage = MemoryStorage(1 << 20)
    storage.write("a.jsonl", b'{"n": 1, "word": "x"}\n')
    assert rows_of(FilesIn(storage, schema=SCHEMA)) == [(1, "x")]


# --- A watched directory ----------------------------------------------------------------------------


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = FakeClock()


def the_clock() -> float:
    return CLOCK()


def watched(path: Path, **settings: Any) -> Files:
    return Files(path, schema=SCHEMA, watch="2s", clock=the_clock, **settings)


def some(readers: list[SourceReader]) -> list[int]:
    return [n for reader in readers for n, _ in drain(reader, 100, polls_max=5)]


def test_new_files_in_a_watched_directory_are_read_once_each_time_it_is_looked_at(tmp_path: Path) -> None:
    source = watched(tmp_path)
    assert not source.bounded
    readers = opened(source, parallelism=2)
    assert some(readers) == [] and not readers[0].finished
    write_file(tmp_path / "a.jsonl", "jsonl", [(1, "x")])
    (tmp_path / "_half.jsonl").write_text("{")
    assert some(readers) == [], "it is not time to look again"
    assert readers[0].wait_ms == 100.0
    CLOCK.now_s += 2.0
    assert some(readers) == [1]
    write_file(tmp_path / "b.jsonl", "jsonl", [(2, "x")])
    CLOCK.now_s += 2.0
    assert some(readers) == [2]
    CLOCK.now_s += 2.0
    assert some(readers) == []


def test_each_file_is_read_once_across_restarts_and_rescaling(tmp_path: Path) -> None:
    """Subtasks look at different times, so a file may be known to one and not yet to another at a checkpoint."""
    source = watched(tmp_path, split_size=200)
    found: list[int] = []
    restored = None
    number = 0
    for round_, parallelism in enumerate((2, 3, 1, 5, 2)):
        readers = opened(source, parallelism=parallelism, restored=restored)
        for reader in readers:
            rows = [(number + i, "w" * (i % 9)) for i in range(30)]
            number += 30
            write_file(tmp_path / f"{round_}-{number}.jsonl", "jsonl", rows)
            CLOCK.now_s += 2.0
            found += [n for n, _ in drain(reader, 7, polls_max=4)]
        restored = positions(readers)
    final = opened(source, parallelism=2, restored=restored)
    found += [n for reader in final for n, _ in drain(reader, 100, polls_max=1000)]
    assert Counter(found) == Counter(range(number))
    CLOCK.now_s += 2.0
    assert some(final) == []


def test_another_split_size_does_not_read_a_file_again(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", "jsonl", numbered_rows(100))
    readers = opened(watched(tmp_path, split_size=500), parallelism=2)
    first = [n for reader in readers for n, _ in drain(reader, 9, polls_max=3)]
    again = opened(watched(tmp_path, split_size=123), parallelism=1, restored=positions(readers))
    assert Counter(first + some(again) + some(again) + some(again)) == Counter(range(100))


@pytest.mark.parametrize("new_content", [[(1, "x")], [(1, "x"), (2, "y"), (3, "z"), (4, "")]])
def test_a_file_that_changes_after_it_was_read_is_an_error(tmp_path: Path, new_content: list[tuple[int, str]]) -> None:
    write_file(tmp_path / "a.jsonl", "jsonl", [(1, "x"), (2, "y"), (3, "z")])
    readers = opened(watched(tmp_path), parallelism=1)
    assert some(readers) == [1, 2, 3]
    restored = positions(readers)
    write_file(tmp_path / "a.jsonl", "jsonl", new_content)
    CLOCK.now_s += 2.0
    with pytest.raises(DataError, match=r"a.jsonl: the file had \d+ bytes .* has \d+ now"):
        some(readers)
    with pytest.raises(DataError, match="never change"):
        opened(watched(tmp_path), parallelism=1, restored=restored)


def test_a_fixed_set_stays_what_it_was_at_the_start(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", "jsonl", [(1, "x"), (2, "y")])
    source = Files(tmp_path, schema=SCHEMA)
    source.validate("in")
    write_file(tmp_path / "b.jsonl", "jsonl", [(3, "x")])
    readers = opened(source, parallelism=1)
    assert [n for n, _ in drain(readers[0], 1, polls_max=1)] == [1]
    after = opened(Files(tmp_path, schema=SCHEMA), parallelism=2, restored=positions(readers))
    assert some(after) == [2] and all(reader.finished for reader in after)


def test_a_file_of_the_set_that_is_gone_or_changed_is_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", "jsonl", [(1, "x"), (2, "y")])
    source = Files(tmp_path, schema=SCHEMA)
    source.validate("in")
    write_file(tmp_path / "a.jsonl", "jsonl", [(1, "x")])
    with pytest.raises(DataError, match=r"a.jsonl: the file had \d+ bytes"):
        opened(source, parallelism=1)[0].poll(10)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(DataError, match=r"a.jsonl: the file was listed, and is gone"):
        opened(source, parallelism=1)[0].poll(10)


# --- What is refused before the start ---------------------------------------------------------------


def test_a_missing_directory_names_the_operator_and_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source 'bids': there is no file or directory at .*/nowhere"):
        Files(tmp_path / "nowhere", schema=SCHEMA).validate("bids")
    with pytest.raises(ConfigError, match=r"source 'bids'.*scheme 'foo' is not known"):
        Files("foo://x/y", schema=SCHEMA).validate("bids")


def test_a_schema_that_does_not_match_the_file_names_both(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", "parquet", [(1, "x")])
    write_file(tmp_path / "b.csv", "csv", [(1, "x")])
    for pattern in ("*.parquet", "*.csv"):
        with pytest.raises(SchemaError, match=r"'in'.*(a.parquet|b.csv): .* no column 'price'.*word.*n bigint, price"):
            Files(tmp_path, schema="n long, price double", pattern=pattern).validate("in")
    with pytest.raises(SchemaError, match=r"a.parquet: column 'word' is string in the file, and bigint in the schema"):
        Files(tmp_path, schema="word long", pattern="*.parquet").validate("in")


def test_a_later_file_that_does_not_match_is_named_when_it_is_read(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", "parquet", [(1, "x")])
    parquet.write_table(pa.table({"n": [1]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"b.parquet: the file has no column 'word'"):
        rows_of(Files(tmp_path, schema=SCHEMA))


@pytest.mark.parametrize(("name", "keep"), [("a.parquet", 200), ("a.parquet", 3), ("a.csv.gz", 30)])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, keep: int) -> None:
    if name.endswith("gz"):
        content = gzip.compress(encode(as_table(numbered_rows(300)).to_batches(), "csv").to_pybytes())
    else:
        write_file(tmp_path / "whole", "parquet", numbered_rows(300))
        content = (tmp_path / "whole").read_bytes()
        (tmp_path / "whole").unlink()
    (tmp_path / name).write_bytes(content[:keep])
    with pytest.raises(DataError, match=name):
        rows_of(Files(tmp_path, schema=SCHEMA))


def test_parquet_values_that_do_not_fit_the_declared_type_are_an_error(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"n": [1, 2**40]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet.*1099511627776"):
        rows_of(Files(tmp_path, schema="n int"))


@pytest.mark.parametrize(
    ("settings", "kind", "part"),
    [
        ({"format": "orc"}, ConfigError, "'orc' is not one of text, jsonl, csv, parquet"),
        ({"on_error": "ignore"}, ConfigError, "not one of fail, skip, side_file"),
        ({"on_error": "side_file"}, ConfigError, "go together"),
        ({"side_file": "x"}, ConfigError, "go together"),
        ({"delimiter": "||"}, ConfigError, "not one character"),
        ({"delimiter": None}, ConfigError, "Files.delimiter: None is not one character"),
        ({"path": 5}, ConfigError, "Files.path: 5 is no location"),
        ({"on_error": "side_file", "side_file": b"x"}, ConfigError, "Files.side_file: b'x' is no location"),
        ({"split_size": 0}, ConfigError, "split_size"),
        ({"watch": "soon"}, ConfigError, "Files.watch"),
        ({"format": "text"}, SchemaError, "text has one string column"),
    ],
)
def test_wrong_settings_are_refused_at_once(tmp_path: Path, settings: Any, kind: type[JobError], part: str) -> None:
    with pytest.raises(kind, match=part):
        Files(**{"path": tmp_path, "schema": SCHEMA, **settings})


def test_what_cannot_be_known_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no file yet"):
        _ = Files(tmp_path).schema
    lines(tmp_path / "a.dat", "x")
    with pytest.raises(ConfigError, match=r"source 'in': the format of file 'a.dat' cannot be told.*Files.format"):
        Files(tmp_path, schema=SCHEMA).validate("in")
    lines(tmp_path / "a.csv", "x")
    with pytest.raises(SchemaError, match="csv needs a schema"):
        _ = Files(tmp_path, pattern="*.csv").schema


def test_types_that_a_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", "{}")
    with pytest.raises(SchemaError, match=r"source 'in'.*keys of JSON objects are strings"):
        Files(tmp_path, schema="m map<long,long>").validate("in")
    with pytest.raises(SchemaError, match=r"source 'in'.*no nested values"):
        Files(tmp_path, format="csv", schema="m array<long>", header=False).validate("in")
