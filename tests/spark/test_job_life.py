"""A job's life as its user sees it: handle, metrics, checkpoints, cancel, failures, take-over, another master."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import weir
from tests.conftest import poll
from tests.spark.conftest import alive
from tests.spark.helpers import (
    build_job,
    check_output,
    committed_rows,
    kill,
    listening_ports,
    notices_of,
    numbers,
    open_gate,
    operator_of,
    part_bytes,
    slow_settings,
)
from weir import connectors as io
from weir.errors import JobError, JobFailed, OwnershipError, SlotsMissing
from weir.runtime.driver.notices import AttemptRunning, CheckpointSucceeded
from weir.runtime.spark.session import recommended_settings, slots, stop_embedded

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

PATIENCE_S = 120.0
ROWS = 200_000

Submit = Callable[..., Any]


@pytest.fixture
def submit(embedded: Any, tmp_path: Path) -> Iterator[Submit]:
    """`submit(name, build)` starts the job that `build(environment)` lays out; what runs at the end is cancelled."""
    jobs: list[Any] = []

    def start(
        name: str, build: Callable[[weir.Environment], None] | None = None, *, resume: bool = False, **more: Any
    ) -> Any:
        defaults = {
            "parallelism": 2,
            "checkpoints": weir.Checkpoints(every="100ms", to=str(tmp_path / "checkpoints")),
            "settings": slow_settings(),
        }
        env = weir.Environment(embedded, **{**defaults, **more})
        (build or (lambda env: build_job(env, tmp_path, rows=ROWS)))(env)
        jobs.append(env.submit(name, resume=resume))
        return jobs[-1]

    yield start
    for job in jobs:
        job.cancel()


def await_checkpoints(job: Any, number: int) -> None:
    """Wait until the job has completed so many checkpoints more."""
    before = len(notices_of(job, CheckpointSucceeded))
    poll(lambda: len(notices_of(job, CheckpointSucceeded)) >= before + number or job.error, PATIENCE_S)
    assert job.error is None, job.error


# --- The handle -------------------------------------------------------------------------------------


def test_a_job_tells_its_status_rows_and_checkpoints_from_start_to_end(submit: Submit, tmp_path: Path) -> None:
    job = submit("life")
    assert job.name == "life" and job.status in ("created", "starting", "running")
    poll(lambda: job.status == "running", PATIENCE_S)
    assert job.wait(timeout=0.0) == "running" and job.error is None
    wanted = job.trigger_checkpoint()
    assert wanted in [record.id for record in job.checkpoints()]
    assert job.trigger_checkpoint() > wanted
    poll(lambda: committed_rows(tmp_path / "plain"), PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == job.status == "finished"
    check_output(tmp_path, ROWS)

    metrics = job.metrics()
    rows = {uid: (operator_of(metrics, uid)["rows_in"], operator_of(metrics, uid)["rows_out"]) for uid in UIDS}
    assert rows["numbers"] == (0, ROWS)
    assert rows["only-n"] == (ROWS, ROWS) and rows["plain"] == (ROWS, 0)
    assert rows["by-key"] == (rows["by-key/combine"][1], rows["counts"][0])
    assert rows["counts"][0] == len(committed_rows(tmp_path / "counts"))
    assert metrics["restarts"] == 0
    last = job.checkpoints()[-1]
    assert last.final and last.size_bytes > 0 and last.acknowledged == 8
    with pytest.raises(JobError, match=r"'life' (is finished|has ended)"):
        job.trigger_checkpoint()
    job.cancel()
    assert job.status == "finished", "an end is an end"


UIDS = ("numbers", "only-n", "plain", "by-key/combine", "by-key", "counts")


def test_the_job_shows_under_its_name_in_sparks_ui_and_beside_others(
    submit: Submit, embedded: Any, tmp_path: Path
) -> None:
    job = submit("seen from outside")
    poll(lambda: job.status == "running", PATIENCE_S)
    context = embedded.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs?status=running"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert [shown["description"] for shown in json.load(answer)] == ["weir: seen from outside (attempt 1)"]
    assert embedded.range(1_000).selectExpr("sum(id)").collect()[0][0] == 499_500
    job.cancel()
    assert job.status == "cancelled"


def test_a_finished_job_that_is_resumed_changes_nothing_and_one_that_is_not_is_refused(
    submit: Submit, tmp_path: Path
) -> None:
    open_gate(tmp_path)
    assert submit("again").wait(PATIENCE_S) == "finished"
    before = part_bytes(tmp_path / "plain")
    with pytest.raises(OwnershipError, match=r"sink 'plain'.*resume=True.*overwrite=True"):
        submit("again")
    assert part_bytes(tmp_path / "plain") == before
    assert submit("again", resume=True).wait(PATIENCE_S) == "finished"
    check_output(tmp_path, ROWS)


# --- Cancel -----------------------------------------------------------------------------------------


def test_cancel_leaves_no_task_no_port_no_thread_and_no_temporary_file(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    threads, ports = our_threads(), listening_ports([os.getpid()])
    job = submit("cancelled")
    await_checkpoints(job, 2)
    workers = job.process_ids
    assert len(set(workers)) == 2 and all(alive(worker) for worker in workers)
    assert listening_ports(workers) and listening_ports([os.getpid()]) > ports and our_threads() > threads

    job.cancel()
    assert job.status == "cancelled" and job.wait() == "cancelled"
    # Spark may keep a Python process for whatever it runs next; nothing of the job is left in it.
    assert listening_ports(workers) == set()
    assert listening_ports([os.getpid()]) == ports
    poll(lambda: our_threads() == threads)
    poll(lambda: not any(open_below(worker, tmp_path) for worker in workers))
    assert list(temporary.iterdir()) == []
    before = part_bytes(tmp_path / "plain")
    open_gate(tmp_path)
    assert submit("cancelled", resume=True).wait(PATIENCE_S) == "finished"
    after = part_bytes(tmp_path / "plain")
    committed = {name: data for name, data in before.items() if not name.startswith("_")}
    assert committed and committed.items() <= after.items(), "what was committed before the cancel stays"
    check_output(tmp_path, ROWS)


def test_a_job_that_waits_for_its_slots_is_cancelled_at_once(
    submit: Submit, embedded: Any, long_tasks: Callable[..., Any]
) -> None:
    """Its tasks do not run, so nobody can ask them to leave."""
    long_tasks(embedded, (slots(embedded) or 0) - 1)
    job = submit("launching")
    poll(lambda: job.status == "starting" and job.metrics()["attempt"] is not None, PATIENCE_S)
    started_s = time.monotonic()
    job.cancel()
    assert job.status == "cancelled"
    assert time.monotonic() - started_s < 5.0, "Settings.stop_timeout is 10 s"


def our_threads() -> set[str]:
    names = (thread.name for thread in threading.enumerate())
    return {name for name in names if name.startswith("weir-") and name != "weir-jvm-output"}


def open_below(process_id: int, directory: Path) -> list[str]:
    if not alive(process_id):
        return []
    return [file.path for file in psutil.Process(process_id).open_files() if file.path.startswith(str(directory))]


def test_job_after_job_the_processes_hold_no_more_files_threads_or_memory(submit: Submit, tmp_path: Path) -> None:
    held: list[dict[str, int]] = []
    for turn in range(6):
        directory = tmp_path / str(turn)
        directory.mkdir()
        job = submit(f"turn {turn}", lambda env, there=directory: build_job(env, there, rows=ROWS))
        await_checkpoints(job, 1)
        workers = job.process_ids
        if turn % 2:
            open_gate(directory)
            assert job.wait(PATIENCE_S) == "finished"
        else:
            job.cancel()
        processes = [psutil.Process(process_id) for process_id in [os.getpid(), *workers] if alive(process_id)]
        held.append(
            {
                "files": sum(process.num_fds() for process in processes),
                "threads": sum(process.num_threads() for process in processes),
                "memory_mb": sum(process.memory_info().rss for process in processes) >> 20,
            }
        )
    early, late = held[1], held[-1]
    assert late["files"] <= early["files"] + 4 and late["threads"] <= early["threads"] + 4, held
    assert late["memory_mb"] <= early["memory_mb"] + 40, held


# --- Slots ------------------------------------------------------------------------------------------


def test_more_subtasks_than_spark_has_slots_is_refused_at_once(submit: Submit, embedded: Any, tmp_path: Path) -> None:
    there = slots(embedded)
    assert there is not None
    with pytest.raises(SlotsMissing, match=f"needs {there + 2} task slots at once; Spark has {there}.*: 2 missing"):
        submit("wide", parallelism=there + 2)
    assert not (tmp_path / "checkpoints" / "wide" / "attempts").exists()


def test_slots_that_another_job_holds_are_an_error_that_counts_them_and_not_a_hang(
    submit: Submit, embedded: Any, tmp_path: Path
) -> None:
    holder = submit("holder")
    poll(lambda: holder.status == "running", PATIENCE_S)
    there = slots(embedded)
    late = submit(
        "late",
        lambda env: build_job(env, tmp_path / "late", rows=ROWS),
        parallelism=there,
        restart=weir.NoRestart(),
        settings=slow_settings(launch_timeout="3s", stop_timeout="1s"),
    )
    with pytest.raises(JobFailed, match=rf"(?s)job 'late' failed.*{there}.*slots"):
        late.wait(PATIENCE_S)
    assert holder.status == "running"
    open_gate(tmp_path)
    assert holder.wait(PATIENCE_S) == "finished"


# --- Failures ---------------------------------------------------------------------------------------


def price_of(row: Any) -> Any:
    if row.n == 9_001:
        raise ValueError("no price for this one")
    return row.n


@pytest.mark.parametrize("strategy", ["default", "none"])
def test_a_function_that_raises_ends_the_job_with_its_own_traceback_and_what_was_committed_stays(
    submit: Submit, tmp_path: Path, strategy: str
) -> None:
    def build(env: weir.Environment) -> None:
        priced = numbers(env, tmp_path, ROWS).map(price_of, "n long", uid="priced")
        priced.write(io.FileSink(tmp_path / "out", "jsonl"), uid="out")

    job = submit("raises", build, **({} if strategy == "default" else {"restart": weir.NoRestart()}))
    with pytest.raises(JobFailed) as caught:
        job.wait(PATIENCE_S)
    text = str(caught.value)
    for expected in ("uid 'priced'", "row: Row(n=9001", 'raise ValueError("no price for this one")', "price_of"):
        assert expected in text, f"{expected} is missing from:\n{text}"
    assert "worker.py" not in text and "pyspark" not in text, text
    assert job.status == "failed" and (job.metrics()["restarts"] > 0) == (strategy == "default")
    seen = [row["n"] for row in committed_rows(tmp_path / "out")]
    assert seen and len(seen) == len(set(seen)) and 9_001 not in seen


def test_a_killed_worker_fails_a_job_that_may_not_restart_and_it_can_be_resumed(submit: Submit, tmp_path: Path) -> None:
    job = submit("once", restart=weir.NoRestart())
    await_checkpoints(job, 2)
    assert kill(job.process_ids[0])
    with pytest.raises(JobFailed, match=r"(?s)task \d.*no restart"):
        job.wait(PATIENCE_S)
    open_gate(tmp_path)
    assert submit("once", resume=True).wait(PATIENCE_S) == "finished"
    check_output(tmp_path, ROWS)


def test_a_job_that_went_on_after_a_kill_says_who_was_killed_how_and_what_it_went_on_from(
    submit: Submit, tmp_path: Path
) -> None:
    job = submit("told")
    await_checkpoints(job, 2)
    assert kill(job.process_ids[1])
    poll(lambda: job.failures and job.failures[-1].recovery_ms is not None, PATIENCE_S)
    (failure,) = job.failures
    assert failure.attempt == 1 and failure.restarts and failure.restored_from
    assert failure.cause is not None and failure.cause.endswith("its process was killed by SIGKILL"), failure
    assert 0 < failure.recovery_ms < PATIENCE_S * 1e3
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished" and job.metrics()["failures"] == [failure.public]


def test_a_second_driver_that_resumes_a_running_job_takes_it_over_and_the_first_commits_nothing_more(
    submit: Submit, tmp_path: Path
) -> None:
    first = submit("owned")
    await_checkpoints(first, 2)
    with pytest.raises(OwnershipError, match="resume=True"):
        submit("owned")
    second = submit("owned", resume=True)
    with pytest.raises(JobFailed, match="another driver has taken over job 'owned'"):
        first.wait(PATIENCE_S)
    open_gate(tmp_path)
    assert second.wait(PATIENCE_S) == "finished"
    check_output(tmp_path, ROWS)


# --- A standalone master ----------------------------------------------------------------------------


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Any]:
    """A session on a standalone master, with one worker of two cores: each a process of its own, on loopback.

    Its test comes last in this file: a process holds one Spark at a time, and the embedded one is stopped.
    """
    import pyspark
    from pyspark.sql import SparkSession

    home = Path(pyspark.__file__).parent
    variables = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, *arguments: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        command += ["--host", "127.0.0.1", "--webui-port", "0"]
        with (tmp_path / f"{kind}.log").open("wb") as log:
            started.append(
                subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT)
            )

    start("master.Master", "--port", port)
    stop_embedded()
    # Not at the same time: a worker that does not find its master looks again only ten seconds later.
    poll(lambda: "I have been elected leader" in (tmp_path / "master.Master.log").read_text(), PATIENCE_S)
    start("worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), master)
    settings = {
        **recommended_settings(),
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.config(map=settings).getOrCreate()
    yield session
    session.stop()
    for process in reversed(started):
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.slow
def test_the_same_job_runs_unchanged_on_a_standalone_master(standalone: Any, tmp_path: Path) -> None:
    assert standalone.sparkContext.master.startswith("spark://")
    checkpoints = weir.Checkpoints(every="100ms", to=str(tmp_path / "checkpoints"))
    env = weir.Environment(standalone, parallelism=2, checkpoints=checkpoints, settings=slow_settings())
    build_job(env, tmp_path, rows=ROWS)
    job: Any = env.submit("unchanged")
    await_checkpoints(job, 2)
    assert kill(job.process_ids[1])
    poll(lambda: len(notices_of(job, AttemptRunning)) == 2, PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished"
    check_output(tmp_path, ROWS)
