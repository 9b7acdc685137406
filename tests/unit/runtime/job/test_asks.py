"""Savepoints, stops, drains and rescales of a submitted job, with tasks that do as they are told instead of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.driving import STOP_MS, Stage, two_tasks
from tests.unit.runtime.fakes import Pass, QueuedBackground, Script, Shelf, operator, plan_of, run_all
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from tests.unit.runtime.stores import store_of
from weir.config import Checkpoints, FixedDelay, JobConfig, NoRestart, Restart, Settings
from weir.errors import CheckpointError, JobError, PlanError
from weir.graph.plan import Forward, Plan
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.runtime.driver.notices import AttemptRunning, RequestFailed
from weir.runtime.driver.verdicts import Cancelled
from weir.runtime.job import handle as job_module
from weir.runtime.job.handle import Job
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.layout import new_lineage
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import Origin, SavepointDesk
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.manifest import build, encode
from weir.snapshot.messages import DeployTask, ToTask
from weir.snapshot.parts import OperatorPart, PendingEpochs, Position

Submit = Callable[..., Job]


def plan_at(parallelism: int) -> Plan:
    if parallelism > 8:
        raise PlanError("the job's parallelism is above 8")
    return plan_of(
        (parallelism, [operator("source", Script()), operator("op", Pass())]),
        (parallelism, [operator("sink", Shelf())]),
        edges=[(0, 1, Forward())],
    )


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Submit]:
    """Start a job on obedient tasks with its checkpoints in `tmp_path`/checkpoints/job."""
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)
    jobs: list[Job] = []

    def start(
        restart: Restart | None = None,
        plan: Plan | None = None,
        *,
        in_memory: bool = False,
        directory: str = "checkpoints",
        **config: Any,
    ) -> Job:
        uri = None if in_memory else str(tmp_path / directory / "job")
        settings = JobConfig("job", Checkpoints(every=None), restart or NoRestart(), Settings(), **config)
        storage = MemoryStorage(1 << 20) if uri is None else open_storage(uri)
        job = Job(
            plan or plan_at(2),
            settings,
            run=f"run-{len(jobs)}",
            session=None,  # type: ignore[arg-type]
            store=store_of(storage, (current_lineage(storage) if settings.resume else None) or new_lineage()),
            opener=open_storage,
            storage_uri=uri,
            plan_at=plan_at,
        )
        jobs.append(job)
        job.start()
        return job

    yield start
    for job in jobs:
        job.cancel()


def manifest_at(path: str) -> Any:
    origin = Origin(path)
    return origin.read(origin.open(open_storage))


# --- Savepoints -----------------------------------------------------------------------------------------


def test_a_savepoint_is_a_checkpoint_of_the_job_with_a_manifest_of_its_own(submit: Submit, tmp_path: Path) -> None:
    job = submit()
    path = job.savepoint(str(tmp_path / "mine"), WITHIN_S)
    assert Path(path).parent == tmp_path / "mine" and Path(path).name.startswith("job-")
    manifest = manifest_at(path)
    assert (manifest.kind, manifest.checkpoint, manifest.job) == ("savepoint", 1, "job")
    assert sorted(manifest.operators) == ["op", "sink", "source"]
    (record,) = job.checkpoints()
    assert record.savepoint == path
    assert job.status == "running"


def test_a_savepoint_goes_below_the_checkpoints_by_default_and_outlives_them(submit: Submit, tmp_path: Path) -> None:
    job = submit()
    path = job.savepoint(timeout=WITHIN_S)
    assert Path(path).parent == tmp_path / "checkpoints" / "job" / layout.SAVEPOINTS
    for _ in range(4):
        job.trigger_checkpoint(WITHIN_S)
    ObedientCluster.latest.finish()
    assert job.wait(WITHIN_S) == "finished"
    again = submit()
    again.trigger_checkpoint(WITHIN_S)
    assert manifest_at(path).checkpoint == 1, "a new run that clears the directory leaves savepoints alone"


def test_with_checkpoints_in_memory_a_savepoint_needs_a_place(submit: Submit, tmp_path: Path) -> None:
    job = submit(in_memory=True)
    with pytest.raises(JobError, match="in memory: name a directory"):
        job.savepoint(timeout=WITHIN_S)
    assert manifest_at(job.savepoint(str(tmp_path), WITHIN_S)).checkpoint == 1


def test_a_savepoint_that_tasks_cannot_write_fails_and_the_job_goes_on(
    submit: Submit, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually).export_error = "no such bucket"
    with pytest.raises(JobError, match=r"savepoint failed.*no such bucket"):
        job.savepoint(str(tmp_path / "mine"), WITHIN_S)
    eventually(lambda: not any((tmp_path / "mine").glob("*")), within_s=WITHIN_S)
    assert job.trigger_checkpoint(WITHIN_S) == 2
    assert job.metrics()["restarts"] == 0


def test_a_savepoint_whose_manifest_cannot_be_written_fails_and_the_job_goes_on(
    submit: Submit, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="savepoint failed"):
        job.savepoint(str(tmp_path / "file"), WITHIN_S)
    assert job.trigger_checkpoint(WITHIN_S) == 2


def test_savepoints_can_be_asked_for_by_many_at_once(submit: Submit, tmp_path: Path) -> None:
    job = submit()
    paths: list[str] = []
    threads = [threading.Thread(target=lambda: paths.append(job.savepoint(str(tmp_path / "mine")))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert len(set(paths)) == 5
    assert sorted(manifest_at(path).checkpoint for path in paths) == [1, 2, 3, 4, 5]


def test_nothing_can_be_asked_of_a_job_that_has_ended(submit: Submit, eventually: Callable[..., Any]) -> None:
    job = submit()
    reach(job, "running", eventually)
    job.cancel()
    for ask in (job.savepoint, job.stop, lambda: job.rescale(3)):
        with pytest.raises(JobError, match="'job' is cancelled"):
            ask()


# --- Stopping -------------------------------------------------------------------------------------------


def test_a_stopped_job_leaves_a_savepoint_and_can_be_resumed(submit: Submit, tmp_path: Path) -> None:
    job = submit()
    path = job.stop(str(tmp_path / "mine"), timeout=WITHIN_S)
    assert path is not None and manifest_at(path).checkpoint == 1
    assert job.status == job.wait(WITHIN_S) == "stopped"
    assert job.error is None and ObedientCluster.latest.closed
    assert not list((tmp_path / "checkpoints" / "job" / layout.ATTEMPTS).glob("*.finished"))
    resumed = submit(resume=True)
    resumed.trigger_checkpoint(WITHIN_S)
    (running,) = [notice for notice in resumed.notices if isinstance(notice, AttemptRunning)]
    assert (running.restored, running.origin) == (1, None)


def test_a_job_can_be_stopped_behind_a_plain_checkpoint(submit: Submit) -> None:
    job = submit()
    assert job.stop(False, timeout=WITHIN_S) is None
    assert job.status == "stopped"
    assert [record.savepoint for record in job.checkpoints()] == [None]


def test_a_drained_job_has_finished_and_its_final_checkpoint_is_the_savepoint(submit: Submit, tmp_path: Path) -> None:
    job = submit()
    path = job.stop(drain=True, timeout=WITHIN_S)
    assert job.wait(WITHIN_S) == "finished"
    (record,) = job.checkpoints()
    assert record.final and record.savepoint == path
    assert list((tmp_path / "checkpoints" / "job" / layout.ATTEMPTS).glob("*.finished"))


def test_a_stop_whose_savepoint_fails_leaves_the_job_running(submit: Submit, eventually: Callable[..., Any]) -> None:
    job = submit()
    reach(job, "running", eventually).export_error = "no such bucket"
    with pytest.raises(JobError, match=r"the stop failed.*no such bucket"):
        job.stop(timeout=WITHIN_S)
    assert job.status == "running"
    ObedientCluster.latest.export_error = None
    assert job.stop(timeout=WITHIN_S) is not None


# --- Starting from one ----------------------------------------------------------------------------------


class Deployed:
    """What the tasks of each attempt are told to restore."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[tuple[int | None, str | None]] = []
        send = ObedientCluster.send

        def note(cluster: ObedientCluster, attempt: Any, task: Any, message: ToTask) -> None:
            if isinstance(message, DeployTask) and task == 0:
                self.orders.append((message.restore, message.origin))
            send(cluster, attempt, task, message)

        monkeypatch.setattr(ObedientCluster, "send", note)


