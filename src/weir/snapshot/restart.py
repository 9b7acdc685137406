"""Whether, and when, a failed job is started again.

Comes in: the moments of failures, and the moments from which an attempt ran well.
Goes out: a delay, or the end with its reason. Never touches a clock.

Two kinds of failures are not left to the user's strategy alone. Storage that is away is
nobody's mistake, and comes back: that is waited out, for as long as the settings say, and
does not count. User code that fails again and again fails for good.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from weir.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart, Settings
from weir.errors import ConfigError, StorageFull, StorageUnavailable, UserCodeError
from weir.snapshot.backoff import Backoff

USER_FAILURES_MAX = 3
"""Failures of the user's own code, with no completed checkpoint in between, that end the job whatever the strategy."""

OUTAGE_CODES = frozenset({StorageUnavailable.code, StorageFull.code})
"""Of errors that say: storage is away."""

OUTAGE_OVER_AFTER_MS = 60_000.0
"""An attempt that has run for so long has found its storage again, also when it takes no checkpoints to prove it;
unless it takes some, and storage is why none came about."""


@dataclass(frozen=True)
class RestartAfter:
    """Start the next attempt after this delay."""

    delay_ms: float


@dataclass(frozen=True)
class GiveUp:
    """The job has failed."""

    reason: str


RestartDecision: TypeAlias = "RestartAfter | GiveUp"


@dataclass(frozen=True)
class Failure:
    """An attempt has failed, or could not even be claimed."""

    now_ms: float
    error: str
    code: str = ""
    """Of the error, where it has one."""
    chance: float = 0.0
    """Drawn from 0 up to 1, for the delay."""


@dataclass(frozen=True)
class Outage:
    """Storage is away."""

    since_ms: float
    failures: int
    error: str
    """What the last look at it has found."""
    retry_ms: float
    """When it is looked at again."""


class Restarts:
    """What a job's driver asks: the user's strategy, and patience with storage."""

    def __init__(self, restart: Restart, settings: Settings) -> None:
        self.outage: Outage | None = None
        """The one that lasts, as far as is known."""
        self._strategy = RestartDecider.from_config(restart)
        self._patience_ms = settings.outage_max_ms
        # Who wants no restart wants none: there may be nothing to start from again.
        self._is_patient = self._patience_ms > 0 and not isinstance(restart, NoRestart)
        self._backoff = Backoff.for_outages(settings)
        self._ran_from_ms: float | None = None
        self._user_failures = 0

    def failed(self, failure: Failure) -> RestartDecision:
        """What to do about a failure."""
        ran_from_ms, self._ran_from_ms = self._ran_from_ms, None
        if ran_from_ms is not None and failure.now_ms - ran_from_ms >= OUTAGE_OVER_AFTER_MS:
            self.outage = None
        if failure.code == UserCodeError.code:
            self._user_failures += 1
            if self._user_failures >= USER_FAILURES_MAX:
                return GiveUp(f"the user's code failed {USER_FAILURES_MAX} times with no checkpoint in between")
        if failure.code in OUTAGE_CODES and self._is_patient:
            return self._wait(failure)
        return self._strategy.failed(failure.now_ms)

    def healthy(self, now_ms: float) -> None:
        """All tasks of an attempt run. May be said again and again; the first time after a failure counts."""
        self._ran_from_ms = now_ms if self._ran_from_ms is None else self._ran_from_ms
        self._strategy.healthy(now_ms)

    def not_checkpointed(self, code: str) -> None:
        """An attempt is about to fail because none of its last checkpoints came about, for a reason with this code. If
        that is storage, the outage lasts, however long the attempt ran in it: files are full, and notes still fit."""
        if code in OUTAGE_CODES:
            self._ran_from_ms = None

    def checkpointed(self) -> None:
        """A checkpoint is complete: storage is there, and the user's code gets on."""
        self.outage = None
        self._user_failures = 0

    def _wait(self, failure: Failure) -> RestartDecision:
        since_ms = failure.now_ms if self.outage is None else self.outage.since_ms
        failures = 1 if self.outage is None else self.outage.failures + 1
        away_ms = failure.now_ms - since_ms
        if away_ms > self._patience_ms:
            return GiveUp(f"storage has been away for {away_ms / 1_000:.0f} s, longer than Settings.outage_max")
        delay_ms = self._backoff.delay_ms(failures, failure.chance)
        self.outage = Outage(since_ms, failures, failure.error, failure.now_ms + delay_ms)
        return RestartAfter(delay_ms)


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
        self._delay_ms = config.delay_ms
        self._failures = 0

    def failed(self, now_ms: float) -> RestartDecision:
        self._failures += 1
        if self._failures > self._attempts_max:
            return GiveUp(f"{self._failures} failures; FixedDelay allows {self._attempts_max} restarts")
        return RestartAfter(self._delay_ms)


class _Exponential(RestartDecider):
    """Quiet time is counted from when the attempt ran, not from the failure: waiting and launching prove nothing."""

    def __init__(self, config: ExponentialDelay) -> None:
        self._initial_ms = config.initial_ms
        self._maximum_ms = config.maximum_ms
        self._reset_after_ms = config.reset_after_ms
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
        self._per_ms = config.per_ms
        self._delay_ms = config.delay_ms
        self._failed_ms: deque[float] = deque(maxlen=config.failures + 1)

    def failed(self, now_ms: float) -> RestartDecision:
        self._failed_ms.append(now_ms)
        recent = sum(1 for failed_ms in self._failed_ms if failed_ms > now_ms - self._per_ms)
        if recent > self._failures_max:
            return GiveUp(f"{recent} failures within {self._per_ms} ms; FailureRate allows {self._failures_max}")
        return RestartAfter(self._delay_ms)
