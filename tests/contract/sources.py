"""The sources that the contract suite runs on, and how to read them as the worker does."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.contract.sinks import context
from weir.connectors import Collection, Files, Generator
from weir.connectors.formats.encode import encode
from weir.operators.base import InlinePart
from weir.operators.source import Source, SourceReader

POLLS_MAX = 100_000


@dataclass(frozen=True)
class SourceCase:
    """A bounded source and the rows that it holds, as tuples."""

    source: Source
    rows: list[tuple[Any, ...]]


def opened(source: Source, *, parallelism: int, restored: Sequence[InlinePart] | None = None) -> list[SourceReader]:
    """A reader for each subtask, through pickle as on Spark."""
    readers = []
    for index in range(parallelism):
        reader = pickle.loads(pickle.dumps(source)).reader()
        reader.open(context(index=index, parallelism=parallelism), restored)
        readers.append(reader)
    return readers


def drain(reader: SourceReader, rows_max: int, polls_max: int = POLLS_MAX) -> list[tuple[Any, ...]]:
    """Rows of at most `polls_max` polls, or until the reader is finished."""
    found: list[tuple[Any, ...]] = []
    for _ in range(polls_max):
        batch = reader.poll(rows_max)
        if batch is None:
            if reader.finished:
                return found
            continue
        assert 0 < batch.num_rows <= rows_max
        found += [tuple(row.values()) for row in batch.to_pylist()]
    assert polls_max < POLLS_MAX, "the reader never finishes"
    return found


def positions(readers: Sequence[SourceReader]) -> list[InlinePart]:
    """What a checkpoint would hold: the positions of all subtasks, through JSON."""
    return [InlinePart(i, len(readers), json.loads(json.dumps(reader.position()))) for i, reader in enumerate(readers)]


def numbered_columns(numbers: Any) -> dict[str, Any]:
    return {"n": numbers, "twice": 2 * numbers}


def collection_case(count: int) -> Callable[[Path], SourceCase]:
    rows = [(number, f"w{number}") for number in range(count)]
    return lambda _: SourceCase(Collection(rows, "n long, word string"), rows)


def generator_case(count: int, splits: int | None = None) -> Callable[[Path], SourceCase]:
    rows = [(number, 2 * number) for number in range(count)]
    return lambda _: SourceCase(Generator(count, numbered_columns, "n long, twice long", splits=splits), rows)


def numbered_rows(count: int) -> list[tuple[Any, ...]]:
    """Lines of very different length, some empty, some with characters of several bytes."""
    return [(number, "é" * (number % 37) if number % 5 else "") for number in range(count)]


def as_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    numbers, words = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": pa.array(words, pa.string())})


def files_case(format: str, *, compressed: bool = False, tiny: bool = True) -> Callable[[Path], SourceCase]:
    """Several files of one format; with `tiny` a split has a few lines only, and a block fewer."""

    def make(directory: Path) -> SourceCase:
        place = directory / "in"
        place.mkdir(exist_ok=True)
        rows = numbered_rows(400)
        for index, part in enumerate((rows[:250], rows[250:399], rows[399:])):
            write_file(place / f"{index}.{format}", format, part, compressed)
        (place / f"_hidden.{format}").write_bytes(b"nonsense")
        (place / f"empty.{format}").write_bytes(b"")
        source = Files(place, None, "n long, word string", split_size=500 if tiny else "16MB")
        if tiny:
            source.block_bytes = 100
        return SourceCase(source, rows)

    return make


def write_file(path: Path, format: str, rows: Sequence[tuple[Any, ...]], compressed: bool = False) -> None:
    table = as_table(rows)
    if format == "parquet":
        parquet.write_table(table, path, row_group_size=40, compression="none")
        return
    data = encode(table.to_batches(max_chunksize=40), format).to_pybytes()
    if compressed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def text_case(directory: Path) -> SourceCase:
    (directory / "a.txt").write_bytes("first\r\n\nthïrd\nno newline at the end".encode())
    (directory / "b.txt").write_bytes(b"\n\n")
    source = Files(directory, split_size=7)
    source.block_bytes = 3
    return SourceCase(source, [("first",), ("",), ("thïrd",), ("no newline at the end",), ("",), ("",)])


CASES: dict[str, Callable[[Path], SourceCase]] = {
    "collection": collection_case(1000),
    "small collection": collection_case(3),
    "empty collection": collection_case(0),
    "generator": generator_case(1000),
    "generator of few rows": generator_case(5),
    "generator with odd splits": generator_case(500, splits=7),
    "empty generator": generator_case(0),
    "text files": text_case,
    "jsonl files": files_case("jsonl"),
    "csv files": files_case("csv"),
    "parquet files": files_case("parquet"),
    "arrow files": files_case("arrow"),
    "large splits": files_case("jsonl", tiny=False),
    "compressed csv files": files_case("csv", compressed=True),
}
