"""Whether, and when, a failed job is started again.

Comes in: the moments of failures, and the moments from which an attempt ran well.
Goes out: a delay, or the end with its reason. Never touches a clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from weir.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart, duration_ms
from weir.errors import ConfigError


@dataclass(frozen=True)
class RestartAfter:
    """Start the next attempt after this delay."""

    delay_ms: float


@dataclass(frozen=True)
class GiveUp:
    """The job has failed."""

    reason: str


RestartDecision: TypeAlias = "RestartAfter | GiveUp"


class RestartDecider(ABC):
    """Counts failures over the whole life of a job."""

    @staticmethod
    def from_config(restart: Restart) -> RestartDecider:
        """The decider that the settings ask for."""
        if isinstance(restart, NoRestart):
            return _Never()
        if isinstance(restart, FixedDelay):
            return _Fixed(restart)
        if isinstance(restart, ExponentialDelay):
            return _Exponential(restart)
        if isinstance(restart, FailureRate):
            return _Rate(restart)
        raise ConfigError(f"restart: {restart!r} is not NoRestart, FixedDelay, ExponentialDelay or FailureRate")

    @abstractmethod
    def failed(self, now_ms: float) -> RestartDecision:
        """An attempt has failed, at whatever point of its life."""

    def healthy(self, now_ms: float) -> None:
        """All tasks of an attempt run. May be said again and again; the first time after a failure counts."""


class _Never(RestartDecider):
    def failed(self, now_ms: float) -> RestartDecision:
        return GiveUp("no restart strategy is set")


class _Fixed(RestartDecider):
    def __init__(self, config: FixedDelay) -> None:
        self._attempts_max = config.attempts
        self._delay_ms = duration_ms(config.delay, "FixedDelay.delay")
        self._failures = 0

    def failed(self, now_ms: float) -> RestartDecision:
        self._failures += 1
        if self._failures > self._attempts_max:
            return GiveUp(f"{self._failures} failures; FixedDelay allows {self._attempts_max} restarts")
        return RestartAfter(self._delay_ms)


class _Exponential(RestartDecider):
    """Quiet time is counted from when the attempt ran, not from the failure: waiting and launching prove nothing."""

    def __init__(self, config: ExponentialDelay) -> None:
        self._initial_ms = duration_ms(config.initial, "ExponentialDelay.initial")
        self._maximum_ms = duration_ms(config.maximum, "ExponentialDelay.maximum")
        self._reset_after_ms = duration_ms(config.reset_after, "ExponentialDelay.reset_after")
        self._multiplier = config.multiplier
        self._attempts_max = config.attempts
        self._failures = 0
        self._delay_ms: float = self._initial_ms
        self._healthy_since_ms: float | None = None

    def healthy(self, now_ms: float) -> None:
        if self._healthy_since_ms is None:
            self._healthy_since_ms = now_ms

    def failed(self, now_ms: float) -> RestartDecision:
        if self._healthy_since_ms is not None and now_ms - self._healthy_since_ms >= self._reset_after_ms:
            self._failures = 0
            self._delay_ms = self._initial_ms
        self._healthy_since_ms = None
        self._failures += 1
        if self._attempts_max is not None and self._failures > self._attempts_max:
            return GiveUp(f"{self._failures} failures in a row; ExponentialDelay allows {self._attempts_max} restarts")
        delay_ms = min(self._delay_ms, self._maximum_ms)
        self._delay_ms = min(self._delay_ms * self._multiplier, self._maximum_ms)
        return RestartAfter(delay_ms)


class _Rate(RestartDecider):
    def __init__(self, config: FailureRate) -> None:
        self._failures_max = config.failures
        self._per_ms = duration_ms(config.per, "FailureRate.per")
        self._delay_ms = duration_ms(config.delay, "FailureRate.delay")
        self._failed_ms: deque[float] = deque(maxlen=config.failures + 1)

    def failed(self, now_ms: float) -> RestartDecision:
        self._failed_ms.append(now_ms)
        recent = sum(1 for failed_ms in self._failed_ms if failed_ms > now_ms - self._per_ms)
        if recent > self._failures_max:
            return GiveUp(f"{recent} failures within {self._per_ms} ms; FailureRate allows {self._failures_max}")
        return RestartAfter(self._delay_ms)
