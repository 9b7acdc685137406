"""The phases of a region of a job: each holds only what is valid then. A job's phase is that of its hindmost region.

    Created → Claiming → Launching → Deploying → Running → Stopping → Ended
                  ▲                                            │
                  └───────────────── Waiting ◀─────────────────┘

Values that do not change; region_machine.py says which follows which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from weir.ids import AttemptId, TaskIndex
from weir.runtime.driver.verdicts import Final, Verdict
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot.messages import FromTask


class _Phase:
    status: ClassVar[str]

    @property
    def attempt(self) -> AttemptId | None:
        return None

    @property
    def due_ms(self) -> float | None:
        return None


@dataclass(frozen=True)
class Created(_Phase):
    """Nothing has happened yet."""

    status = "created"


@dataclass(frozen=True)
class Claiming(_Phase):
    """Waits for a look into storage for where to start."""

    status = "starting"


class _OfClaim(_Phase):
    claim: Claim
    deadline_ms: float

    @property
    def attempt(self) -> AttemptId | None:
        return self.claim.attempt

    @property
    def due_ms(self) -> float | None:
        return self.deadline_ms


@dataclass(frozen=True)
class Launching(_OfClaim):
    """Spark starts the tasks."""

    claim: Claim
    addresses: Mapping[TaskIndex, str]
    deadline_ms: float
    status = "starting"

    def late_message(self, tasks: int) -> str:
        return (
            f"only {len(self.addresses)} of {tasks} tasks started in time: Spark has too few free slots for "
            f"parallelism {tasks}. {tasks - len(self.addresses)} more are needed; free some, add executors, lower the "
            "parallelism, or raise Settings.launch_timeout"
        )


@dataclass(frozen=True)
class Deploying(_OfClaim):
    """Tasks connect to each other and restore their state."""

    claim: Claim
    running: frozenset[TaskIndex]
    early: tuple[FromTask, ...]
    """What tasks told the coordinator before it was there to hear it."""
    deadline_ms: float
    status = "starting"

    def late_message(self, tasks: int) -> str:
        found = f"only {len(self.running)} of {tasks} tasks"
        if self.claim.restore is None:
            return f"{found} connected in time; if the machines are slow, raise Settings.launch_timeout"
        return (
            f"{found} restored their state and connected in time; if the state is large, raise Settings.restore_timeout"
        )


@dataclass(frozen=True)
class Running(_Phase):
    """All tasks run."""

    claim: Claim
    heard_ms: Mapping[TaskIndex, float]
    status = "running"

    @property
    def attempt(self) -> AttemptId | None:
        return self.claim.attempt


@dataclass(frozen=True)
class Stopping(_Phase):
    """Tasks have been told to leave; the stage has not ended yet."""

    attempt_left: AttemptId
    verdict: Verdict
    kill_ms: float
    leave_ms: float
    killed: bool = False
    ended: bool = False
    """The stage is over; only the last note in storage is missing."""
    status = "stopping"

    @property
    def attempt(self) -> AttemptId | None:
        return self.attempt_left

    @property
    def due_ms(self) -> float | None:
        if self.ended:
            return None
        return self.leave_ms if self.killed else self.kill_ms


@dataclass(frozen=True)
class Waiting(_Phase):
    """The restart strategy's delay."""

    until_ms: float
    status = "restarting"

    @property
    def due_ms(self) -> float | None:
        return self.until_ms


@dataclass(frozen=True)
class Ended(_Phase):
    """Nothing happens any more."""

    verdict: Final

    @property
    def status(self) -> str:  # type: ignore[override]
        return self.verdict.status


Phase: TypeAlias = "Created | Claiming | Launching | Deploying | Running | Stopping | Waiting | Ended"

_UPWARDS = (Stopping, Created, Waiting, Claiming, Launching, Deploying, Running)


def hindmost(found: Sequence[Phase]) -> Phase:
    """The phase that is furthest from running."""
    return min(found, key=lambda phase: _UPWARDS.index(type(phase)))
