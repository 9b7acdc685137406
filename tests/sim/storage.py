"""Simulated durable storage: a dictionary that survives crashes, and answers as badly as real ones do.

Every call may fail with its effect done or not done (an ambiguous reply), find the disk full,
or be torn in the middle by a crash of the caller.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from weir.errors import StorageFull, StorageUnavailable


class CallerCrashed(BaseException):
    """The process that made the call died in the middle of it."""


class SimStorage:
    """One shared store. `faults` says how often a call goes wrong; `tear` kills the caller in its next write."""

    def __init__(self, rng: random.Random, files: dict[str, bytes] | None = None, prefix: str = "") -> None:
        self.files = {} if files is None else files
        self.prefix = prefix
        self.trouble = 0.0
        self.tear = False
        self._rng = rng

    def below(self, prefix: str) -> SimStorage:
        """The same store, rooted deeper; shares files, not faults."""
        return _Below(self, f"{self.prefix}{prefix}/")

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        content = bytes(data)
        with self._maybe_torn(path, content), self._maybe_wrong("write"):
            self.files[self.prefix + path] = content

    def publish(self, path: str, data: bytes) -> None:
        with self._maybe_wrong("publish"):
            self.files[self.prefix + path] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        with self._maybe_wrong("create"):
            if self.prefix + path in self.files:
                return False
            self.files[self.prefix + path] = bytes(data)
            return True

    def read(self, path: str) -> pa.Buffer:
        with self._maybe_wrong("read"):
            try:
                return pa.py_buffer(self.files[self.prefix + path])
            except KeyError:
                raise FileNotFoundError(path) from None

    def list(self, path: str) -> list[str]:
        with self._maybe_wrong("list"):
            root = self.prefix + (f"{path}/" if path else "")
            return sorted({name[len(root) :].split("/")[0] for name in self.files if name.startswith(root)})

    def delete(self, path: str) -> None:
        with self._maybe_wrong("delete"):
            gone = self.prefix + path
            for name in [name for name in self.files if name == gone or name.startswith(gone + "/")]:
                del self.files[name]

    def move(self, source: str, target: str) -> None:
        with self._maybe_wrong("move"):
            if self.prefix + source not in self.files:
                raise FileNotFoundError(source)
            self.files[self.prefix + target] = self.files.pop(self.prefix + source)

    @contextmanager
    def _maybe_wrong(self, call: str) -> Iterator[None]:
        dice = self._rng.random()
        if dice < self.trouble / 3 and call in ("write", "publish"):
            raise StorageFull(f"simulated: disk full in {call}")
        if dice < self.trouble * 2 / 3:
            raise StorageUnavailable(f"simulated: {call} was refused")
        yield
        if dice < self.trouble:
            raise StorageUnavailable(f"simulated: the reply to {call} was lost")

    @contextmanager
    def _maybe_torn(self, path: str, content: bytes) -> Iterator[None]:
        if self.tear:
            self.tear = False
            self.files[self.prefix + path] = content[: self._rng.randrange(len(content) + 1)]
            raise CallerCrashed
        yield


class _Below(SimStorage):
    def __init__(self, root: SimStorage, prefix: str) -> None:
        self.files = root.files
        self.prefix = prefix
        self._root = root
        self._rng = root._rng

    @property
    def trouble(self) -> float:  # type: ignore[override]
        return self._root.trouble

    @property
    def tear(self) -> bool:  # type: ignore[override]
        return self._root.tear

    @tear.setter
    def tear(self, value: bool) -> None:
        self._root.tear = value