def test_a_run_starts_from_a_savepoint_until_it_has_a_checkpoint_of_its_own(
    submit: Submit, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit()
    first.trigger_checkpoint(WITHIN_S)
    path = first.savepoint(timeout=WITHIN_S)
    first.cancel()
    deployed = Deployed(monkeypatch)
    second = submit(FixedDelay(attempts=9, delay="1ms"), directory="elsewhere", from_savepoint=path)
    cluster = reach(second, "running", eventually)
    cluster.fail("killed")
    eventually(lambda: second.metrics()["attempt"] == 2 and second.status == "running", within_s=WITHIN_S)
    assert deployed.orders == [(2, path), (2, path)]
    assert second.trigger_checkpoint(WITHIN_S) == 3, "ids go on from the savepoint's"
    cluster.fail("killed")
    eventually(lambda: second.metrics()["attempt"] == 3 and second.status == "running", within_s=WITHIN_S)
    assert deployed.orders[2] == (3, None)
    third = submit(directory="a third place", from_savepoint=path)
    assert third.trigger_checkpoint(WITHIN_S) == 3, "a savepoint serves any number of runs"


def test_a_run_may_start_from_any_checkpoint_of_another_one(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit()
    first.trigger_checkpoint(WITHIN_S)
    first.cancel()
    (place,) = (tmp_path / "checkpoints" / "job").glob("*/chk-0000000001")
    deployed = Deployed(monkeypatch)
    second = submit(directory="elsewhere", from_savepoint=str(place))
    second.trigger_checkpoint(WITHIN_S)
    assert deployed.orders == [(1, str(place))]


def test_what_is_no_savepoint_or_does_not_fit_says_so(submit: Submit, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no savepoint: there is no manifest\.json"):
        Origin(str(tmp_path / "nowhere")).read(Origin(str(tmp_path / "nowhere")).open(open_storage))
    assert not (tmp_path / "nowhere").exists(), "looking makes no directory"
    job = submit()
    job.trigger_checkpoint(WITHIN_S)
    whole = Origin(str(tmp_path / "checkpoints" / "job"))
    with pytest.raises(CheckpointError, match=r"name one of its checkpoints, such as .*chk-0000000001"):
        whole.read(whole.open(open_storage))
    job.cancel()


def test_the_directory_of_a_checkpoint_and_its_root_are_told_apart_from_a_savepoint_also_in_uris() -> None:
    checkpoint = Origin("s3://bucket/job/chk-0000000012?region=x")
    assert (checkpoint.root, checkpoint.manifest_path) == ("s3://bucket/job?region=x", "chk-0000000012/manifest.json")
    savepoint = Origin("s3://bucket/mine/job-1")
    assert (savepoint.root, savepoint.manifest_path) == ("s3://bucket/mine/job-1", "manifest.json")


def test_what_another_run_has_still_to_commit_is_none_of_the_business_of_one_that_starts_from_its_checkpoint() -> None:
    storage, origin = MemoryStorage(1 << 20), Origin("memory/chk-0000000001")
    parts = {
        SubtaskId(VertexId(0), 0): (
            OperatorPart(Uid("source"), Position({"pending": []})),
            OperatorPart(Uid("sink"), PendingEpochs(((CheckpointId(1), {"parts": ["a"]}),))),
        )
    }
    manifest = build(
        job="job",
        checkpoint=CheckpointId(1),
        attempt=AttemptId(1),
        max_parallelism=8,
        created_ms=0,
        parts=parts,
        parallelism={VertexId(0): 1},
    )
    storage.write(origin.manifest_path, encode(manifest))
    found = {uid: operator.parts[0].inline for uid, operator in origin.read(storage).operators.items()}
    assert found == {"source": Position({"pending": []}), "sink": None}


def test_the_store_of_a_stopped_run_shows_its_last_checkpoint(submit: Submit, tmp_path: Path) -> None:
    submit(plan=two_tasks()).stop(timeout=WITHIN_S)
    storage = open_storage(str(tmp_path / "checkpoints" / "job"))
    assert store_of(storage, current_lineage(storage) or "").listing().newest == 1


def test_a_cancelled_job_ends_when_what_its_tasks_wrote_to_a_savepoint_is_gone(tmp_path: Path) -> None:
    stage, place = Stage(every=None).up(), tmp_path / "mine"
    stage.driver.request(CheckpointRequested(str(place), Then.GO_ON, "mine"))
    stage.driver.cancel()
    run_all(stage.background)
    place.mkdir()
    (place / "late").touch()
    stage.stage_ends()
    assert stage.driver.status == "stopping"
    stage.stage_ends().pass_ms(2 * STOP_MS)
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Cancelled) and not place.exists()


def test_a_job_that_is_cancelled_while_its_savepoint_is_being_published_leaves_none(tmp_path: Path) -> None:
    stage, place = Stage(every=None).up(), tmp_path / "mine"
    stage.driver.request(CheckpointRequested(str(place), Then.GO_ON, "mine"))
    stage.complete(1)
    stage.commit(1)
    publishing = stage.background.take(0)
    stage.driver.cancel()
    stage.stage_ends()
    run_all(stage.background)
    assert stage.driver.status == "stopping", "nobody knows yet what becomes of it"
    publishing[1](publishing[0]())
    assert (place / layout.MANIFEST).exists()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Cancelled) and not place.exists()
    assert [notice.request for notice in stage.said(RequestFailed)] == ["mine"]


def test_what_a_slow_task_still_writes_to_a_savepoint_that_failed_goes_with_the_next_sweep(tmp_path: Path) -> None:
    background = QueuedBackground()
    desk, place = SavepointDesk(background, open_storage), tmp_path / "mine"
    place.mkdir()
    desk.discard(str(place), CheckpointId(5))
    run_all(background)
    assert not place.exists()
    place.mkdir()
    (place / "late").touch()
    desk.sweep(CheckpointId(4))
    assert not background.waiting, "that one had begun before: tasks may still write"
    desk.sweep(CheckpointId(5))
    run_all(background)
    assert not place.exists()
    desk.sweep(CheckpointId(6))
    assert not background.waiting, "once is enough"


# --- Sources --------------------------------------------------------------------------------------------


def test_a_sources_directory_keeps_the_options_of_the_uri_at_its_end() -> None:
    plan = plan_at(1)
    uri = "s3://bucket/checkpoints/job?region=eu-west-1"
    store = store_of(MemoryStorage(1 << 20), new_lineage())
    job = Job(
        plan,
        JobConfig("job"),
        run="run",
        session=None,  # type: ignore[arg-type]
        store=store,
        opener=open_storage,
        storage_uri=uri,
    )
    directory = job._driver_context(plan.vertices[0]).directory
    assert directory is not None
    assert directory.startswith("s3://bucket/checkpoints/job/") and directory.endswith("/source?region=eu-west-1")
