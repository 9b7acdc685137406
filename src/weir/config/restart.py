"""When a failed attempt is followed by another: frozen, and checked when made.

What is chosen here is carried out by `snapshot/restart.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.config.checks import check_at_least
from weir.config.units import Duration, Milliseconds, parse_units


@dataclass(frozen=True)
class NoRestart:
    """The first failure ends the job."""


@dataclass(frozen=True)
class FixedDelay:
    """Restart up to `attempts` times, `delay` apart."""

    attempts: int = 3
    delay: Duration = "1s"

    delay_ms = Milliseconds("delay")

    def __post_init__(self) -> None:
        check_at_least(self, "attempts", 0)
        parse_units(self)


@dataclass(frozen=True)
class ExponentialDelay:
    """Restart with growing delays; the delay falls back to `initial` after `reset_after` without a failure."""

    initial: Duration = "100ms"
    maximum: Duration = "30s"
    multiplier: float = 2.0
    reset_after: Duration = "1m"
    attempts: int | None = 20
    """Failures in a row before the job is given up; None: never."""

    initial_ms = Milliseconds("initial")
    maximum_ms = Milliseconds("maximum")
    reset_after_ms = Milliseconds("reset_after")

    def __post_init__(self) -> None:
        parse_units(self)
        check_at_least(self, "multiplier", 1.0)
        if self.attempts is not None:
            check_at_least(self, "attempts", 0)


@dataclass(frozen=True)
class FailureRate:
    """Give up when more than `failures` fall within `per`; wait `delay` before each restart."""

    failures: int = 3
    per: Duration = "5m"
    delay: Duration = "1s"

    per_ms = Milliseconds("per")
    delay_ms = Milliseconds("delay")

    def __post_init__(self) -> None:
        check_at_least(self, "failures", 0)
        parse_units(self)


Restart: TypeAlias = "NoRestart | FixedDelay | ExponentialDelay | FailureRate"
