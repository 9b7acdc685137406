"""What an operator and those who make calls for it agree on: rows out, results back later.

Comes in: a user's async function and how patient to be with it. Goes out: results, when
there are some. The event loop that runs the function is elsewhere (runtime/task/calls.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weir.config.units import Duration, Milliseconds, parse_units
from weir.errors import PlanError

AsyncFunction: TypeAlias = "Callable[[Any], Awaitable[Any]]"


@dataclass(frozen=True)
class Retry:
    """When a call has failed, or took too long: try it again.

    attempts: how many calls there are for a row at most, with the first
    delay:    how long to wait before the second call
    backoff:  by how much that grows each time
    on:       the kinds of errors that are worth another try; time-outs always are

    >>> Retry(attempts=3, delay="200ms").delays_ms
    [200.0, 400.0]
    """

    attempts: int = 3
    delay: Duration = "100ms"
    backoff: float = 2.0
    on: tuple[type[Exception], ...] = (Exception,)

    delay_ms = Milliseconds("delay")

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise PlanError(f"Retry: attempts={self.attempts!r}; there must be at least one")
        if self.backoff < 1:
            raise PlanError(f"Retry: backoff={self.backoff!r}; it must be at least 1")
        parse_units(self)

    @property
    def delays_ms(self) -> list[float]:
        """The waits between the attempts."""
        return [round(self.delay_ms * self.backoff**i, 3) for i in range(self.attempts - 1)]


ONCE = Retry(attempts=1)


@dataclass(frozen=True)
class CallPolicy:
    """How patient to be: `timeout_ms` for each attempt."""

    timeout_ms: int
    retry: Retry = ONCE

    @property
    def longest_ms(self) -> float:
        """After which a row's calls are through, whatever happens."""
        return self.timeout_ms * self.retry.attempts + sum(self.retry.delays_ms)


class CallTimedOut(Exception):
    """A call took longer than it may."""


class Calls(Protocol):
    """Calls of one function, many at a time. Used by the loop's thread."""

    def start(self, rows: Sequence[tuple[int, Any]]) -> None:
        """Call the function with each of these rows; the numbers tell the results apart."""

    def finished(self) -> list[tuple[int, bool, Any]]:
        """What has come back since: the number, and True with the result or False with the exception."""

    @property
    def has_finished(self) -> bool:
        """Whether something has."""

    def close(self) -> None:
        """Give up what is under way."""


MakeCalls: TypeAlias = "Callable[[AsyncFunction, CallPolicy], Calls]"
