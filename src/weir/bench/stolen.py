"""When a virtual machine did not get its processors.

Comes in: the count that Linux keeps. Goes out: the spans of time in which it grew. A
program stands still in them, whatever it is doing.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

COUNTS = Path("/proc/stat")
STOLEN_FIELD = 8
POLL_S = 0.02

LATE_S = 0.02
"""The count may grow so long after the time was stolen: a processor does its accounts with its next tick."""


class StolenTime:
    """Watches, as a context. Where the system does not count, nothing is ever stolen."""

    def __init__(self, counts: Path = COUNTS) -> None:
        self._counts = counts
        self._spans_s: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._looked_s, self._seen = time.monotonic(), self._stolen()

    def __enter__(self) -> StolenTime:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def touches(self, start_s: float, end_s: float) -> bool:
        """Whether some was stolen, as far as is known, between these times of the monotonic clock."""
        return any(start_s < to and since < end_s + LATE_S for since, to in self._spans_s)

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            stolen, now_s = self._stolen(), time.monotonic()
            if stolen != self._seen:
                self._spans_s.append((self._looked_s, now_s))
            self._looked_s, self._seen = now_s, stolen

    def _stolen(self) -> int:
        try:
            return int(self._counts.read_text().split("\n", 1)[0].split()[STOLEN_FIELD])
        except (OSError, ValueError, IndexError):
            return 0
