"""Functions that keep state, on Spark, record by record: a worker killed, stopped behind a savepoint, gone on with by
other subtasks on another backend.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import KEYS, committed_rows, kill, numbers, open_gate, slow_settings
from weir import connectors as io

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 150.0
ROWS = 30_000


class Counted:
    """Counts in a state of its class, in one that open declares, and in plain attributes that its hooks keep."""

    seen = weir.ValueState("long", default=0)

    def __init__(self) -> None:
        self.rows = 0

    def open(self, context: Any) -> None:
        self.sums = context.state("sums", weir.MapState("string", "long", default=0))

    def __call__(self, row: Any) -> Any:
        self.rows += 1
        self.seen.value += 1
        self.sums["n"] += row.n
        return row.n, row.key, self.seen.value, self.sums["n"], self.rows

    def snapshot_state(self) -> Any:
        return {"rows": self.rows}

    def restore_state(self, values: Sequence[Any]) -> None:
        self.rows = sum(value["rows"] for value in values)


class Asked:
    seen = weir.ListState("long")

    async def __call__(self, row: Any) -> Any:
        await asyncio.sleep(0)
        self.seen.set([(len(self.seen.get()) and self.seen.get()[0] + 1) or 1])
        return row.n, row.key, self.seen.get()[0]


def build(environment: weir.Environment, directory: Path) -> None:
    keyed = numbers(environment, directory, ROWS).key_by("key")
    counts = keyed.map(Counted(), "n long, key long, seen long, sum long, rows long", uid="counted")
    counts.write(io.FileSink(directory / "out", "jsonl"), uid="out")
    few = keyed.filter(lambda row, state: row.n % 50 == 0, state={"none": weir.ValueState("long")}, uid="few")
    asked = few.key_by("key").map_async(Asked(), "n long, key long, seen long", uid="asked")
    asked.write(io.FileSink(directory / "asked", "jsonl"), uid="asked-out")


def test_functions_count_every_row_once_whatever_happens(embedded: Any, tmp_path: Path) -> None:
    jobs: list[Any] = []

    def start(place: str, parallelism: int, backend: Any, **more: Any) -> Any:
        directory = tmp_path / place
        directory.mkdir()
        environment = weir.Environment(
            embedded,
            parallelism=parallelism,
            checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
            restart=weir.FixedDelay(20, "20ms"),
            settings=slow_settings(),
            backend=backend,
        )
        build(environment, directory)
        jobs.append(environment.submit("functions", **more))
        return jobs[-1]

    try:
        first = start("1", 2, "rocksdb")
        poll(lambda: len(committed_rows(tmp_path / "1" / "out")) > 200, PATIENCE_S)
        assert kill(first.process_ids[0])
        before = len(committed_rows(tmp_path / "1" / "out"))
        poll(lambda: len(committed_rows(tmp_path / "1" / "out")) > before + 200, PATIENCE_S)
        path = first.stop(str(tmp_path / "mine"), timeout=PATIENCE_S)
        second = start("2", 3, "heap", from_savepoint=path)
        open_gate(tmp_path / "2")
        assert second.wait(PATIENCE_S) == "finished"
    finally:
        for job in jobs:
            job.cancel()
    rows = _rows(tmp_path, "out")
    assert sorted(rows["n"].to_list()) == list(range(ROWS))
    for (key,), some in rows.group_by("key"):
        assert sorted(some["seen"].to_list()) == list(range(1, len(some) + 1))
        assert some["sum"].max() == sum(n for n in some["n"].to_list()), key
    assert rows["key"].n_unique() == KEYS
    asked = _rows(tmp_path, "asked")
    assert sorted(asked["n"].to_list()) == list(range(0, ROWS, 50))
    for _, some in asked.group_by("key"):
        assert sorted(some["seen"].to_list()) == list(range(1, len(some) + 1))


def _rows(directory: Path, of: str) -> pl.DataFrame:
    return pl.DataFrame([row for place in "12" for row in committed_rows(directory / place / of)])
