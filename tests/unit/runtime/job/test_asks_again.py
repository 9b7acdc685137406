"""What users ask for around a failure: it waits for the next attempt, and is made again when its attempt ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.driving import two_tasks
from tests.unit.runtime.job.test_asks import Submit, manifest_at
from tests.unit.runtime.job.test_asks import submit as submit
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from weir.config import FixedDelay, NoRestart
from weir.errors import JobError
from weir.ids import AttemptId, CheckpointId
from weir.runtime.driver.notices import AttemptFailed, CheckpointAborted, RequestFailed, SavepointCompleted
from weir.runtime.driver.verdicts import Failed, Finished, Stopped
from weir.runtime.job.asks import Ask, AskForCheckpoint, Asks
from weir.runtime.job.handle import Job
from weir.snapshot.coordinator.orders import AbortReason

OFTEN = FixedDelay(attempts=50, delay="1ms")


class Asking:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._found: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def answer(self) -> Any:
        self._thread.join(WITHIN_S)
        assert self.is_done, "there is no answer"
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._found = call()
        except BaseException as error:
            self._error = error


def failing_under(
    job: Job, cluster: ObedientCluster, call: Callable[[], Any], eventually: Callable[..., Any]
) -> Asking:
    """The call is made, its checkpoint begins, and the attempt fails."""
    cluster.answers_snapshots = False
    asking = Asking(call)
    eventually(lambda: job.checkpoint_history(), within_s=WITHIN_S)
    cluster.answers_snapshots = True
    cluster.fail("killed")
    return asking


def held(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Attempts do not begin from now on, but when the test launches them."""
    waiting: list[Callable[[], None]] = []
    launch = ObedientCluster.launch

    def hold(cluster: ObedientCluster, attempt: Any, plan: Any) -> None:
        waiting.append(lambda: cluster._post(lambda driver: launch(cluster, attempt, plan)))

    monkeypatch.setattr(ObedientCluster, "launch", hold)
    return waiting


# --- Of a job -------------------------------------------------------------------------------------------


