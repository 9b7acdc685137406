"""Simulated durable storage: a dictionary that survives crashes, and answers as badly as real ones do.

Every call may fail with its effect done or not done (an ambiguous reply), find the disk full, be torn in the middle by
a crash of the caller, hang for longer than anything else takes, or let other processes act before it takes effect.
What a seed draws besides is the kind: with a disk's rename, or with an object store's puts only.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from greenlet import getcurrent

from tests.sim.work import Call, CallerCrashed, Work
from weir.errors import StorageFull, StorageUnavailable

SCHEME = "simulated"
"""Of every location."""

HALF_SEEN = 0.1
"""How often a file on a disk is there half-written for a while, for others to see."""

IN_PIECES = 0.5
"""How often a deletion of many files is seen half-done, and a list is not of one moment."""


NO_ROOM_TO_SYNC = 0.3
"""How often a lost reply of a disk is that there was no room left to make sure of what was written."""


class SimStorage:
    """One shared store. `trouble` says how often a call goes wrong; `tear` kills the caller in its next change."""

    def __init__(self, rng: random.Random) -> None:
        self.files: dict[str, bytes] = {}
        self.changed: dict[str, Work | None] = {}
        """What was written or removed since somebody looked, and by whom."""
        self.trouble = 0.0
        self.tear = False
        self.pauses = 1.0
        """How often others act before a call takes effect."""
        self.has_rename = True
        self.is_full_behind: Callable[[str], bool] = lambda call: False
        """Whether there is no room left to make sure of what a call has just written."""
        self.hangs_until_ms: Callable[[str], float] = lambda call: 0.0
        self._rng = rng
        self._is_quiet = False

    def open(self, location: str, create: bool = True) -> SimDirectory:
        """The opener of everybody in the simulated world."""
        scheme, _, path = location.partition("://")
        if scheme != SCHEME:
            raise AssertionError(f"{location} is not of this world")
        return self.below(path)

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

    def call(self, name: str, act: Callable[[], Any], half: Callable[[], None] | None = None, *, path: str = "") -> Any:
        """Do something with the files. `half` is what is left of a change when the caller dies meanwhile."""
        work = getcurrent()
        if self._is_quiet or not isinstance(work, Work):
            return act()
        is_lucky = work.owner is not None and work.owner.is_lucky
        call = Call(name, act if is_lucky else lambda: self._answered(name, act), half, path=path)
        call.not_before_ms = 0.0 if is_lucky else self.hangs_until_ms(name)
        if work.is_killed or call.not_before_ms > 0 or self._rng.random() < self.pauses:
            work.stop_at(call)
        if self.tear and half is not None and not call.is_done and not is_lucky:
            self.tear = False
            self._rng.choice([half, act])()
            raise CallerCrashed
        return call.reply()

    def happens(self, probability: float) -> bool:
        """Whether something is drawn that only shows between the calls of several processes."""
        return not self._is_quiet and isinstance(getcurrent(), Work) and self._rng.random() < probability

    def put(self, name: str, content: bytes) -> None:
        self.files[name] = content
        self._note(name)

    def remove(self, names: list[str]) -> None:
        for name in names:
            if self.files.pop(name, None) is not None:
                self._note(name)

    def some_of(self, content: bytes) -> bytes:
        """What a torn write leaves."""
        return content[: self._rng.randrange(len(content) + 1)]

    def some_names(self, names: list[str]) -> list[str]:
        return [name for name in names if self._rng.random() < 0.5]

    def _note(self, name: str) -> None:
        work = getcurrent()
        self.changed[name] = work if isinstance(work, Work) else None

    def _answered(self, call: str, act: Callable[[], Any]) -> Any:
        """One call: refused, done and answered, or done although the reply is lost."""
        dice = self._rng.random() if self.trouble else 1.0
        if dice < self.trouble / 3 and call in ("write", "publish", "create"):
            raise StorageFull(f"simulated: disk full in {call}")
        if dice < self.trouble * 2 / 3:
            raise StorageUnavailable(f"simulated: {call} was refused")
        result = act()
        if self.is_full_behind(call):
            raise StorageFull(f"simulated: disk full behind {call}")
        if dice < self.trouble:
            if self.has_rename and call in ("write", "publish", "create") and self._rng.random() < NO_ROOM_TO_SYNC:
                raise StorageFull(f"simulated: disk full behind {call}")
            raise StorageUnavailable(f"simulated: the reply to {call} was lost")
        return result


class SimDirectory:
    """The storage port on one directory of the store."""

    def __init__(self, store: SimStorage, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.files = store.files

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        store, content, name = self._store, bytes(data), self._prefix + path

        def half() -> None:
            if store.has_rename:  # an object is there as a whole, or not at all
                store.put(name, store.some_of(content))

        if store.has_rename and store.happens(HALF_SEEN):
            store.call("write", half, half)
        store.call("write", lambda: store.put(name, content), half, path=name)

    def publish(self, path: str, data: bytes) -> None:
        name, content = self._prefix + path, bytes(data)
        self._store.call("publish", lambda: self._store.put(name, content), _nothing)

    def create(self, path: str, data: bytes) -> bool:
        name, content = self._prefix + path, bytes(data)

        def act() -> bool:
            if name in self.files:
                return bool(self.files[name] == content)
            self._store.put(name, content)
            return True

        return bool(self._store.call("create", act, _nothing))

    def read(self, path: str) -> pa.Buffer:
        def act() -> pa.Buffer:
            try:
                return pa.py_buffer(self.files[self._prefix + path])
            except KeyError:
                raise FileNotFoundError(path) from None

        return self._store.call("read", act)

    def list(self, path: str) -> list[str]:
        root = self._prefix + (f"{path}/" if path else "")
        found: list[str] = self._store.call("list", lambda: self._below(root))
        if len(found) > 1 and self._store.happens(IN_PIECES):
            # Lists come in pages: what appears or goes meanwhile may be in it or not.
            last = found[len(found) // 2 - 1]
            later: list[str] = self._store.call("list", lambda: self._below(root))
            return [name for name in found if name <= last] + [name for name in later if name > last]
        return found

    def delete(self, path: str) -> None:
        store, gone = self._store, self._prefix + path

        def names() -> list[str]:
            return [name for name in self.files if name == gone or name.startswith(f"{gone}/")]

        def half() -> None:
            store.remove(store.some_names(names()))

        if store.happens(IN_PIECES) and len(names()) > 1:
            store.call("delete", half, half)
        store.call("delete", lambda: store.remove(names()), half)

    def prune(self, path: str) -> None:
        """There are no directories without files here."""

    @property
    def creates_atomically(self) -> bool:
        return True

    def move(self, source: str, target: str) -> None:
        store, old, new = self._store, self._prefix + source, self._prefix + target

        def link() -> None:
            if old not in self.files:
                raise FileNotFoundError(source)
            if self.files.get(new, self.files[old]) != self.files[old]:
                raise FileExistsError(target)
            if new not in self.files:
                store.put(new, self.files[old])

        def rename() -> None:
            link()
            store.remove([old])

        if store.has_rename:
            store.call("move", rename, _nothing)
        else:
            store.call("create", link, _nothing)
            store.call("delete", lambda: store.remove([old]), _nothing)

    def _below(self, root: str) -> builtins.list[str]:
        length = len(root)
        return sorted({name[length:].split("/", 1)[0] for name in self.files if name.startswith(root)})


def _nothing() -> None:
    """All or nothing: of such a call no half is ever seen."""
