"""What the coordinator orders, and what the driver carries out.

Plain frozen data. Goes out: to tasks, to storage, to who asked. Never holds a clock, a socket or a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from weir.ids import CheckpointId, SubtaskId, VertexId
from weir.snapshot.coordinator.events import CheckpointRequested
from weir.snapshot.parts import OperatorPart


class AbortReason(Enum):
    """Why a checkpoint did not complete: a closed list."""

    TIMED_OUT = "timed out"
    DECLINED = "declined by a subtask"
    SUBSUMED = "a newer checkpoint completed first"
    MANIFEST_REFUSED = "the manifest could not be written"
    ATTEMPT_ENDED = "the attempt ended"


@dataclass(frozen=True)
class WhyAborted:
    """The reason, what there is to say of this one, and the code of the error behind it."""

    reason: AbortReason
    detail: str = ""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class SendTrigger:
    """Tell every task to start the checkpoint."""

    checkpoint: CheckpointId
    savepoint: str | None = field(default=None, repr=False)
    pause: bool = False
    base: CheckpointId | None = None
    is_stateless: bool = False


@dataclass(frozen=True)
class SendAbort:
    """Tell every task that the checkpoint is off; free its private files."""

    checkpoint: CheckpointId
    reason: AbortReason
    detail: str = ""


@dataclass(frozen=True)
class PublishManifest:
    """Every subtask has acknowledged: make the checkpoint exist, then say ManifestPublished or ManifestRefused."""

    checkpoint: CheckpointId
    parts: Mapping[SubtaskId, tuple[OperatorPart, ...]]


@dataclass(frozen=True)
class SendCompleted:
    """Tell every task that the checkpoint exists, and which loops it has found empty."""

    checkpoint: CheckpointId
    time_over: tuple[VertexId, ...] = ()
    ended: tuple[VertexId, ...] = ()


@dataclass(frozen=True)
class RetireCheckpoints:
    """Delete everything older than `oldest_kept`, half-written checkpoints included."""

    oldest_kept: CheckpointId


@dataclass(frozen=True)
class SendDrain:
    """Tell every task to end its sources."""


@dataclass(frozen=True)
class SendResume:
    """Tell every task that its sources go on."""


@dataclass(frozen=True)
class PublishSavepoint:
    """The checkpoint is complete and every sink has committed it: make the savepoint exist, then say
    SavepointPublished or SavepointRefused."""

    checkpoint: CheckpointId
    request: CheckpointRequested
    parts: Mapping[SubtaskId, tuple[OperatorPart, ...]]


@dataclass(frozen=True)
class FailRequest:
    """Tell who asked that nothing comes of it, and remove what was written of a savepoint."""

    request: CheckpointRequested
    reason: str
    ended_early: bool = False
    """Only because the attempt has ended, or none runs: the next one may be asked."""


@dataclass(frozen=True)
class LeaveAttempt:
    """What was asked for with Then.STOP is there, and committed: sources are paused, the attempt may be left."""

    request: CheckpointRequested


@dataclass(frozen=True)
class FailAttempt:
    """The attempt cannot go on."""

    reason: str
    code: str = ""
    """Of the error that ended it, where it has one: storage that is away is waited for."""


@dataclass(frozen=True)
class FinishJob:
    """A bounded job has committed its last row."""


CoordinatorEffect: TypeAlias = (
    "SendTrigger | SendAbort | PublishManifest | SendCompleted | RetireCheckpoints | SendDrain | SendResume"
    " | PublishSavepoint | FailRequest | LeaveAttempt | FailAttempt | FinishJob"
)
