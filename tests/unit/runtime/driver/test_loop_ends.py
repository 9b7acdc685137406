"""How attempts are left and jobs end: stopping, killing, cancelling in every phase."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.runtime.driving import (
    STOP_MS,
    Stage,
    deploying,
    finishing,
    launching,
    noting,
    phases_named,
    running,
    stopping,
)
from tests.unit.runtime.fakes import run_all
from tests.unit.runtime.stores import NEXT_LIFE, store_of
from weir.config import NoRestart
from weir.errors import StorageUnavailable
from weir.ids import AttemptId
from weir.runtime.driver import phases
from weir.runtime.driver.notices import JobEnded
from weir.runtime.driver.region_machine import RESTORING_PATIENCE_MS
from weir.runtime.driver.verdicts import Cancelled, Failed, Finished, Stopped
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.messages import StopTask

# --- Leaving ------------------------------------------------------------------------------------------


def test_tasks_that_do_not_leave_are_killed_and_then_left_alone() -> None:
    stage = stopping()
    stage.pass_ms(STOP_MS - 1)
    assert stage.cluster.killed == []
    stage.pass_ms(1)
    assert stage.cluster.killed == [1]
    stage.pass_ms(STOP_MS - 1)
    assert isinstance(stage.phase, phases.Stopping)
    stage.pass_ms(1)
    assert isinstance(stage.phase, phases.Waiting)
    assert stage.cluster.killed == [1]


def test_a_killed_stage_that_ends_is_not_waited_for_any_longer() -> None:
    stage = stopping().pass_ms(STOP_MS).stage_ends("killed")
    assert isinstance(stage.phase, phases.Waiting)


def test_the_end_is_told_once() -> None:
    stage = finishing().stage_ends().stage_ends()
    assert len(stage.background.waiting) == 1
    run_all(stage.background)
    assert [said.verdict for said in stage.said(JobEnded)] == [Finished()]


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_driver_that_was_overtaken_meanwhile_does_not_say_that_the_job_is_stopped(overtaken: bool) -> None:
    stage = running()
    stage.driver.request(CheckpointRequested(None, Then.STOP, "stop"))
    stage.complete(1).commit(1).stage_ends()
    if overtaken:
        successor = store_of(stage.storage)
        successor.adopt("run-2", resume=True)
        successor.claim()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Failed if overtaken else Stopped)
    assert ("another driver has taken over" in str(stage.ended.verdict)) == overtaken


def test_a_stop_is_a_stop_though_storage_is_away_at_the_end() -> None:
    stage = running()
    stage.driver.request(CheckpointRequested(None, Then.STOP, "stop"))
    stage.complete(1).commit(1).stage_ends()
    stage.storage.fail("list", *[StorageUnavailable("away")] * 10)
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Stopped)


def test_a_job_whose_last_note_takes_long_kills_nobody_and_does_not_spin() -> None:
    stage = noting()
    assert stage.driver.next_due_ms() is None
    stage.pass_ms(STOP_MS).pass_ms(STOP_MS)
    assert stage.cluster.killed == []
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)


def test_the_last_note_waits_for_storage_so_that_the_next_run_may_start() -> None:
    stage = noting()
    stage.storage.fail("publish", StorageUnavailable("no"), StorageUnavailable("no"))
    run_all(stage.background)
    for _ in range(2):
        due_ms = stage.driver.next_due_ms()
        assert stage.said(JobEnded) == [] and due_ms is not None
        stage.pass_ms(due_ms - stage.clock.now_ms())
        run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)
    store_of(stage.storage, NEXT_LIFE).check_free(resume=False)


def test_who_cancels_while_the_last_note_waits_for_storage_need_not_wait() -> None:
    stage = noting()
    stage.storage.fail("publish", StorageUnavailable("no"))
    run_all(stage.background)
    assert stage.said(JobEnded) == []
    stage.driver.cancel()
    assert isinstance(stage.ended.verdict, Finished), "everything is committed"


def test_who_wants_no_restarts_does_not_wait_for_the_last_note() -> None:
    stage = noting(restart=NoRestart())
    stage.storage.fail("publish", StorageUnavailable("no"))
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)


def test_tasks_of_a_finished_job_are_told_that_everything_is_committed() -> None:
    assert finishing().cluster.told(StopTask) == [StopTask(AttemptId(1), cancelled=False)]


def test_a_finished_job_whose_tasks_do_not_leave_is_still_finished() -> None:
    stage = finishing().pass_ms(STOP_MS).pass_ms(STOP_MS)
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)


def test_a_stage_that_fails_while_a_finished_job_leaves_is_of_no_interest() -> None:
    stage = finishing().stage_ends("an executor was lost")
    run_all(stage.background)
    assert stage.ended == phases.Ended(Finished())


# --- Cancelling ---------------------------------------------------------------------------------------


@phases_named("created", "adopting", "claiming", "waiting")
def test_a_cancel_while_no_attempt_runs_ends_the_job_at_once(reach: Callable[[], Stage]) -> None:
    stage = reach()
    stage.driver.cancel()
    assert isinstance(stage.ended.verdict, Cancelled)
    launched = list(stage.cluster.launched)
    run_all(stage.background)
    stage.pass_ms(100_000)
    assert stage.cluster.launched == launched
    assert isinstance(stage.ended.verdict, Cancelled)


@phases_named("launching", "deploying", "running")
def test_a_cancel_asks_the_tasks_to_leave_first(reach: Callable[[], Stage]) -> None:
    stage = reach()
    stage.driver.cancel()
    assert stage.cluster.told(StopTask) == [StopTask(AttemptId(1), cancelled=True)]
    assert stage.driver.status == "stopping"
    stage.stage_ends()
    assert stage.ended == phases.Ended(Cancelled())


def test_a_stage_whose_tasks_cannot_be_told_yet_is_killed_at_once() -> None:
    stage = launching().register(0)
    stage.driver.cancel()
    assert stage.cluster.killed == [1]
    assert stage.driver.next_due_ms() == STOP_MS, "whoever cannot be killed is left behind"
    stage.stage_ends("cancelled")
    assert stage.ended == phases.Ended(Cancelled())


def test_a_task_that_registers_while_its_attempt_is_being_left_is_told_to_leave() -> None:
    stage = launching()
    stage.driver.cancel()
    stage.cluster.sent.clear()
    stage.register(1)
    assert stage.cluster.sent == [(1, StopTask(AttemptId(1), cancelled=True))]


def test_tasks_that_restore_their_state_are_not_waited_for_as_long_as_those_that_run() -> None:
    stage = deploying()
    stage.driver.cancel()
    stage.pass_ms(RESTORING_PATIENCE_MS - 1)
    assert stage.cluster.killed == []
    stage.pass_ms(1)
    assert stage.cluster.killed == [1]


def test_a_cancel_while_a_failed_attempt_is_being_left_prevents_the_restart() -> None:
    stage = stopping()
    stage.driver.cancel()
    stage.stage_ends()
    assert isinstance(stage.ended.verdict, Cancelled)


def test_a_cancel_does_not_hide_that_the_job_has_failed_for_good() -> None:
    stage = running().fail("bad schema", fatal=True)
    stage.driver.cancel()
    stage.stage_ends()
    assert stage.ended == phases.Ended(Failed("bad schema"))


@phases_named("finishing", "noting", "ended")
def test_a_cancel_comes_too_late_once_everything_is_committed(reach: Callable[[], Stage]) -> None:
    stage = reach()
    stage.driver.cancel()
    if isinstance(stage.phase, phases.Stopping) and not stage.phase.ended:
        stage.stage_ends()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)
