"""What the coordinator knows of the attempts that run, and of the checkpoints under way.

Plain data, which machine.py alone changes; and what it must know of the user's settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from weir.config import Checkpoints
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.snapshot.coordinator.loops import LoopRounds
from weir.snapshot.coordinator.orders import FailAttempt
from weir.snapshot.messages import SnapshotTaken
from weir.snapshot.parts import OperatorPart


@dataclass(frozen=True)
class CoordinatorSettings:
    """What the coordinator must know of the user's settings."""

    interval_ms: float | None = None
    timeout_ms: float = 600_000
    min_pause_ms: float = 0
    max_concurrent: int = 1
    tolerable_failures: int = 3
    retain: int = 2
    loop_pause_max_ms: float = 1_000
    """Longest wait before a loop is looked at again that was not empty."""

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


class CheckpointPhase(Enum):
    """How far one checkpoint has come."""

    COLLECTING = "waits for acknowledgements"
    READY = "acknowledged; waits for its turn to be published"
    PUBLISHING = "its manifest is being written"


@dataclass
class CheckpointUnderWay:
    """One checkpoint that is under way."""

    checkpoint: CheckpointId
    deadline_ms: float
    base: CheckpointId | None
    """The newest that was complete when this one began: its snapshots may refer to files of that one, or of a newer."""
    parts: dict[SubtaskId, tuple[OperatorPart, ...]] = field(default_factory=dict)
    said: list[SnapshotTaken] = field(default_factory=list)
    finished: frozenset[SubtaskId] = frozenset()
    """Those that had when this one began."""
    phase: CheckpointPhase = CheckpointPhase.COLLECTING


@dataclass
class LiveAttempts:
    """Everything that ends when no attempt runs any more."""

    subtasks: frozenset[SubtaskId]
    """Of the whole job."""
    completed: list[CheckpointId]
    started_ms: float
    periodic_ms: float | None
    """When the next periodic checkpoint is due."""
    attempts: dict[SubtaskId, AttemptId] = field(default_factory=dict)
    """Of the subtasks that run now."""
    committers: frozenset[SubtaskId] = frozenset()
    pending: dict[CheckpointId, CheckpointUnderWay] = field(default_factory=dict)
    """By id, oldest first."""
    finished: set[SubtaskId] = field(default_factory=set)
    committed: dict[SubtaskId, CheckpointId] = field(default_factory=dict)
    failures: int = 0
    pause_until_ms: float = 0.0
    final: CheckpointId | None = None
    final_published: bool = False
    rounds: LoopRounds = field(default_factory=LoopRounds)
    """When loops want checkpoints."""
    failure: FailAttempt | None = None
    """Why the attempt must fail; told once, after everything else."""

    @property
    def is_publishing(self) -> bool:
        """A manifest is being written: one at a time."""
        return any(checkpoint.phase is CheckpointPhase.PUBLISHING for checkpoint in self.pending.values())

    @property
    def is_whole(self) -> bool:
        """Every region runs."""
        return len(self.attempts) == len(self.subtasks)

    @property
    def lowest_committed(self) -> float:
        """Every sink has committed up to this one."""
        return min((self.committed.get(committer, -1) for committer in self.committers), default=math.inf)

    @property
    def is_committed(self) -> bool:
        """The final checkpoint exists, and every sink has committed it."""
        return self.final is not None and self.final_published and self.lowest_committed >= self.final
