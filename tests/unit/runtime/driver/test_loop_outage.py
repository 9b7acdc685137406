"""Storage that is away for a minute, an hour, too long: what becomes of a job with default settings.

The driver, its restart decisions and its checkpoint store are the real ones; the clock, the tasks and the storage that
goes away are the test's own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.unit.runtime.driving import Stage
from tests.unit.runtime.fakes import FaultyStorage, run_all
from weir.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart
from weir.errors import StorageFull, StorageUnavailable, UserCodeError
from weir.ids import TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver.notices import AttemptFailed, StorageAwaited
from weir.runtime.driver.verdicts import Failed
from weir.snapshot.messages import DeployTask, Heartbeat, SnapshotDeclined, TriggerCheckpoint

MINUTE_MS, HOUR_MS = 60_000.0, 3_600_000.0
SETBACKS_MAX = 10_000
"""Failures in one outage after which a test gives up on the job."""


class Outages(FaultyStorage):
    """Memory that cannot be reached while it is `away`."""

    away = False

    def _do(self, call: str, path: str, act: Any) -> Any:
        if self.away:
            raise StorageUnavailable(f"{call} {path}: connection refused")
        return super()._do(call, path, act)


class Outage:
    """A job that runs and has completed checkpoint 1, with storage that the test takes away."""

    def __init__(self, restart: Restart | None = None) -> None:
        self.storage = Outages()
        self.stage = Stage(storage=self.storage, restart=restart or ExponentialDelay()).up()
        self.stage.pass_ms(1_000).complete(1).commit(1)

    def begins(self) -> Outage:
        """Nobody can tell what became of the next manifest."""
        self.storage.away = True
        self.stage.pass_ms(1_000).complete(2).stage_ends()
        return self

    def lasts(self, ms: float) -> Outage:
        """The driver's loop goes on for so long, from one due time to the next."""
        stage, end_ms = self.stage, self.stage.clock.time_ms + ms
        for _ in range(SETBACKS_MAX):
            due_ms = stage.driver.next_due_ms()
            if due_ms is None or due_ms > end_ms:
                stage.clock.time_ms = end_ms
                return self
            stage.clock.time_ms = max(due_ms, stage.clock.time_ms)
            stage.driver.tick()
            run_all(stage.background)
        raise AssertionError(f"{SETBACKS_MAX} turns in {ms} ms")

    def ends(self) -> Outage:
        """Storage is back; the driver finds out within the longest delay."""
        self.storage.away = False
        self.lasts(30_000)
        self.stage.register().run()
        return self


@pytest.mark.parametrize("restart", [ExponentialDelay(), FixedDelay(attempts=1), FailureRate(failures=1, per="1h")])
@pytest.mark.parametrize("ms", [MINUTE_MS, HOUR_MS, 5 * HOUR_MS])
def test_a_job_outlives_an_outage_and_goes_on_from_its_checkpoint(restart: Restart, ms: float) -> None:
    job = Outage(restart).begins().lasts(ms).ends()
    assert job.stage.driver.status == "running"
    assert job.stage.cluster.told(DeployTask)[-1].restore == 1
    assert job.stage.driver.restarts == 1, "claims that could not be made are no restarts"
    assert job.stage.driver.waits_for is None


def test_an_outage_is_looked_at_seldom_but_never_longer_than_the_longest_delay_apart() -> None:
    job = Outage().begins().lasts(HOUR_MS)
    looks_ms = [said.wait.retry_ms for said in job.stage.said(StorageAwaited)]
    gaps_ms = [after - before for before, after in pairwise(looks_ms)]
    assert gaps_ms[:5] == [200, 400, 800, 1_600, 3_200]
    assert max(gaps_ms) == 30_000
    assert len(looks_ms) < 130


def test_whoever_watches_hears_what_the_job_waits_for_and_since_when() -> None:
    job = Outage()
    job.begins()
    since_ms = job.stage.clock.time_ms
    job.lasts(10 * MINUTE_MS)
    wait = job.stage.driver.waits_for
    assert wait is not None
    assert wait.since_ms == since_ms
    assert job.stage.clock.time_ms < wait.retry_ms <= job.stage.clock.time_ms + 30_000
    assert "connection refused" in wait.error
    last = job.stage.said(StorageAwaited)[-1]
    assert last == StorageAwaited(None, None, wait)
    assert job.stage.driver.status == "restarting"
    assert len(job.stage.said(AttemptFailed)) == 1, "there was one attempt that failed"


def test_an_outage_beyond_all_patience_ends_the_job_and_says_which_setting_that_was() -> None:
    job = Outage().begins().lasts(6 * HOUR_MS + MINUTE_MS)
    assert isinstance(job.stage.ended.verdict, Failed)
    assert "connection refused" in job.stage.ended.verdict.error
    assert "longer than Settings.outage_max" in job.stage.ended.verdict.error


def test_who_wants_no_restart_gets_none() -> None:
    job = Outage(NoRestart()).begins()
    assert isinstance(job.stage.ended.verdict, Failed)


def test_a_job_that_starts_in_an_outage_waits_for_it_too() -> None:
    storage = Outages()
    storage.away = True
    stage = Stage(storage=storage, restart=ExponentialDelay()).begin()
    assert isinstance(stage.phase, phases.Waiting)
    assert stage.driver.waits_for is not None
    assert stage.said(AttemptFailed) == [], "none has begun"


