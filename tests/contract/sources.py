"""The sources that the contract suite runs on, and how to read them as the worker does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.sinks import context
from weir.connectors import Collection, Generator
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


CASES: dict[str, Callable[[Path], SourceCase]] = {
    "collection": collection_case(1000),
    "small collection": collection_case(3),
    "empty collection": collection_case(0),
    "generator": generator_case(1000),
    "generator of few rows": generator_case(5),
    "generator with odd splits": generator_case(500, splits=7),
    "empty generator": generator_case(0),
}
