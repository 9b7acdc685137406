"""What the coordinator hears besides what tasks say.

Plain frozen data. Comes in: from the driver, what has happened. Never holds a clock, a socket or a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.snapshot.messages import EpochsCommitted, SnapshotDeclined, SnapshotTaken, SubtaskFinished


class Then(Enum):
    """What follows when a checkpoint that was asked for is complete and committed."""

    GO_ON = "go on"
    STOP = "stop"
    """Sources pause behind its barrier, and the attempt is left."""
    DRAIN = "drain"
    """Sources end their input; it is the final checkpoint of the job."""


@dataclass(frozen=True)
class Loop:
    """One cycle of the plan."""

    head: VertexId
    heads: frozenset[SubtaskId]
    members: frozenset[SubtaskId]
    """Everything through which its rows may come, the heads included."""
    feeders: frozenset[SubtaskId]
    """Those that send rows into it from outside, to its head or to anybody else."""


@dataclass(frozen=True)
class AttemptStarted:
    """All tasks of an attempt run. `next_checkpoint` has never been used before."""

    attempt: AttemptId
    subtasks: frozenset[SubtaskId]
    committers: frozenset[SubtaskId]
    """The subtasks that hold a sink, and so report EpochsCommitted."""
    next_checkpoint: CheckpointId
    completed: tuple[CheckpointId, ...]
    """Checkpoints of the job that are readable now, oldest first; the last one was restored."""
    others: frozenset[SubtaskId] = frozenset()
    """The subtasks of the job's other regions, which have attempts of their own."""
    loops: tuple[Loop, ...] = ()
    """The cycles among the subtasks."""


@dataclass(frozen=True)
class AttemptEnded:
    """The attempt is over, whatever the cause: nothing that it says counts any more."""

    attempt: AttemptId


@dataclass(frozen=True)
class CheckpointRequested:
    """A user asks for a checkpoint now."""

    savepoint: str | None = field(default=None, repr=False)
    """The directory, of its own, that the states are exported to, too."""
    then: Then = Then.GO_ON
    name: str = ""
    """By which the answer is told. Requests with a savepoint, or after which something follows, have one."""

    @property
    def is_plain(self) -> bool:
        """Any checkpoint that begins from now on is the answer."""
        return self.savepoint is None and self.then is Then.GO_ON


@dataclass(frozen=True)
class TimePassed:
    """The clock moved: time-outs and periodic triggers are due."""


@dataclass(frozen=True)
class ManifestPublished:
    """The manifest is durable and readable: the checkpoint exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class ManifestRefused:
    """The manifest certainly does not exist and will not."""

    checkpoint: CheckpointId
    reason: str
    code: str = ""


@dataclass(frozen=True)
class SavepointPublished:
    """The savepoint's own manifest is durable: it exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class SavepointRefused:
    """The savepoint could not be written; the checkpoint exists all the same."""

    checkpoint: CheckpointId
    reason: str


CoordinatorEvent: TypeAlias = (
    "AttemptStarted | AttemptEnded | CheckpointRequested | TimePassed | ManifestPublished | ManifestRefused"
    " | SavepointPublished | SavepointRefused | SnapshotTaken | SnapshotDeclined | EpochsCommitted | SubtaskFinished"
)
