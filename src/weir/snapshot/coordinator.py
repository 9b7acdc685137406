"""When checkpoints begin, when they are complete, and when the job is done.

Comes in: what tasks acknowledge, what became of manifests, the time. Goes out:
orders to tasks, to storage and to the driver. Never touches any of them.

Laws:
  1. A checkpoint is complete when its manifest is published, and not before. Once
     publication has begun only its outcome decides: no time-out, no abort.
  2. Manifests are published one at a time, so completions are told in order of id.
     A completion aborts whatever older is still collecting.
  3. Ids strictly grow, over all attempts. Nothing that another attempt says counts.
  4. What a checkpoint under way may build on is kept until that one has ended.
  5. A bounded job is done when a checkpoint that was triggered after the last subtask
     had finished is published, and every sink has committed it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from weir.config import Checkpoints
from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.snapshot.history import CheckpointRecord, History
from weir.snapshot.messages import (
    AbortReason,
    AttemptEnded,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEffect,
    CoordinatorEvent,
    EpochsCommitted,
    FailAttempt,
    FinishJob,
    ManifestPublished,
    ManifestRefused,
    OperatorPart,
    PublishManifest,
    RetireCheckpoints,
    SavepointPublished,
    SavepointRefused,
    SendAbort,
    SendCompleted,
    SendTrigger,
    SnapshotDeclined,
    SnapshotTaken,
    SubtaskFinished,
    Then,
    TimePassed,
)
from weir.snapshot.requests import Requests

EVENTS_SHOWN = 20
"""How many of the last events an error shows."""


@dataclass(frozen=True)
class CoordinatorSettings:
    """What the coordinator must know of the user's settings."""

    interval_ms: float | None = None
    timeout_ms: float = 600_000
    min_pause_ms: float = 0
    max_concurrent: int = 1
    tolerable_failures: int = 3
    retain: int = 2

    @classmethod
    def from_config(cls, checkpoints: Checkpoints | None) -> CoordinatorSettings:
        """None: no checkpoints but the one at the end of a bounded job."""
        if checkpoints is None:
            return cls()
        return cls(
            interval_ms=checkpoints.interval_ms,
            timeout_ms=checkpoints.timeout_ms,
            min_pause_ms=checkpoints.min_pause_ms,
            max_concurrent=checkpoints.max_concurrent,
            tolerable_failures=checkpoints.tolerable_failures,
            retain=checkpoints.retain,
        )


class CoordinatorPhase(Enum):
    """What the coordinator is about."""

    WAITING = "no attempt runs"
    RUNNING = "checkpoints are taken as set"
    FINISHING = "every subtask has finished; the final checkpoint is under way"
    FAILING = "the attempt was told to fail"
    FINISHED = "the job is done"


class _Stage(Enum):
    """How far one checkpoint has come."""

    COLLECTING = "waits for acknowledgements"
    READY = "acknowledged; waits for its turn to be published"
    PUBLISHING = "its manifest is being written"


@dataclass
class _Pending:
    """One checkpoint that is under way."""

    checkpoint: CheckpointId
    deadline_ms: float
    base: CheckpointId | None
    """The newest that was complete when this one began: its snapshots may refer to files of that one, or of a newer."""
    parts: dict[SubtaskId, tuple[OperatorPart, ...]] = field(default_factory=dict)
    stage: _Stage = _Stage.COLLECTING


@dataclass
class _Run:
    """Everything that ends with the attempt."""

    attempt: AttemptId
    subtasks: frozenset[SubtaskId]
    committers: frozenset[SubtaskId]
    completed: list[CheckpointId]
    started_ms: float
    periodic_ms: float | None
    """When the next periodic checkpoint is due."""
    pending: dict[CheckpointId, _Pending] = field(default_factory=dict)
    """By id, oldest first."""
    finished: set[SubtaskId] = field(default_factory=set)
    committed: dict[SubtaskId, CheckpointId] = field(default_factory=dict)
    failures: int = 0
    pause_until_ms: float = 0.0
    final: CheckpointId | None = None
    final_published: bool = False
    failure: str | None = None
    """Why the attempt must fail; told once, after everything else."""

    @property
    def lowest_committed(self) -> float:
        """Every sink has committed up to this one."""
        return min((self.committed.get(committer, -1) for committer in self.committers), default=math.inf)

    @property
    def is_committed(self) -> bool:
        """The final checkpoint exists, and every sink has committed it."""
        return self.final is not None and self.final_published and self.lowest_committed >= self.final


