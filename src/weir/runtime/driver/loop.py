"""The driver's loop for one job: attempts, checkpoints, restarts.

Comes in: what tasks say, what becomes of stages, requests of the user, the time.
Goes out: orders to tasks, launches, manifests. Decides nothing about checkpoints
or restarts itself (snapshot/coordinator/machine.py, snapshot/restart.py do), touches the
world only through its ports, and is called by one thread.

What the coordinator orders is done by checkpoint_desk.py. Each region of the job
(region.py) has attempts of its own: when one fails, it alone begins again from the last
checkpoint, and the others run on. No attempt is claimed while a manifest is being written
for others that run: it starts behind its outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from weir.config import JobConfig
from weir.errors import JobError, ProtocolViolation, TaskLost, code_of, told
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver import notices, phases, verdicts
from weir.runtime.driver.checkpoint_desk import CheckpointDesk, Ports
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.compatibility import check_names
from weir.runtime.driver.finish_desk import FinishDesk
from weir.runtime.driver.notices import Notice, StorageWait
from weir.runtime.driver.phases import Phase
from weir.runtime.driver.region import Region, laid_out
from weir.runtime.driver.region_machine import AllRun
from weir.runtime.driver.rescaling import RescaleDesk
from weir.runtime.driver.reservation_desk import ReservationDesk
from weir.runtime.driver.source_alignment import SourceAlignment
from weir.runtime.driver.verdicts import Failed, Final, Finished, Stopped, Verdict
from weir.runtime.ports import Background, Chance, Clock, Cluster, Opener
from weir.runtime.storage.checkpoints import CheckpointStore, Claim
from weir.snapshot import messages as m
from weir.snapshot.coordinator.events import AttemptEnded, AttemptStarted, CheckpointRequested, Then, TimePassed
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.parts import Json
from weir.snapshot.restart import OUTAGE_CODES, Failure, Restarts


class Driver:
    """One job, from its first attempt to its end."""

    def __init__(
        self,
        config: JobConfig,
        plan: Plan,
        *,
        run: str,
        clock: Clock,
        background: Background,
        cluster: Cluster,
        store: CheckpointStore,
        opener: Opener,
        settings: CoordinatorSettings,
        notify: Callable[[Notice], None] = lambda notice: None,
        chance: Chance = random.random,
    ) -> None:
        self._config = config
        self._plan = plan
        self._clock = clock
        self._cluster = cluster
        self._store = store
        self._notify = notify
        self._chance = chance
        self._coordinator = Coordinator(settings)
        self._restarts = Restarts(config.restart, config.settings)
        self._regions, self._alignment = self._laid_out(plan)
        self._claims = ClaimDesk(
            config,
            run=run,
            store=store,
            background=background,
            opener=opener,
            check=lambda found, at: check_names(found, self._plan, at, may_drop=config.allow_dropped_state),
        )
        self._finish = FinishDesk(self._claims, self._restarts, clock, chance)
        self._leaving: Verdict | None = None
        """Why all regions are being left."""
        self._ended: phases.Ended | None = None
        self._rescale = RescaleDesk(notify)
        machines = self._coordinator, self._claims, self._restarts
        self._checkpoints = CheckpointDesk(self, *machines, Ports(clock, background, store, opener, notify))
        self._reservations = ReservationDesk(self, self._claims, store, background)
        self.restarts = 0

    # --- What comes in -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take the checkpoint directory over, then begin the first attempts."""
        for region in self._regions:
            region.begin()
        self.claim_next()

    def hear(self, message: m.FromTask) -> None:
        """A task says something. Nothing that an old attempt says counts."""
        region = self._region_of(message.attempt)
        if region is None:
            return
        if isinstance(message, m.TaskRegistered):
            region.registered(message)
        elif isinstance(message, m.TaskRestoring):
            region.restoring[message.task] = message
        elif isinstance(message, m.TaskRunning):
            if (deployed := region.runs(message.task)) is not None:
                self._runs(region, deployed)
        elif isinstance(message, m.Heartbeat):
            region.heartbeat(message)
        elif isinstance(message, m.SourcesReached):
            self._alignment.heard(message)
        elif isinstance(message, m.PositionReached):
            self._reservations.hear(message)
        elif isinstance(message, m.TaskFailed):
            # Who misses another task has not failed itself.
            task = None if message.code == TaskLost.code else message.task
            self.fail(region, message.error, task=task, fatal=message.fatal, code=message.code)
        elif isinstance(message, m.SnapshotTaken | m.SnapshotDeclined | m.EpochsCommitted | m.SubtaskFinished):
            self._claims.heard(message)
            if region.told(message):
                self._checkpoints.hear(message)
        else:
            raise ProtocolViolation(f"driver: unexpected {message!r}")

    def task_lost(self, attempt: AttemptId, task: TaskIndex, reason: str) -> None:
        """The line to a task broke."""
        if (region := self._region_of(attempt)) is not None:
            self.fail(region, f"task {task} was lost: {reason}", task=task)

    def stage_ended(self, attempt: AttemptId, error: str | None, *, fatal: bool = False) -> None:
        """Spark says that an attempt's stage is over."""
        region = self._region_of(attempt)
        if region is None:
            return
        if isinstance(region.phase, phases.Stopping):
            if not region.phase.ended:
                self._left(region)
        else:
            self.fail(region, error or "the stage ended before the job did", fatal=fatal, stage_runs=False)

    def tick(self) -> None:
        """Time has passed: look after deadlines, heartbeats, checkpoints."""
        for region in self._regions:
            was_away = region.is_away
            if (reason := region.tick()) is not None:
                self.fail(region, reason)
            elif isinstance(region.phase, phases.Stopping) and region.is_away and not was_away:
                self._left(region)
        if any(region.is_running for region in self._regions):
            self._checkpoints.hear(TimePassed())
        self._alignment.tick()
        self._finish.tick()
        self.claim_next()

    def next_due_ms(self) -> float | None:
        """When `tick` is wanted next."""
        if self._ended is not None:
            return None
        due = [self._alignment.due_ms, self._finish.due_ms, *(region.due_ms for region in self._regions)]
        if any(region.is_running for region in self._regions):
            due.append(self._coordinator.next_due_ms())
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def cancel(self) -> None:
        """The user wants the job to end now."""
        if self._ended is not None:
            return
        if self._leaving is None:
            self._leave_all(verdicts.Cancelled())
        elif verdicts.begins_again(self._leaving):
            self._leaving = verdicts.Cancelled()
        self._finish.give_up()

    def request(self, request: CheckpointRequested | None = None) -> None:
        """The user wants a checkpoint, a savepoint, a stop or a drain. A notice with its name, or the end, answers."""
        if not isinstance(self.phase, phases.Running):
            raise JobError(f"job {self._config.name!r} is {self.status}, so it cannot take a checkpoint now")
        self._checkpoints.hear(request or CheckpointRequested())

    def rescale(self, plan: Plan, name: str) -> None:
        """Go on with this plan behind a checkpoint. A notice with the name is the answer."""
        self._rescale.check_free(self._config.name)
        if isinstance(self.phase, phases.Running):
            self._rescale.begin(name, plan)
        self.request(CheckpointRequested(None, Then.STOP, name))

    # --- What can be asked ---------------------------------------------------------------------------

    @property
    def answering_checkpoint(self) -> CheckpointId:
        """The first checkpoint that answers a request made now."""
        return self._coordinator.answering_checkpoint

    @property
    def plan(self) -> Plan:
        """What the attempt runs, or the next one will."""
        return self._plan

    @property
    def regions(self) -> tuple[Region, ...]:
        """The parts that run, fail and recover for themselves."""
        return self._regions

    @property
    def phase(self) -> Phase:
        """That of the region that is furthest from running."""
        if self._ended is not None:
            return self._ended
        return phases.hindmost([region.phase for region in self._regions])

    @property
    def attempt(self) -> AttemptId | None:
        """The newest that has tasks."""
        return max((region.attempt for region in self._regions if region.attempt is not None), default=None)

    @property
    def status(self) -> str:
        return self.phase.status

    @property
    def waits_for(self) -> StorageWait | None:
        """Storage that is away, while the next attempt has to wait for it."""
        outage = self._restarts.outage if isinstance(self.phase, phases.Waiting | phases.Claiming) else None
        return None if outage is None else StorageWait.from_outage(outage, self._clock)

    @property
    def history(self) -> list[Any]:
        """Records of the latest checkpoints, oldest first."""
        return list(self._coordinator.history)

    @property
    def metrics(self) -> list[Json]:
        """The latest that each task has told."""
        return [told for region in self._regions for told in region.metrics.values()]

    # --- The way up ---------------------------------------------------------------------------------------

    def claim_next(self) -> None:
        """Claim an attempt for the next region that waits for one."""
        region = next((r for r in self._regions if isinstance(r.phase, phases.Claiming)), None)
        is_over = self._leaving is not None or self._ended is not None
        is_busy = self._claims.is_busy or self._coordinator.is_publishing or self._reservations.is_writing
        if region is not None and not is_over and not is_busy:
            self._claims.claim(self._plan, region.plan, lambda result: self._claimed(region, result))

    def _claimed(self, region: Region, result: Claim | BaseException | None) -> None:
        if result is None or not isinstance(region.phase, phases.Claiming) or region not in self._regions:
            self.claim_next()  # The directory is ours now; or it was left meanwhile, and others may have come.
        elif isinstance(result, BaseException):
            error = f"{type(result).__name__}: {result}"
            self.fail(region, error, fatal=isinstance(result, JobError), code=code_of(result))
        elif self._leaving is None and self._ended is None:
            self._alignment.launched(region.plan)
            started = self._reservations.beginning(result)
            region.launch(result, self._claims.origin_of(result), started, reserves=self._config.is_at_most_once)
            self.claim_next()
        self._reservations.go_on()

    def _runs(self, region: Region, deployed: AllRun) -> None:
        """All tasks of a region run."""
        claim, plan, now_ms = deployed.claim, region.plan, self._clock.now_ms()
        self._restarts.healthy(now_ms)
        restored = claim.restore.checkpoint if claim.restore else None
        origin, recovery_ms = self._claims.origin_of(claim), region.recovered(now_ms)
        self._notify(notices.AttemptRunning(*self._whose(region), restored, origin, recovery_ms))
        found = claim.next_checkpoint, claim.completed, self._plan.subtasks - plan.subtasks
        self._checkpoints.hear(AttemptStarted(claim.attempt, plan.subtasks, plan.committers, *found, plan.loops))
        if all(each.is_running for each in self._regions):
            self._rescale.all_run(self.attempt, self._plan)
        self._alignment.runs()
        for message in deployed.early:
            self.hear(message)

    # --- The way down -------------------------------------------------------------------------------------

    def fail(
        self,
        region: Region | None,
        error: str,
        *,
        task: TaskIndex | None = None,
        code: str = "",
        fatal: bool = False,
        stage_runs: bool = True,
    ) -> None:
        """An attempt of a region has failed, or could not be claimed; None: the job as a whole."""
        if self._leaving or self._ended or (region is not None and isinstance(region.phase, phases.Stopping)):
            return  # It is known.
        error, now_ms = told(error), self._clock.now_ms()
        verdict: Verdict = Failed(error)
        # Sources that have ended, or wait behind a barrier, cannot go on by themselves: then all begin again.
        is_whole = region is None or self._coordinator.is_ending
        for failed in self._regions if region is None or is_whole else [region]:
            failed.failed(now_ms)
        if (went_back := self._rescale.failed(error, self.attempt, now_ms)) is not None:
            verdict, is_whole = went_back, True
        elif not fatal:
            verdict = verdicts.verdict_about(Failure(now_ms, error, code, self._chance()), self._restarts)
        restarts = verdicts.begins_again(verdict)
        outage = self._restarts.outage if code in OUTAGE_CODES and restarts else None
        if outage is None or region is None or region.attempt is not None:
            self._notify(notices.AttemptFailed(*self._whose(region), error, restarts, task))
        if outage is not None:
            self._notify(notices.StorageAwaited(*self._whose(region), StorageWait.from_outage(outage, self._clock)))
        if region is None or is_whole or not isinstance(verdict, verdicts.Restarted):
            self._leave_all(verdict, None if stage_runs else region)
            return
        self._leave(region, verdict, stage_runs=stage_runs)
        if region.is_away:
            self._begin_again(region, verdict)

    def _leave_all(self, verdict: Verdict, without_stage: Region | None = None) -> None:
        """Leave every region for the verdict. `without_stage`: whose stage is known to be over."""
        self._leaving = verdict
        for region in self._regions:
            self._leave(region, verdict, stage_runs=region is not without_stage)
        if all(region.is_away for region in self._regions):
            self._conclude(verdict)

    def _leave(self, region: Region, verdict: Verdict, *, stage_runs: bool) -> None:
        if region.is_running and not isinstance(verdict, Finished) and region.attempt is not None:
            self._checkpoints.hear(AttemptEnded(region.attempt))
        self._claims.given_out(self._coordinator.next_checkpoint)
        region.leave(verdict, stage_runs=stage_runs)

    def _left(self, region: Region) -> None:
        """A region has no tasks any more."""
        region.left()
        if self._leaving is None and isinstance(region.phase, phases.Stopping):
            self._begin_again(region, region.phase.verdict)
        elif self._leaving is not None and all(other.is_away for other in self._regions):
            self._conclude(self._leaving)

    def _begin_again(self, region: Region, verdict: Verdict) -> None:
        assert isinstance(verdict, verdicts.Restarted), verdict  # All others are about the whole job.
        self.restarts += region.attempt is not None  # one that could not be claimed was none
        region.begin_again(verdict.until_ms)

    def _conclude(self, verdict: Verdict) -> None:
        """No region has tasks any more."""
        if isinstance(verdict, verdicts.Restarted | verdicts.Rescaled | verdicts.WentBack):
            self._leaving = None
            self.restarts += not isinstance(verdict, verdicts.Rescaled)
            if not isinstance(verdict, verdicts.Restarted):
                self._plan = verdict.plan
                self._regions, self._alignment = self._laid_out(verdict.plan)
            for region in self._regions:
                region.begin_again(verdict.until_ms)
        elif self._claims.newest is None:
            self._end(verdict)
        else:
            self._checkpoints.close(lambda: self._finish.conclude(verdict, self._plan, self._end))

    def _end(self, verdict: Final) -> None:
        self._ended = phases.Ended(verdict)
        self._store.close()
        self._notify(notices.JobEnded(self.attempt, verdict))

    # --- For checkpoints: what the coordinator's hands ask of the attempts --------------------------------------

    def tell(self, message: Callable[[AttemptId], m.ToTask]) -> None:
        """Tell every task of the regions that run."""
        for region in self._regions:
            if region.is_running:
                region.tell(message)

    def request_failed(self, request: CheckpointRequested) -> None:
        """Nothing comes of what a user asked for."""
        self._rescale.refused(request.name)

    def leave_for(self, request: CheckpointRequested) -> None:
        """Everything is committed that the user wanted to stop, or rescale, behind."""
        self._leave_all(self._rescale.committed(request.name, self._plan, self._clock.now_ms()) or Stopped())

    def finish(self) -> None:
        """The input is at its end, and everything is committed."""
        self._leave_all(Finished(drained=self._coordinator.is_drained))

    # --- Small things ----------------------------------------------------------------------------------------

    def _laid_out(self, plan: Plan) -> tuple[tuple[Region, ...], SourceAlignment]:
        settings, clock = self._config.settings, self._clock
        alignment = SourceAlignment(plan, clock=clock, interval_ms=settings.watermark_interval_ms, tell=self.tell)
        return laid_out(plan, settings, clock=clock, cluster=self._cluster), alignment

    def _region_of(self, attempt: AttemptId) -> Region | None:
        return next((region for region in self._regions if region.attempt == attempt), None)

    def _whose(self, region: Region | None) -> tuple[AttemptId | None, int | None]:
        """The attempt that a notice is about, and its region where there are several."""
        if region is None:
            return self.attempt, None
        return region.attempt, region.plan.region if len(self._regions) > 1 else None
