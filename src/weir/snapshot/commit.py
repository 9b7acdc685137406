"""What a sink subtask commits, and when: one machine per sink subtask.

Comes in: epochs that are durable, checkpoints that are complete, how commits went, the
time. Goes out: what to commit, with the grant for it, and what is committed. Never
touches the sink or a clock.

Laws:
  1. Nothing is committed without a grant, and only a complete checkpoint makes one:
     Completed, or the restored checkpoint itself.
  2. A prepared epoch stays pending, and so in every snapshot, until its commit is
     known to have succeeded. An unknown outcome is repeated, never given up in
     silence: commits are idempotent.
  3. Epochs are prepared and committed in the order of their checkpoints. The epoch of
     an aborted checkpoint is committed with the next one that completes.
  4. A commit that failed is not repeated at once, but after a delay that grows with
     every failure: whoever could not take it is not helped by being asked more often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId, Uid
from weir.snapshot.backoff import Backoff
from weir.snapshot.manifest import Manifest
from weir.snapshot.parts import Json, PendingEpochs, read_as

EVENTS_SHOWN = 20
"""How many of the last events an error shows."""

EPOCHS_PENDING_MAX = 10_000
"""Epochs that may wait for a checkpoint to complete; every snapshot carries them all."""

NONE_YET = CheckpointId(-1)

_SEAL = object()


class CommitGrant:
    """The right to commit everything up to a checkpoint. Only this module makes one."""

    __slots__ = ("checkpoint",)
    checkpoint: CheckpointId

    def __init__(self, checkpoint: CheckpointId, *, seal: object) -> None:
        if seal is not _SEAL:
            raise ProtocolViolation(f"commit: a grant for checkpoint {checkpoint} was made by hand")
        self.checkpoint = checkpoint

    def __repr__(self) -> str:
        return f"CommitGrant({self.checkpoint})"


# --- Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochPrepared:
    """The epoch that ends with the checkpoint's barrier is durable. None: there is nothing to commit in it."""

    checkpoint: CheckpointId
    committable: Json


@dataclass(frozen=True)
class Completed:
    """The checkpoint exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class RestoredPending:
    """The attempt starts from this checkpoint, which holds these committables. Before anything else, if at all."""

    checkpoint: CheckpointId
    committables: Sequence[Json]


@dataclass(frozen=True)
class CommitSucceeded:
    """The commit under the grant of this checkpoint is done."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class CommitFailed:
    """The commit under the grant of this checkpoint raised; it may have happened all the same."""

    checkpoint: CheckpointId
    reason: str
    now_ms: float
    chance: float
    """Drawn from 0 up to 1, for the delay."""


@dataclass(frozen=True)
class RetryDue:
    """It is `due_ms`, or later."""

    now_ms: float


CommitEvent: TypeAlias = "EpochPrepared | Completed | RestoredPending | CommitSucceeded | CommitFailed | RetryDue"


# --- Effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit:
    """Commit these, in this order; then say CommitSucceeded or CommitFailed."""

    grant: CommitGrant
    committables: tuple[Json, ...]


