"""Simulated durable storage: a dictionary that survives crashes, and answers as badly as real ones do.

Every call may fail with its effect done or not done (an ambiguous reply), find the disk full, be torn
in the middle by a crash of the caller, or let other processes act between it and the call before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from weir.errors import StorageFull, StorageUnavailable

GAP_PROBABILITY = 0.3
"""How often something that waits to act elsewhere acts between two calls."""


class CallerCrashed(BaseException):
    """The process that made the call died in the middle of it."""


class SimStorage:
    """One shared store. `trouble` says how often a call goes wrong; `tear` kills the caller in its next change."""

    def __init__(self, rng: random.Random) -> None:
        self.files: dict[str, bytes] = {}
        self.trouble = 0.0
        self.tear = False
        self.between_calls: Callable[[], None] = lambda: None
        self._rng = rng
        self._is_quiet = False

    def below(self, prefix: str) -> SimDirectory:
        """The same store, rooted deeper."""
        return SimDirectory(self, f"{prefix}/")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing goes wrong in here, and nobody else acts."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def change(self, call: str, act: Callable[[], None], half: Callable[[], None]) -> None:
        """Do something to the files. `half` is what is left of it when the caller dies meanwhile."""
        if self.tear and not self._is_quiet:
            self.tear = False
            self._rng.choice([half, act])()
            raise CallerCrashed
        with self.answering(call):
            act()

    @contextmanager
    def answering(self, call: str) -> Iterator[None]:
        """One call: refused, done and answered, or done although the reply is lost."""
        if self._is_quiet:
            yield
            return
        if self._rng.random() < GAP_PROBABILITY:
            with self.quiet():
                self.between_calls()
        dice = self._rng.random()
        if dice < self.trouble / 3 and call in ("write", "publish", "create"):
            raise StorageFull(f"simulated: disk full in {call}")
        if dice < self.trouble * 2 / 3:
            raise StorageUnavailable(f"simulated: {call} was refused")
        yield
        if dice < self.trouble:
            raise StorageUnavailable(f"simulated: the reply to {call} was lost")

    def some_of(self, content: bytes) -> bytes:
        """What a torn write leaves."""
        return content[: self._rng.randrange(len(content) + 1)]

    def some_names(self, names: list[str]) -> list[str]:
        return [name for name in names if self._rng.random() < 0.5]


class SimDirectory:
    """The storage port on one directory of the store."""

    def __init__(self, store: SimStorage, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.files = store.files

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        content, name = bytes(data), self._prefix + path
        self._store.change(
            "write", lambda: self._put(name, content), lambda: self._put(name, self._store.some_of(content))
        )

    def publish(self, path: str, data: bytes) -> None:
        name = self._prefix + path
        self._store.change("publish", lambda: self._put(name, bytes(data)), _nothing)

    def create(self, path: str, data: bytes) -> bool:
        name = self._prefix + path
        if name in self.files:
            with self._store.answering("look"):
                return False
        created = False

        def act() -> None:
            nonlocal created
            if name not in self.files:  # Somebody may have come first, just now.
                self._put(name, bytes(data))
                created = True

        self._store.change("create", act, _nothing)
        return created

    def read(self, path: str) -> pa.Buffer:
        with self._store.answering("read"):
            try:
                return pa.py_buffer(self.files[self._prefix + path])
            except KeyError:
                raise FileNotFoundError(path) from None

    def list(self, path: str) -> list[str]:
        with self._store.answering("list"):
            root = self._prefix + (f"{path}/" if path else "")
            length = len(root)
            return sorted({name[length:].split("/", 1)[0] for name in self.files if name.startswith(root)})

    def delete(self, path: str) -> None:
        gone = self._prefix + path
        names = [name for name in self.files if name == gone or name.startswith(f"{gone}/")]
        self._store.change("delete", lambda: self._remove(names), lambda: self._remove(self._store.some_names(names)))

    def prune(self, path: str) -> None:
        """There are no directories without files here."""

    @property
    def creates_atomically(self) -> bool:
        return True

    def move(self, source: str, target: str) -> None:
        if self._prefix + source not in self.files:
            with self._store.answering("look"):
                raise FileNotFoundError(source)

        def act() -> None:
            if self._prefix + source not in self.files:
                raise FileNotFoundError(source)
            content = self.files[self._prefix + source]
            if self.files.get(self._prefix + target, content) != content:
                raise FileExistsError(target)
            self._put(self._prefix + target, self.files.pop(self._prefix + source))

        self._store.change("move", act, _nothing)

    def _put(self, name: str, content: bytes) -> None:
        self.files[name] = content

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self.files.pop(name, None)


def _nothing() -> None:
    """All or nothing: of such a call no half is ever seen."""
