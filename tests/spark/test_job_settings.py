"""Settings at their edges on a real Spark: modes, tiny channels, many barriers, little memory, wrong locations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pytest

import weir
from tests.conftest import poll
from tests.spark.helpers import (
    build_job,
    check_output,
    check_plain,
    committed_rows,
    kill,
    notices_of,
    numbers,
    open_gate,
    operator_of,
    slow_settings,
)
from weir import connectors as io
from weir.errors import ConfigError, JobError, JobFailed, OwnershipError
from weir.runtime.driver.notices import AttemptRunning, CheckpointAborted, CheckpointSucceeded
from weir.snapshot.coordinator.history import CheckpointState

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 100_000

Submit = Callable[..., Any]


@pytest.fixture
def submit(embedded: Any, tmp_path: Path) -> Iterator[Submit]:
    """`submit(build, …)` starts a job; what still runs at the end of the test is cancelled."""
    jobs: list[Any] = []

    def start(build: Callable[[weir.Environment], None], *, name: str = "edges", **more: Any) -> Any:
        env = weir.Environment(embedded, **{"parallelism": 2, "settings": slow_settings(), **more})
        build(env)
        jobs.append(env.submit(name))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def checkpoints(directory: Path, **more: Any) -> weir.Checkpoints:
    return weir.Checkpoints(**{"every": "50ms", "to": str(directory / "checkpoints"), **more})


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    threading.Event().wait(0.002)
    return batch


# --- Modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_a_mode_keeps_what_it_promises_when_a_worker_is_killed(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.chdir(tmp_path)  # A relative location is the driver's; tasks have other working directories.
    settings = {"checkpoints": checkpoints(Path(), mode=mode), "restart": weir.FixedDelay(5, "10ms")}
    job = submit(lambda env: build_job(env, tmp_path, rows=ROWS), **settings)
    poll(lambda: len(notices_of(job, CheckpointSucceeded)) >= 3, PATIENCE_S)
    assert kill(job.process_ids[1])
    poll(lambda: len(notices_of(job, AttemptRunning)) >= 2, PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    if mode == "exactly_once":
        check_output(tmp_path, ROWS)
    assert {row["n"] for row in committed_rows(tmp_path / "plain")} == set(range(ROWS)), "nothing may be lost"


@pytest.mark.parametrize("chosen", [None, weir.Checkpoints(every="50ms", mode="none")], ids=["without", "none"])
def test_without_periodic_checkpoints_a_bounded_job_commits_everything_at_its_end(
    submit: Submit, tmp_path: Path, chosen: weir.Checkpoints | None
) -> None:
    job = submit(lambda env: build_job(env, tmp_path, rows=ROWS), checkpoints=chosen)
    poll(lambda: operator_of_or_none(job, "plain", "rows_in"), PATIENCE_S)
    assert committed_rows(tmp_path / "plain") == []
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    assert [record.final for record in job.checkpoint_history()] == [True]
    check_output(tmp_path, ROWS)


def operator_of_or_none(job: Any, uid: str, metric: str) -> int | None:
    operators = {operator["uid"]: operator for operator in job.metrics()["operators"]}
    return operators[uid][metric] if uid in operators else None


def test_several_barriers_are_in_the_stream_at_once(submit: Submit, tmp_path: Path) -> None:
    def build(env: weir.Environment) -> None:
        rows = (
            numbers(env, tmp_path, ROWS).key_by("key").process(lambda row, state: row, "n long, key long, weight long")
        )
        rows.map_batches(slowly, uid="slow").select("n").write(io.FileSink(tmp_path / "plain", "jsonl"), uid="out")

    open_gate(tmp_path)
    chosen = checkpoints(tmp_path, every="20ms", max_concurrent=4)
    job = submit(build, checkpoints=chosen, settings=weir.Settings(batch_rows_max=100))

    def pending() -> int:
        return sum(record.state is CheckpointState.PENDING for record in job.checkpoint_history())

    most = poll(lambda: pending() >= 3 and pending(), PATIENCE_S)
    assert 2 <= most <= 4
    assert job.wait(PATIENCE_S) == "finished"
    assert len(job.checkpoints()) > 4
    check_plain(tmp_path / "plain", ROWS)


# --- Backpressure -----------------------------------------------------------------------------------

PAYLOAD_BYTES = 16_384
IN_FLIGHT_ROWS_MAX = 2_000
"""Far more than two hops of 2 × 2 channels of one batch of 16 rows hold: heartbeats are not told at the same moment."""
GROWTH_BYTES_MAX = 150 << 20
"""Far less than the 240 MB that would wait in channels without a limit."""


def large(numbers: Any) -> dict[str, Any]:
    return {"n": numbers, "key": numbers % 17, "payload": pa.array(["x" * PAYLOAD_BYTES] * len(numbers))}


def test_all_to_all_exchanges_with_tiny_channels_and_a_slow_sink_finish_within_bounded_memory(
    submit: Submit, tmp_path: Path
) -> None:
    rows = 15_000

    def build(env: weir.Environment) -> None:
        made = env.generate(rows, large, "n long, key long, payload string", uid="made")
        spread = made.rebalance().filter(pl.col("n") >= 0, uid="spread")
        keyed = spread.key_by("key").process(lambda row, state: row, "n long, key long, payload string", uid="keyed")
        slow = keyed.rebalance().map_batches(slowly, uid="slow")
        slow.select("n").write(io.FileSink(tmp_path / "plain", "jsonl"), uid="plain")

    settings = weir.Settings(channel_batches_max=1, batch_rows_max=16, heartbeat_interval="50ms")
    job = submit(build, checkpoints=checkpoints(tmp_path, every="200ms"), settings=settings)
    poll(lambda: operator_of_or_none(job, "plain", "rows_in"), PATIENCE_S)
    workers = [psutil.Process(process_id) for process_id in job.process_ids]
    before_bytes = sum(worker.memory_info().rss for worker in workers)

    def ended() -> bool:
        metrics = job.metrics()
        ahead = operator_of(metrics, "made")["rows_out"] - operator_of(metrics, "plain")["rows_in"]
        assert ahead <= IN_FLIGHT_ROWS_MAX, f"the source is {ahead} rows ahead of the sink"
        growth_bytes = sum(worker.memory_info().rss for worker in workers if worker.is_running()) - before_bytes
        assert growth_bytes < GROWTH_BYTES_MAX, f"memory grew by {growth_bytes >> 20} MB"
        return job.wait(0.0) == "finished"

    poll(ended, PATIENCE_S)
    check_plain(tmp_path / "plain", rows)
    metrics = job.metrics()
    assert operator_of(metrics, "made")["backpressure"] > 0.2
    assert operator_of(metrics, "plain")["backpressure"] == 0.0


# --- Checkpoints in the driver's memory -------------------------------------------------------------


def test_checkpoints_that_outgrow_the_drivers_memory_are_declined_until_that_is_no_longer_tolerated(
    submit: Submit, tmp_path: Path
) -> None:
    def build(env: weir.Environment) -> None:
        rows = numbers(env, tmp_path, None)
        rows.key_by("n").agg(count=weir.count(), uid="wide").write(io.FileSink(tmp_path / "out", "jsonl"), uid="out")

    chosen = weir.Checkpoints(every="30ms", to=None, memory_limit="400KB", tolerable_failures=4)
    job = submit(build, checkpoints=chosen, restart=weir.NoRestart())
    poll(lambda: notices_of(job, CheckpointAborted), PATIENCE_S)
    assert notices_of(job, CheckpointSucceeded), "the first ones fit"
    with pytest.raises(JobFailed) as caught:
        job.wait(PATIENCE_S)
    declined = notices_of(job, CheckpointAborted)
    assert len(declined) == 5
    # Whichever write finds the memory full: that of a state file, or that of the manifest.
    assert {notice.reason.value for notice in declined} <= {
        "declined by a subtask",
        "the manifest could not be written",
    }
    assert all("memory_limit" in notice.detail for notice in declined), declined
    assert "5 checkpoints in a row failed, 4 are tolerated" in str(caught.value)
    assert "memory_limit" in str(caught.value)
    seen = [row["n"] for row in committed_rows(tmp_path / "out")]
    assert seen and sorted(seen) == sorted(set(seen))
    assert operator_of(job.metrics(), "numbers")["rows_out"] > len(seen), "it went on while checkpoints were declined"


# --- Wrong locations --------------------------------------------------------------------------------


def plain_job(directory: Path) -> Callable[[weir.Environment], None]:
    return lambda env: build_job(env, directory, rows=10)


def test_a_checkpoint_location_that_cannot_be_written_is_an_error_that_names_it(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = str(tmp_path / "file" / "below")
    with pytest.raises(
        JobError, match=rf"Checkpoints.to: the checkpoint location at '{wrong}/edges' cannot be written"
    ):
        submit(plain_job(tmp_path), checkpoints=weir.Checkpoints(to=wrong))
    assert not (tmp_path / "plain").exists()


def test_a_checkpoint_location_of_an_unknown_scheme_is_an_error_that_lists_the_known_ones(
    submit: Submit, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"Checkpoints.to: .*'carrier://pigeon.*use a local path or one of.*s3://"):
        submit(plain_job(tmp_path), checkpoints=weir.Checkpoints(to="carrier://pigeon"))


def test_a_sink_directory_of_another_job_is_refused_and_stays_as_it_is(submit: Submit, tmp_path: Path) -> None:
    open_gate(tmp_path)
    assert submit(plain_job(tmp_path), name="mine").wait(PATIENCE_S) == "finished"
    before = committed_rows(tmp_path / "plain")
    with pytest.raises(OwnershipError, match=r"sink 'plain'.*belongs to job 'mine', and this is job 'yours'"):
        submit(plain_job(tmp_path), name="yours")
    assert committed_rows(tmp_path / "plain") == before != []


def test_an_input_directory_that_is_not_there_is_an_error_that_names_the_source(submit: Submit, tmp_path: Path) -> None:
    missing = tmp_path / "bids"

    def build(env: weir.Environment) -> None:
        env.read(io.Files(missing, "csv", schema="n long"), uid="bids").write(io.Discard(), uid="out")

    with pytest.raises(ConfigError, match=rf"source 'bids'.*no file or directory at {missing}"):
        submit(build)


def test_a_sink_directory_that_vanishes_while_the_job_runs_fails_it_by_name(submit: Submit, tmp_path: Path) -> None:
    job = submit(plain_unbounded(tmp_path), checkpoints=checkpoints(tmp_path), restart=weir.NoRestart())
    poll(lambda: committed_rows(tmp_path / "plain"), PATIENCE_S)
    (tmp_path / "plain").rename(tmp_path / "moved")
    (tmp_path / "plain").touch()
    with pytest.raises(JobFailed, match=r"(?s)plain"):
        job.wait(PATIENCE_S)
    seen = [row["n"] for row in committed_rows(tmp_path / "moved")]
    assert len(seen) == len(set(seen)) > 0


def plain_unbounded(directory: Path) -> Callable[[weir.Environment], None]:
    def build(env: weir.Environment) -> None:
        rows = numbers(env, directory, None).select("n", uid="only-n")
        rows.write(io.FileSink(directory / "plain", "jsonl"), uid="plain")

    return build
