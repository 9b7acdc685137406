"""A running job and another process's view of it: every call, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.driving import two_tasks
from tests.unit.runtime.job.test_asks import plan_at
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from tests.unit.runtime.stores import store_of
from weir.config import Checkpoints, JobConfig, NoRestart, Settings
from weir.errors import JobError, PlanError, Unavailable
from weir.runtime.job import handle as job_module
from weir.runtime.job.client import JobClient
from weir.runtime.job.handle import Job
from weir.runtime.job.registry import entries, find_job
from weir.runtime.net.lines import Lines, Secret
from weir.runtime.net.requests import Requester
from weir.runtime.storage.opening import open_storage


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eventually: Callable[..., Any]) -> Iterator[Job]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)
    uri = str(tmp_path / "checkpoints")
    config = JobConfig("words", Checkpoints(every=None), NoRestart(), Settings())
    storage = open_storage(uri)
    made = Job(
        two_tasks(),
        config,
        run="0123456789",
        session=None,  # type: ignore[arg-type]
        store=store_of(storage, job="words"),
        opener=open_storage,
        storage_uri=uri,
        plan_at=plan_at,
    )
    made.start()
    reach(made, "running", eventually)
    yield made
    made.cancel()


@pytest.fixture
def client(job: Job) -> JobClient:
    return JobClient(find_job("words"))


def test_a_job_tells_how_it_is(job: Job, client: JobClient, tmp_path: Path) -> None:
    assert client.trigger_checkpoint(WITHIN_S) == 1
    found = client.status()
    assert (found["name"], found["status"], found["parallelism"], found["restarts"]) == ("words", "running", 2, 0)
    assert found["checkpoint"]["id"] == 1 and found["checkpoints"] == str(tmp_path / "checkpoints")
    assert "token" not in found
    (record,) = client.checkpoints()
    assert (record["id"], record["state"], record["savepoint"]) == (1, "completed", None)
    assert client.metrics()["attempt"] == 1


def test_savepoint_rescale_and_stop_answer_when_they_are_done(job: Job, client: JobClient, tmp_path: Path) -> None:
    path = client.savepoint(str(tmp_path / "mine"), WITHIN_S)
    assert (Path(path) / "manifest.json").exists()
    assert client.rescale(3, WITHIN_S) == 3 and job.parallelism == 3
    last, ended = client.stop(str(tmp_path / "mine"), timeout_s=WITHIN_S)
    assert last is not None and last != path and ended == "stopped"
    assert job.wait(WITHIN_S) == "stopped"
    assert entries() == []
    with pytest.raises(Unavailable, match=r"words .* does not answer"):
        client.status(1.0)


def test_a_stop_may_drain_and_needs_no_savepoint(job: Job, client: JobClient) -> None:
    assert client.stop(False, drain=True, timeout_s=WITHIN_S) == (None, "finished")


def test_a_cancelled_job_answers_before_it_is_gone(job: Job, client: JobClient) -> None:
    assert client.cancel() == "cancelled"
    assert job.wait(WITHIN_S) == "cancelled" and entries() == []


def test_errors_arrive_as_what_they_were(job: Job, client: JobClient, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="above 8"):
        client.rescale(9, WITHIN_S)
    ObedientCluster.latest.export_error = "no such bucket"
    with pytest.raises(JobError, match="no such bucket"):
        client.savepoint(str(tmp_path / "mine"), WITHIN_S)
    ObedientCluster.latest.answers_snapshots = False
    with pytest.raises(JobError, match=r"not complete within 0\.1 s"):
        client.trigger_checkpoint(0.1)
    with pytest.raises(JobError, match="no such call"):
        client._call("nonsense", WITHIN_S)


def test_the_door_for_commands_is_open_to_this_machine_only_and_shows_no_token(job: Job, client: JobClient) -> None:
    assert client.entry.address.startswith("grpc://127.0.0.1:")
    assert client.entry.token.reveal() not in f"{client.entry!r} {client.entry} {client.entry.public}"


def test_nobody_without_the_token_is_heard(job: Job, client: JobClient) -> None:
    stranger = JobClient(replace(client.entry, token=Secret("a guess")))
    with pytest.raises(Unavailable, match="token"):
        stranger.cancel(WITHIN_S)
    assert job.status == "running"


def test_what_is_no_call_harms_nobody(job: Job, client: JobClient) -> None:
    line = Requester(client.entry.address, Lines(client.entry.token))
    for head in ({}, {"call": None}, {"call": "other"}, {"call": ["status"]}, {"call": "rescale"}):
        answer, _ = line.ask(head, timeout_s=WITHIN_S)
        assert "error" in answer
    line.close()
    assert client.status()["status"] == "running"


def test_a_job_whose_entry_cannot_be_written_runs_all_the_same(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    config = JobConfig("other", Checkpoints(every=None), NoRestart(), Settings())
    storage = open_storage(str(tmp_path / "others"))
    other = Job(
        two_tasks(),
        config,
        run="1",
        session=None,  # type: ignore[arg-type]
        store=store_of(storage, job="other"),
        opener=open_storage,
        storage_uri=None,
    )
    other.start()
    assert other.trigger_checkpoint(WITHIN_S) == 1
    other.cancel()
    assert "not listed" in caplog.text
