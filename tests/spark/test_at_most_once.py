"""Without snapshots of state, on Spark: whoever dies, no row counts twice, and the job goes on from where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import build_job, committed_rows, kill, open_gate, slow_settings

PATIENCE_S = 120.0
ROWS = 100_000


@pytest.fixture
def started(embedded: Any, tmp_path: Path) -> Iterator[Any]:
    """`started(resume=…)` starts the job."""
    jobs: list[Any] = []

    def start(*, resume: bool = False) -> Any:
        env = weir.Environment(
            parallelism=2,
            checkpoints=weir.Checkpoints(every="100ms", to=str(tmp_path / "checkpoints"), mode="none"),
            restart=weir.FixedDelay(attempts=5, delay="10ms"),
            settings=slow_settings(),
            spark=embedded,
        )
        build_job(env, tmp_path, rows=ROWS)
        jobs.append(env.submit("lossy", resume=resume))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def seen(directory: Path) -> list[int]:
    return [row["n"] for row in committed_rows(directory / "plain")]


def check(directory: Path, kept: list[int]) -> None:
    """What was committed before the kill is there; nothing is there twice; and it was not begun anew."""
    found = seen(directory)
    assert len(found) == len(set(found)), "rows are there twice"
    assert set(kept) <= set(found)
    assert ROWS - len(found) < ROWS // 2, f"{ROWS - len(found)} of {ROWS} rows are lost"
    counts: dict[int, int] = {}
    for row in committed_rows(directory / "counts"):
        # A count that begins anew lost its state; what it had counted is not counted again.
        counts[row["key"]] = max(counts.get(row["key"], 0), row["count"])
    assert sum(counts.values()) <= len(range(ROWS))


def test_a_killed_worker_loses_rows_and_none_counts_twice(started: Any, tmp_path: Path) -> None:
    job = started()
    poll(lambda: len(seen(tmp_path)) > 1_000, PATIENCE_S)
    kept = seen(tmp_path)
    assert kill(job.process_ids[0])
    poll(lambda: job.metrics()["restarts"] == 1 and job.status == "running", PATIENCE_S)
    poll(lambda: len(seen(tmp_path)) > len(kept) + 1_000, PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    check(tmp_path, kept)


def test_a_job_whose_driver_was_cut_off_goes_on_behind_what_it_had_read(started: Any, tmp_path: Path) -> None:
    first = started()
    poll(lambda: len(seen(tmp_path)) > 1_000, PATIENCE_S)
    kept = seen(tmp_path)
    second = started(resume=True)
    poll(lambda: first.status == "failed", PATIENCE_S)
    open_gate(tmp_path)
    assert second.wait(PATIENCE_S) == "finished"
    check(tmp_path, kept)