def test_outages_leave_the_strategy_its_whole_count_for_crashes() -> None:
    job = Outage(FixedDelay(attempts=2, delay="100ms")).begins().lasts(HOUR_MS).ends()
    for _ in range(2):
        job.stage.fail("killed").stage_ends()
        job.lasts(1_000).stage.register().run()
    assert job.stage.driver.status == "running"
    job.stage.fail("killed").stage_ends()
    assert isinstance(job.stage.ended.verdict, Failed)


def test_user_code_that_fails_ends_the_job_as_quickly_as_ever() -> None:
    job = Outage()
    for _ in range(3):
        job.stage.fail("division by zero", code=UserCodeError.code).stage_ends()
        job.lasts(1_000)
        if not isinstance(job.stage.phase, phases.Ended):
            job.stage.register().run()
    assert isinstance(job.stage.ended.verdict, Failed)
    assert job.stage.clock.time_ms < MINUTE_MS


def test_a_sink_whose_storage_is_away_is_waited_for_while_checkpoints_are_not() -> None:
    """Claims succeed and tasks run, and then commits fail again and again."""
    job = Outage(FixedDelay(attempts=3))
    job.stage.driver.request()
    for _ in range(60):
        job.stage.fail("sink 'out' cannot commit", code=StorageUnavailable.code).stage_ends()
        job.lasts(30_000).stage.register().run()
    assert job.stage.driver.status == "running"


def test_the_clock_of_an_outage_starts_again_once_a_checkpoint_was_complete() -> None:
    job = Outage().begins().lasts(5 * HOUR_MS).ends()
    completed = job.stage.driver.history
    job.stage.driver.request()
    job.stage.complete(3)
    assert len(job.stage.driver.history) > len(completed)
    job.storage.away = True
    job.stage.stage_ends("killed")
    assert job.lasts(5 * HOUR_MS).ends().stage.driver.status == "running"


def test_the_clock_of_an_outage_starts_again_once_the_job_ran_for_a_while() -> None:
    job = Outage(FixedDelay(attempts=10)).begins().lasts(5 * HOUR_MS).ends()
    job.stage.clock.time_ms += 2 * HOUR_MS
    job.storage.away = True
    job.stage.stage_ends("killed")
    assert job.lasts(5 * HOUR_MS).ends().stage.driver.status == "running"


# --- Storage that is full for state files, and not for notes --------------------------------------------------


class Refusing:
    """A job whose every attempt starts, since its notes fit, and of which storage takes no checkpoint but the first."""

    def __init__(self, code: str) -> None:
        self.stage = Stage(restart=ExponentialDelay(), tolerable_failures=1).up()
        self.stage.pass_ms(1_000).complete(1).commit(1)
        self._code = code
        self._answered = 0

    def lasts(self, ms: float, *, answer_every_ms: float = 1_000, step_ms: float = 1_000) -> Refusing:
        """Until the job ends, or for so long. `answer_every_ms`: how seldom tasks say that they cannot write."""
        stage = self.stage
        end_ms, answer_ms = stage.clock.time_ms + ms, 0.0
        while stage.clock.time_ms < end_ms and not isinstance(stage.phase, phases.Ended):
            match stage.phase:
                case phases.Launching():
                    stage.register()
                case phases.Deploying():
                    stage.run()
                case phases.Stopping():
                    stage.stage_ends()
                case phases.Running():
                    for task in range(stage.plan.parallelism):
                        stage.hear(Heartbeat(stage.at(None), TaskIndex(task), {"subtasks": []}))
                    if stage.clock.time_ms >= answer_ms:
                        answer_ms = stage.clock.time_ms + answer_every_ms
                        self._decline()
            run_all(stage.background)
            stage.pass_ms(step_ms)
            run_all(stage.background)
        return self

    def _decline(self) -> None:
        stage, asked = self.stage, self.stage.cluster.told(TriggerCheckpoint)
        for trigger in asked[self._answered :]:
            if isinstance(stage.phase, phases.Running) and trigger.attempt == stage.at(None):
                subtask = sorted(stage.plan.subtasks)[0]
                stage.hear(SnapshotDeclined(trigger.attempt, trigger.checkpoint, subtask, "no room", self._code))
        self._answered = len(asked)


@pytest.mark.parametrize(("code", "restarts"), [(StorageFull.code, True), (StorageUnavailable.code, True), ("", False)])
def test_checkpoints_that_storage_does_not_take_are_waited_for_and_others_are_not(code: str, restarts: bool) -> None:
    stage = Refusing(code).lasts(HOUR_MS).stage
    assert isinstance(stage.phase, phases.Ended) is not restarts
    assert bool(stage.said(StorageAwaited)) is restarts


def test_who_runs_for_minutes_before_it_fails_for_its_checkpoints_is_not_waited_for_for_ever() -> None:
    stage = Refusing(StorageFull.code).lasts(7 * HOUR_MS, answer_every_ms=MINUTE_MS, step_ms=4_000).stage
    assert isinstance(stage.ended.verdict, Failed)
    assert "longer than Settings.outage_max" in stage.ended.verdict.error
