"""A submitted job on its own thread, with tasks that do as they are told instead of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.driving import TASKS, two_tasks
from tests.unit.runtime.stores import store_of
from weir.config import Checkpoints, FixedDelay, JobConfig, NoRestart, Restart, Settings
from weir.errors import JobError, JobFailed
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex
from weir.runtime.clock import Mailbox
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointSucceeded, JobEnded, Notice
from weir.runtime.job import handle as job_module
from weir.runtime.job.handle import Job
from weir.runtime.ports import Opener
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.messages import (
    CheckpointCompleted,
    DeployTask,
    DrainSources,
    EpochsCommitted,
    FromTask,
    SnapshotTaken,
    StopTask,
    SubtaskFinished,
    TaskFailed,
    TaskRegistered,
    TaskRunning,
    ToTask,
    TriggerCheckpoint,
)
from weir.snapshot.parts import OperatorPart

WITHIN_S = 20.0


class ObedientCluster:
    """Tasks that register, run, snapshot and leave when they are told to; they finish when the test says so."""

    latest: ObedientCluster
    opener: Opener = staticmethod(open_storage)
    """Of its tasks."""

    def __init__(self, config: JobConfig, *, mailbox: Mailbox, **others: Any) -> None:
        self.driver: Driver | None = None
        self.closed = False
        self.answers_snapshots = True
        self.export_error: str | None = None
        self.launched: list[int] = []
        """The parallelism of each attempt."""
        self.slots = 1_000
        self._mailbox = mailbox
        ObedientCluster.latest = self

    @property
    def process_ids(self) -> list[int]:
        return [100 + task for task in range(TASKS)]

    @property
    def _plan(self) -> Plan:
        assert self.driver is not None
        return self.driver.plan

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        self.launched.append(self._plan.parallelism)
        if self._plan.parallelism > self.slots:
            self._post(lambda driver: driver.stage_ended(attempt, f"there are {self.slots} slots", fatal=True))
            return
        for task in range(self._plan.parallelism):
            self.say(TaskRegistered(attempt, TaskIndex(task), f"host:{task}", 100 + task))

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        mine = [subtask for subtask in sorted(self._plan.subtasks) if subtask.index == task]
        if isinstance(message, DeployTask):
            self.say(TaskRunning(attempt, task))
        elif isinstance(message, TriggerCheckpoint) and self.answers_snapshots:
            for subtask in mine:
                parts = self._parts(subtask)
                self.say(SnapshotTaken(attempt, message.checkpoint, subtask, parts, 0, *self._export(message, parts)))
        elif isinstance(message, CheckpointCompleted):
            for subtask in mine:
                self.say(EpochsCommitted(attempt, message.checkpoint, subtask))
        elif isinstance(message, DrainSources) and task == 0:
            self.finish()
        elif isinstance(message, StopTask) and task == self._plan.parallelism - 1:
            self._post(lambda driver: driver.stage_ended(attempt, None))

    def kill(self, attempt: AttemptId) -> None:
        raise AssertionError("these tasks leave when they are asked")

    def close(self) -> None:
        self.closed = True

    def say(self, message: FromTask) -> None:
        self._post(lambda driver: driver.hear(message))

    def answer(self, checkpoint: int) -> None:
        """Acknowledge a checkpoint that `answers_snapshots` left open."""
        for subtask in sorted(self._plan.subtasks):
            parts = self._parts(subtask)
            self._post(
                lambda driver, subtask=subtask, parts=parts: driver.hear(
                    SnapshotTaken(_attempt(driver), CheckpointId(checkpoint), subtask, parts)
                )
            )

    def finish(self) -> None:
        """Every subtask has passed on its last row."""
        for subtask in sorted(self._plan.subtasks):
            self._post(lambda driver, subtask=subtask: driver.hear(SubtaskFinished(_attempt(driver), subtask)))

    def fail(self, error: str) -> None:
        self._post(lambda driver: driver.hear(TaskFailed(_attempt(driver), TaskIndex(0), error, "X", False)))

    def _export(
        self, message: TriggerCheckpoint, parts: tuple[OperatorPart, ...]
    ) -> tuple[tuple[OperatorPart, ...], str | None]:
        if message.savepoint is None:
            return (), None
        if not Path(message.savepoint).parent.is_file():
            self.opener(message.savepoint).write("a state file", b"")
        return ((), self.export_error) if self.export_error else (parts, None)

    def _parts(self, subtask: SubtaskId) -> tuple[OperatorPart, ...]:
        return tuple(OperatorPart(operator.uid) for operator in self._plan.vertices[subtask.vertex].operators)

    def _post(self, act: Callable[[Driver], None]) -> None:
        def call() -> None:
            assert self.driver is not None
            act(self.driver)

        self._mailbox.post(call)


def _attempt(driver: Driver) -> AttemptId:
    assert driver.attempt is not None
    return driver.attempt


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """Start a job on obedient tasks; whatever is still running at the end is cancelled."""
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)
    jobs: list[Job] = []

    def start(restart: Restart | None = None, plan: Plan | None = None, **settings: Any) -> Job:
        config = JobConfig("job", Checkpoints(every=None, **settings), restart or NoRestart(), Settings())
        storage = MemoryStorage(1 << 20)
        job = Job(
            plan or two_tasks(),
            config,
            run="run",
            session=None,  # type: ignore[arg-type]
            store=store_of(storage),
            opener=open_storage,
            storage_uri=None,
        )
        jobs.append(job)
        job.start()
        return job

    yield start
    for job in jobs:
        job.cancel()


def reach(job: Job, status: str, eventually: Callable[..., Any]) -> ObedientCluster:
    eventually(lambda: job.status == status, within_s=WITHIN_S)
    return ObedientCluster.latest


def test_a_bounded_job_runs_to_its_end(submit: Callable[..., Job], eventually: Callable[..., Any]) -> None:
    job = submit()
    cluster = reach(job, "running", eventually)
    cluster.finish()
    assert job.wait(WITHIN_S) == "finished"
    assert cluster.closed
    assert [record.id for record in job.checkpoints()] == [1]
    assert [type(notice) for notice in job.notices] == [AttemptRunning, CheckpointSucceeded, JobEnded]


def test_waiting_gives_up_after_its_timeout_and_says_how_it_stands(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    assert job.wait(0.0) == "running"


def test_a_checkpoint_on_request_answers_with_its_id(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    assert [job.trigger_checkpoint(WITHIN_S), job.trigger_checkpoint(WITHIN_S)] == [1, 2]


def test_a_checkpoint_that_is_already_under_way_is_no_answer(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit(max_concurrent=2)
    cluster = reach(job, "running", eventually)
    cluster.answers_snapshots = False
    with pytest.raises(TimeoutError):
        job.trigger_checkpoint(0.0)
    eventually(lambda: job.checkpoint_history(), within_s=WITHIN_S)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(job.trigger_checkpoint(WITHIN_S)))
    thread.start()
    eventually(lambda: len(job.checkpoint_history()) == 2, within_s=WITHIN_S)
    cluster.answer(1)
    cluster.answer(2)
    thread.join(WITHIN_S)
    assert answers == [2]


def test_a_listener_that_raises_is_not_called_again_and_harms_nobody(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    heard: list[Notice] = []

    def broken(notice: Notice) -> None:
        heard.append(notice)
        raise ValueError("the display is broken")

    job.listen(broken)
    assert [job.trigger_checkpoint(WITHIN_S), job.trigger_checkpoint(WITHIN_S)] == [1, 2]
    assert [type(notice) for notice in heard] == [CheckpointSucceeded]


def test_many_threads_may_ask_a_job_that_has_ended(submit: Callable[..., Job], eventually: Callable[..., Any]) -> None:
    job = submit()
    reach(job, "running", eventually)
    job.cancel()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: job.metrics()["status"], range(500)))
    assert set(answers) == {"cancelled"}


def test_a_checkpoint_asked_of_a_job_that_still_starts_is_taken_once_it_runs(submit: Callable[..., Job]) -> None:
    assert submit().trigger_checkpoint(WITHIN_S) == 1


def test_a_checkpoint_cannot_be_asked_of_a_job_that_has_ended(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    job.cancel()
    assert job.status == "cancelled"
    with pytest.raises(JobError, match="'job' is cancelled, so it cannot take a checkpoint"):
        job.trigger_checkpoint(WITHIN_S)


def test_a_failed_job_raises_its_cause_to_whoever_waits(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit(NoRestart())
    reach(job, "running", eventually).fail("the disk is on fire")
    with pytest.raises(JobFailed, match="'job' failed: the disk is on fire"):
        job.wait(WITHIN_S)
    assert isinstance(job.error, JobFailed)


def test_a_restart_is_seen_in_metrics_and_notices(submit: Callable[..., Job], eventually: Callable[..., Any]) -> None:
    job = submit(FixedDelay(attempts=5, delay="1ms"))
    heard: list[Notice] = []
    job.listen(heard.append)
    reach(job, "running", eventually).fail("killed")
    eventually(lambda: job.metrics()["restarts"] == 1 and job.status == "running", within_s=WITHIN_S)
    assert job.metrics()["attempt"] == 2
    assert AttemptFailed in [type(notice) for notice in heard]


def test_a_cancelled_job_has_left_nothing_running(submit: Callable[..., Job], eventually: Callable[..., Any]) -> None:
    job = submit()
    cluster = reach(job, "running", eventually)
    assert job.process_ids == [100, 101]
    job.cancel()
    assert cluster.closed
    assert job.wait(0.0) == "cancelled"
    job.cancel()


def test_every_operator_is_in_the_metrics_before_any_task_has_told_of_it(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    job = submit()
    reach(job, "running", eventually)
    operators = job.metrics()["operators"]
    expected = [
        (operator.uid, index) for index, vertex in enumerate(two_tasks().vertices) for operator in vertex.operators
    ]
    assert [(operator["uid"], operator["vertex"]) for operator in operators] == expected
    assert all(operator["rows_in"] == operator["rows_out"] == 0 for operator in operators)
    assert all(operator["backpressure"] == operator["busy"] == 0.0 for operator in operators)


class EndsNow(threading.Event):
    """An end that comes just behind the first look for it."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1 and super().is_set()


