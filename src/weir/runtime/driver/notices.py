"""What a person who watches a job would like to know: a closed list.

Plain data that goes out of the driver, to the handle, the display and the log. Nothing that
the driver decides depends on who hears it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver.verdicts import Final
from weir.runtime.ports import Clock
from weir.snapshot.coordinator.orders import AbortReason
from weir.snapshot.restart import Outage


@dataclass(frozen=True)
class StorageWait:
    """Storage is away, and the job waits for it."""

    error: str
    """What the last look has found."""
    since_ms: int
    """Since when, by the wall clock."""
    retry_ms: int
    """When it is looked at again, by the wall clock."""

    @classmethod
    def from_outage(cls, outage: Outage, clock: Clock) -> StorageWait:
        wall_from_ms = clock.wall_ms() - clock.now_ms()
        return cls(outage.error, round(wall_from_ms + outage.since_ms), round(wall_from_ms + outage.retry_ms))


@dataclass(frozen=True)
class _OfJob:
    attempt: AttemptId | None
    """The newest that has tasks."""


@dataclass(frozen=True)
class _OfRegion:
    attempt: AttemptId | None
    """The region's own; None: none could be claimed."""
    region: int | None
    """None: the job has no other, or it is about the whole job."""


@dataclass(frozen=True)
class AttemptRunning(_OfRegion):
    """All tasks of a region run."""

    restored: CheckpointId | None
    """What they began from; None: from nothing."""
    origin: str | None = field(repr=False)
    """Where that lies, when it is none of the job's own."""
    recovery_ms: int | None
    """Since the first failure before; None: there was none."""


@dataclass(frozen=True)
class AttemptFailed(_OfRegion):
    """An attempt has failed, or could not be claimed. `restarts`: another follows."""

    error: str
    restarts: bool
    task: TaskIndex | None = None
    """The one that has failed, or was lost."""


@dataclass(frozen=True)
class WorkerDied(_OfRegion):
    """How the process of a task has died is known now. What the attempt began with, the loss of it, was told before."""

    task: TaskIndex
    how: str


@dataclass(frozen=True)
class StorageAwaited(_OfRegion):
    """The next attempt has to wait until storage is there again."""

    wait: StorageWait


@dataclass(frozen=True)
class CheckpointSucceeded(_OfJob):
    """A checkpoint exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class CheckpointAborted(_OfJob):
    """A checkpoint will not exist."""

    checkpoint: CheckpointId
    reason: AbortReason
    detail: str

    @property
    def why(self) -> str:
        return f"{self.reason.value} {self.detail}".rstrip()


@dataclass(frozen=True)
class SavepointCompleted(_OfJob):
    """A savepoint that was asked for exists."""

    request: str
    checkpoint: CheckpointId
    savepoint: str = field(repr=False)


@dataclass(frozen=True)
class RequestFailed(_OfJob):
    """Nothing comes of what was asked for."""

    request: str
    reason: str
    ended_early: bool = False
    """Only because its attempt has ended, or none runs: it may be made again."""


@dataclass(frozen=True)
class RescaleCompleted(_OfJob):
    """The job runs at another parallelism, as was asked for."""

    request: str
    parallelism: int
    before: int


@dataclass(frozen=True)
class HadFinished(_OfJob):
    """What was resumed had read all its input, and committed everything: nothing was started."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class JobEnded(_OfJob):
    """Nothing happens any more."""

    verdict: Final


Answer: TypeAlias = "SavepointCompleted | RequestFailed | RescaleCompleted"
"""To what a user asked for, by its name."""

Notice: TypeAlias = (
    "AttemptRunning | AttemptFailed | WorkerDied | StorageAwaited | CheckpointSucceeded | CheckpointAborted | Answer"
    " | HadFinished | JobEnded"
)
