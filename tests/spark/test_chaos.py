"""Exactly once under fire: Python workers and executor JVMs are killed, or frozen, at random moments.

What was committed is compared record by record with the reference. Every test prints its seed;
WEIR_CHAOS_SEED=n runs it with that one again (the kills come at the same distances, not to the microsecond).
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

import weir
from tests.conftest import poll
from tests.spark.conftest import alive
from tests.spark.helpers import (
    KEYS,
    build_job,
    check_output,
    executor_processes,
    kill,
    notices_of,
    numbers,
    open_gate,
    slow_settings,
)
from weir import connectors as io
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointSucceeded
from weir.runtime.spark.session import recommended_settings, stop_embedded

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.slow,
]

PATIENCE_S = 120.0
"""For whatever must happen, on a machine that has other things to do."""

RESTARTS_MAX = 200


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("WEIR_CHAOS_SEED") or secrets.randbelow(1 << 31))
    print(f"WEIR_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def patient_spark() -> Iterator[Any]:
    """A local Spark that leaves frozen Python workers alone, so that they can thaw long after their attempt.

    Its tests come first in this file: a process holds one Spark at a time, and `local_cluster` stays to the end.
    """
    from pyspark.sql import SparkSession

    stop_embedded()
    assert SparkSession.getActiveSession() is None
    settings = {
        **recommended_settings(),
        "spark.master": "local[*]" if (os.cpu_count() or 1) >= 4 else "local[4]",
        "spark.app.name": "tests",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.python.task.killTimeout": "10min",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


def environment(
    session: Any, directory: Path, *, checkpoints: dict[str, Any] | None = None, **settings: Any
) -> weir.Environment:
    return weir.Environment(
        session,
        parallelism=2,
        checkpoints=weir.Checkpoints(**{"every": "300ms", "to": str(directory / "checkpoints"), **(checkpoints or {})}),
        restart=weir.FixedDelay(RESTARTS_MAX, "20ms"),
        settings=slow_settings(**settings),
    )


class Chaos:
    """Kills something of a job, again and again, at moments that the dice choose."""

    def __init__(self, job: Any, dice: random.Random) -> None:
        self._job = job
        self._dice = dice
        self._orphans: list[psutil.Process] = []

    def kill_all(self, victims: Sequence[str]) -> None:
        for victim in victims:
            while not self._kill(victim):
                pass

    def await_moment(self) -> None:
        """Mostly in the middle of a run that has made some progress, now and then in the middle of a start."""
        if self._dice.random() < 0.75:
            known = self._completed
            poll(lambda: self._completed > known or self._job.error, PATIENCE_S)
        self._job.wait(self._dice.uniform(0.0, 1.0))
        assert self._job.status not in ("finished", "failed"), self._job.error

    @property
    def _completed(self) -> int:
        return len(notices_of(self._job, CheckpointSucceeded))

    def _kill(self, what: str) -> bool:
        self.await_moment()
        if what == "worker":
            workers = self._job.process_ids
            return bool(workers) and kill(self._dice.choice(workers))
        executors = executor_processes()
        if not executors:
            return False
        executor = self._dice.choice(executors)
        self._orphans += executor.children(recursive=True)
        return kill(executor.pid)

    def await_orphans(self) -> None:
        """The Python processes of a killed executor must find out by themselves, and leave."""
        poll(lambda: not any(alive(process.pid) for process in self._orphans if process.is_running()), PATIENCE_S)


# --- Frozen processes -------------------------------------------------------------------------------


def test_a_worker_frozen_past_its_timeout_that_thaws_later_writes_nothing_that_counts(
    patient_spark: Any, tmp_path: Path, dice: random.Random
) -> None:
    rows = 300_000
    env = environment(
        patient_spark,
        tmp_path,
        checkpoints={"every": "30ms"},
        heartbeat_interval="100ms",
        heartbeat_timeout="2s",
        stop_timeout="200ms",
    )
    build_job(env, tmp_path, rows=rows)
    job: Any = env.submit("frozen")
    chaos = Chaos(job, dice)
    for attempt in (1, 2):
        poll(lambda wanted=attempt: len(notices_of(job, AttemptRunning)) == wanted, PATIENCE_S)
        chaos.await_moment()
        process_id = dice.choice(job.process_ids)
        assert kill(process_id, signal.SIGSTOP)
        poll(lambda wanted=attempt + 1: len(notices_of(job, AttemptRunning)) == wanted, PATIENCE_S)
        assert alive(process_id) and process_id not in job.process_ids, "it must be there still, but not in charge"
        chaos.await_moment()
        assert kill(process_id, signal.SIGCONT)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    failures = [notice.error for notice in notices_of(job, AttemptFailed)]
    assert len(failures) == 2 and all("was silent for" in error for error in failures), failures
    check_output(tmp_path, rows)


# --- Kills ------------------------------------------------------------------------------------------


def test_workers_and_executors_are_killed_at_random_and_every_row_counts_once(
    local_cluster: Any, tmp_path: Path, dice: random.Random
) -> None:
    rows = 600_000
    env = environment(local_cluster, tmp_path)
    build_job(env, tmp_path, rows=rows)
    job: Any = env.submit("chaos")
    victims = ["worker"] * 6 + ["executor"]
    dice.shuffle(victims)
    chaos = Chaos(job, dice)
    chaos.kill_all(victims)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    chaos.await_orphans()
    check_output(tmp_path, rows)
    assert job.metrics()["restarts"] >= 3
    restored = [notice.restored for notice in notices_of(job, AttemptRunning)]
    assert [r for r in restored if r is not None], "the job never went on from a checkpoint"


def count_by_key(row: Any, state: Any) -> Any:
    state.count.value += 1
    return row.key, row.n, state.count.value


def test_a_union_with_a_stateful_function_behind_a_rebalance_survives_kills_with_many_barriers_on_the_way(
    local_cluster: Any, tmp_path: Path, dice: random.Random
) -> None:
    rows = 200_000
    env = environment(local_cluster, tmp_path, checkpoints={"every": "60ms", "max_concurrent": 3})
    one, two = (numbers(env, tmp_path, rows, uid=uid) for uid in ("one", "two"))
    spread = one.union(two.filter(pl.col("n") % 2 == 0, uid="even")).rebalance().select("n", "key", uid="spread")
    spread.key_by("key").process(
        count_by_key,
        "key long, n long, count long",
        state={"count": weir.ValueState("long", default=0)},
        uid="counted",
    ).write(io.FileSink(tmp_path / "out", "parquet"), uid="out")
    job: Any = env.submit("union-chaos")
    victims = ["worker"] * 3 + ["executor"]
    dice.shuffle(victims)
    chaos = Chaos(job, dice)
    chaos.kill_all(victims)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    chaos.await_orphans()
    found = pl.read_parquet(tmp_path / "out" / "*.parquet")
    once, twice = range(1, rows, 2), range(0, rows, 2)
    assert sorted(found["n"].to_list()) == sorted([*once, *twice, *twice])
    counts = found.group_by("key").agg(pl.col("count").sort()).rows()
    assert len(counts) == KEYS
    for key, values in counts:
        assert values == list(range(1, len(values) + 1)), f"key {key}: each count from 1 on must be there once"
