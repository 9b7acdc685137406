"""The driver through the phases of a job: every event in every phase, and what it leads to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.runtime.driving import (
    DELAY_MS,
    HEARTBEAT_MS,
    LAUNCH_MS,
    PHASES,
    Stage,
    adopting,
    claiming,
    deploying,
    each_phase,
    launching,
    phases_named,
    running,
    two_tasks,
    waiting,
)
from tests.unit.runtime.fakes import FaultyStorage, run_all
from tests.unit.runtime.stores import store_of
from weir.config import FixedDelay, NoRestart
from weir.errors import JobError, OwnershipError, ProtocolViolation, StorageUnavailable, UserCodeError
from weir.ids import AttemptId, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning
from weir.runtime.driver.region_machine import SILENT
from weir.runtime.driver.verdicts import Failed, Finished
from weir.snapshot.messages import DeployTask, Heartbeat, StopTask, TaskRegistered


@each_phase
def test_each_phase_is_reached(reach: Callable[[], Stage]) -> None:
    assert type(reach().phase) is PHASES[reach]


# --- The way up ---------------------------------------------------------------------------------------


def test_an_attempt_is_launched_once_the_directory_is_ours_and_the_attempt_is_claimed() -> None:
    stage = adopting()
    assert stage.cluster.launched == []
    run_all(stage.background)
    assert stage.cluster.launched == [1]
    assert stage.driver.status == "starting"


def test_tasks_are_deployed_when_all_are_up_with_addresses_by_task() -> None:
    stage = launching().register(1)
    assert stage.cluster.sent == []
    stage.register(0)
    assert stage.cluster.told(DeployTask) == [DeployTask(AttemptId(1), ("host:0", "host:1"), None)]


def test_a_task_that_registers_twice_counts_once() -> None:
    stage = launching().register(0).register(0)
    assert isinstance(stage.phase, phases.Launching)


def test_the_job_runs_when_all_tasks_do() -> None:
    stage = deploying().run(1).run(1)
    assert isinstance(stage.phase, phases.Deploying)
    stage.run(0)
    assert stage.driver.status == "running"
    (said,) = stage.said(AttemptRunning)
    assert said == AttemptRunning(AttemptId(1), None, None, None, None)


def test_what_a_quick_task_tells_while_others_are_still_restoring_is_kept() -> None:
    stage = deploying().run(0)
    stage.finish_subtasks()
    assert isinstance(stage.phase, phases.Deploying)
    stage.run(1)
    stage.complete(1).commit(1)
    assert isinstance(stage.phase, phases.Stopping)
    assert isinstance(stage.phase.verdict, Finished)


def test_too_few_slots_is_an_error_that_says_how_many_are_missing() -> None:
    stage = launching().register(0)
    stage.pass_ms(LAUNCH_MS - 1)
    assert isinstance(stage.phase, phases.Launching)
    stage.pass_ms(1)
    error = stage.said(AttemptFailed)[0].error
    assert error.startswith("only 1 of 2 tasks started in time: Spark has too few free slots for parallelism 2. 1 more")


def test_tasks_that_do_not_get_ready_in_time_are_an_error() -> None:
    stage = deploying().run(0)
    stage.pass_ms(LAUNCH_MS)
    assert "only 1 of 2 tasks connected" in stage.said(AttemptFailed)[0].error


# --- Failures -----------------------------------------------------------------------------------------


@phases_named("launching", "deploying", "running")
def test_a_failure_stops_the_attempt_and_another_follows_after_the_delay(reach: Callable[[], Stage]) -> None:
    stage = reach().fail("boom")
    assert stage.cluster.told(StopTask) == [StopTask(AttemptId(1), cancelled=True)]
    assert isinstance(stage.phase, phases.Stopping)
    stage.stage_ends("boom")
    assert isinstance(stage.phase, phases.Waiting)
    stage.pass_ms(DELAY_MS - 1)
    assert stage.cluster.launched == [1]
    stage.pass_ms(1)
    run_all(stage.background)
    assert stage.cluster.launched == [1, 2]
    assert stage.driver.restarts == 1


@phases_named("launching", "deploying", "running")
def test_a_lost_task_is_a_failure(reach: Callable[[], Stage]) -> None:
    stage = reach()
    stage.driver.task_lost(AttemptId(1), TaskIndex(1), "reset by peer")
    assert stage.said(AttemptFailed)[0].error == "task 1 was lost: reset by peer"


@phases_named("launching", "deploying", "running")
def test_the_end_of_the_stage_is_a_failure_and_nobody_is_waited_for(reach: Callable[[], Stage]) -> None:
    stage = reach().stage_ends("executor lost")
    assert isinstance(stage.phase, phases.Waiting)
    assert stage.said(AttemptFailed)[0].error == "executor lost"


def test_a_stage_that_ends_without_an_error_before_the_job_does_is_a_failure_too() -> None:
    stage = running().stage_ends(None)
    assert stage.said(AttemptFailed)[0].error == "the stage ended before the job did"


def test_a_stage_that_spark_says_will_never_run_ends_the_job() -> None:
    stage = launching()
    stage.driver.stage_ended(AttemptId(1), "no such master", fatal=True)
    assert stage.ended == phases.Ended(Failed("no such master"))


@phases_named("launching", "deploying", "running")
def test_a_fatal_error_ends_the_job_without_a_restart(reach: Callable[[], Stage]) -> None:
    stage = reach().fail("column x is gone", fatal=True).stage_ends()
    assert stage.ended == phases.Ended(Failed("column x is gone"))


def test_when_the_strategy_gives_up_the_error_says_so_beside_the_cause() -> None:
    stage = Stage(restart=NoRestart()).up().fail("boom").stage_ends()
    assert stage.ended.verdict.error == "boom\n(no restart: no restart strategy is set)"


def test_restarts_are_counted_by_the_strategy() -> None:
    stage = Stage(restart=FixedDelay(attempts=2, delay="100ms"))
    for _ in range(3):
        stage.up().fail("boom").stage_ends()
    assert isinstance(stage.ended.verdict, Failed)
    assert stage.driver.restarts == 2


@phases_named("stopping", "waiting", "cancelling", "finishing", "noting", "ended")
def test_later_failures_of_an_attempt_that_is_being_left_change_nothing(reach: Callable[[], Stage]) -> None:
    stage = reach()
    before, notices = stage.phase, len(stage.notices)
    stage.fail("again", attempt=1, fatal=True)
    stage.driver.task_lost(AttemptId(1), TaskIndex(0), "reset")
    assert stage.phase == before
    assert len(stage.notices) == notices


def test_user_code_that_fails_three_times_without_progress_ends_the_job() -> None:
    stage = Stage()
    for _ in range(2):
        stage.up().fail("division by zero", code=UserCodeError.code).stage_ends()
        assert isinstance(stage.phase, phases.Waiting)
    stage.up().fail("division by zero", code=UserCodeError.code).stage_ends()
    stuck = "the user's code failed 3 times with no checkpoint in between"
    assert stage.ended == phases.Ended(Failed(f"division by zero\n(no restart: {stuck})"))


def test_a_completed_checkpoint_is_progress_for_user_code_that_fails() -> None:
    stage = Stage()
    for _ in range(2):
        stage.up().fail("sometimes", code=UserCodeError.code).stage_ends()
    stage.up().pass_ms(1_000).complete(1)
    stage.fail("sometimes", code=UserCodeError.code).stage_ends()
    assert isinstance(stage.phase, phases.Waiting)


def test_several_tasks_that_fail_together_with_the_same_user_error_count_once() -> None:
    stage = Stage().up()
    for _ in range(3):
        stage.fail("bad row", code=UserCodeError.code)
    stage.stage_ends()
    assert isinstance(stage.phase, phases.Waiting)


def test_other_failures_may_come_as_often_as_the_strategy_allows() -> None:
    stage = Stage()
    for _ in range(5):
        stage.up().fail("killed", code="TASK_LOST").stage_ends()
    assert isinstance(stage.phase, phases.Waiting)


def test_the_time_to_recover_counts_from_the_first_failure_since_the_job_ran() -> None:
    stage = running().fail("killed").stage_ends()
    for _ in range(3):
        stage.pass_ms(DELAY_MS)
        run_all(stage.background)
        stage.stage_ends("no executor")
        stage.pass_ms(1_000 - DELAY_MS)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    stage.register().run()
    assert [said.recovery_ms for said in stage.said(AttemptRunning)] == [None, 3_100]
    stage.fail("killed").stage_ends().up()
    assert stage.said(AttemptRunning)[-1].recovery_ms == DELAY_MS, "and then anew"


# --- Silence ------------------------------------------------------------------------------------------


def test_a_silent_task_fails_the_attempt_by_name() -> None:
    stage = running()
    stage.clock.time_ms += HEARTBEAT_MS - 1
    stage.hear(Heartbeat(AttemptId(1), TaskIndex(0), {}))
    stage.pass_ms(1)
    assert stage.said(AttemptFailed)[0].error == SILENT.format(task=1, silent_ms=HEARTBEAT_MS)


def test_heartbeats_keep_an_attempt_alive_and_carry_metrics() -> None:
    stage = Stage(every=None).up()
    for beat in range(10):
        for task in range(2):
            stage.hear(Heartbeat(AttemptId(1), TaskIndex(task), {"beat": beat}))
        stage.pass_ms(HEARTBEAT_MS - 1)
    assert isinstance(stage.phase, phases.Running)
    assert stage.driver.metrics == [{"beat": 9}, {"beat": 9}]


def test_heartbeats_of_an_old_attempt_do_not_keep_the_new_one_alive() -> None:
    stage = waiting().up()
    stage.clock.time_ms += HEARTBEAT_MS
    for task in range(2):
        stage.hear(Heartbeat(AttemptId(1), TaskIndex(task), {"old": True}))
    stage.driver.tick()
    assert isinstance(stage.phase, phases.Stopping)
    assert stage.driver.metrics == []


# --- Old attempts -------------------------------------------------------------------------------------


@phases_named("waiting", "ended")
def test_nothing_that_a_left_attempt_says_counts(reach: Callable[[], Stage]) -> None:
    stage = reach()
    before = stage.phase
    stage.register(attempt=1).run(attempt=1).finish_subtasks(attempt=1)
    stage.driver.stage_ended(AttemptId(1), "late")
    assert stage.phase == before


def test_an_old_task_that_registers_late_is_not_taken_for_a_new_one() -> None:
    stage = waiting()
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    assert isinstance(stage.phase, phases.Launching)
    stage.register(0, 1, attempt=1)
    stage.driver.stage_ended(AttemptId(1), "late")
    stage.driver.task_lost(AttemptId(1), TaskIndex(0), "late")
    assert stage.phase == phases.Launching(stage.phase.claim, {}, stage.phase.deadline_ms)


def test_a_message_that_is_not_known_is_our_bug() -> None:
    stage = running()
    with pytest.raises(ProtocolViolation, match="unexpected"):
        stage.hear(StopTask(AttemptId(1), cancelled=True))  # type: ignore[arg-type]


# --- Storage ------------------------------------------------------------------------------------------


def test_a_directory_that_is_not_ours_ends_the_job() -> None:
    storage = FaultyStorage()
    store_of(storage, job="theirs").adopt("run-0", resume=False)
    stage = Stage(storage=storage).begin()
    assert isinstance(stage.ended.verdict, Failed)
    assert "belongs to job 'theirs'" in (stage.ended.verdict.error)


def test_ownership_is_looked_at_again_after_a_failure_to_look() -> None:
    storage = FaultyStorage()
    store_of(storage, job="theirs").adopt("run-0", resume=False)
    stage = Stage(storage=storage)
    storage.fail("read", StorageUnavailable("no reply"))
    stage.begin()
    assert isinstance(stage.phase, phases.Waiting)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Failed)
    assert stage.cluster.launched == []


@pytest.mark.parametrize("call", ["create", "list", "publish"])
def test_storage_that_is_away_for_a_moment_costs_a_restart_and_nothing_else(call: str) -> None:
    stage = claiming()
    stage.storage.fail(call, StorageUnavailable("away"))
    run_all(stage.background)
    assert isinstance(stage.phase, phases.Waiting)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    assert isinstance(stage.phase, phases.Launching)


def test_a_checkpoint_that_does_not_fit_the_job_ends_it() -> None:
    first = Stage().up().pass_ms(1_000).complete(1)
    stage = Stage(storage=first.storage, resume=True, run="run-2", plan=two_tasks("renamed")).begin()
    assert isinstance(stage.ended.verdict, Failed)
    assert "source (position): dropped: there is no operator with this uid" in stage.ended.verdict.error


def test_a_driver_that_was_taken_over_fails_for_good() -> None:
    stage = running()
    store_of(stage.storage).claim()
    stage.pass_ms(1_000).complete(1).stage_ends()
    assert isinstance(stage.ended.verdict, Failed)
    assert "another driver has taken over job 'job' with attempt 2" in (stage.ended.verdict.error)


def test_a_claim_that_was_taken_over_fails_for_good() -> None:
    stage = claiming()
    stage.storage.then("publish", lambda: store_of(stage.storage).claim())
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Failed)
    assert OwnershipError.__name__ in (stage.ended.verdict.error)


# --- Requests -----------------------------------------------------------------------------------------


@each_phase
def test_a_checkpoint_can_be_asked_for_only_while_the_job_runs(reach: Callable[[], Stage]) -> None:
    stage = reach()
    if reach is running:
        stage.driver.request()
        return
    with pytest.raises(JobError, match=f"job 'job' is {stage.driver.status}, so it cannot take a checkpoint now"):
        stage.driver.request()


@each_phase
def test_whatever_is_due_is_dealt_with_when_its_time_comes(reach: Callable[[], Stage]) -> None:
    """A due time that stayed in the past would make the loop spin."""
    stage = reach()
    for _ in range(30):
        for _ in range(3):
            stage.driver.tick()
            run_all(stage.background)
        due_ms = stage.driver.next_due_ms()
        assert due_ms is None or due_ms > stage.clock.time_ms
        stage.clock.time_ms = stage.clock.time_ms + 1 if due_ms is None else due_ms


def test_registration_is_ignored_outside_launching() -> None:
    stage = running()
    stage.hear(TaskRegistered(AttemptId(1), TaskIndex(0), "elsewhere", 1))
    stage.run(0)
    assert isinstance(stage.phase, phases.Running)
