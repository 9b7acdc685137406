"""How long to wait before something that failed is tried again.

Comes in: how often it has failed in a row, and a random number. Goes out: a delay.
Never touches a clock, and draws nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.config import Settings
from weir.errors import ProtocolViolation

_DOUBLINGS_MAX = 60
"""Beyond this no delay grows any more: any maximum is reached long before."""


@dataclass(frozen=True)
class Backoff:
    """Delays that double with every failure up to a maximum. The second half of each is drawn: many that failed
    together must not all come back together."""

    initial_ms: float
    maximum_ms: float

    @classmethod
    def for_commits(cls, settings: Settings) -> Backoff:
        """Between two tries of a sink's commit."""
        return cls(settings.commit_retry_delay_ms, settings.commit_retry_delay_max_ms)

    @classmethod
    def for_outages(cls, settings: Settings) -> Backoff:
        """Between two looks at storage that is away."""
        return cls(settings.outage_retry_delay_ms, settings.outage_retry_delay_max_ms)

    def delay_ms(self, failures: int, chance: float) -> float:
        """Before the next try, after so many failures in a row. `chance`: from 0 up to 1, drawn anew each time.

        >>> [Backoff(100, 1_000).delay_ms(failures, chance=1.0) for failures in (1, 2, 3, 4, 5, 6)]
        [100.0, 200.0, 400.0, 800.0, 1000.0, 1000.0]
        """
        if failures < 1 or not 0.0 <= chance <= 1.0:
            raise ProtocolViolation(f"backoff: {failures} failures, chance {chance}")
        whole_ms = min(self.initial_ms * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.maximum_ms)
        return float(whole_ms * (1 + chance) / 2)
