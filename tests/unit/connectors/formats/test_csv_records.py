"""Records of CSV: quotes decide where they end, wherever a file is entered."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sources import drain, opened
from weir.connectors import Files
from weir.connectors.formats.csv_records import RECORD_START, Quotes, QuoteSide, record_starts
from weir.errors import DataError


def rows_of(path: Path, schema: str = "a string, b string", *, block_bytes: int = 1 << 20, **settings: Any) -> Any:
    source = Files(path, "csv", schema, **settings)
    source.block_bytes = block_bytes
    return drain(opened(source, parallelism=1)[0], 100)


def side_after(text: bytes, side: QuoteSide = RECORD_START) -> QuoteSide:
    return Quotes(",").turns(text, side)[1]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (b'a,"b', True),
        (b'a,"b"', False),
        (b'a,"b""', True),
        (b'a,"b""c"', False),
        (b'5" pipe,x', False),
        (b'5" pipe,"x', True),
        (b'x""y,"z', True),
        (b'"a"b"c,', False),
        (b'"",""', False),
        (b'a\r"b', True),
    ],
)
def test_only_quotes_that_open_or_close_a_value_change_sides(text: bytes, inside: bool) -> None:
    assert side_after(text).inside is inside
    # The same in pieces of any size.
    for size in range(1, len(text)):
        side = RECORD_START
        for start in range(0, len(text), size):
            side = side_after(text[start : start + size], side)
        assert side == side_after(text)


def test_records_of_random_text_begin_where_a_reader_of_csv_says() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n", quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        records = [["".join(rng.choices('ab",\n', k=rng.randrange(5))) for _ in range(2)] for _ in range(5)]
        starts = [0]
        for record in records:
            writer.writerow(record)
            starts.append(len(out.getvalue()))
        assert record_starts(out.getvalue().encode(), Quotes(",")) == starts


@pytest.mark.parametrize("split_bytes", [1, 2, 3, 5, 8, 13, 100])
@pytest.mark.parametrize("block_bytes", [1, 4, 1000])
def test_a_quoted_newline_survives_every_split(tmp_path: Path, split_bytes: int, block_bytes: int) -> None:
    (tmp_path / "a.csv").write_bytes(b'a,b\n"one\ntwo","x,\ny"\nthree,5" pipe\n"",""""\n"\n\n",z\n')
    expected = [("one\ntwo", "x,\ny"), ("three", '5" pipe'), ("", '"'), ("\n\n", "z")]
    assert rows_of(tmp_path, block_bytes=block_bytes, split_size=split_bytes) == expected


@pytest.mark.parametrize("split_bytes", [1, 2, 3, 4, 5, 9])
def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path, split_bytes: int) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"a\n","b"\n\xef\xbb\xbfx,"1\n2"\n')
    rows = rows_of(tmp_path, "`a\n` string, b string", split_size=split_bytes, block_bytes=2)
    assert rows == [("\ufeffx", "1\n2")]


def test_a_line_that_is_empty_is_a_null_where_there_is_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'a\nx\n\n""\n\n')
    assert rows_of(tmp_path, "a string", split_size=1) == [("x",), (None,), ("",), (None,)]


def test_a_malformed_record_is_shown_whole_with_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'n,b\n1,"x\ny"\ntwo,"x\n\ny"\n3,z\n')
    with pytest.raises(DataError, match=r"a.csv, line 4: .*Found: 'two,\"x\\n\\ny\"'"):
        rows_of(tmp_path, "n long, b string")
    assert rows_of(tmp_path, "n long, b string", on_error="skip") == [(1, "x\ny"), (3, "z")]


def test_a_quote_that_is_never_closed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'a,b\nx,y\nz,"open\nto the end\n')
    with pytest.raises(DataError, match=r"line 3: .*a quote is opened, and never closed"):
        rows_of(tmp_path)
    assert rows_of(tmp_path, on_error="skip", split_size=2) == [("x", "y")]


def test_a_subtask_looks_at_each_byte_before_its_split_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    turns = Quotes.turns
    monkeypatch.setattr(Quotes, "turns", lambda self, data, side: seen.append(len(data)) or turns(self, data, side))
    content = b"a,b\n" + b'"x\ny",z\n' * 200
    (tmp_path / "a.csv").write_bytes(content)
    source = Files(tmp_path, "csv", "a string, b string", split_size=10)
    readers = opened(source, parallelism=4)
    rows = [row for reader in readers for row in drain(reader, 100)]
    assert rows == [("x\ny", "z")] * 200
    # Four subtasks, each over the file once; the rest is parsing and looking for the ends of few records.
    entering = sum(size for size in seen if size <= 10)
    assert entering <= 4 * len(content)
