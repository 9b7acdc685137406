"""What became of the latest checkpoints, for people to look at.

Comes in: what the coordinator decides. Goes out: one record for each checkpoint,
bounded. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from weir.errors import shown
from weir.ids import AttemptId, CheckpointId
from weir.snapshot.coordinator.orders import AbortReason
from weir.snapshot.messages import SnapshotTaken

RECORDS_MAX = 100
"""Checkpoints that are remembered."""


class CheckpointState(Enum):
    """How far a checkpoint has come."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class CheckpointRecord:
    """One checkpoint, from its trigger on."""

    id: CheckpointId
    attempt: AttemptId
    triggered_ms: float
    state: CheckpointState = CheckpointState.PENDING
    duration_ms: float = 0.0
    """From the trigger to the end; 0 while it is pending."""
    size_bytes: int = 0
    """Of the state files that were acknowledged so far."""
    uploaded_bytes: int = 0
    """Of these, what was written for this checkpoint; the rest lay in storage already."""
    acknowledged: int = 0
    """Subtasks whose part is durable."""
    reason: AbortReason | None = None
    detail: str = ""
    final: bool = False
    """The last checkpoint of a bounded job."""
    savepoint: str | None = None
    """Where its states are exported to, when it was asked for as a savepoint; without what opens it."""


class History:
    """Records by id, oldest first."""

    def __init__(self) -> None:
        self._records: dict[CheckpointId, CheckpointRecord] = {}

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        return tuple(self._records.values())

    def triggered(self, record: CheckpointRecord) -> None:
        place = record.savepoint
        self._records[record.id] = replace(record, savepoint=None if place is None else shown(place))
        if len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]

    def acknowledged(self, taken: SnapshotTaken) -> None:
        record = self._records.get(taken.checkpoint)
        if record is None:
            return
        added_bytes = sum(
            file.length_bytes for part in taken.parts for state in part.states.values() for file in state.files.values()
        )
        self._records[taken.checkpoint] = replace(
            record,
            size_bytes=record.size_bytes + added_bytes,
            uploaded_bytes=record.uploaded_bytes + taken.uploaded_bytes,
            acknowledged=record.acknowledged + 1,
        )

    def completed(self, checkpoint: CheckpointId, now_ms: float) -> None:
        self._end(checkpoint, now_ms, state=CheckpointState.COMPLETED)

    def aborted(self, checkpoint: CheckpointId, now_ms: float, *, reason: AbortReason, detail: str = "") -> None:
        self._end(checkpoint, now_ms, state=CheckpointState.ABORTED, reason=reason, detail=detail)

    def _end(
        self,
        checkpoint: CheckpointId,
        now_ms: float,
        *,
        state: CheckpointState,
        reason: AbortReason | None = None,
        detail: str = "",
    ) -> None:
        record = self._records.get(checkpoint)
        if record is not None and record.state is CheckpointState.PENDING:
            duration_ms = now_ms - record.triggered_ms
            self._records[checkpoint] = replace(
                record, state=state, duration_ms=duration_ms, reason=reason, detail=detail
            )


class Unresolved:
    """Checkpoints that were being published when their attempt ended: they may come to exist, and then count for the
    next attempt."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._checkpoints: set[CheckpointId] = set()

    def add(self, checkpoint: CheckpointId) -> None:
        self._checkpoints.add(checkpoint)

    def resolve(self, completed: Collection[CheckpointId], now_ms: float) -> None:
        """What the new attempt found is the answer for manifests whose outcome was not told."""
        for checkpoint in self._checkpoints:
            if checkpoint in completed:
                self._history.completed(checkpoint, now_ms)
            else:
                self._history.aborted(checkpoint, now_ms, reason=AbortReason.ATTEMPT_ENDED)
        self._checkpoints.clear()

    def published(self, checkpoint: CheckpointId, now_ms: float) -> None:
        """It exists, if it was one of these. The tasks that would commit it are gone: the next attempt restores it and
        commits."""
        if checkpoint in self._checkpoints:
            self._checkpoints.remove(checkpoint)
            self._history.completed(checkpoint, now_ms)

    def refused(self, checkpoint: CheckpointId, now_ms: float, why: str) -> None:
        if checkpoint in self._checkpoints:
            self._checkpoints.remove(checkpoint)
            self._history.aborted(checkpoint, now_ms, reason=AbortReason.MANIFEST_REFUSED, detail=why)
