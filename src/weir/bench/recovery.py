"""The workload `recovery`: SIGKILL of a Python worker, to the first new committed output.

Comes in: a number of kills. Goes out: how long each took to get over, and whether every
row was committed exactly once in the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir import ValueState, connectors
from weir.bench import keyed_data
from weir.bench.epochs import Arrays, Epoch
from weir.bench.harness import Bench, BenchOptions, BenchReport, FinishedJob, await_until, bench, kill_a_worker
from weir.bench.latency import column, lost_and_duplicated
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointSucceeded

RATE_PER_S = 200_000
CHECKPOINTS_BEFORE_KILL = 3
"""Completed in an attempt before its worker is killed: the job is then in full swing."""

Numbers = npt.NDArray[np.int64]


def add_up(row: Any, state: Any) -> tuple[int, int, int]:
    state.total.value += row.value
    return row.key, state.total.value, row.number


class Numbered(keyed_data.LastSums):
    """Keeps each key's newest sum and the number of every row."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: list[Numbers] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        super().add(batch, now_ns)
        self._numbers.append(batch.column(2).to_numpy())

    def take(self) -> Arrays:
        numbers, self._numbers = np.concatenate(self._numbers), []
        return {**super().take(), "number": numbers}


def run_recovery(options: BenchOptions, kills: int = 3) -> BenchReport:
    with bench(options, "recovery") as it:
        generator = connectors.Generator(
            options.events, keyed_data.make_numbered_rows, keyed_data.NUMBERED_SCHEMA, rate=RATE_PER_S
        )
        sums = (
            it.read(generator)
            .key_by("key")
            .process(
                add_up,
                "key long, total long, number long",
                state={"total": ValueState("long", default=0)},
                uid="sum",
            )
        )
        sums.write(it.sink(Numbered), uid="sink")
        killed_s: list[float] = []
        run = it.run(lambda job: killed_s.extend(_kill(it, job, number) for number in range(kills)))
        lost, duplicated = lost_and_duplicated(column(run.epochs, "number"), options.events)
        wrong = int(np.count_nonzero(keyed_data.committed_sums(run.epochs) != keyed_data.true_sums(options.events)))
        return it.report(
            run,
            verified=lost == 0 and duplicated == 0 and wrong == 0 and len(killed_s) == kills,
            lost=lost,
            duplicated=duplicated,
            wrong_keys=wrong,
            kills=kills,
            **summary([recovered_s(run, killed) - killed for killed in killed_s], run),
        )


def _kill(it: Bench, job: Any, number: int) -> float:
    """Wait until the job is in full swing, kill a worker, wait until it has recovered; when the kill was."""
    before = job.metrics()["restarts"]
    await_until(lambda: _completed(it) >= CHECKPOINTS_BEFORE_KILL, job, f"kill {number + 1}")
    _, killed_s = kill_a_worker(job, number)
    await_until(lambda: job.metrics()["restarts"] > before and _completed(it) >= 1, job, f"recovery {number + 1}")
    return killed_s


def _completed(it: Bench) -> int:
    """Checkpoints of the attempt that runs now."""
    completed = 0
    for _, notice in list(it.notices):
        if isinstance(notice, AttemptRunning | AttemptFailed):
            completed = 0
        completed += isinstance(notice, CheckpointSucceeded)
    return completed


def recovered_s(run: FinishedJob, killed_s: float) -> float:
    """When the first checkpoint of the next attempt was committed by all subtasks that had rows in it."""
    before = max((e.attempt for e in run.epochs if e.committed_ns / 1e9 <= killed_s), default=0)
    later: list[Epoch] = [epoch for epoch in run.epochs if epoch.attempt > before]
    first = min(epoch.checkpoint for epoch in later)
    return max(epoch.committed_ns for epoch in later if epoch.checkpoint == first) / 1e9


def summary(seconds: list[float], run: FinishedJob) -> dict[str, Any]:
    """Median and maximum, and what part of it was waiting for Spark to notice and for the tasks to run again."""
    running = [n.recovery_ms for _, n in run.notices if isinstance(n, AttemptRunning)]
    again = [ms for ms in running if ms is not None]
    return {
        "recovery_s": round(float(np.median(seconds)), 3),
        "recovery_max_s": round(max(seconds), 3),
        "recoveries_s": [round(s, 3) for s in seconds],
        "failure_to_running_s": round(float(np.median(again)) / 1e3, 3) if again else None,
    }
