"""Files with lines that are no rows: they stop the job, are skipped, or go to side files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.sources import drain, numbered_rows, opened, positions, write_file
from tests.unit.connectors.files.reading import SCHEMA, lines, reader_of, rows_of
from weir.connectors import Files
from weir.errors import DataError


def many_lines(path: Path, bad: dict[int, str], count: int = 200) -> None:
    good = [json.dumps({"n": number, "word": f"w{number}"}) for number in range(count)]
    lines(path, *(bad.get(number, line) for number, line in enumerate(good)))


@pytest.mark.parametrize("split_size", [300, "16MB"])
def test_a_malformed_line_stops_the_job_with_file_line_content_and_what_to_do(
    tmp_path: Path, split_size: int | str
) -> None:
    many_lines(tmp_path / "a.jsonl", {150: '{"n": "no number", "word": "x"}'})
    source = Files(tmp_path, schema=SCHEMA, split_size=split_size)
    source.block_bytes = 100
    with pytest.raises(DataError) as caught:
        rows_of(source)
    text = str(caught.value)
    assert "'the sink' (uid 'out')" in text and "a.jsonl, line 151:" in text
    assert "no number" in text and "n bigint, word string" in text and "on_error='side_file'" in text


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", b"n,word\n1,x\n2,y,z\n", 3),
        ("b.csv", b"n,word\n1,x\nnone,y\n", 3),
        ("c.jsonl", b'{"n": 1}\n{"n": 2', 2),
        ("d.jsonl", b'{"n": 1}\n{"n": 99999999999999999999}\n', 2),
        ("e.jsonl", b'[1, "x"]\n', 1),
        ("f.txt", b"fine\nnot \xff utf-8\n", 2),
    ],
)
def test_every_kind_of_malformed_line_is_found(tmp_path: Path, name: str, content: bytes, line: int) -> None:
    (tmp_path / name).write_bytes(content)
    schema = None if name.endswith("txt") else SCHEMA
    with pytest.raises(DataError, match=f"{name}, line {line}:"):
        rows_of(Files(tmp_path, schema=schema))


def test_a_missing_value_where_none_may_be_is_malformed(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", '{"n": 1}', '{"m": 2}')
    with pytest.raises(DataError, match=r"line 2: .*'n' is declared not null"):
        rows_of(Files(tmp_path, schema="n long not null"))
    assert rows_of(Files(tmp_path, schema="n long not null", on_error="skip")) == [(1,)]


def test_malformed_lines_can_be_skipped_and_are_counted(tmp_path: Path) -> None:
    many_lines(tmp_path / "a.jsonl", {3: "{", 4: "nonsense", 199: '{"n": 1.5}'})
    reader = reader_of(Files(tmp_path, schema=SCHEMA, on_error="skip"))
    assert [n for n, _ in drain(reader, 50)] == [n for n in range(199) if n not in (3, 4)]
    assert reader.lag is not None and "3 malformed lines left out" in reader.lag


def test_malformed_lines_go_to_side_files_and_the_others_flow(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    bad = {3: "{", 100: '{"n": "x"}', 101: "é", 199: "last"}
    many_lines(place / "a.jsonl", bad)
    source = Files(place, schema=SCHEMA, on_error="side_file", side_file=tmp_path / "bad", split_size=1000)
    source.block_bytes = 300
    for _ in range(2):  # a replay overwrites, and does not repeat
        found = [n for reader in opened(source, parallelism=2) for n, _ in drain(reader, 50)]
        assert sorted(found) == [n for n in range(200) if n not in bad]
        aside = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
        assert sorted(record["content"] for record in aside) == sorted(bad.values())
    content = (place / "a.jsonl").read_bytes()
    for record in aside:
        assert record["file"] == "a.jsonl" and record["error"]
        assert content[record["offset"] :].decode().startswith(record["content"] + "\n")


def test_a_restore_in_mid_block_overwrites_the_same_side_files(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    bad = {number: f"bad {number}" for number in range(5, 200, 10)}
    many_lines(place / "a.jsonl", bad)
    source = Files(place, schema=SCHEMA, on_error="side_file", side_file=tmp_path / "bad")
    source.block_bytes = 300
    found: list[int] = []
    restored = None
    for _ in range(60):
        (reader,) = opened(source, parallelism=1, restored=restored)
        found += [n for n, _ in drain(reader, 7, polls_max=1)]
        restored = positions([reader])
    assert found == [n for n in range(200) if n not in bad]
    aside = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    assert sorted(record["content"] for record in aside) == sorted(bad.values())


def test_a_restore_with_smaller_blocks_goes_on_at_the_same_row(tmp_path: Path) -> None:
    """As after an upgrade that cuts blocks otherwise."""
    write_file(tmp_path / "a.csv", "csv", numbered_rows(200))
    found: list[int] = []
    restored = None
    for block_bytes in (5000, 60, 700, 33, 5000):
        source = Files(tmp_path, schema=SCHEMA)
        source.block_bytes = block_bytes
        (reader,) = opened(source, parallelism=1, restored=restored)
        found += [n for n, _ in drain(reader, 17, polls_max=2)]
        restored = positions([reader])
    (reader,) = opened(source, parallelism=1, restored=restored)
    assert found + [n for n, _ in drain(reader, 1000)] == list(range(200))