@dataclass(frozen=True)
class ReportCommitted:
    """Tell the driver that everything up to and including the checkpoint is committed."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class EndAttempt:
    """The attempt cannot go on; what is pending is in the last checkpoint and will be committed by the next."""

    reason: str


CommitEffect: TypeAlias = "Commit | ReportCommitted | EndAttempt"


# --- Phases -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtRest:
    """No commit is under way."""


@dataclass(frozen=True)
class Committing:
    """One commit is under way. What is granted meanwhile follows it, all at once."""

    commit: Commit
    failures: int = 0


@dataclass(frozen=True)
class Retrying:
    """The commit failed, and is repeated when its delay is over. What is granted meanwhile follows it."""

    commit: Commit
    failures: int
    due_ms: float


@dataclass(frozen=True)
class GaveUp:
    """Nothing is committed any more."""


CommitPhase: TypeAlias = "AtRest | Committing | Retrying | GaveUp"


@dataclass(frozen=True)
class _Epoch:
    checkpoint: CheckpointId
    committables: tuple[Json, ...]


class Committer:
    """Holds what is prepared, and grants what is complete. `retries_max`: of one commit, before the attempt ends."""

    def __init__(self, retries_max: int, backoff: Backoff) -> None:
        self._retries_max = retries_max
        self._backoff = backoff
        self._phase: CommitPhase = AtRest()
        self._epochs: deque[_Epoch] = deque()
        """Prepared and not known to be committed, oldest first."""
        self._prepared = NONE_YET
        self._granted = NONE_YET
        self._reported = NONE_YET
        self._recent: deque[CommitEvent] = deque(maxlen=EVENTS_SHOWN)

    @property
    def phase(self) -> CommitPhase:
        return self._phase

    @property
    def due_ms(self) -> float | None:
        """When RetryDue is wanted."""
        return self._phase.due_ms if isinstance(self._phase, Retrying) else None

    @property
    def pending(self) -> tuple[tuple[CheckpointId, Json], ...]:
        """What a snapshot must carry: everything prepared and not known to be committed, oldest first."""
        return tuple((epoch.checkpoint, item) for epoch in self._epochs for item in epoch.committables)

    def pending_at(self, checkpoint: CheckpointId) -> tuple[tuple[CheckpointId, Json], ...]:
        """What the snapshot of this checkpoint must carry, when later epochs may be prepared already."""
        return tuple(entry for entry in self.pending if entry[0] <= checkpoint)

    def handle(self, event: CommitEvent) -> list[CommitEffect]:
        """The one door. Preparing, granting and the time are heard in every phase; answers only when a commit is under
        way."""
        self._recent.append(event)
        if isinstance(event, (CommitSucceeded, CommitFailed)):
            return self._answered(event)
        if isinstance(event, RetryDue):
            return self._retry(event)
        if isinstance(event, EpochPrepared):
            return self._prepare(event)
        if isinstance(event, Completed):
            return self._complete(event.checkpoint)
        if isinstance(event, RestoredPending):
            return self._restore(event)
        raise self._violation(f"no such event: {event!r}")

    def _prepare(self, event: EpochPrepared) -> list[CommitEffect]:
        if event.checkpoint <= self._prepared:
            # Out of order, an acknowledged snapshot might lack the epoch before its own, and lose it.
            raise self._violation(f"epoch {event.checkpoint} was prepared after epoch {self._prepared}")
        self._prepared = event.checkpoint
        committables = () if event.committable is None else (event.committable,)
        self._epochs.append(_Epoch(event.checkpoint, committables))
        if len(self._epochs) > EPOCHS_PENDING_MAX and not isinstance(self._phase, GaveUp):
            return self._give_up(f"more than {EPOCHS_PENDING_MAX} epochs wait for a checkpoint to complete")
        return []

    def _complete(self, checkpoint: CheckpointId) -> list[CommitEffect]:
        if checkpoint <= self._granted:
            return []  # Told twice, or after a newer one that has granted this as well.
        if checkpoint > self._prepared:
            raise self._violation(f"checkpoint {checkpoint} is said to be complete without our epoch")
        self._granted = checkpoint
        return self._commit_granted()

    def _restore(self, event: RestoredPending) -> list[CommitEffect]:
        if self._prepared != NONE_YET:
            raise self._violation(f"checkpoint {event.checkpoint} was restored after epoch {self._prepared}")
        self._prepared = self._granted = event.checkpoint
        self._epochs.append(_Epoch(event.checkpoint, tuple(event.committables)))
        return self._commit_granted()

    def _commit_granted(self) -> list[CommitEffect]:
        """Begin what is granted, unless a commit is under way, or report it when there is nothing to do for it."""
        if not isinstance(self._phase, AtRest) or self._reported == self._granted:
            return []
        committables = tuple(item for _, item in self.pending_at(self._granted))
        if not committables:
            return [self._committed(self._granted)]
        commit = Commit(CommitGrant(self._granted, seal=_SEAL), committables)
        self._phase = Committing(commit)
        return [commit]

    def _answered(self, event: CommitSucceeded | CommitFailed) -> list[CommitEffect]:
        phase = self._phase
        if isinstance(phase, GaveUp):
            return []  # A commit was under way when too many epochs waited.
        if not isinstance(phase, Committing) or phase.commit.grant.checkpoint != event.checkpoint:
            raise self._violation(f"no commit of checkpoint {event.checkpoint} is under way")
        if isinstance(event, CommitSucceeded):
            self._phase = AtRest()
            return [self._committed(event.checkpoint), *self._commit_granted()]
        failures = phase.failures + 1
        if failures > self._retries_max:
            return self._give_up(f"commit of checkpoint {event.checkpoint} failed {failures} times: {event.reason}")
        # The same commit, unchanged: it may have happened, and only the very same can be recognised by the sink.
        self._phase = Retrying(phase.commit, failures, event.now_ms + self._backoff.delay_ms(failures, event.chance))
        return []

    def _retry(self, event: RetryDue) -> list[CommitEffect]:
        phase = self._phase
        if not isinstance(phase, Retrying) or event.now_ms < phase.due_ms:
            return []  # Clocks tell everybody; whoever waits for nothing hears nothing in it.
        self._phase = Committing(phase.commit, phase.failures)
        return [phase.commit]

    def _committed(self, checkpoint: CheckpointId) -> ReportCommitted:
        while self._epochs and self._epochs[0].checkpoint <= checkpoint:
            self._epochs.popleft()
        self._reported = checkpoint
        return ReportCommitted(checkpoint)

    def _give_up(self, reason: str) -> list[CommitEffect]:
        self._phase = GaveUp()
        return [EndAttempt(reason)]

    def _violation(self, found: str) -> ProtocolViolation:
        events = "\n  ".join(repr(event)[:200] for event in self._recent)
        return ProtocolViolation(f"commit: {found}; phase {self._phase!r:.200}; last events:\n  {events}")


def pending_of(manifest: Manifest, uid: Uid) -> list[Json]:
    """The committables of one sink, of all its subtasks, that a checkpoint names."""
    operator = manifest.operators.get(uid)
    parts = () if operator is None else operator.parts
    held = [pending for part in parts if (pending := read_as(part.inline, PendingEpochs)) is not None]
    return [committable for pending in held for _, committable in pending.epochs]