def test_what_is_asked_just_as_the_driver_crashes_is_answered(
    submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(cluster: ObedientCluster, attempt: AttemptId, plan: Plan) -> None:
        raise RuntimeError("launch")

    monkeypatch.setattr(ObedientCluster, "launch", crash)
    job = submit()
    with pytest.raises(RuntimeError, match="launch"):
        job.wait(WITHIN_S)
    ended = EndsNow()
    ended.set()
    monkeypatch.setattr(job, "_ended", ended)
    with pytest.raises(JobError, match="would find no job"):
        job.stop(savepoint=False, timeout=0.01)


def test_a_job_whose_driver_has_crashed_answers_whatever_messages_are_left(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    def crash(driver: Driver) -> None:
        raise RuntimeError("boom")

    job = submit()
    cluster = reach(job, "running", eventually)
    held = threading.Event()
    cluster._post(lambda driver: held.wait(WITHIN_S) and None)
    for _ in range(5):
        cluster._post(crash)
    held.set()
    with pytest.raises(RuntimeError, match="boom"):
        job.wait(WITHIN_S)
    assert job.metrics()["status"] == "failed"


def test_a_checkpoint_asked_of_a_job_whose_driver_has_crashed_is_refused_at_once(
    submit: Callable[..., Job], eventually: Callable[..., Any]
) -> None:
    def crash(driver: Driver) -> None:
        raise RuntimeError("boom")

    job = submit()
    reach(job, "running", eventually)._post(crash)
    with pytest.raises(RuntimeError, match="boom"):
        job.wait(WITHIN_S)
    with pytest.raises(JobError, match="'job' is failed, so it cannot take a checkpoint any more"):
        job.trigger_checkpoint(WITHIN_S)
