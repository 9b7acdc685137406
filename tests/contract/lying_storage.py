"""A store in memory that answers as badly as one over a network: throttled, cut off, without a reply, late.

Seeded. A call may be refused; be refused many times in a row, to everybody; do its work and lose the reply; delete
half of what it should and then fail; or be given up by its caller and do its work later, between two other calls.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from weir.errors import StorageUnavailable
from weir.runtime.storage.stores.memory import MemoryStorage

T = TypeVar("T")
TROUBLE = 0.3
THROTTLED_CALLS_MAX = 4


class LyingStorage(MemoryStorage):
    """What it holds is always what an honest store could hold; only its answers cannot be trusted."""

    def __init__(self, limit_bytes: int, seed: int) -> None:
        super().__init__(limit_bytes)
        self._random = random.Random(seed)
        self._door = threading.RLock()
        self._throttled = 0
        self._late: list[Callable[[], object]] = []
        self.lies = 0

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        honest = super().write
        self._answer("write", lambda: honest(path, data))

    def publish(self, path: str, data: pa.Buffer | bytes) -> None:
        honest = super().write
        self._answer("publish", lambda: honest(path, data))

    def create(self, path: str, data: bytes) -> bool:
        honest = super().create
        return self._answer("create", lambda: honest(path, data), may_be_late=True)

    def read(self, path: str) -> pa.Buffer:
        honest = super().read
        return self._answer("read", lambda: honest(path))

    def list(self, path: str) -> list[str]:
        honest = super().list
        return self._answer("list", lambda: honest(path))

    def delete(self, path: str) -> None:
        honest, names = super().delete, super().list

        def half() -> None:
            for name in names(path)[::2]:
                honest(f"{path}/{name}" if path else name)

        self._answer("delete", lambda: honest(path), half=half)

    def move(self, source: str, target: str) -> None:
        honest = super().move
        self._answer("move", lambda: honest(source, target))

    def sizes(self, path: str) -> dict[str, int]:
        honest = super().sizes
        return self._answer("list", lambda: honest(path))

    def is_file(self, path: str) -> bool:
        honest = super().is_file
        return self._answer("look", lambda: honest(path))

    def _answer(
        self, call: str, act: Callable[[], T], *, half: Callable[[], None] | None = None, may_be_late: bool = False
    ) -> T:
        with self._door:
            if self._late and self._random.random() < 0.5:
                self._late.pop()()
            if self._throttled:
                self._throttled -= 1
                raise self._trouble(f"{call}: slow down")
            if self._random.random() >= TROUBLE:
                return act()
            kind = self._random.randrange(5)
            if kind == 0:
                raise self._trouble(f"{call}: refused")
            if kind == 1:
                self._throttled = self._random.randrange(THROTTLED_CALLS_MAX)
                raise self._trouble(f"{call}: slow down")
            if kind == 2 and half is not None:
                half()
            elif kind == 3 and may_be_late:
                self._late.append(act)
            else:
                act()
            raise self._trouble(f"{call}: no reply")

    def _trouble(self, text: str) -> StorageUnavailable:
        self.lies += 1
        return StorageUnavailable(text)
