"""What users asked for: savepoints, and checkpoints after which the job stops, drains or is rescaled.

Comes in: requests, and what becomes of the checkpoints that answer them. Goes out:
orders, in the coordinator's name. Part of the coordinator; never touches anything else.

Laws:
  1. One request is under way at a time, each with a checkpoint of its own, and no
     newer checkpoint begins while that one is being taken: nothing can subsume it.
  2. A savepoint is published only when its checkpoint is complete and every sink has
     committed it: so it needs nothing outside of its own directory.
  3. Every request ends: published (and then left, if asked for), or failed with a
     reason. With the attempt, whatever is not yet published fails.
  4. When a stop fails, the sources go on. A drain cannot be taken back: when its
     savepoint fails, the final checkpoint is taken without it, and the job is being
     drained until its attempt has ended. Only then, and everywhere, do sources read on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from weir.ids import CheckpointId, SubtaskId
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.coordinator.orders import (
    CoordinatorEffect,
    FailRequest,
    LeaveAttempt,
    PublishSavepoint,
    SendDrain,
    SendResume,
)
from weir.snapshot.messages import SnapshotTaken
from weir.snapshot.parts import OperatorPart

REQUESTS_WAITING_MAX = 100
"""Requests that may wait for their turn; more are refused."""

DRAINED_WITHOUT = (
    "the sources have ended, so that the job finishes without a savepoint; if a task is lost before that, it goes on "
    "from its last checkpoint"
)
"""What becomes of a drain whose savepoint cannot be written."""


class _RequestPhase(Enum):
    TAKING = "its checkpoint is under way"
    COMMITTING = "its checkpoint is complete; sinks commit"
    PUBLISHING = "the savepoint's manifest is being written"


@dataclass
class _UnderWay:
    request: CheckpointRequested
    checkpoint: CheckpointId
    is_final: bool
    phase: _RequestPhase = _RequestPhase.TAKING
    exported: dict[SubtaskId, tuple[OperatorPart, ...]] = field(default_factory=dict)

    @property
    def leaves(self) -> bool:
        return self.request.then is Then.STOP and not self.is_final


class Requests:
    """The requests of one job, over all its attempts."""

    def __init__(self) -> None:
        self._waiting: deque[CheckpointRequested] = deque()
        self._under_way: _UnderWay | None = None
        self._draining: CheckpointRequested | None = None
        self._sources_end = False
        """They were told to, and do not read on before their attempt has ended: law 4."""
        self._left = False
        """The attempt was told to be left; nothing more begins until it has ended."""

    # --- What can be asked ----------------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint should begin for a request."""
        return bool(self._waiting) and self._under_way is None

    @property
    def holds_triggers(self) -> bool:
        """Law 1; and behind paused sources there is nothing to take another checkpoint of."""
        under_way = self._under_way
        return self._left or (under_way is not None and (under_way.phase is _RequestPhase.TAKING or under_way.leaves))

    @property
    def is_settled(self) -> bool:
        """Nothing is under way: a bounded job may take its final checkpoint, or end."""
        return self._under_way is None and not self._left

    @property
    def is_ending(self) -> bool:
        """The job is being stopped, drained or rescaled."""
        under_way = self._under_way
        stops = any(request.then is Then.STOP for request in self._waiting)
        return self._left or self._sources_end or stops or (under_way is not None and under_way.leaves)

    @property
    def sources_end(self) -> bool:
        """The sources of this attempt were told to end."""
        return self._sources_end

    def awaits(self, checkpoint: CheckpointId) -> bool:
        """Whether a request under way is answered with this checkpoint."""
        return self._of(checkpoint) is not None

    # --- What comes in ----------------------------------------------------------------------------------

    def ask(
        self, request: CheckpointRequested, *, refusal: str | None, is_running: bool = True
    ) -> list[CoordinatorEffect]:
        """A new request. `refusal`: why the coordinator cannot take any now."""
        if refusal is not None and not is_running:
            return [FailRequest(request, refusal, ended_early=True)]
        if refusal is None and len(self._waiting) >= REQUESTS_WAITING_MAX:
            refusal = f"{REQUESTS_WAITING_MAX} requests wait already"
        if refusal is None and self.is_ending:
            refusal = "the job is already being stopped, drained or rescaled"
        if refusal is not None:
            return [FailRequest(request, refusal)]
        if request.then is Then.DRAIN:
            self._draining, self._sources_end = request, True
            return [SendDrain()]
        self._waiting.append(request)
        return []

    def triggered(self, checkpoint: CheckpointId, *, is_final: bool) -> CheckpointRequested | None:
        """A checkpoint begins: the request that it answers, if there is one."""
        if self._under_way is not None:
            return None
        request = self._draining if is_final and self._draining is not None else None
        if request is None and self._waiting:
            request = self._waiting.popleft()
        if request is not None:
            self._under_way = _UnderWay(request, checkpoint, is_final)
        return request

    def snapshot_taken(self, event: SnapshotTaken) -> list[CoordinatorEffect]:
        """A subtask's part is durable, and exported or not."""
        under_way = self._of(event.checkpoint)
        if under_way is None or under_way.request.savepoint is None:
            return []
        if event.export_refused is not None:
            return self._fail(under_way, f"subtask {event.subtask} could not write to it: {event.export_refused}")
        under_way.exported[event.subtask] = event.exported
        return []

    def aborted(self, checkpoint: CheckpointId, reason: str, *, ended_early: bool = False) -> list[CoordinatorEffect]:
        """The checkpoint will not complete. Its sources hear of that themselves; a drain waits for the next one."""
        under_way = self._of(checkpoint)
        if under_way is None:
            return []
        self._under_way = None
        if under_way.request is self._draining:
            return []
        reason = f"its checkpoint {checkpoint} did not complete: {reason}"
        return [FailRequest(under_way.request, reason, ended_early=ended_early)]

    def completed(self, checkpoint: CheckpointId) -> None:
        if (under_way := self._of(checkpoint)) is not None:
            under_way.phase = _RequestPhase.COMMITTING

    def committed(self, lowest: float) -> list[CoordinatorEffect]:
        """Every sink has committed up to `lowest`."""
        under_way = self._under_way
        if under_way is None or under_way.phase is not _RequestPhase.COMMITTING or lowest < under_way.checkpoint:
            return []
        if under_way.request.savepoint is None:
            return self._answered(under_way)
        under_way.phase = _RequestPhase.PUBLISHING
        return [PublishSavepoint(under_way.checkpoint, under_way.request, dict(under_way.exported))]

    def published(self, checkpoint: CheckpointId) -> list[CoordinatorEffect]:
        under_way = self._of(checkpoint)
        return [] if under_way is None else self._answered(under_way)

    def refused(self, checkpoint: CheckpointId, reason: str) -> list[CoordinatorEffect]:
        under_way = self._of(checkpoint)
        return [] if under_way is None else self._fail(under_way, reason)

    def finishing(self, reason: str) -> list[CoordinatorEffect]:
        """The final checkpoint has begun: it answers one request, and no other will be answered."""
        failed = [FailRequest(request, reason) for request in self._waiting]
        self._waiting.clear()
        return list(failed)

    def attempt_ended(self, reason: str) -> list[CoordinatorEffect]:
        """Law 3. The next attempt begins with nothing asked for."""
        requests = list(self._waiting)
        if self._draining is not None:
            requests.insert(0, self._draining)
        if self._under_way is not None and self._under_way.request is not self._draining:
            requests.insert(0, self._under_way.request)
        self._waiting.clear()
        self._under_way = self._draining = None
        self._sources_end = self._left = False
        return [FailRequest(request, reason, ended_early=True) for request in requests]

    # --- Ends of a request ------------------------------------------------------------------------------

    def _answered(self, under_way: _UnderWay) -> list[CoordinatorEffect]:
        self._end(under_way)
        self._left = under_way.leaves
        return [LeaveAttempt(under_way.request)] if under_way.leaves else []

    def _fail(self, under_way: _UnderWay, reason: str) -> list[CoordinatorEffect]:
        if under_way.request is self._draining:
            reason = f"{reason}; {DRAINED_WITHOUT}"
        self._end(under_way)
        effects: list[CoordinatorEffect] = [FailRequest(under_way.request, reason)]
        return [*effects, SendResume()] if under_way.leaves else effects

    def _end(self, under_way: _UnderWay) -> None:
        self._under_way = None
        if under_way.request is self._draining:
            self._draining = None

    def _of(self, checkpoint: CheckpointId) -> _UnderWay | None:
        under_way = self._under_way
        return under_way if under_way is not None and under_way.checkpoint == checkpoint else None
