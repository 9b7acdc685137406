"""The sinks that the contract suite runs on, and how to see what each has made visible."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from weir.connectors import Collect, Discard, FileSink, Stdout
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.operators.base import NO_LINEAGE, OperatorContext
from weir.operators.sink import Sink, SinkOwner
from weir.snapshot.backoff import Backoff
from weir.snapshot.commit import Commit, CommitGrant, Committer, RestoredPending

JOB = "contract"
SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True)
class SinkCase:
    """A sink, and a function that gives the `n` of every row that readers of its output see now."""

    sink: Sink
    visible: Callable[[], list[int]] | None
    leftovers: Callable[[], list[str]] = list
    """What lies about and no reader sees."""


def context(
    *, index: int = 0, parallelism: int = 1, attempt: int = 1, uid: str = "out", lineage: str = NO_LINEAGE
) -> OperatorContext:
    return OperatorContext(
        job=JOB,
        uid=Uid(uid),
        name="the sink",
        index=index,
        parallelism=parallelism,
        max_parallelism=128,
        attempt=AttemptId(attempt),
        lineage=Lineage(lineage),
    )


def owner(
    *,
    resume: bool = False,
    lineage: str = NO_LINEAGE,
    job: str = JOB,
    uid: str = "out",
    lives: Collection[str] = (NO_LINEAGE,),
    is_durable: bool = True,
) -> SinkOwner:
    """By default of a job whose checkpoint location knows of the first life."""
    known = frozenset(map(Lineage, lives))
    return SinkOwner(job, Lineage(lineage), Uid(uid), "the sink", resume=resume, lives=known, is_durable=is_durable)


def adopted(sink: Sink, owner: SinkOwner) -> None:
    """As a driver does it."""
    sink.validate(owner)
    sink.adopt(owner, still_ours)


def still_ours() -> None:
    """A fence that nobody has crossed."""


def grant(checkpoint: int) -> CommitGrant:
    """The right to commit, as only the machine gives it out."""
    (commit,) = Committer(0, Backoff(1, 1)).handle(RestoredPending(CheckpointId(checkpoint), ["something"]))
    assert isinstance(commit, Commit)
    return commit.grant


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers), "word": [f"w{n}" for n in numbers]}, SCHEMA)


def file_case(format: str) -> Callable[[Path], SinkCase]:
    def make(directory: Path) -> SinkCase:
        path = directory / "out"
        sink = FileSink(path, format)  # type: ignore[arg-type]
        return SinkCase(sink, lambda: read_numbers(path, format), lambda: pending(path))

    return make


def rolling_case(directory: Path) -> SinkCase:
    path = directory / "out"
    return SinkCase(FileSink(path, "jsonl", roll_rows=2), lambda: read_numbers(path, "jsonl"), lambda: pending(path))


def collect_case(directory: Path) -> SinkCase:
    sink = Collect(directory / "collected")
    sink.check(SCHEMA, "the sink")
    return SinkCase(sink, lambda: sink.result()["n"].to_pylist(), lambda: pending(directory / "collected"))


TABLES: dict[str, Callable[[Path], SinkCase]] = {
    "parquet files": file_case("parquet"),
    "jsonl files": file_case("jsonl"),
    "csv files": file_case("csv"),
    "rolling files": rolling_case,
    "collect": collect_case,
}
CASES: dict[str, Callable[[Path], SinkCase]] = {
    **TABLES,
    "stdout": lambda _: SinkCase(Stdout(), None),
    "discard": lambda _: SinkCase(Discard(), None),
}
"""Sinks without `visible` have nothing to commit; the contract's other promises hold for them too."""


def pending(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "_weir").glob("*/pending/*"))


def read_numbers(path: Path, format: str) -> list[int]:
    """What an ordinary table reader finds: every file that does not begin with '_' or '.'."""
    found: list[int] = []
    for file in sorted(path.glob("[!_.]*")):
        if format == "parquet":
            table: Any = parquet.read_table(file)
            found += table["n"].to_pylist()
        elif format == "csv":
            found += arrow_csv.read_csv(file)["n"].to_pylist()
        else:
            found += [json.loads(line)["n"] for line in file.read_text().splitlines()]
    return found
