"""The driver's loop for one job: attempts, checkpoints, restarts.

Comes in: what tasks say, what becomes of stages, requests of the user, the time.
Goes out: orders to tasks, launches, manifests. Decides nothing about checkpoints
or restarts itself (snapshot/coordinator.py, snapshot/restart.py do), touches the
world only through its ports, and is called by one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weir.config import JobConfig, duration_ms
from weir.errors import JobError, OwnershipError, ProtocolViolation, StorageFull, UserCodeError
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime import phases
from weir.runtime.checkpoint_store import CheckpointStore, Claim
from weir.runtime.compatibility import check_compatible
from weir.runtime.phases import Notice, Outcome, Phase, Rescaling, Verdict
from weir.runtime.ports import Background, Clock, Cluster
from weir.runtime.savepoints import SavepointDesk, origin_at
from weir.snapshot import messages as m
from weir.snapshot.coordinator import Coordinator, CoordinatorSettings
from weir.snapshot.manifest import Kind, Manifest, build
from weir.snapshot.restart import RestartAfter, RestartDecider

USER_FAILURES_MAX = 3
"""Failures of the user's own code, with no completed checkpoint in between, that end the job whatever the strategy."""


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
        settings: CoordinatorSettings,
        notify: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._config = config
        self._plan = plan
        self._run = run
        self._clock = clock
        self._background = background
        self._cluster = cluster
        self._store = store
        self._notify = notify
        self._coordinator = Coordinator(settings)
        self._decider = RestartDecider.from_config(config.restart)
        self._tasks = _tasks_of(plan)
        self._next_checkpoint = CheckpointId(1)
        self._is_adopted = False
        self._failed_ms: float | None = None
        self._user_failures = 0
        self._origin = None if config.from_savepoint is None else origin_at(config.from_savepoint)
        self._rescaling: Rescaling | None = None
        self._savepoints = SavepointDesk(background, retries_max=config.settings.storage_retries_max)
        self._metrics: dict[TaskIndex, m.Json] = {}
        self.restarts = 0
        self.phase: Phase = phases.Created()

    # --- What comes in -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take the checkpoint directory over, then begin the first attempt."""
        self._begin()

    def hear(self, message: m.FromTask) -> None:
        """A task says something. Nothing that an old attempt says counts."""
        if message.attempt != self.attempt:
            return
        if isinstance(message, m.TaskRegistered):
            self._registered(message)
        elif isinstance(message, m.TaskRunning):
            self._runs(message.task)
        elif isinstance(message, m.Heartbeat):
            self._metrics[message.task] = message.metrics
            if isinstance(self.phase, phases.Running):
                self.phase.heard_ms[message.task] = self._clock.now_ms()
        elif isinstance(message, m.TaskFailed):
            self._fail(message.error, fatal=message.fatal or self._is_stuck(message))
        elif isinstance(message, m.SnapshotTaken | m.SnapshotDeclined | m.EpochsCommitted | m.SubtaskFinished):
            if isinstance(self.phase, phases.Running):
                self._coordinate(message)
            elif isinstance(self.phase, phases.Deploying):
                # A task may be done with a short input before its peers have even restored.
                self.phase.early.append(message)
        else:
            raise ProtocolViolation(f"driver: unexpected {message!r}")

    def task_lost(self, attempt: AttemptId, task: TaskIndex, reason: str) -> None:
        """The line to a task broke."""
        if attempt == self.attempt:
            self._fail(f"task {task} was lost: {reason}")

    def stage_ended(self, attempt: AttemptId, error: str | None, *, fatal: bool = False) -> None:
        """Spark says that the attempt's stage is over."""
        if attempt != self.attempt:
            return
        if not isinstance(self.phase, phases.Stopping):
            self._fail(error or "the stage ended before the job did", fatal=fatal, stage_runs=False)
        elif not self.phase.ended:
            self._conclude(self.phase.verdict)

    def tick(self) -> None:
        """Time has passed: look after deadlines, heartbeats, checkpoints."""
        now_ms = self._clock.now_ms()
        phase = self.phase
        if isinstance(phase, phases.Waiting) and now_ms >= phase.until_ms:
            self._begin()
        elif isinstance(phase, phases.Launching | phases.Deploying) and now_ms >= phase.deadline_ms:
            self._fail(phase.late_message(len(self._tasks)))
        elif isinstance(phase, phases.Stopping):
            self._hurry(phase, now_ms)
        elif isinstance(phase, phases.Running):
            self._check_heartbeats(phase, now_ms)
            if isinstance(self.phase, phases.Running):
                self._coordinate(m.TimePassed())

    def next_due_ms(self) -> float | None:
        """When `tick` is wanted next."""
        due = self.phase.due_ms
        if isinstance(self.phase, phases.Running):
            oldest = min(self.phase.heard_ms.values(), default=self._clock.now_ms())
            due = oldest + self._ms(self._config.settings.heartbeat_timeout)
            checkpoint = self._coordinator.next_due_ms()
            due = due if checkpoint is None else min(due, checkpoint)
        return due

    def cancel(self) -> None:
        """The user wants the job to end now."""
        if isinstance(self.phase, phases.Ended):
            return
        if not isinstance(self.phase, phases.Stopping):
            self._stop(Verdict(Outcome.CANCELLED))
        elif self.phase.verdict.outcome is Outcome.RESTART:
            self.phase = replace(self.phase, verdict=Verdict(Outcome.CANCELLED))

    def request_checkpoint(self) -> None:
        """The user wants a checkpoint now."""
        self.request(m.CheckpointRequested())

    def request(self, request: m.CheckpointRequested) -> None:
        """The user wants a savepoint, or the job to stop or to drain. Notices with the request's name, or the job's
        end, are the answer."""
        if not isinstance(self.phase, phases.Running):
            raise JobError(f"job {self._config.name!r} is {self.status}, so it cannot take a checkpoint now")
        self._coordinate(request)

    def rescale(self, plan: Plan, name: str) -> None:
        """Go on with this plan behind a checkpoint. A notice with the name is the answer."""
        if self._rescaling is not None:
            raise JobError(f"job {self._config.name!r} is already being rescaled")
        if isinstance(self.phase, phases.Running):
            self._rescaling = Rescaling(name, plan)
        self.request(m.CheckpointRequested(None, m.Then.STOP, name))

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
    def attempt(self) -> AttemptId | None:
        return self.phase.attempt

    @property
    def status(self) -> str:
        return self.phase.status

    @property
    def history(self) -> list[Any]:
        """Records of the latest checkpoints, oldest first."""
        return list(self._coordinator.history)

    @property
    def metrics(self) -> dict[TaskIndex, m.Json]:
        """The latest that each task has told."""
        return dict(self._metrics)

    # --- The life of an attempt -------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin an attempt. Nothing is claimed in a directory that may be somebody else's."""
        self.phase = phases.Claiming()
        if self._is_adopted:
            self._background.run(self._claim_and_check, self._claimed)
        else:
            self._background.run(lambda: self._store.adopt(self._run, self._config.resume), self._adopted)

    def _adopted(self, result: bool | BaseException) -> None:
        if not isinstance(self.phase, phases.Claiming):
            return
        if isinstance(result, BaseException):
            self._fail(str(result), fatal=isinstance(result, JobError), stage_runs=False)
            return
        self._is_adopted = True
        self._begin()

    def _claim_and_check(self) -> Claim:
        claim, storage = self._store.claim(), self._store.storage
        if claim.restore is None and self._origin is not None:
            # As long as there is no checkpoint of its own, every attempt starts from what the user named.
            storage = self._origin.open()
            manifest = self._origin.read(storage)
            following = CheckpointId(max(claim.next_checkpoint, manifest.checkpoint + 1))
            claim = replace(claim, restore=manifest, next_checkpoint=following)
        if claim.restore is not None:
            check_compatible(claim.restore, self._plan, storage, may_drop=self._config.allow_dropped_state)
        return claim

    def _claimed(self, result: Claim | BaseException) -> None:
        if not isinstance(self.phase, phases.Claiming):
            return
        if isinstance(result, BaseException):
            self._fail(f"{type(result).__name__}: {result}", fatal=isinstance(result, JobError), stage_runs=False)
            return
        # Our own count may be ahead of what storage shows: an id that was given out is never given out again.
        claim = replace(result, next_checkpoint=CheckpointId(max(result.next_checkpoint, self._next_checkpoint)))
        self.phase = phases.Launching(claim, {}, self._deadline(self._config.settings.launch_timeout))
        self._metrics = {}
        self._cluster.launch(claim.attempt)

    def _registered(self, message: m.TaskRegistered) -> None:
        if not isinstance(self.phase, phases.Launching):
            return
        self.phase.addresses[message.task] = message.address
        if len(self.phase.addresses) < len(self._tasks):
            return
        claim = self.phase.claim
        addresses = tuple(self.phase.addresses[task] for task in self._tasks)
        self.phase = phases.Deploying(claim, set(), [], self._deadline(self._config.settings.launch_timeout))
        restored = claim.restore.checkpoint if claim.restore else None
        self._broadcast(m.DeployTask(claim.attempt, addresses, restored, self._origin_of(claim)))

    def _runs(self, task: TaskIndex) -> None:
        if not isinstance(self.phase, phases.Deploying):
            return
        self.phase.running.add(task)
        if len(self.phase.running) < len(self._tasks):
            return
        claim, early = self.phase.claim, self.phase.early
        now_ms = self._clock.now_ms()
        self.phase = phases.Running(claim, dict.fromkeys(self._tasks, now_ms))
        self._decider.healthy(now_ms)
        self._say(
            "attempt_running",
            restored=claim.restore.checkpoint if claim.restore else None,
            origin=self._origin_of(claim),
            recovery_ms=None if self._failed_ms is None else round(now_ms - self._failed_ms),
        )
        self._coordinate(
            m.AttemptStarted(
                claim.attempt, self._plan.subtasks, self._plan.committers, claim.next_checkpoint, claim.completed
            )
        )
        self._rescaled()
        for message in early:
            self.hear(message)

    def _check_heartbeats(self, phase: phases.Running, now_ms: float) -> None:
        timeout_ms = self._ms(self._config.settings.heartbeat_timeout)
        for task, heard_ms in phase.heard_ms.items():
            if now_ms - heard_ms >= timeout_ms:
                self._fail(f"task {task} was silent for {round(now_ms - heard_ms)} ms")
                return

    def _is_stuck(self, failure: m.TaskFailed) -> bool:
        """Whether the user's code fails again and again with no checkpoint in between: trying on would not help."""
        if isinstance(self.phase, phases.Stopping) or failure.code != UserCodeError.code:
            return False
        self._user_failures += 1
        return self._user_failures >= USER_FAILURES_MAX

    def _fail(self, error: str, *, fatal: bool = False, stage_runs: bool = True) -> None:
        if isinstance(self.phase, phases.Stopping | phases.Ended):
            return
        now_ms = self._clock.now_ms()
        self._failed_ms = now_ms
        verdict = Verdict(Outcome.FAILED, error)
        if self._rescaling is not None and self._rescaling.previous is not None:
            # The new parallelism does not even start: whatever the reason, the old one did.
            verdict = Verdict(Outcome.RESTART, error, now_ms, self._rescaling.previous)
            self._say("request_failed", request=self._rescaling.name, reason=error)
            self._rescaling = None
        elif not fatal:
            decision = self._decider.failed(now_ms)
            if isinstance(decision, RestartAfter):
                verdict = Verdict(Outcome.RESTART, error, now_ms + decision.delay_ms)
            else:
                verdict = Verdict(Outcome.FAILED, f"{error}\n(no restart: {decision.reason})")
        self._say("attempt_failed", error=error, restarts=verdict.outcome is Outcome.RESTART)
        self._stop(verdict, stage_runs=stage_runs)

    def _stop(self, verdict: Verdict, *, stage_runs: bool = True) -> None:
        """Leave the attempt, if there is one, for the verdict."""
        attempt = self.attempt
        if attempt is None:
            self._conclude(verdict)
            return
        if isinstance(self.phase, phases.Running) and verdict.outcome is not Outcome.FINISHED:
            self._coordinate(m.AttemptEnded(attempt))
        self._next_checkpoint = CheckpointId(max(self._next_checkpoint, self._coordinator.next_checkpoint))
        if not stage_runs:
            self._conclude(verdict)
            return
        is_good = verdict.outcome in (Outcome.FINISHED, Outcome.STOPPED)
        self._broadcast(m.StopTask(attempt, cancelled=not is_good))
        now_ms, patience_ms = self._clock.now_ms(), self._ms(self._config.settings.stop_timeout)
        self.phase = phases.Stopping(attempt, verdict, now_ms + patience_ms, now_ms + 2 * patience_ms)

    def _hurry(self, phase: phases.Stopping, now_ms: float) -> None:
        if phase.ended:
            return
        if not phase.killed and now_ms >= phase.kill_ms:
            self.phase = replace(phase, killed=True)
            self._cluster.kill(phase.attempt_left)
        elif phase.killed and now_ms >= phase.leave_ms:
            # The old tasks are fenced: whatever they still do does not count. Go on without them.
            self._conclude(phase.verdict)

    def _conclude(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.RESTART:
            self.restarts += verdict.error is not None
            if verdict.plan is not None:
                self._plan, self._tasks = verdict.plan, _tasks_of(verdict.plan)
            self.phase = phases.Waiting(verdict.until_ms)
        elif not isinstance(self.phase, phases.Stopping):
            self._end(verdict)
        else:
            self.phase = replace(self.phase, ended=True)
            self._savepoints.close(lambda: self._last_note(verdict))

    def _last_note(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.FINISHED:
            self._background.run(self._store.finish, lambda result: self._end(verdict))
        else:
            self._end(verdict)

    def _end(self, verdict: Verdict) -> None:
        self.phase = phases.Ended(verdict.outcome, verdict.error)
        self._say("ended", outcome=verdict.outcome.value, error=verdict.error)

    # --- Checkpoints ---------------------------------------------------------------------------------------

    def _coordinate(self, event: m.CoordinatorEvent) -> None:
        for effect in self._coordinator.handle(event, self._clock.now_ms()):
            self._perform(effect)

    def _perform(self, effect: m.CoordinatorEffect) -> None:
        attempt = self.attempt
        if attempt is None:
            raise ProtocolViolation(f"driver: {effect!r} without an attempt")
        if isinstance(effect, m.SendTrigger):
            self._broadcast(
                m.TriggerCheckpoint(attempt, effect.checkpoint, effect.savepoint, effect.pause, effect.base)
            )
        elif isinstance(effect, m.SendAbort):
            self._broadcast(m.AbortCheckpoint(attempt, effect.checkpoint))
            self._background.run(lambda: self._store.discard(effect.checkpoint, attempt), _ignore)
            self._say("checkpoint_aborted", id=effect.checkpoint, reason=effect.reason.value, detail=effect.detail)
        elif isinstance(effect, m.PublishManifest):
            manifest = self._manifest(attempt, effect, "checkpoint")
            self._background.run(
                lambda: self._store.publish(manifest), lambda result: self._published(manifest, result)
            )
        elif isinstance(effect, m.SendCompleted):
            self._user_failures = 0
            self._broadcast(m.CheckpointCompleted(attempt, effect.checkpoint))
            self._savepoints.sweep(effect.checkpoint)
            self._say("checkpoint_completed", id=effect.checkpoint)
        elif isinstance(effect, m.RetireCheckpoints):
            self._background.run(lambda: self._store.retire(effect.oldest_kept), _ignore)
        elif isinstance(effect, m.SendDrain):
            self._broadcast(m.DrainSources(attempt))
        elif isinstance(effect, m.SendResume):
            self._broadcast(m.ResumeSources(attempt))
        elif isinstance(effect, m.PublishSavepoint):
            self._save(attempt, effect)
        elif isinstance(effect, m.FailRequest):
            self._request_failed(effect.request, effect.reason)
        elif isinstance(effect, m.LeaveAttempt):
            self._leave(effect.request)
        elif isinstance(effect, m.FailAttempt):
            self._fail(effect.reason)
        elif isinstance(effect, m.FinishJob):
            self._stop(Verdict(Outcome.FINISHED))
        else:
            raise ProtocolViolation(f"driver: unknown effect {effect!r}")

    def _manifest(self, attempt: AttemptId, effect: m.PublishManifest | m.PublishSavepoint, kind: Kind) -> Manifest:
        return build(
            job=self._config.name,
            checkpoint=effect.checkpoint,
            attempt=attempt,
            max_parallelism=self._plan.max_parallelism,
            created_ms=self._clock.now_ms(),
            parts=effect.parts,
            parallelism={vertex.id: vertex.parallelism for vertex in self._plan.vertices},
            kind=kind,
        )

    def _published(self, manifest: Manifest, result: BaseException | None) -> None:
        if not isinstance(self.phase, phases.Running) or manifest.attempt != self.attempt:
            return  # The next claim looks at what is there.
        if result is None:
            self._coordinate(m.ManifestPublished(manifest.checkpoint))
        elif isinstance(result, StorageFull | FileExistsError):
            self._coordinate(m.ManifestRefused(manifest.checkpoint, str(result)))
        elif isinstance(result, OwnershipError):
            self._fail(str(result), fatal=True)
        else:
            # Whether the checkpoint exists is not known: neither commit nor abort it. Restarting looks again.
            self._fail(f"{type(result).__name__}: {result}")

    # --- What users asked for ----------------------------------------------------------------------------------

    def _save(self, attempt: AttemptId, effect: m.PublishSavepoint) -> None:
        manifest = self._manifest(attempt, effect, "savepoint")
        place = str(effect.request.savepoint)
        self._savepoints.publish(place, manifest, lambda result: self._saved(effect.request, manifest, result))

    def _saved(self, request: m.CheckpointRequested, manifest: Manifest, result: BaseException | None) -> None:
        if not isinstance(self.phase, phases.Running) or manifest.attempt != self.attempt:
            # Who asked was told that it failed, with the attempt.
            self._savepoints.discard(str(request.savepoint), self._coordinator.next_checkpoint)
        elif result is None:
            self._say("savepoint_completed", request=request.name, id=manifest.checkpoint, savepoint=request.savepoint)
            self._coordinate(m.SavepointPublished(manifest.checkpoint))
        else:
            reason = f"{request.savepoint}: {type(result).__name__}: {result}"
            self._coordinate(m.SavepointRefused(manifest.checkpoint, reason))

    def _request_failed(self, request: m.CheckpointRequested, reason: str) -> None:
        if self._rescaling is not None and self._rescaling.name == request.name:
            self._rescaling = None
        if request.savepoint is not None:
            self._savepoints.discard(request.savepoint, self._coordinator.next_checkpoint)
        self._say("request_failed", request=request.name, reason=reason)

    def _leave(self, request: m.CheckpointRequested) -> None:
        rescaling = self._rescaling
        if rescaling is None or rescaling.name != request.name:
            self._stop(Verdict(Outcome.STOPPED))
            return
        self._rescaling = replace(rescaling, previous=self._plan)
        self._stop(Verdict(Outcome.RESTART, None, self._clock.now_ms(), rescaling.plan))

    def _rescaled(self) -> None:
        """The attempt runs: if it is the first at another parallelism, that has succeeded."""
        if self._rescaling is not None and self._rescaling.previous is not None:
            rescaling, self._rescaling = self._rescaling, None
            before = rescaling.previous.parallelism if rescaling.previous else 0
            self._say("rescaled", request=rescaling.name, parallelism=self._plan.parallelism, before=before)

    def _origin_of(self, claim: Claim) -> str | None:
        """Where the restored checkpoint lies when it is none of the job's own."""
        is_foreign = claim.restore is not None and not claim.completed
        return self._origin.location if is_foreign and self._origin is not None else None

    # --- Small things ----------------------------------------------------------------------------------------

    def _broadcast(self, message: m.ToTask) -> None:
        for task in self._tasks:
            self._cluster.send(message.attempt, task, message)

    def _deadline(self, patience: Any) -> float:
        return self._clock.now_ms() + self._ms(patience)

    def _ms(self, duration: Any) -> int:
        return duration_ms(duration)

    def _say(self, kind: str, **detail: Any) -> None:
        self._notify(Notice(kind, {"attempt": self.attempt, **detail}))


def _tasks_of(plan: Plan) -> list[TaskIndex]:
    return [TaskIndex(i) for i in range(plan.parallelism)]


def _ignore(result: object) -> None:
    """Clean-up that failed is tried again with the next checkpoint."""
