"""Where the state of one operator of one subtask lives in its task.

Comes in: the job's settings, as the worker found them. Goes out: what backends must
know to set themselves up. The clock is handed in, so that tests can own it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weir.config import Heap, StateBackend
from weir.state.aside import Aside, AtOnce


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class StatePlace:
    """What a backend is given besides the keys."""

    backend: StateBackend = field(default_factory=Heap)
    directory: str | None = None
    """A local directory of this operator's own, made when it is first used and removed by the task; None: there is
    none, so the backend must do without."""
    tables_per_task: int = 1
    """How many keyed operators share the task's memory budget."""
    now_ms: Callable[[], int] = wall_clock_ms
    """Processing time, for states that expire."""
    aside: Aside = field(default_factory=AtOnce)
    """Where local files are written and removed."""

    def shared_by(self, parts: int) -> StatePlace:
        """The same for each of several parts of an operator, which share its memory."""
        return replace(self, tables_per_task=parts * self.tables_per_task)
