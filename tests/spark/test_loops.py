"""A loop on Spark: back-edges between two workers, kills in the middle, a savepoint with rows on their way round."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import committed_rows, kill, notices_of, numbers, open_gate, slow_settings
from weir import connectors as io
from weir.runtime.driver.notices import CheckpointSucceeded

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 20_000
SCHEMA = "n long, key long, left long"


class Rounds(weir.ProcessFunction):
    """Takes one off, and counts by key how often that was done."""

    rounds = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.rounds.set(self.rounds.get() + 1)
        yield row.n, row.key, row.left - 1
        context.side("rounds", (row.key, self.rounds.get()))


def build(env: weir.Environment, directory: Path, out: Path) -> None:
    """Row n goes round n % 4 times, at least once; rows are fed back to whichever worker is next."""

    def step(rows: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
        seen = rows.key_by("key").process(Rounds(), SCHEMA, sides={"rounds": "key long, rounds long"}, uid="rounds")
        seen.side("rounds").write(io.FileSink(out / "rounds", "jsonl"), uid="counts")
        return seen.filter(pl.col("left") > 0, uid="again").rebalance(), seen.filter(pl.col("left") <= 0, uid="done")

    rows = numbers(env, directory, ROWS).select("n", "key", left=pl.col("n") % 4, uid="start")
    rows.iterate(step, uid="loop").select("n", uid="only-n").write(io.FileSink(out / "done", "jsonl"), uid="out")


def environment(session: Any, directory: Path, parallelism: int = 2) -> weir.Environment:
    return weir.Environment(
        session,
        parallelism=parallelism,
        checkpoints=weir.Checkpoints(every="100ms", to=str(directory / "checkpoints")),
        restart=weir.FixedDelay(10, "20ms"),
        settings=slow_settings(loop_memory_max="4KB"),
    )


def check(*outs: Path) -> None:
    done = Counter(row["n"] for out in outs for row in committed_rows(out / "done"))
    assert done == Counter(range(ROWS))
    rounds = Counter((row["key"], row["rounds"]) for out in outs for row in committed_rows(out / "rounds"))
    wanted: Counter[int] = Counter()
    for n in range(ROWS):
        wanted[n % 17] += max(1, n % 4)
    assert rounds == Counter((key, count) for key in wanted for count in range(1, wanted[key] + 1))


def await_checkpoints(job: Any, count: int) -> None:
    before = len(notices_of(job, CheckpointSucceeded))
    poll(lambda: len(notices_of(job, CheckpointSucceeded)) >= before + count or job.error, PATIENCE_S)
    assert job.error is None


def test_a_loop_over_two_workers_survives_kills_and_counts_every_round_once(embedded: Any, tmp_path: Path) -> None:
    env = environment(embedded, tmp_path)
    build(env, tmp_path, tmp_path)
    job: Any = env.submit("loop")
    try:
        for worker in (0, 1):
            await_checkpoints(job, 3)
            processes = job.process_ids
            assert kill(processes[worker])
            poll(lambda: job.status == "running" and job.process_ids != processes, PATIENCE_S)  # noqa: B023
        await_checkpoints(job, 1)
        open_gate(tmp_path)
        assert job.wait(timeout=PATIENCE_S) == "finished"
    finally:
        job.cancel()
    assert job.metrics()["restarts"] >= 2
    check(tmp_path)


def test_rows_on_their_way_round_are_in_a_savepoint_and_go_on_from_it_at_another_parallelism(
    embedded: Any, tmp_path: Path
) -> None:
    env = environment(embedded, tmp_path)
    build(env, tmp_path, tmp_path / "one")
    job: Any = env.submit("first")
    try:
        await_checkpoints(job, 2)
        savepoint = job.stop(str(tmp_path / "savepoints"))
        assert job.wait(timeout=PATIENCE_S) == "stopped"
    finally:
        job.cancel()
    open_gate(tmp_path)
    env = environment(embedded, tmp_path, parallelism=3)
    build(env, tmp_path, tmp_path / "two")
    env.run("second", from_savepoint=savepoint)
    check(tmp_path / "one", tmp_path / "two")
