"""Why attempts are left, and what follows: a closed list.

Plain data. Those of the end are final: the job's end says one of them. The others begin again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from weir.graph.plan import Plan
from weir.snapshot.restart import Failure, RestartAfter, Restarts


@dataclass(frozen=True)
class Finished:
    """The input is at its end, and everything is committed."""

    drained: bool = False
    """A user has ended the input: there may be more, for who resumes the job."""
    status: ClassVar[str] = "finished"


@dataclass(frozen=True)
class Stopped:
    """By the user, behind a checkpoint: it can be resumed."""

    status: ClassVar[str] = "stopped"


@dataclass(frozen=True)
class Cancelled:
    """By the user, at once."""

    status: ClassVar[str] = "cancelled"


@dataclass(frozen=True)
class Failed:
    """Nothing more is tried."""

    error: str
    status: ClassVar[str] = "failed"


@dataclass(frozen=True)
class Restarted:
    """An attempt has failed; the next one may begin at `until_ms`."""

    error: str
    until_ms: float


@dataclass(frozen=True)
class Rescaled:
    """The job goes on with another plan, because a user asked for it."""

    plan: Plan
    until_ms: float


@dataclass(frozen=True)
class WentBack:
    """Another parallelism did not even start: the job goes on with the plan that did."""

    error: str
    plan: Plan
    until_ms: float


Final: TypeAlias = "Finished | Stopped | Cancelled | Failed"
"""How a job ends."""

Again: TypeAlias = "Restarted | Rescaled | WentBack"
"""Why another attempt follows."""

Verdict: TypeAlias = "Final | Again"


def begins_again(verdict: Verdict) -> bool:
    return isinstance(verdict, Restarted | Rescaled | WentBack)


def verdict_about(failure: Failure, restarts: Restarts) -> Restarted | Failed:
    """What follows from the restart strategy's word about a failure."""
    decision = restarts.failed(failure)
    if isinstance(decision, RestartAfter):
        return Restarted(failure.error, failure.now_ms + decision.delay_ms)
    return Failed(f"{failure.error}\n(no restart: {decision.reason})")
