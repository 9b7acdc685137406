"""A start that finds storage away: whether to wait for it, and how long.

Comes in: what wants storage. Goes out: its result, or its error as soon as waiting does
not help. Decides nothing itself (snapshot/restart.py does), and says in the log what it
waits for.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from weir.config import JobConfig
from weir.errors import StorageUnavailable
from weir.runtime.clock import SystemClock
from weir.runtime.ports import Chance, Clock
from weir.snapshot.restart import Failure, RestartAfter, Restarts

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_MISTAKES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""What no waiting mends: the location was not well chosen."""


def patiently(
    config: JobConfig,
    act: Callable[[], T],
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
    chance: Chance = random.random,
) -> T:
    """`act`, again and again while storage is away. Only for a job that is resumed, by a service perhaps that nobody
    watches: who starts a job for the first time wants to hear at once that its storage is not there."""
    clock = clock or SystemClock()
    restarts = Restarts(config.restart, config.settings)
    while True:
        try:
            return act()
        except Exception as error:
            if not config.resume or not is_outage(error):
                raise
            failure = Failure(clock.now_ms(), str(error), StorageUnavailable.code, chance())
            decision = restarts.failed(failure)
            if not isinstance(decision, RestartAfter):
                raise
            away_ms = 0.0 if restarts.outage is None else failure.now_ms - restarts.outage.since_ms
            _LOG.warning(
                "job %s waits for storage, for %.0f s up to now, and looks again in %.1f s: %s",
                config.name,
                away_ms / 1_000,
                decision.delay_ms / 1_000,
                error,
            )
            sleep(decision.delay_ms / 1_000)


def is_outage(error: BaseException) -> bool:
    """Whether storage is away, rather than a place that cannot be written to by us."""
    causes = list(_causes(error))
    is_mistake = any(isinstance(cause, OSError) and cause.errno in _MISTAKES for cause in causes)
    return any(isinstance(cause, StorageUnavailable) for cause in causes) and not is_mistake


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
