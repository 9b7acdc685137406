"""When checkpoints begin, when they are complete, and when the job is done.

Comes in: what tasks acknowledge, what became of manifests, the time. Goes out:
orders to tasks, to storage and to the driver. Never touches any of them.

Laws:
  1. A checkpoint is complete when its manifest is published, and not before. Once
     publication has begun only its outcome decides: no time-out, no abort.
  2. Manifests are published one at a time, so completions are told in order of id.
     A completion aborts whatever older is still collecting.
  3. Ids strictly grow, over all attempts. Nothing that another attempt says counts.
     Regions of a job have attempts of their own: a checkpoint needs all of them, so
     while one is down none begins, and what was being collected is aborted.
  4. What a checkpoint under way may build on is kept until that one has ended.
  5. A bounded job is done when a checkpoint that was triggered after the last subtask
     had finished is published, and every sink has committed it. Loops end before (loops.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.snapshot.coordinator.history import CheckpointRecord, History
from weir.snapshot.coordinator.loops import EmptyLoops, empty_loops
from weir.snapshot.coordinator.phases import TRANSITIONS, CoordinatorPhase
from weir.snapshot.coordinator.requests import Requests
from weir.snapshot.coordinator.run import CoordinatorSettings, Pending, Run, Stage
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

EVENTS_SHOWN = 20
"""How many of the last events an error shows."""

NOT_RUNNING = (CoordinatorPhase.WAITING, CoordinatorPhase.FAILING)
"""Nobody can be asked then."""

ENDED_EARLY = "the attempt ended before it was there"


class Coordinator:
    """One job's coordinator, over all its attempts."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._phase = CoordinatorPhase.WAITING
        self._run: Run | None = None
        self._newest_attempts: dict[SubtaskId, AttemptId] = {}
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
    def is_publishing(self) -> bool:
        """A manifest is being written, and tasks that run wait for what becomes of it."""
        return self._run is not None and any(p.stage is Stage.PUBLISHING for p in self._run.pending.values())

    @property
    def is_ending(self) -> bool:
        """The job is being stopped, drained or rescaled."""
        return self._requests.is_ending

    def awaits_savepoint(self, checkpoint: CheckpointId) -> bool:
        """Whether somebody waits for the savepoint that is made of this checkpoint."""
        return self._requests.awaits(checkpoint)

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """What became of the latest checkpoints, oldest first."""
        return self._history.records

    def next_due_ms(self) -> float | None:
        """When TimePassed should come next; None: only other events matter."""
        run = self._run
        if run is None:
            return None
        due = [p.deadline_ms for p in run.pending.values() if p.stage is Stage.COLLECTING]
        if self._phase is CoordinatorPhase.RUNNING and self._may_trigger(run):
            if self._requested or self._requests.wants_checkpoint:
                due.append(run.pause_until_ms)
            if run.periodic_ms is not None:
                due.append(max(run.periodic_ms, run.pause_until_ms))
            if not run.pending and (round_ms := run.rounds.due_ms(run.finished)) is not None:
                due.append(round_ms)
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
        if not event.subtasks or not event.committers <= event.subtasks:
            raise self._violation(f"attempt {event.attempt} has no subtasks, or committers that are not subtasks")
        newest = max((self._newest_attempts.get(subtask, -1) for subtask in event.subtasks), default=-1)
        if event.attempt <= newest:
            raise self._violation(f"attempt {event.attempt} started after attempt {newest}")
        subtasks = event.subtasks | event.others
        if self._run is None or self._run.subtasks != subtasks or not set(self._run.attempts) <= event.others:
            self._leave_run(now_ms)
            self._resolve(event.completed, now_ms)
            self._run = Run(subtasks, list(event.completed), now_ms, None, pause_until_ms=now_ms)
        run = self._run
        run.attempts.update(dict.fromkeys(event.subtasks, event.attempt))
        run.committers |= event.committers
        run.rounds.started(event.loops)
        self._newest_attempts = {subtask: self._newest_attempts.get(subtask, AttemptId(-1)) for subtask in subtasks}
        self._newest_attempts.update(run.attempts)
        self._next_checkpoint = max(self._next_checkpoint, event.next_checkpoint)
        if run.is_whole:
            self._enter(CoordinatorPhase.RUNNING)
            interval_ms = self._settings.interval_ms
            run.started_ms, run.periodic_ms = now_ms, None if interval_ms is None else now_ms + interval_ms
        return []

    def _attempt_ended(self, event: AttemptEnded, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run
        ended = [] if run is None else [s for s, attempt in run.attempts.items() if attempt == event.attempt]
        if run is None or not ended:
            return []
        if self._phase is not CoordinatorPhase.FINISHED:
            self._enter(CoordinatorPhase.WAITING)
        if len(ended) == len(run.attempts):
            self._leave_run(now_ms)
            return self._requests.attempt_ended(ENDED_EARLY)
        return self._region_lost(run, ended, now_ms)

    def _region_lost(self, run: Run, subtasks: list[SubtaskId], now_ms: float) -> list[CoordinatorEffect]:
        """Others go on. What is being published is not touched: law 1."""
        for subtask in subtasks:
            del run.attempts[subtask]
            run.finished.discard(subtask)
            run.committed.pop(subtask, None)
        # The region comes back behind its last checkpoint, and finishes again.
        run.final, run.final_published = None, False
        effects: list[CoordinatorEffect] = []
        for pending in list(run.pending.values()):
            if pending.stage is not Stage.PUBLISHING:
                effects += self._abort(run, pending.checkpoint, now_ms=now_ms, reason=AbortReason.ATTEMPT_ENDED)
        return [*effects, *self._requests.attempt_ended(ENDED_EARLY)]

    def _leave_run(self, now_ms: float) -> None:
        """Nobody is told: the tasks are going, and what they wrote is retired with the next completed checkpoint."""
        if self._run is None:
            return
        for pending in self._run.pending.values():
            if pending.stage is Stage.PUBLISHING:
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
        run = self._run_of(event)
        if run is not None:
            run.finished.add(event.subtask)
            if len(run.finished) == len(run.subtasks) and self._phase is CoordinatorPhase.RUNNING:
                self._enter(CoordinatorPhase.FINISHING)
        return []

    def _epochs_committed(self, event: EpochsCommitted, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event)
        if run is not None and event.subtask in run.committers:
            before = run.committed.get(event.subtask, event.checkpoint)
            run.committed[event.subtask] = max(before, event.checkpoint)
        return []

    def _conclude(self, run: Run) -> list[CoordinatorEffect]:
        if run.failure is not None and self._phase is not CoordinatorPhase.FAILING:
            self._enter(CoordinatorPhase.FAILING)
            return [run.failure]
        if self._phase is CoordinatorPhase.FINISHING and run.is_committed and self._requests.is_settled:
            self._enter(CoordinatorPhase.FINISHED)
            return [FinishJob()]
        return []

    # --- Triggers -------------------------------------------------------------------------------------

    def _requested_by_user(self, event: CheckpointRequested, now_ms: float) -> list[CoordinatorEffect]:
        if not event.is_plain:
            is_running = self._run is not None and self._phase not in NOT_RUNNING
            return self._requests.ask(event, refusal=self._refusal(is_running), is_running=is_running)
        # While the job finishes, the final checkpoint is the answer.
        self._requested = self._phase not in (CoordinatorPhase.FINISHING, CoordinatorPhase.FINISHED)
        return []

    def _refusal(self, is_running: bool) -> str | None:
        if not is_running:
            return "the job does not run just now"
        if self._run is not None and self._run.final is not None:
            return "the job has finished, and its final checkpoint is under way"
        return None

    def _time_passed(self, event: TimePassed, now_ms: float) -> list[CoordinatorEffect]:
        return []  # Whatever is due is looked after behind every event.

    def _trigger_due(self, run: Run, now_ms: float) -> list[CoordinatorEffect]:
        if run.failure is not None:
            return []
        if self._phase is CoordinatorPhase.FINISHING:
            if run.final is not None or not self._requests.is_settled:
                return []
            final = self._trigger(run, now_ms)
            return [*final, *self._requests.finishing("the job has finished, and its final checkpoint is under way")]
        if self._phase is not CoordinatorPhase.RUNNING or not self._may_trigger(run):
            return []
        periodic = run.periodic_ms is not None and now_ms >= run.periodic_ms
        wanted = periodic or self._requested or self._requests.wants_checkpoint
        round_ms = None if run.pending else run.rounds.due_ms(run.finished)
        if (wanted and now_ms >= run.pause_until_ms) or (round_ms is not None and now_ms >= round_ms):
            return self._trigger(run, now_ms)
        return []

    def _may_trigger(self, run: Run) -> bool:
        return len(run.pending) < self._settings.max_concurrent and not self._requests.holds_triggers

    def _trigger(self, run: Run, now_ms: float) -> list[CoordinatorEffect]:
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
        deadline_ms, finished = now_ms + self._settings.timeout_ms, frozenset(run.finished)
        run.pending[checkpoint] = Pending(checkpoint, deadline_ms, base, finished=finished)
        request = self._requests.triggered(checkpoint, is_final=is_final) or CheckpointRequested()
        record = CheckpointRecord(
            checkpoint, max(run.attempts.values()), now_ms, final=is_final, savepoint=request.savepoint
        )
        self._history.triggered(record)
        pause = request.then is Then.STOP and not is_final
        return [SendTrigger(checkpoint, request.savepoint, pause, base)]

    # --- Acknowledgements -----------------------------------------------------------------------------

    def _snapshot_taken(self, event: SnapshotTaken, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event)
        pending = None if run is None else run.pending.get(event.checkpoint)
        # Late, twice, or of a checkpoint that was never triggered here.
        if run is None or pending is None or event.subtask in pending.parts:
            return []
        pending.parts[event.subtask] = event.parts
        pending.said.append(event)
        self._history.acknowledged(event)
        if len(pending.parts) == len(run.subtasks):
            pending.stage = Stage.READY
        return self._requests.snapshot_taken(event)

    def _snapshot_declined(self, event: SnapshotDeclined, now_ms: float) -> list[CoordinatorEffect]:
        run = self._run_of(event)
        pending = None if run is None else run.pending.get(event.checkpoint)
        if run is None or pending is None or pending.stage is not Stage.COLLECTING:
            return []
        detail = f"subtask {event.subtask}: {event.reason}"
        reason = AbortReason.DECLINED
        return self._abort(run, event.checkpoint, now_ms=now_ms, reason=reason, detail=detail, code=event.code)

    def _time_out(self, run: Run, now_ms: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for pending in list(run.pending.values()):
            if pending.stage is Stage.COLLECTING and now_ms >= pending.deadline_ms:
                missing = sorted(run.subtasks - set(pending.parts))
                detail = f"{len(missing)} of {len(run.subtasks)} subtasks did not answer, the first is {missing[0]}"
                effects += self._abort(
                    run, pending.checkpoint, now_ms=now_ms, reason=AbortReason.TIMED_OUT, detail=detail
                )
        return effects

    def _abort(
        self,
        run: Run,
        checkpoint: CheckpointId,
        *,
        now_ms: float,
        reason: AbortReason,
        detail: str = "",
        code: str = "",
    ) -> list[CoordinatorEffect]:
        text = f"{reason.value}{': ' if detail else ''}{detail}"
        del run.pending[checkpoint]
        run.pause_until_ms = now_ms + self._settings.min_pause_ms
        self._looked(run, EmptyLoops(), now_ms)
        self._history.aborted(checkpoint, now_ms, reason=reason, detail=detail)
        if run.final == checkpoint:
            run.final = None
        if reason not in (AbortReason.SUBSUMED, AbortReason.ATTEMPT_ENDED):
            run.failures += 1
            if run.failures > self._settings.tolerable_failures:
                run.failure = run.failure or FailAttempt(
                    f"{run.failures} checkpoints in a row failed, {self._settings.tolerable_failures} are tolerated; "
                    f"the last, {checkpoint}, {text}",
                    code,
                )
        failed = self._requests.aborted(checkpoint, text, ended_early=reason is AbortReason.ATTEMPT_ENDED)
        return [SendAbort(checkpoint, reason, detail), *failed]

    # --- Manifests ------------------------------------------------------------------------------------

    def _publish_next(self, run: Run) -> list[CoordinatorEffect]:
        """The oldest that is ready, unless one is being published: its outcome decides about those before it."""
        if any(pending.stage is Stage.PUBLISHING for pending in run.pending.values()):
            return []
        ready = next((pending for pending in run.pending.values() if pending.stage is Stage.READY), None)
        if ready is None:
            return []
        ready.stage = Stage.PUBLISHING
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
        done = run.pending.pop(checkpoint)
        empty = empty_loops(run.rounds.open_loops(run.finished), done.said, done.finished)
        self._looked(run, empty, now_ms)
        run.pause_until_ms = now_ms + self._settings.min_pause_ms
        run.failures = 0
        run.final_published = run.final_published or run.final == checkpoint
        run.completed.append(checkpoint)
        self._history.completed(checkpoint, now_ms)
        self._requests.completed(checkpoint)
        effects: list[CoordinatorEffect] = [SendCompleted(checkpoint, empty.time_over, empty.ended)]
        for older in [pending for pending in run.pending if pending < checkpoint]:
            effects += self._abort(run, older, now_ms=now_ms, reason=AbortReason.SUBSUMED)
        return [*effects, RetireCheckpoints(self._retain(run))]

    def _retain(self, run: Run) -> CheckpointId:
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
        return self._abort(run, event.checkpoint, now_ms=now_ms, reason=reason, detail=event.reason, code=event.code)

    def _savepoint_published(self, event: SavepointPublished, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.published(event.checkpoint)

    def _savepoint_refused(self, event: SavepointRefused, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.refused(event.checkpoint, event.reason)

    def _publishing(self, checkpoint: CheckpointId) -> Run | None:
        """The run that publishes this checkpoint; None when it is not ours any more."""
        pending = None if self._run is None else self._run.pending.get(checkpoint)
        if pending is None:
            return None
        if pending.stage is not Stage.PUBLISHING:
            raise self._violation(f"checkpoint {checkpoint} was published while it {pending.stage.value}")
        return self._run

    # --- Small things ---------------------------------------------------------------------------------

    def _enter(self, phase: CoordinatorPhase) -> None:
        if phase is not self._phase and (self._phase, phase) not in TRANSITIONS:
            raise self._violation(f"{phase.name} does not follow")
        self._phase = phase

    def _looked(self, run: Run, found: EmptyLoops, now_ms: float) -> None:
        run.rounds.looked(now_ms, found=found, finished=run.finished, pause_max_ms=self._settings.loop_pause_max_ms)

    def _run_of(self, event: SnapshotTaken | SnapshotDeclined | EpochsCommitted | SubtaskFinished) -> Run | None:
        """The run that the event belongs to; None: it is of another attempt, or of no subtask that there is."""
        run = self._run
        return run if run is not None and run.attempts.get(event.subtask) == event.attempt else None

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