class Coordinator:
    """One job's coordinator, over all its attempts."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._phase = CoordinatorPhase.WAITING
        self._run: _Run | None = None
        self._newest_attempt = AttemptId(-1)
        self._next_checkpoint = CheckpointId(1)
        self._requested = False
        self._requests = Requests()
        self._unresolved: set[CheckpointId] = set()
        """Being published when their attempt ended: they may come to exist, and then count for the next attempt."""
        self._history = History()
        self._recent: deque[CoordinatorEvent] = deque(maxlen=EVENTS_SHOWN)

    # --- What can be asked ----------------------------------------------------------------------------

    @property
    def phase(self) -> CoordinatorPhase:
        return self._phase

    @property
    def next_checkpoint(self) -> CheckpointId:
        """The id that the next trigger will use."""
        return self._next_checkpoint

    @property
    def answering_checkpoint(self) -> CheckpointId:
        """The first one that holds everything up to now: what a request made now waits for."""
        final = self._run.final if self._run else None
        return self._next_checkpoint if final is None else final

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """What became of the latest checkpoints, oldest first."""
        return self._history.records

    def next_due_ms(self) -> float | None:
        """When TimePassed should come next; None: only other events matter."""
        run = self._run
        if run is None:
            return None
        due = [p.deadline_ms for p in run.pending.values() if p.stage is _Stage.COLLECTING]
        if self._phase is CoordinatorPhase.RUNNING and self._may_trigger(run):
            if self._requested or self._requests.wants_checkpoint:
                due.append(run.pause_until_ms)
            if run.periodic_ms is not None:
                due.append(max(run.periodic_ms, run.pause_until_ms))
        return min(due, default=None)

    # --- The one door ---------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now_ms: float) -> list[CoordinatorEffect]:
        """Perform the effects in their order. LeaveAttempt, FailAttempt and FinishJob come last."""
        self._recent.append(event)
        handler = self.handlers.get(type(event))
        if handler is None:
            raise self._violation(f"no such event: {event!r}")
        effects = handler(self, event, now_ms)
        if self._run is not None:
            effects += self._time_out(self._run, now_ms)
            effects += self._publish_next(self._run)
            effects += self._requests.committed(self._run.lowest_committed)
            effects += self._trigger_due(self._run, now_ms)
            effects += self._conclude(self._run)
        return effects

    # --- Attempts -------------------------------------------------------------------------------------

    def _attempt_started(self, event: AttemptStarted, now_ms: float) -> list[CoordinatorEffect]:
        if self._phase is CoordinatorPhase.FINISHED:
            raise self._violation(f"attempt {event.attempt} started although the job is done")
        if event.attempt <= self._newest_attempt:
            raise self._violation(f"attempt {event.attempt} started after attempt {self._newest_attempt}")
        if not event.subtasks or not event.committers <= event.subtasks:
            raise self._violation(f"attempt {event.attempt} has no subtasks, or committers that are not subtasks")
        self._leave_run(now_ms)
        self._resolve(event.completed, now_ms)
        interval_ms = self._settings.interval_ms
        self._newest_attempt = event.attempt
        self._next_checkpoint = max(self._next_checkpoint, event.next_checkpoint)
        self._phase = CoordinatorPhase.RUNNING
        self._run = _Run(
            attempt=event.attempt,
            subtasks=event.subtasks,
            committers=event.committers,
            completed=list(event.completed),
            started_ms=now_ms,
            periodic_ms=None if interval_ms is None else now_ms + interval_ms,
            pause_until_ms=now_ms,
        )
        return []

    def _attempt_ended(self, event: AttemptEnded, now_ms: float) -> list[CoordinatorEffect]:
        if self._run is None or event.attempt != self._run.attempt:
            return []
        self._leave_run(now_ms)
        if self._phase is not CoordinatorPhase.FINISHED:
            self._phase = CoordinatorPhase.WAITING
        return self._requests.attempt_ended("the attempt ended before it was there")

    def _leave_run(self, now_ms: float) -> None:
        """Nobody is told: the tasks are going, and what they wrote is retired with the next completed checkpoint."""
        if self._run is None:
            return
        for pending in self._run.pending.values():
            if pending.stage is _Stage.PUBLISHING:
                self._unresolved.add(pending.checkpoint)
            else:
                self._history.aborted(pending.checkpoint, now_ms, reason=AbortReason.ATTEMPT_ENDED)
        self._run = None

    def _resolve(self, completed: tuple[CheckpointId, ...], now_ms: float) -> None:
        """What the new attempt found is the answer for manifests whose outcome was not told."""
        for checkpoint in self._unresolved:
            if checkpoint in completed:
                self._history.completed(checkpoint, now_ms)
            else:
                self._history.aborted(checkpoint, now_ms, reason=AbortReason.ATTEMPT_ENDED)
        self._unresolved.clear()

    def _subtask_finished(self, event: SubtaskFinished, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event.attempt)
        if run is not None and event.subtask in run.subtasks:
            run.finished.add(event.subtask)
            if len(run.finished) == len(run.subtasks) and self._phase is CoordinatorPhase.RUNNING:
                self._phase = CoordinatorPhase.FINISHING
        return []

    def _epochs_committed(self, event: EpochsCommitted, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event.attempt)
        if run is not None and event.subtask in run.committers:
            before = run.committed.get(event.subtask, event.checkpoint)
            run.committed[event.subtask] = max(before, event.checkpoint)
        return []

    def _conclude(self, run: _Run) -> list[CoordinatorEffect]:
        if run.failure is not None and self._phase is not CoordinatorPhase.FAILING:
            self._phase = CoordinatorPhase.FAILING
            return [FailAttempt(run.failure)]
        if self._phase is CoordinatorPhase.FINISHING and run.is_committed and self._requests.is_settled:
            self._phase = CoordinatorPhase.FINISHED
            return [FinishJob()]
        return []

    # --- Triggers -------------------------------------------------------------------------------------

    def _requested_by_user(self, event: CheckpointRequested, now_ms: float) -> list[CoordinatorEffect]:
        if not event.is_plain:
            return self._requests.ask(event, refusal=self._refusal())
        # While the job finishes, the final checkpoint is the answer.
        self._requested = self._phase not in (CoordinatorPhase.FINISHING, CoordinatorPhase.FINISHED)
        return []

    def _refusal(self) -> str | None:
        run = self._run
        if run is None or self._phase is CoordinatorPhase.FAILING:
            return "the job does not run just now"
        if run.final is not None:
            return "the job has finished, and its final checkpoint is under way"
        return None

    def _time_passed(self, event: TimePassed, now_ms: float) -> list[CoordinatorEffect]:
        return []  # Whatever is due is looked after behind every event.

    def _trigger_due(self, run: _Run, now_ms: float) -> list[CoordinatorEffect]:
        if run.failure is not None:
            return []
        if self._phase is CoordinatorPhase.FINISHING:
            if run.final is not None or not self._requests.is_settled:
                return []
            final = self._trigger(run, now_ms)
            return [*final, *self._requests.finishing("the job has finished, and its final checkpoint is under way")]
        periodic = run.periodic_ms is not None and now_ms >= run.periodic_ms
        wanted = periodic or self._requested or self._requests.wants_checkpoint
        allowed = self._may_trigger(run) and now_ms >= run.pause_until_ms
        if self._phase is CoordinatorPhase.RUNNING and allowed and wanted:
            return self._trigger(run, now_ms)
        return []

    def _may_trigger(self, run: _Run) -> bool:
        return len(run.pending) < self._settings.max_concurrent and not self._requests.holds_triggers

    def _trigger(self, run: _Run, now_ms: float) -> list[CoordinatorEffect]:
        checkpoint = self._next_checkpoint
        self._next_checkpoint = CheckpointId(checkpoint + 1)
        self._requested = False
        is_final = self._phase is CoordinatorPhase.FINISHING
        if is_final:
            run.final = checkpoint
        interval_ms = self._settings.interval_ms
        if interval_ms is not None and run.periodic_ms is not None and now_ms >= run.periodic_ms:
            # Periods are counted from the start of the attempt, so that they do not drift; missed ones are left out.
            passed = (now_ms - run.started_ms) // interval_ms
            run.periodic_ms = run.started_ms + (passed + 1) * interval_ms
        base = run.completed[-1] if run.completed else None
        run.pending[checkpoint] = _Pending(checkpoint, now_ms + self._settings.timeout_ms, base)
        request = self._requests.triggered(checkpoint, is_final=is_final) or CheckpointRequested()
        record = CheckpointRecord(checkpoint, run.attempt, now_ms, final=is_final, savepoint=request.savepoint)
        self._history.triggered(record)
        pause = request.then is Then.STOP and not is_final
        return [SendTrigger(checkpoint, request.savepoint, pause, base)]

    # --- Acknowledgements -----------------------------------------------------------------------------

    def _snapshot_taken(self, event: SnapshotTaken, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event.attempt)
        pending = None if run is None else run.pending.get(event.checkpoint)
        # Late, twice, of a checkpoint that was never triggered here, or of a subtask that does not exist.
        if run is None or pending is None or event.subtask in pending.parts or event.subtask not in run.subtasks:
            return []
        pending.parts[event.subtask] = event.parts
        self._history.acknowledged(event)
        if len(pending.parts) == len(run.subtasks):
            pending.stage = _Stage.READY
        return self._requests.snapshot_taken(event)

    def _snapshot_declined(self, event: SnapshotDeclined, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event.attempt)
        pending = None if run is None else run.pending.get(event.checkpoint)
        if run is None or pending is None or pending.stage is not _Stage.COLLECTING:
            return []
        detail = f"subtask {event.subtask}: {event.reason}"
        return self._abort(run, event.checkpoint, now_ms=now_ms, reason=AbortReason.DECLINED, detail=detail)

    def _time_out(self, run: _Run, now_ms: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for pending in list(run.pending.values()):
            if pending.stage is _Stage.COLLECTING and now_ms >= pending.deadline_ms:
                missing = sorted(run.subtasks - set(pending.parts))
                detail = f"{len(missing)} of {len(run.subtasks)} subtasks did not answer, the first is {missing[0]}"
                effects += self._abort(
                    run, pending.checkpoint, now_ms=now_ms, reason=AbortReason.TIMED_OUT, detail=detail
                )
        return effects

    def _abort(
        self, run: _Run, checkpoint: CheckpointId, *, now_ms: float, reason: AbortReason, detail: str = ""
    ) -> list[CoordinatorEffect]:
        text = f"{reason.value}{': ' if detail else ''}{detail}"
        del run.pending[checkpoint]
        run.pause_until_ms = now_ms + self._settings.min_pause_ms
        self._history.aborted(checkpoint, now_ms, reason=reason, detail=detail)
        if run.final == checkpoint:
            run.final = None
        if reason is not AbortReason.SUBSUMED:
            run.failures += 1
            if run.failures > self._settings.tolerable_failures:
                run.failure = run.failure or (
                    f"{run.failures} checkpoints in a row failed, {self._settings.tolerable_failures} are tolerated; "
                    f"the last, {checkpoint}, {text}"
                )
        return [SendAbort(checkpoint, reason, detail), *self._requests.aborted(checkpoint, text)]

    # --- Manifests ------------------------------------------------------------------------------------

    def _publish_next(self, run: _Run) -> list[CoordinatorEffect]:
        """The oldest that is ready, unless one is being published: its outcome decides about those before it."""
        if any(pending.stage is _Stage.PUBLISHING for pending in run.pending.values()):
            return []
        ready = next((pending for pending in run.pending.values() if pending.stage is _Stage.READY), None)
        if ready is None:
            return []
        ready.stage = _Stage.PUBLISHING
        return [PublishManifest(ready.checkpoint, dict(ready.parts))]

    def _manifest_published(self, event: ManifestPublished, now_ms: float) -> list[CoordinatorEffect]:
        checkpoint = event.checkpoint
        if checkpoint in self._unresolved:
            # It exists, but the tasks that would commit it are gone: the next attempt restores it and commits.
            self._unresolved.remove(checkpoint)
            self._history.completed(checkpoint, now_ms)
        run = self._publishing(checkpoint)
        if run is None:
            return []
        del run.pending[checkpoint]
        run.pause_until_ms = now_ms + self._settings.min_pause_ms
        run.failures = 0
        run.final_published = run.final_published or run.final == checkpoint
        run.completed.append(checkpoint)
        self._history.completed(checkpoint, now_ms)
        self._requests.completed(checkpoint)
        effects: list[CoordinatorEffect] = [SendCompleted(checkpoint)]
        for older in [pending for pending in run.pending if pending < checkpoint]:
            effects += self._abort(run, older, now_ms=now_ms, reason=AbortReason.SUBSUMED)
        return [*effects, RetireCheckpoints(self._retain(run))]

    def _retain(self, run: _Run) -> CheckpointId:
        """The oldest checkpoint to keep: of as many as the user wants, and not above what one under way builds on."""
        wanted = run.completed[-self._settings.retain :][0]
        for pending in run.pending.values():
            # One that began when none was complete may build on any: whichever its subtasks have heard of.
            wanted = min(wanted, run.completed[0] if pending.base is None else pending.base)
        run.completed = [checkpoint for checkpoint in run.completed if checkpoint >= wanted]
        return wanted

    def _manifest_refused(self, event: ManifestRefused, now_ms: float) -> list[CoordinatorEffect]:
        reason = AbortReason.MANIFEST_REFUSED
        if event.checkpoint in self._unresolved:
            self._unresolved.remove(event.checkpoint)
            self._history.aborted(event.checkpoint, now_ms, reason=reason, detail=event.reason)
        run = self._publishing(event.checkpoint)
        if run is None:
            return []
        return self._abort(run, event.checkpoint, now_ms=now_ms, reason=reason, detail=event.reason)

    def _savepoint_published(self, event: SavepointPublished, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.published(event.checkpoint)

    def _savepoint_refused(self, event: SavepointRefused, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.refused(event.checkpoint, event.reason)

    def _publishing(self, checkpoint: CheckpointId) -> _Run | None:
        """The run that publishes this checkpoint; None when it is not ours any more."""
        pending = None if self._run is None else self._run.pending.get(checkpoint)
        if pending is None:
            return None
        if pending.stage is not _Stage.PUBLISHING:
            raise self._violation(f"checkpoint {checkpoint} was published while it {pending.stage.value}")
        return self._run

    # --- Small things ---------------------------------------------------------------------------------

    def _run_of(self, attempt: AttemptId) -> _Run | None:
        return self._run if self._run is not None and self._run.attempt == attempt else None

    def _violation(self, found: str) -> ProtocolViolation:
        events = "\n  ".join(repr(event)[:200] for event in self._recent)
        return ProtocolViolation(f"coordinator: {found}; phase {self._phase.name}; last events:\n  {events}")

    handlers: ClassVar[Mapping[type, Callable[[Any, Any, float], list[CoordinatorEffect]]]] = {
        AttemptStarted: _attempt_started,
        AttemptEnded: _attempt_ended,
        CheckpointRequested: _requested_by_user,
        TimePassed: _time_passed,
        ManifestPublished: _manifest_published,
        ManifestRefused: _manifest_refused,
        SavepointPublished: _savepoint_published,
        SavepointRefused: _savepoint_refused,
        SnapshotTaken: _snapshot_taken,
        SnapshotDeclined: _snapshot_declined,
        EpochsCommitted: _epochs_committed,
        SubtaskFinished: _subtask_finished,
    }
