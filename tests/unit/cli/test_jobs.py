"""The commands that look after running jobs, against a job that only pretends to run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weir.cli.main import application
from weir.errors import JobError, SlotsMissing
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.job.client import JobClient
from weir.runtime.job.failures import FailureRecord
from weir.runtime.job.service import JobService
from weir.runtime.net.lines import Lines, Secret
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState
from weir.snapshot.coordinator.orders import AbortReason


class PretendedJob:
    """What a job service asks of a job; remembers what it was told."""

    def __init__(self, name: str = "words", run: str = "0123456789") -> None:
        self.name, self.run, self.parallelism, self.status = name, run, 2, "running"
        self.error: BaseException | None = None
        self.told: list[Any] = []
        self.waits_for: dict[str, Any] | None = None
        self.failures: list[FailureRecord] = []

    def metrics(self) -> dict[str, Any]:
        operator = {"uid": "count", "name": "Count", "rows_in": 1_234, "rows_out": 5, "backpressure": 0.25}
        failures = [record.public for record in self.failures]
        return {"attempt": 3, "restarts": 2, "operators": [operator], "waits_for": self.waits_for, "failures": failures}

    def checkpoints(self) -> list[CheckpointRecord]:
        return self.checkpoint_history()[:1]

    def checkpoint_history(self) -> list[CheckpointRecord]:
        made = CheckpointRecord(CheckpointId(7), AttemptId(3), 0.0, CheckpointState.COMPLETED, 12.0, 2_048)
        failed = CheckpointRecord(
            CheckpointId(8), AttemptId(3), 0.0, CheckpointState.ABORTED, reason=AbortReason.TIMED_OUT
        )
        return [made, failed]

    def cancel_now(self) -> None:
        self.status = "cancelled"

    def savepoint(self, directory: str | None, timeout: float) -> str:
        self.told.append(("savepoint", directory))
        if directory is not None and "full" in directory:
            raise JobError("the savepoint failed: no room")
        return f"{directory}/words-1"

    def stop(self, savepoint: str | bool, drain: bool, timeout: float) -> str | None:
        self.told.append(("stop", savepoint, drain))
        self.status = "finished" if drain else "stopped"
        return "/savepoints/words-2" if savepoint else None

    def rescale(self, parallelism: int, timeout: float) -> None:
        if parallelism > 8:
            raise SlotsMissing("Spark has 8 slots")
        self.parallelism = parallelism


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def job(state: None) -> Iterator[PretendedJob]:
    yield from _served(PretendedJob())


def _served(job: PretendedJob) -> Iterator[PretendedJob]:
    service = JobService(job, Lines(Secret("a-secret-token")), checkpoints="/checkpoints/words")  # type: ignore[arg-type]
    yield job
    service.unlist()
    service.close()


def weir(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(application(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


def weir_json(*arguments: str) -> Any:
    code, out, error = weir(*arguments, "--json")
    assert code == 0, error
    (line,) = out.splitlines()
    return json.loads(line)


def test_the_list_shows_each_job(job: PretendedJob) -> None:
    code, out, _ = weir("list")
    assert code == 0
    title, line = out.splitlines()
    assert title.split() == ["job", "status", "tasks", "running", "for", "pid", "run"]
    assert line.split()[:3] == ["words", "running", "2"] and str(os.getpid()) in line and "01234567" in line
    (found,) = weir_json("list")
    assert found["name"] == "words" and "token" not in found


def test_without_jobs_the_list_says_so(state: None) -> None:
    assert weir("list")[:2] == (0, "No job runs.\n")
    assert weir_json("list") == []


def test_the_status_tells_the_last_failures_the_newest_first(job: PretendedJob) -> None:
    assert "failure" not in weir("status", "words")[1]
    attempts = [AttemptId(number) for number in (1, 2, 3, 4)]
    job.failures = [FailureRecord(0, number, None, TaskIndex(1), f"error {number}", None, True) for number in attempts]
    job.failures[-2] = replace(
        job.failures[-2], cause="killed by SIGKILL", restored_from=CheckpointId(7), recovery_ms=1_234
    )
    lines = weir("status", "words")[1].splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("last failure"))
    assert lines[at].endswith(", attempt 4, task 1: error 4")
    assert lines[at + 1].endswith(", attempt 3, task 1: error 3; killed by SIGKILL")
    assert lines[at + 2].strip() == "ran again from checkpoint 7 after 1.2 s"
    assert lines[at + 3].endswith(", attempt 2, task 1: error 2") and not lines[at + 4].strip()
    found = weir_json("status", "words")["failures"]
    assert [failure["attempt"] for failure in found] == [1, 2, 3, 4] and found[2]["cause"] == "killed by SIGKILL"


def test_the_status_of_a_job_that_an_earlier_version_has_started_is_shown_without_what_that_does_not_tell(
    job: PretendedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = JobClient.status

    def status(client: JobClient) -> dict[str, Any]:
        return {key: value for key, value in found(client).items() if key not in ("failures", "waits_for")}

    monkeypatch.setattr(JobClient, "status", status)
    code, out, _ = weir("status", "words")
    assert code == 0 and "running, attempt 3" in out and "failure" not in out


def test_the_status_of_a_job_in_an_outage_says_what_it_waits_for_and_since_when(job: PretendedJob) -> None:
    assert "waits for" not in weir("status", "words")[1]
    since_ms = (time.time() - 600) * 1e3
    job.status = "restarting"
    job.waits_for = {"error": "list attempts: connection refused", "since_ms": since_ms, "retry_ms": since_ms + 1}
    lines = weir("status", "words")[1].splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("waits for"))
    assert "storage, away since " in lines[at] and lines[at].endswith("(10 min so far)")
    assert lines[at + 1].strip() == "list attempts: connection refused"
    assert weir_json("status", "words")["waits_for"]["error"] == "list attempts: connection refused"


def test_the_status_tells_the_essentials_and_rows_by_operator(job: PretendedJob) -> None:
    code, out, _ = weir("status", "words")
    assert code == 0
    for text in (
        "running, attempt 3, 2 restarts",
        "/checkpoints/words",
        "checkpoint 7, 2 KB, took 12 ms",
        "1,234",
        "25%",
    ):
        assert text in out
    assert weir_json("status", "words")["operators"][0]["rows_in"] == 1_234


def test_checkpoints_are_listed_with_what_became_of_them(job: PretendedJob) -> None:
    code, out, _ = weir("checkpoints", "words")
    assert code == 0 and "completed" in out and "timed out" in out
    assert [record["id"] for record in weir_json("checkpoints", "words")] == [7, 8]


def test_a_savepoint_prints_its_path_alone_and_relative_directories_are_those_of_the_caller(
    job: PretendedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert weir("savepoint", "words", "mine")[1] == f"{tmp_path}/mine/words-1\n"
    weir("savepoint", "words", "s3://bucket/x")
    weir("savepoint", "words")
    assert job.told == [("savepoint", f"{tmp_path}/mine"), ("savepoint", "s3://bucket/x"), ("savepoint", None)]


def test_a_stop_says_where_its_savepoint_is(job: PretendedJob) -> None:
    assert weir("stop", "words", "--savepoint", "/there")[:2] == (0, "/savepoints/words-2\n")
    assert weir_json("stop", "words", "--drain") == {
        "job": "words",
        "status": "finished",
        "savepoint": "/savepoints/words-2",
    }
    assert "is stopped." in weir("stop", "words", "--no-savepoint")[1]
    assert job.told == [("stop", "/there", False), ("stop", True, True), ("stop", False, False)]


def test_a_rescale_says_how_many_tasks_run(job: PretendedJob) -> None:
    assert "runs with 5 tasks." in weir("rescale", "words", "5")[1]
    assert weir_json("rescale", "words", "4") == {"job": "words", "parallelism": 4}


def test_a_cancel_says_how_the_job_ended(job: PretendedJob) -> None:
    assert weir_json("cancel", "words") == {"job": "words", "status": "cancelled"}


def test_what_fails_is_told_in_a_panel_with_a_code(job: PretendedJob) -> None:
    for arguments, text in (
        (("savepoint", "words", "/full"), "no room"),
        (("rescale", "words", "9"), "Spark has 8 slots"),
        (("status", "wurds"), "no job named 'wurds' runs; there are: words"),
        (("status", "words", "--run", "ff"), "that run or process id"),
        (("stop", "words", "--savepoint", "/x", "--no-savepoint"), "exclude each other"),
    ):
        code, _, error = weir(*arguments)
        assert code == 1 and text in " ".join(error.replace("│", " ").split()), arguments
        assert "Traceback" not in error


def test_of_two_jobs_with_one_name_the_right_one_can_be_said(job: PretendedJob) -> None:
    other = PretendedJob(run="fedcba")
    for _ in _served(other):
        code, _, error = weir("rescale", "words", "3")
        assert code == 1 and "--run" in error
        assert weir("rescale", "words", "3", "--run", "fed")[0] == 0
        assert (job.parallelism, other.parallelism) == (2, 3)
