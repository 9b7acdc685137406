"""What the coordinator knows of the attempts that run, and of the checkpoints under way.

Comes in: what machine.py has decided. Goes out: what it must know to decide. Kept and counted here, and never
decided; and what it must know of the user's settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from weir.config import Checkpoints
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.snapshot.coordinator.events import AttemptStarted
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
    only_commits: bool = False
    """Checkpoints are there for sinks to commit, and hold no state; but for those behind which the job is left, and
    what is written to savepoints."""

    @classmethod
    def from_config(cls, checkpoints: Checkpoints | None, *, is_at_most_once: bool = False) -> CoordinatorSettings:
        """None: no checkpoints but the one at the end of a bounded job."""
        if checkpoints is None:
            return cls()
        return cls(
            interval_ms=checkpoints.commit_interval_ms if is_at_most_once else checkpoints.interval_ms,
            timeout_ms=checkpoints.timeout_ms,
            min_pause_ms=checkpoints.min_pause_ms,
            max_concurrent=checkpoints.max_concurrent,
            tolerable_failures=checkpoints.tolerable_failures,
            retain=checkpoints.retain,
            only_commits=is_at_most_once,
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

    def join(self, started: AttemptStarted) -> None:
        """A region runs."""
        self.attempts.update(dict.fromkeys(started.subtasks, started.attempt))
        self.committers |= started.committers
        self.rounds.started(started.loops)

    def lose(self, subtasks: Iterable[SubtaskId]) -> None:
        """A region is down. It comes back behind its last checkpoint, and finishes again."""
        for subtask in subtasks:
            del self.attempts[subtask]
            self.finished.discard(subtask)
            self.committed.pop(subtask, None)
        self.final, self.final_published = None, False

    def triggers_ms(self, *, is_asked: bool) -> list[float]:
        """When checkpoints should begin: for those who ask, for the period, and for loops, each by itself."""
        due = [self.pause_until_ms] if is_asked else []
        if self.periodic_ms is not None:
            due.append(max(self.periodic_ms, self.pause_until_ms))
        if not self.pending and (round_ms := self.rounds.due_ms(self.finished)) is not None:
            due.append(round_ms)
        return due

    def begin(self, checkpoint: CheckpointId, now_ms: float, settings: CoordinatorSettings) -> CheckpointUnderWay:
        """A checkpoint is under way from now on."""
        interval_ms = settings.interval_ms
        if interval_ms is not None and self.periodic_ms is not None and now_ms >= self.periodic_ms:
            # Periods are counted from the start of the attempt, so that they do not drift; missed ones are left out.
            passed = (now_ms - self.started_ms) // interval_ms
            self.periodic_ms = self.started_ms + (passed + 1) * interval_ms
        base = self.completed[-1] if self.completed else None
        deadline_ms, finished = now_ms + settings.timeout_ms, frozenset(self.finished)
        self.pending[checkpoint] = CheckpointUnderWay(checkpoint, deadline_ms, base, finished=finished)
        return self.pending[checkpoint]

    def take(self, taken: SnapshotTaken) -> bool:
        """A subtask's part is durable. False: it comes late, twice, or for a checkpoint never triggered here."""
        pending = self.pending.get(taken.checkpoint)
        if pending is None or taken.subtask in pending.parts:
            return False
        pending.parts[taken.subtask] = taken.parts
        pending.said.append(taken)
        if len(pending.parts) == len(self.subtasks):
            pending.phase = CheckpointPhase.READY
        return True

    def missing_from(self, pending: CheckpointUnderWay) -> str:
        """For people: who has not answered."""
        missing = sorted(self.subtasks - set(pending.parts))
        return f"{len(missing)} of {len(self.subtasks)} subtasks did not answer, the first is {missing[0]}"

    def count_failure(self, last: str, code: str, *, tolerable: int) -> None:
        """A checkpoint has failed. Too many in a row are a failure of the attempt."""
        self.failures += 1
        if self.failures > tolerable and self.failure is None:
            text = f"{self.failures} checkpoints in a row failed, {tolerable} are tolerated; {last}"
            self.failure = FailAttempt(text, code)

    def next_to_publish(self) -> CheckpointUnderWay | None:
        """The oldest that is ready; it is being published from now on. None while another is: one at a time."""
        ready = [checkpoint for checkpoint in self.pending.values() if checkpoint.phase is CheckpointPhase.READY]
        if self.is_publishing or not ready:
            return None
        ready[0].phase = CheckpointPhase.PUBLISHING
        return ready[0]

    def complete(self, checkpoint: CheckpointId, pause_until_ms: float) -> CheckpointUnderWay:
        """It exists."""
        self.pause_until_ms, self.failures = pause_until_ms, 0
        self.final_published = self.final_published or self.final == checkpoint
        self.completed.append(checkpoint)
        return self.pending.pop(checkpoint)

    def drop(self, checkpoint: CheckpointId, pause_until_ms: float) -> None:
        """It will not exist. If it was the final one, there will be another."""
        del self.pending[checkpoint]
        self.pause_until_ms = pause_until_ms
        if self.final == checkpoint:
            self.final = None

    def retain(self, count: int) -> CheckpointId:
        """Forget what is not kept any more. The oldest that is: of as many as the user wants, and not above what one
        under way builds on."""
        wanted = self.completed[-count:][0]
        for pending in self.pending.values():
            # One that began when none was complete may build on any: whichever its subtasks have heard of.
            wanted = min(wanted, self.completed[0] if pending.base is None else pending.base)
        self.completed = [checkpoint for checkpoint in self.completed if checkpoint >= wanted]
        return wanted

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
