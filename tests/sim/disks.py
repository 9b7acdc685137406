"""Local disks of simulated tasks: real directories, and a RocksDB whose own threads decide nothing."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.sim.patching import all_of, patched
from weir.config import RocksDb, Settings
from weir.state.aside import Errand
from weir.state.rocks.database import Database, Memory

ROCKS_BYTES_MIN = 16 << 20
"""A RocksDB has so much memory at least: it never writes a buffer out by itself. Segments have what was drawn."""


DONE_BY_NOW = 0.3
"""How often an errand is over when somebody looks."""


class Disks:
    """The directories of all tasks of a world."""

    def __init__(self, rng: random.Random) -> None:
        self.aside = SimAside(rng)
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._tasks = 0

    def of_task(self, settings: Settings) -> str | None:
        """An empty one, where the job's backend wants one."""
        if not isinstance(settings.backend, RocksDb):
            return None
        if self._root is None:
            self._root = tempfile.TemporaryDirectory(prefix="weir-sim-")
        self._tasks += 1
        directory = os.path.join(self._root.name, str(self._tasks))
        os.mkdir(directory)
        return directory

    def close(self) -> None:
        if self._root is not None:
            self._root.cleanup()
            self._root = None


class SimAside:
    """Files are written and removed when it pleases, unless somebody waits for that."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def run(self, work: Callable[[], None]) -> Errand:
        return _SimErrand(work, self._rng)


class _SimErrand:
    def __init__(self, work: Callable[[], None], rng: random.Random) -> None:
        self._work: Callable[[], None] | None = work
        self._rng = rng

    def is_over(self, wait_s: float = 0.0) -> bool:
        if self._work is not None and (wait_s > 0 or self._rng.random() < DONE_BY_NOW):
            work, self._work = self._work, None
            work()
        return self._work is None


def without_races() -> AbstractContextManager[None]:
    """A seed is the same run each time: it does not depend on how far RocksDB's threads have come."""
    options, settle, begin = Memory.options, Database.settle, Memory.__init__

    def calm_options(self: Memory) -> Any:
        calm = options(self)
        calm.set_disable_auto_compactions(True)
        return calm

    def settle_at_once(self: Database, *, wait: bool) -> None:
        settle(self, wait=True)

    def begin_large(self: Memory, budget_bytes: int) -> None:
        begin(self, max(budget_bytes, ROCKS_BYTES_MIN))

    changes: list[tuple[type, str, Callable[..., Any]]] = [
        (Memory, "options", calm_options),
        (Memory, "__init__", begin_large),
        (Database, "settle", settle_at_once),
    ]
    return all_of(*(patched(owner, name, value) for owner, name, value in changes))
