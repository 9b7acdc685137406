"""What tasks and the driver tell each other.

Plain frozen data, JSON all the way down: no object here holds a socket, a file,
an array or a clock. Every message between a task and the driver carries the
attempt, so that what an old attempt says can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, Uid, VertexId
from weir.snapshot.parts import Json, OperatorPart, Reserved

# --- Task to driver ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerDeath:
    """A process of an earlier task has died."""

    process_id: int
    how: str


@dataclass(frozen=True)
class TaskRegistered:
    """A task is up and its exchange listens at `address`."""

    attempt: AttemptId
    task: TaskIndex
    address: str
    process_id: int
    deaths: tuple[WorkerDeath, ...] = ()
    """On the same host, as far as is known there."""


@dataclass(frozen=True)
class TaskRestoring:
    """How much of the checkpoint's state a task has read by now."""

    attempt: AttemptId
    task: TaskIndex
    read_bytes: int
    of_bytes: int
    """In the whole checkpoint, for all tasks."""


@dataclass(frozen=True)
class TaskRunning:
    """A task has restored its state and connected its channels."""

    attempt: AttemptId
    task: TaskIndex


@dataclass(frozen=True)
class SnapshotTaken:
    """A subtask's part of a checkpoint is durable."""

    attempt: AttemptId
    checkpoint: CheckpointId
    subtask: SubtaskId
    parts: tuple[OperatorPart, ...]
    duration_ms: int = 0
    exported: tuple[OperatorPart, ...] = ()
    """For a savepoint: the same states, as files of the savepoint, and nothing that is still to be committed."""
    export_refused: str | None = None
    """Why there is no export; the checkpoint itself is none the worse."""
    uploaded_bytes: int = 0
    """Of the parts' files, those that were written for this checkpoint; the others lay in storage already."""
    wall_ms: int = 0
    """Processing time there, by now: after a restore it does not begin before that."""
    in_flight: bool = False
    """Rows are part of the snapshot that go on by themselves: in a loop's log, or in a call that is under way."""
    inputs_ended: bool = False
    """Of a loop's head: before the barrier, all inputs from outside the loop had ended."""
    time_ended: bool = False
    """Of a loop's head: before the barrier, it had ended event time in the loop."""


@dataclass(frozen=True)
class SnapshotDeclined:
    """A subtask cannot take part in a checkpoint; the stream goes on."""

    attempt: AttemptId
    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: str
    code: str = ""
    """Of the error that kept it from that, where it has one."""


@dataclass(frozen=True)
class EpochsCommitted:
    """A sink subtask has committed everything up to and including the checkpoint."""

    attempt: AttemptId
    checkpoint: CheckpointId
    subtask: SubtaskId


@dataclass(frozen=True)
class SubtaskFinished:
    """A subtask has passed on its last row. It goes on answering barriers."""

    attempt: AttemptId
    subtask: SubtaskId


@dataclass(frozen=True)
class TaskFailed:
    """A task met an error that ends the attempt. `fatal`: running again would change nothing."""

    attempt: AttemptId
    task: TaskIndex
    error: str
    code: str
    fatal: bool


@dataclass(frozen=True)
class Heartbeat:
    """A task is alive; how much it has done."""

    attempt: AttemptId
    task: TaskIndex
    metrics: Json


@dataclass(frozen=True)
class SourceReached:
    """How far one subtask of a source that is aligned with others has come."""

    subtask: SubtaskId
    time_us: int | None
    """Its watermark; None: it is idle, or has ended."""


@dataclass(frozen=True)
class SourcesReached:
    """How far the sources of a task have come, of those that are aligned with others."""

    attempt: AttemptId
    task: TaskIndex
    sources: tuple[SourceReached, ...]


@dataclass(frozen=True)
class PositionReached:
    """How far one reader of a source has read, with rows that wait until no later attempt hands them out again."""

    attempt: AttemptId
    task: TaskIndex
    subtask: SubtaskId
    uid: Uid
    number: int
    """Counts what this subtask has told."""
    position: Json
    read_behind: CheckpointId
    """The newest checkpoint that this subtask has begun, or was restored from, if it has read anything since."""


FromTask: TypeAlias = (
    "TaskRegistered | TaskRestoring | TaskRunning | SnapshotTaken | SnapshotDeclined | EpochsCommitted"
    " | SubtaskFinished | TaskFailed | Heartbeat | SourcesReached | PositionReached"
)


# --- Driver to task ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeployTask:
    """Every task is up: connect to the others, restore, run."""

    attempt: AttemptId
    addresses: tuple[str, ...]
    restore: CheckpointId | None
    origin: str | None = field(default=None, repr=False)
    """Where the checkpoint to restore lies (a savepoint, for example); None: among the job's own."""
    positions: Mapping[Uid, Reserved] = field(default_factory=dict)
    """Sources that go on from further than the checkpoint says."""
    loses_state: bool = False
    """What state is in the checkpoint is left out: rows were read behind it."""
    reserves: bool = False
    """Rows wait in their sources until it is noted that they were read: every row counts at most once."""


@dataclass(frozen=True)
class TriggerCheckpoint:
    """Sources: record your position and send the barrier. `pause`: then poll no more."""

    attempt: AttemptId
    checkpoint: CheckpointId
    savepoint: str | None = field(default=None, repr=False)
    pause: bool = False
    base: CheckpointId | None = None
    """The newest that is complete."""
    is_stateless: bool = False
    """Only positions, and what sinks have to commit."""


@dataclass(frozen=True)
class ResumeSources:
    """The job goes on after all: sources that paused behind a barrier poll again."""

    attempt: AttemptId


@dataclass(frozen=True)
class DrainSources:
    """Sources: poll no more, and end your input as if there were no more rows."""

    attempt: AttemptId


@dataclass(frozen=True)
class AbortCheckpoint:
    """The checkpoint will not complete: stop waiting for it and free what it holds."""

    attempt: AttemptId
    checkpoint: CheckpointId


@dataclass(frozen=True)
class CheckpointCompleted:
    """The manifest is published: sinks may commit. The only source of a commit grant besides restoring."""

    attempt: AttemptId
    checkpoint: CheckpointId
    time_over: tuple[VertexId, ...] = ()
    """Heads of loops that were empty at the barrier: event time may end there."""
    ended: tuple[VertexId, ...] = ()
    """Those that were empty behind the end of event time: they may end."""


@dataclass(frozen=True)
class StopTask:
    """Leave: everything is committed (`cancelled` false), or the attempt is over (`cancelled` true)."""

    attempt: AttemptId
    cancelled: bool


@dataclass(frozen=True)
class AlignSources:
    """How far the slowest source of each group is; a group that is not named is not known."""

    attempt: AttemptId
    slowest_us: Mapping[str, int]


@dataclass(frozen=True)
class PositionReserved:
    """What a reader has told with this number is noted: the rows before it may go on."""

    attempt: AttemptId
    subtask: SubtaskId
    number: int


ToTask: TypeAlias = (
    "DeployTask | TriggerCheckpoint | AbortCheckpoint | CheckpointCompleted | ResumeSources | DrainSources | StopTask"
    " | AlignSources | PositionReserved"
)
