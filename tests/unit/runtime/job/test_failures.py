"""The record of a job's last failures, and what the log says of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.sim.ports import SimClock
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from tests.unit.runtime.job.test_handle import submit as submit
from weir.config import FixedDelay, NoRestart
from weir.errors import JobFailed, TaskLost
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, WorkerDied
from weir.runtime.job.failures import FAILURES_MAX, FailureRecord, Failures
from weir.runtime.job.handle import Job
from weir.snapshot.messages import TaskFailed

ERROR = """operator 'ratio' (uid 'ratio') failed: ZeroDivisionError: division by zero
  row: Row(a=1, b=0)
Traceback (most recent call last):
  File "job.py", line 3, in <lambda>
ZeroDivisionError: division by zero"""


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def failures(clock: SimClock) -> Failures:
    return Failures("words", clock)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Lines of the log; the list grows."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("weir.runtime.job.failures")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def failed(
    attempt: int = 1, region: int | None = None, *, task: int | None = 0, error: str = "killed"
) -> AttemptFailed:
    return AttemptFailed(AttemptId(attempt), region, error, True, None if task is None else TaskIndex(task))


def runs(attempt: int, region: int | None = None, *, restored: int | None = 3) -> AttemptRunning:
    checkpoint = None if restored is None else CheckpointId(restored)
    return AttemptRunning(AttemptId(attempt), region, checkpoint, None, 1)


def test_a_failure_of_user_code_keeps_its_operator_its_row_and_its_traceback(failures: Failures) -> None:
    failures.hear(failed(error=ERROR))
    (record,) = failures.records
    assert record.error == "\n".join(ERROR.splitlines()[:2])
    assert record.traceback == "\n".join(ERROR.splitlines()[2:])


def test_a_failure_says_what_the_job_went_on_from_and_how_long_that_took(failures: Failures, clock: SimClock) -> None:
    failures.hear(failed(1))
    clock.time_ms += 300
    failures.hear(failed(2, task=None, error="no slots"))
    clock.time_ms += 200
    failures.hear(runs(3))
    found = [(r.attempt, r.task, r.error, r.restored_from, r.recovery_ms) for r in failures.records]
    assert found == [(1, 0, "killed", 3, 500), (2, None, "no slots", 3, 200)]
    clock.time_ms += 1_000
    failures.hear(failed(3))
    assert [record.recovery_ms for record in failures.records] == [500, 200, None]


def test_a_region_that_runs_again_says_nothing_of_the_failures_of_another(failures: Failures, clock: SimClock) -> None:
    failures.hear(failed(1, 0))
    failures.hear(failed(2, 1))
    clock.time_ms += 100
    failures.hear(runs(3, 1))
    assert [record.recovery_ms for record in failures.records] == [None, 100]


def test_a_failure_of_the_whole_job_is_over_when_all_its_regions_run_again(failures: Failures, clock: SimClock) -> None:
    failures.hear(failed(2))
    for attempt, region in ((3, 0), (4, 1)):
        clock.time_ms += 100
        failures.hear(runs(attempt, region))
    clock.time_ms += 5_000
    failures.hear(failed(3, 0))
    failures.hear(runs(5, 0))
    assert [record.recovery_ms for record in failures.records] == [200, 0]


def test_how_a_process_has_died_is_added_to_the_failure_that_it_caused(failures: Failures, said: list[str]) -> None:
    failures.hear(failed(1))
    failures.hear(failed(2, task=None))
    failures.hear(WorkerDied(AttemptId(1), None, TaskIndex(1), "another task than the one that failed"))
    failures.hear(WorkerDied(AttemptId(1), None, TaskIndex(0), "its process was killed by SIGSEGV"))
    failures.hear(WorkerDied(AttemptId(2), None, TaskIndex(1), "its process was killed by SIGKILL"))
    assert [record.cause for record in failures.records] == [
        "its process was killed by SIGSEGV",
        "task 1: its process was killed by SIGKILL",
    ]
    assert failures.records[0].reason == "killed; its process was killed by SIGSEGV"
    assert said[-2:] == [
        "job words: attempt 1, task 0: its process was killed by SIGSEGV",
        "job words: attempt 2: task 1: its process was killed by SIGKILL",
    ]


def test_only_the_last_failures_are_kept(failures: Failures) -> None:
    for attempt in range(FAILURES_MAX + 3):
        failures.hear(failed(attempt))
    assert [record.attempt for record in failures.records] == list(range(3, FAILURES_MAX + 3))


def test_the_log_has_each_failure_at_once_with_its_traceback(failures: Failures, said: list[str]) -> None:
    failures.hear(failed(error=ERROR))
    assert said == [f"job words: attempt 1, task 0 failed, restarting: {ERROR}"]
    failures.hear(runs(2))
    assert said[1:] == ["job words: attempt 2 runs from checkpoint 3, 0.0 s later"]


# --- Of a job that runs ---------------------------------------------------------------------------------


def test_the_handle_and_the_metrics_tell_why_a_job_has_restarted(
    submit: Callable[..., Job], eventually: Callable[..., object]
) -> None:
    job = submit(FixedDelay(attempts=5, delay="1ms"))
    assert job.failures == [] and job.metrics()["failures"] == []
    reach(job, "running", eventually).fail("killed at s3://key:secret@bucket/out")
    eventually(lambda: job.metrics()["attempt"] == 2 and job.status == "running", within_s=WITHIN_S)
    (record,) = job.failures
    assert (record.attempt, record.task, record.restarts, record.restored_from) == (1, 0, True, None)
    assert record.error == "killed at s3://…@bucket/out"
    assert record.recovery_ms is not None and record.at_ms > 1e12
    assert job.metrics()["failures"] == [record.public]
    ObedientCluster.latest.driver._notify(WorkerDied(AttemptId(1), None, TaskIndex(0), "killed by SIGKILL"))  # type: ignore[union-attr]
    eventually(lambda: job.failures[0].cause == "killed by SIGKILL", within_s=WITHIN_S)


def test_a_killed_task_that_another_has_missed_first_is_found_out_all_the_same(
    submit: Callable[..., Job], eventually: Callable[..., object]
) -> None:
    job = submit(FixedDelay(attempts=5, delay="1ms"))
    cluster = reach(job, "running", eventually)
    cluster.say(TaskFailed(AttemptId(1), TaskIndex(1), "task 0 is gone: no goodbye", TaskLost.code, False))
    eventually(lambda: job.failures, within_s=WITHIN_S)
    cluster.driver._notify(WorkerDied(AttemptId(1), None, TaskIndex(0), "killed by SIGKILL"))  # type: ignore[union-attr]
    eventually(lambda: job.failures[0].cause == "task 0: killed by SIGKILL", within_s=WITHIN_S)
    assert job.failures[0].task is None


def test_a_job_that_cannot_begin_any_attempt_says_why_in_the_log_each_time(
    submit: Callable[..., Job], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(cluster: ObedientCluster, attempt: AttemptId, plan: object) -> None:
        cluster._post(lambda driver: driver.stage_ended(attempt, f"no Python here, {attempt}"))

    monkeypatch.setattr(ObedientCluster, "launch", launch)
    job = submit(FixedDelay(attempts=2, delay="1ms"))
    with pytest.raises(JobFailed, match="no Python here, 3"):
        job.wait(WITHIN_S)
    assert said == [
        "job job: attempt 1 failed, restarting: no Python here, 1",
        "job job: attempt 2 failed, restarting: no Python here, 2",
        "job job: attempt 3 failed, and the job with it: no Python here, 3",
    ]
    assert [record.restarts for record in job.failures] == [True, True, False]


def test_the_last_failure_stays_when_the_job_has_ended(
    submit: Callable[..., Job], eventually: Callable[..., object]
) -> None:
    job = submit(NoRestart())
    reach(job, "running", eventually).fail("the disk is on fire")
    with pytest.raises(JobFailed):
        job.wait(WITHIN_S)
    assert isinstance(job.failures[0], FailureRecord) and job.failures[0].error == "the disk is on fire"