def test_a_checkpoint_whose_attempt_fails_is_taken_on_the_next_one(
    submit: Submit, eventually: Callable[..., Any]
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    asking = failing_under(job, cluster, lambda: job.trigger_checkpoint(WITHIN_S), eventually)
    assert asking.answer() == 2
    assert [record.attempt for record in job.checkpoints()] == [2]


def test_a_savepoint_whose_attempt_fails_is_taken_on_the_next_one_in_a_place_of_its_own(
    submit: Submit, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    asking = failing_under(job, cluster, lambda: job.savepoint(str(tmp_path / "mine"), WITHIN_S), eventually)
    path = asking.answer()
    assert manifest_at(path).checkpoint == 2
    first, second = (record.savepoint for record in job.checkpoint_history())
    assert first != second == path
    eventually(lambda: [str(place) for place in (tmp_path / "mine").iterdir()] == [path], within_s=WITHIN_S)


@pytest.mark.parametrize(("drain", "ends"), [(False, "stopped"), (True, "finished")])
def test_a_stop_whose_attempt_fails_is_made_again_on_the_next_one(
    submit: Submit, tmp_path: Path, eventually: Callable[..., Any], drain: bool, ends: str
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    asking = failing_under(job, cluster, lambda: job.stop(str(tmp_path / "mine"), drain, WITHIN_S), eventually)
    path = asking.answer()
    assert job.status == ends and manifest_at(path).checkpoint == 2
    assert [str(place) for place in (tmp_path / "mine").iterdir()] == [path]


def test_what_is_asked_while_a_job_restarts_waits_for_the_next_attempt(
    submit: Submit, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    waiting = held(monkeypatch)
    cluster.fail("killed")
    eventually(lambda: waiting and job.status == "starting", within_s=WITHIN_S)
    checkpoint = Asking(lambda: job.trigger_checkpoint(WITHIN_S))
    savepoint = Asking(lambda: job.savepoint(None, WITHIN_S))
    eventually(lambda: len(job._asks._open) + len(job._asks._checkpoints) == 2, within_s=WITHIN_S)
    assert not checkpoint.is_done and not savepoint.is_done
    waiting.pop()()
    assert checkpoint.answer() >= 1 and manifest_at(savepoint.answer()).attempt == 2


def test_what_no_attempt_was_told_in_time_is_withdrawn(
    submit: Submit, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    waiting = held(monkeypatch)
    cluster.fail("killed")
    eventually(lambda: waiting and job.status == "starting", within_s=WITHIN_S)
    with pytest.raises(TimeoutError, match=r"within 0\.05 s; the job is starting, and is not asked for it any more"):
        job.stop(timeout=0.05)
    waiting.pop()()
    assert job.trigger_checkpoint(WITHIN_S) == 1 and job.status == "running"


def test_what_has_begun_when_time_is_up_goes_on_but_not_on_another_attempt(
    submit: Submit, eventually: Callable[..., Any]
) -> None:
    job = submit(OFTEN)
    cluster = reach(job, "running", eventually)
    cluster.answers_snapshots = False
    with pytest.raises(TimeoutError, match="it goes on all the same"):
        job.stop(timeout=0.05)
    cluster.answers_snapshots = True
    cluster.fail("killed")
    eventually(lambda: job.metrics()["attempt"] == 2 and job.status == "running", within_s=WITHIN_S)
    assert job.trigger_checkpoint(WITHIN_S) == 2 and job.status == "running"


def test_a_job_that_may_not_restart_says_so_to_whoever_waits(submit: Submit, eventually: Callable[..., Any]) -> None:
    for call, message in (
        (lambda job: job.trigger_checkpoint(WITHIN_S), "the checkpoint did not complete: killed"),
        (lambda job: job.savepoint(None, WITHIN_S), "'job' is failed: the savepoint did not come about"),
    ):
        job = submit(NoRestart(), two_tasks())
        asking = failing_under(job, reach(job, "running", eventually), lambda job=job, call=call: call(job), eventually)
        with pytest.raises(JobError, match=message):
            asking.answer()


# --- By itself ------------------------------------------------------------------------------------------


@pytest.fixture
def asks() -> Asks:
    return Asks("job")


def test_only_a_request_that_failed_with_its_attempt_is_made_again(asks: Asks) -> None:
    told: list[str] = []
    ask = Ask("the savepoint", told.append)
    asks.add(ask, is_running=True)
    asks.hear(RequestFailed(AttemptId(1), told[0], "the attempt ended before it was there", ended_early=True))
    assert not ask.future.done() and len(told) == 1, "no attempt runs"
    asks.runs(lambda: None)
    assert len(set(told)) == 2
    asks.hear(SavepointCompleted(AttemptId(1), told[0], CheckpointId(1), "of the first try"))
    assert not ask.future.done(), "what comes of an earlier try is none of it"
    asks.hear(RequestFailed(AttemptId(2), told[1], "no such bucket"))
    with pytest.raises(JobError, match="the savepoint failed: no such bucket"):
        ask.future.result(0)


def test_a_stop_that_has_its_savepoint_is_not_made_again_and_names_it(asks: Asks) -> None:
    told: list[str] = []
    ask = Ask("the stop", told.append, ends_job=True)
    asks.add(ask, is_running=True)
    asks.hear(SavepointCompleted(AttemptId(1), told[0], CheckpointId(1), "mine/1"))
    asks.runs(lambda: None)
    assert len(told) == 1
    asks.job_ended(Failed("overtaken"))
    with pytest.raises(JobError, match="'job' is failed: the stop did not come about, but its savepoint is complete"):
        ask.future.result(0)


@pytest.mark.parametrize("verdict", [Stopped(), Finished()])
def test_a_stop_is_answered_when_the_job_has_ended(asks: Asks, verdict: Stopped | Finished) -> None:
    told: list[str] = []
    ask = Ask("the stop", told.append, ends_job=True)
    asks.add(ask, is_running=True)
    asks.hear(SavepointCompleted(AttemptId(1), told[0], CheckpointId(1), "mine/1"))
    assert not ask.future.done()
    asks.job_ended(verdict)
    assert ask.future.result(0) == "mine/1"


@pytest.mark.parametrize("verdict", [Stopped(), Finished()])
def test_a_stop_that_came_when_the_job_was_ending_already_does_not_pass_for_one_with_a_savepoint(
    asks: Asks, verdict: Stopped | Finished
) -> None:
    plain, saving = Ask("the stop", pytest.fail, ends_job=True), Ask("the stop", pytest.fail, ends_job=True, saves=True)
    for ask in (plain, saving):
        asks.add(ask, is_running=False)
    asks.job_ended(verdict)
    assert plain.future.result(0) is None
    with pytest.raises(JobError, match=f"'job' is {verdict.status}, and there is no savepoint: .*--resume"):
        saving.future.result(0)


def test_a_checkpoint_that_ended_with_a_region_is_waited_for_and_one_that_was_declined_is_not(asks: Asks) -> None:
    ask = AskForCheckpoint(CheckpointId(3))
    asks.add_checkpoint(ask)
    asks.hear(CheckpointAborted(AttemptId(1), CheckpointId(3), AbortReason.ATTEMPT_ENDED, ""))
    asks.hear(AttemptFailed(AttemptId(1), 0, "killed", restarts=True))
    requested: list[str] = []
    asks.runs(lambda: requested.append("again"))
    assert requested == ["again"] and not ask.future.done()
    asks.hear(CheckpointAborted(AttemptId(2), CheckpointId(4), AbortReason.DECLINED, "no room"))
    with pytest.raises(JobError, match="no room"):
        ask.future.result(0)


def test_nobody_is_asked_for_a_checkpoint_that_nobody_waits_for(asks: Asks) -> None:
    ask = AskForCheckpoint(CheckpointId(1))
    asks.add_checkpoint(ask)
    asks.leave_checkpoint(ask)
    asks.runs(lambda: pytest.fail("nobody waits"))
