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
from weir.snapshot.coordinator.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    ManifestPublished,
    ManifestRefused,
    SavepointPublished,
    SavepointRefused,
    Then,
    TimePassed,
)
from weir.snapshot.coordinator.history import CheckpointRecord, History, Unresolved
from weir.snapshot.coordinator.loops import EmptyLoops, empty_loops
from weir.snapshot.coordinator.orders import (
    AbortReason,
    CoordinatorEffect,
    FinishJob,
    PublishManifest,
    RetireCheckpoints,
    SendAbort,
    SendCompleted,
    SendTrigger,
    WhyAborted,
)
from weir.snapshot.coordinator.phases import TRANSITIONS, CoordinatorPhase
from weir.snapshot.coordinator.requests import Requests
from weir.snapshot.coordinator.under_way import CheckpointPhase, CoordinatorSettings, LiveAttempts
from weir.snapshot.messages import EpochsCommitted, SnapshotDeclined, SnapshotTaken, SubtaskFinished

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
        self._live: LiveAttempts | None = None
        self._newest_attempts: dict[SubtaskId, AttemptId] = {}
        self._next_checkpoint = CheckpointId(1)
        self._requested = False
        self._requests = Requests()
        self._history = History()
        self._unresolved = Unresolved(self._history)
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
        final = self._live.final if self._live else None
        return self._next_checkpoint if final is None else final

    @property
    def is_publishing(self) -> bool:
        """A manifest is being written, and tasks that run wait for what becomes of it."""
        return self._live is not None and self._live.is_publishing

    @property
    def is_ending(self) -> bool:
        """The job is being stopped, drained or rescaled."""
        return self._requests.is_ending

    @property
    def is_drained(self) -> bool:
        """The attempt's sources were told to end."""
        return self._requests.sources_end

    def awaits_savepoint(self, checkpoint: CheckpointId) -> bool:
        """Whether somebody waits for the savepoint that is made of this checkpoint."""
        return self._requests.awaits(checkpoint)

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """What became of the latest checkpoints, oldest first."""
        return self._history.records

    def next_due_ms(self) -> float | None:
        """When TimePassed should come next; None: only other events matter."""
        live = self._live
        if live is None:
            return None
        due = [p.deadline_ms for p in live.pending.values() if p.phase is CheckpointPhase.COLLECTING]
        return min([*due, *self._triggers_ms(live)], default=None)

    # --- The one door ---------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now_ms: float) -> list[CoordinatorEffect]:
        """Perform the effects in their order. LeaveAttempt, FailAttempt and FinishJob come last."""
        self._recent.append(event)
        handler = self.handlers.get(type(event))
        if handler is None:
            raise self._violation(f"no such event: {event!r}")
        effects = handler(self, event, now_ms)
        if self._live is not None:
            effects += self._time_out(self._live, now_ms)
            effects += self._publish_next(self._live)
            effects += self._requests.committed(self._live.lowest_committed)
            effects += self._trigger_due(self._live, now_ms)
            effects += self._conclude(self._live)
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
        if self._live is None or self._live.subtasks != subtasks or not set(self._live.attempts) <= event.others:
            self._leave_attempts(now_ms)
            self._unresolved.resolve(event.completed, now_ms)
            self._live = LiveAttempts(subtasks, list(event.completed), now_ms, None, pause_until_ms=now_ms)
        live = self._live
        live.join(event)
        self._newest_attempts = {subtask: self._newest_attempts.get(subtask, AttemptId(-1)) for subtask in subtasks}
        self._newest_attempts.update(live.attempts)
        self._next_checkpoint = max(self._next_checkpoint, event.next_checkpoint)
        if live.is_whole:
            self._enter(CoordinatorPhase.RUNNING)
            interval_ms = self._settings.interval_ms
            live.started_ms, live.periodic_ms = now_ms, None if interval_ms is None else now_ms + interval_ms
        return []

    def _attempt_ended(self, event: AttemptEnded, now_ms: float) -> list[CoordinatorEffect]:
        live = self._live
        ended = [] if live is None else [s for s, attempt in live.attempts.items() if attempt == event.attempt]
        if live is None or not ended:
            return []
        if self._phase is not CoordinatorPhase.FINISHED:
            self._enter(CoordinatorPhase.WAITING)
        if len(ended) == len(live.attempts):
            self._leave_attempts(now_ms)
            return self._requests.attempt_ended(ENDED_EARLY)
        return self._region_lost(live, ended, now_ms)

    def _region_lost(self, live: LiveAttempts, subtasks: list[SubtaskId], now_ms: float) -> list[CoordinatorEffect]:
        """Others go on. What is being published is not touched: law 1."""
        live.lose(subtasks)
        effects: list[CoordinatorEffect] = []
        for pending in list(live.pending.values()):
            if pending.phase is not CheckpointPhase.PUBLISHING:
                effects += self._abort(live, pending.checkpoint, WhyAborted(AbortReason.ATTEMPT_ENDED), now_ms)
        return [*effects, *self._requests.attempt_ended(ENDED_EARLY)]

    def _leave_attempts(self, now_ms: float) -> None:
        """Nobody is told: the tasks are going, and what they wrote is retired with the next completed checkpoint."""
        if self._live is None:
            return
        for pending in self._live.pending.values():
            if pending.phase is CheckpointPhase.PUBLISHING:
                self._unresolved.add(pending.checkpoint)
            else:
                self._history.aborted(pending.checkpoint, now_ms, reason=AbortReason.ATTEMPT_ENDED)
        self._live = None

    def _subtask_finished(self, event: SubtaskFinished, now_ms: float) -> list[CoordinatorEffect]:
        live = self._live_of(event)
        if live is not None:
            live.finished.add(event.subtask)
            if len(live.finished) == len(live.subtasks) and self._phase is CoordinatorPhase.RUNNING:
                self._enter(CoordinatorPhase.FINISHING)
        return []

    def _epochs_committed(self, event: EpochsCommitted, now_ms: float) -> list[CoordinatorEffect]:
        live = self._live_of(event)
        if live is not None and event.subtask in live.committers:
            live.committed[event.subtask] = max(live.committed.get(event.subtask, event.checkpoint), event.checkpoint)
        return []

    def _conclude(self, live: LiveAttempts) -> list[CoordinatorEffect]:
        if live.failure is not None and self._phase is not CoordinatorPhase.FAILING:
            self._enter(CoordinatorPhase.FAILING)
            return [live.failure]
        if self._phase is CoordinatorPhase.FINISHING and live.is_committed and self._requests.is_settled:
            self._enter(CoordinatorPhase.FINISHED)
            return [FinishJob()]
        return []

    # --- Triggers -------------------------------------------------------------------------------------

    def _requested_by_user(self, event: CheckpointRequested, now_ms: float) -> list[CoordinatorEffect]:
        if not event.is_plain:
            is_running = self._live is not None and self._phase not in NOT_RUNNING
            return self._requests.ask(event, refusal=self._refusal(is_running), is_running=is_running)
        # While the job finishes, the final checkpoint is the answer.
        self._requested = self._phase not in (CoordinatorPhase.FINISHING, CoordinatorPhase.FINISHED)
        return []

    def _refusal(self, is_running: bool) -> str | None:
        if not is_running:
            return "the job does not run just now"
        if self._live is not None and self._live.final is not None:
            return "the job has finished, and its final checkpoint is under way"
        return None

    def _time_passed(self, event: TimePassed, now_ms: float) -> list[CoordinatorEffect]:
        return []  # Whatever is due is looked after behind every event.

    def _trigger_due(self, live: LiveAttempts, now_ms: float) -> list[CoordinatorEffect]:
        if live.failure is not None:
            return []
        if self._phase is CoordinatorPhase.FINISHING:
            if live.final is not None or not self._requests.is_settled:
                return []
            final = self._trigger(live, now_ms)
            return [*final, *self._requests.finishing("the job has finished, and its final checkpoint is under way")]
        is_due = any(now_ms >= due_ms for due_ms in self._triggers_ms(live))
        return self._trigger(live, now_ms) if is_due else []

    def _triggers_ms(self, live: LiveAttempts) -> list[float]:
        """When checkpoints should begin, the final one aside."""
        may_trigger = len(live.pending) < self._settings.max_concurrent and not self._requests.holds_triggers
        if self._phase is not CoordinatorPhase.RUNNING or not may_trigger:
            return []
        return live.triggers_ms(is_asked=self._requested or self._requests.wants_checkpoint)

    def _trigger(self, live: LiveAttempts, now_ms: float) -> list[CoordinatorEffect]:
        checkpoint = self._next_checkpoint
        self._next_checkpoint = CheckpointId(checkpoint + 1)
        self._requested = False
        is_final = self._phase is CoordinatorPhase.FINISHING
        if is_final:
            live.final = checkpoint
        begun = live.begin(checkpoint, now_ms, self._settings)
        request = self._requests.triggered(checkpoint, is_final=is_final) or CheckpointRequested()
        newest, place = max(live.attempts.values()), request.savepoint
        self._history.triggered(CheckpointRecord(checkpoint, newest, now_ms, final=is_final, savepoint=place))
        pause = request.then is Then.STOP and not is_final
        is_stateless = self._settings.only_commits and not (pause or is_final)
        return [SendTrigger(checkpoint, place, pause, begun.base, is_stateless)]

    # --- Acknowledgements -----------------------------------------------------------------------------

    def _snapshot_taken(self, event: SnapshotTaken, now_ms: float) -> list[CoordinatorEffect]:
        live = self._live_of(event)
        if live is None or not live.take(event):
            return []
        self._history.acknowledged(event)
        return self._requests.snapshot_taken(event)

    def _snapshot_declined(self, event: SnapshotDeclined, now_ms: float) -> list[CoordinatorEffect]:
        live = self._live_of(event)
        pending = None if live is None else live.pending.get(event.checkpoint)
        if live is None or pending is None or pending.phase is not CheckpointPhase.COLLECTING:
            return []
        why = WhyAborted(AbortReason.DECLINED, f"subtask {event.subtask}: {event.reason}", event.code)
        return self._abort(live, event.checkpoint, why, now_ms)

    def _time_out(self, live: LiveAttempts, now_ms: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for pending in list(live.pending.values()):
            if pending.phase is CheckpointPhase.COLLECTING and now_ms >= pending.deadline_ms:
                why = WhyAborted(AbortReason.TIMED_OUT, live.missing_from(pending))
                effects += self._abort(live, pending.checkpoint, why, now_ms)
        return effects

    def _abort(
        self, live: LiveAttempts, checkpoint: CheckpointId, why: WhyAborted, now_ms: float
    ) -> list[CoordinatorEffect]:
        live.drop(checkpoint, now_ms + self._settings.min_pause_ms)
        self._looked(live, EmptyLoops(), now_ms)
        self._history.aborted(checkpoint, now_ms, reason=why.reason, detail=why.detail)
        if why.reason not in (AbortReason.SUBSUMED, AbortReason.ATTEMPT_ENDED):
            tolerable = self._settings.tolerable_failures
            live.count_failure(f"the last, {checkpoint}, {why}", why.code, tolerable=tolerable)
        failed = self._requests.aborted(checkpoint, str(why), ended_early=why.reason is AbortReason.ATTEMPT_ENDED)
        return [SendAbort(checkpoint, why.reason, why.detail), *failed]

    # --- Manifests ------------------------------------------------------------------------------------

    def _publish_next(self, live: LiveAttempts) -> list[CoordinatorEffect]:
        """The oldest that is ready, unless one is being published: its outcome decides about those before it."""
        ready = live.next_to_publish()
        return [] if ready is None else [PublishManifest(ready.checkpoint, dict(ready.parts))]

    def _manifest_published(self, event: ManifestPublished, now_ms: float) -> list[CoordinatorEffect]:
        checkpoint = event.checkpoint
        self._unresolved.published(checkpoint, now_ms)
        live = self._publishing(checkpoint)
        if live is None:
            return []
        done = live.complete(checkpoint, now_ms + self._settings.min_pause_ms)
        empty = empty_loops(live.rounds.open_loops(live.finished), done.said, done.finished)
        self._looked(live, empty, now_ms)
        self._history.completed(checkpoint, now_ms)
        self._requests.completed(checkpoint)
        effects: list[CoordinatorEffect] = [SendCompleted(checkpoint, empty.time_over, empty.ended)]
        for older in [pending for pending in live.pending if pending < checkpoint]:
            effects += self._abort(live, older, WhyAborted(AbortReason.SUBSUMED), now_ms)
        return [*effects, RetireCheckpoints(live.retain(self._settings.retain))]

    def _manifest_refused(self, event: ManifestRefused, now_ms: float) -> list[CoordinatorEffect]:
        self._unresolved.refused(event.checkpoint, now_ms, event.reason)
        live = self._publishing(event.checkpoint)
        if live is None:
            return []
        why = WhyAborted(AbortReason.MANIFEST_REFUSED, event.reason, event.code)
        return self._abort(live, event.checkpoint, why, now_ms)

    def _savepoint_published(self, event: SavepointPublished, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.published(event.checkpoint)

    def _savepoint_refused(self, event: SavepointRefused, now_ms: float) -> list[CoordinatorEffect]:
        return self._requests.refused(event.checkpoint, event.reason)

    def _publishing(self, checkpoint: CheckpointId) -> LiveAttempts | None:
        """The attempts that wait for this checkpoint's manifest; None when it is not ours any more."""
        pending = None if self._live is None else self._live.pending.get(checkpoint)
        if pending is None:
            return None
        if pending.phase is not CheckpointPhase.PUBLISHING:
            raise self._violation(f"checkpoint {checkpoint} was published while it {pending.phase.value}")
        return self._live

    # --- Small things ---------------------------------------------------------------------------------

    def _enter(self, phase: CoordinatorPhase) -> None:
        if phase is not self._phase and (self._phase, phase) not in TRANSITIONS:
            raise self._violation(f"{phase.name} does not follow")
        self._phase = phase

    def _looked(self, live: LiveAttempts, found: EmptyLoops, now_ms: float) -> None:
        live.rounds.looked(now_ms, found=found, finished=live.finished, pause_max_ms=self._settings.loop_pause_max_ms)

    def _live_of(
        self, event: SnapshotTaken | SnapshotDeclined | EpochsCommitted | SubtaskFinished
    ) -> LiveAttempts | None:
        """Those that the event belongs to; None: it is of another attempt, or of no subtask that there is."""
        live = self._live
        return live if live is not None and live.attempts.get(event.subtask) == event.attempt else None

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
