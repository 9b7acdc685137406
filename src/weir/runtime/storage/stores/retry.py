"""A layer around the storage port that tries again, with growing and jittered pauses.

Comes in: a Storage whose calls may fail, or do their work and lose the reply. Goes out: the same
port, whose calls fail only when a named number of tries has. A repeated call never takes its own
earlier work for somebody else's: a create is decided by the content that is there, a move by the
file that was there before. Randomness and waiting are passed in. StorageFull and missing files
are answers, not failures.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from weir.config import Settings
from weir.errors import StorageFull, StorageUnavailable
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.ranged_reads import RangedFile, ranged_file
from weir.snapshot.backoff import Backoff

if TYPE_CHECKING:
    from weir.runtime.storage.stores.readable import ReadableStorage

T = TypeVar("T")

_FINAL = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""What a local file system says for good. Over a network a refusal may pass: accounts and roles change behind it."""


@dataclass(frozen=True)
class Patience:
    """How often, and how far apart, a storage call is tried again."""

    retries_max: int = Settings.storage_retries_max
    initial_ms: int = Settings.storage_retry_delay_ms
    maximum_ms: int = Settings.storage_retry_delay_max_ms

    def pause_ms(self, failures: int, draw: float) -> float:
        """How long to wait after so many failures in a row. `draw`, between 0 and 1, keeps callers that failed
        together from coming back together."""
        return Backoff(self.initial_ms, self.maximum_ms).delay_ms(failures, draw)


DEFAULT_PATIENCE = Patience()


def patience_of(settings: Settings) -> Patience:
    return Patience(
        settings.storage_retries_max,
        settings.storage_retry_delay_ms,
        settings.storage_retry_delay_max_ms,
    )


class PatientStorage:
    """A storage that is asked again. May be used by many threads if the one inside may."""

    def __init__(
        self,
        storage: ReadableStorage,
        patience: Patience,
        *,
        pause_s: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._storage = storage
        self._patience = patience
        self._pause_s = pause_s
        self._draw = draw

    def __repr__(self) -> str:
        return f"PatientStorage({self._storage!r})"

    @property
    def creates_atomically(self) -> bool:
        return self._patiently(lambda: self._storage.creates_atomically)

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self._patiently(lambda: self._storage.write(path, data))

    def publish(self, path: str, data: bytes) -> None:
        self._patiently(lambda: self._storage.publish(path, data))

    def create(self, path: str, data: bytes) -> bool:
        lost_replies = 0

        def act() -> bool:
            nonlocal lost_replies
            try:
                return self._storage.create(path, data)
            except StorageUnavailable:
                lost_replies += 1
                raise

        try:
            return self._patiently(act)
        except StorageFull as error:
            if lost_replies:
                raise StorageUnavailable(f"{error}; an earlier try may have succeeded") from error
            raise

    def read(self, path: str) -> pa.Buffer:
        return self._patiently(lambda: self._storage.read(path))

    def list(self, path: str) -> list[str]:
        return self._patiently(lambda: self._storage.list(path))

    def delete(self, path: str) -> None:
        self._patiently(lambda: self._storage.delete(path))

    def prune(self, path: str) -> None:
        self._patiently(lambda: self._storage.prune(path))

    def move(self, source: str, target: str) -> None:
        size_bytes, lost_replies = self._size_bytes(source), 0

        def act() -> None:
            nonlocal lost_replies
            try:
                self._storage.move(source, target)
            except StorageUnavailable:
                lost_replies += 1
                raise
            except FileNotFoundError:
                # It was there: ours may be the move that took it to the target. What is there now may be another's, or
                # what its reader has made of it since, and is never taken for it.
                if size_bytes is None or lost_replies == 0 or self._storage.detail(target).size_bytes != size_bytes:
                    raise

        self._patiently(act)

    def _size_bytes(self, path: str) -> int | None:
        """None: it is not there. A move of it may have been done, by somebody who has not heard so: the storage makes
        sure of that, and says that there is nothing to move."""
        try:
            return self.detail(path).size_bytes
        except FileNotFoundError:
            return None

    def sizes(self, path: str) -> dict[str, int]:
        return self._patiently(lambda: self._storage.sizes(path))

    def details(self, path: str) -> dict[str, FileDetails]:
        return self._patiently(lambda: self._storage.details(path))

    def detail(self, path: str) -> FileDetails:
        return self._patiently(lambda: self._storage.detail(path))

    def open_input(self, path: str) -> pa.NativeFile:
        opened = self._patiently(lambda: self._storage.open_input(path))
        if not isinstance(opened, RangedFile):
            return opened
        fetch = opened.fetch
        return ranged_file(lambda start, end: self._patiently(lambda: fetch(start, end)), opened.size())

    def is_file(self, path: str) -> bool:
        return self._patiently(lambda: self._storage.is_file(path))

    def is_directory(self, path: str) -> bool:
        return self._patiently(lambda: self._storage.is_directory(path))

    def _patiently(self, act: Callable[[], T]) -> T:
        failures = 0
        while True:
            try:
                return act()
            except StorageFull:
                raise
            except StorageUnavailable as error:
                if getattr(error.__cause__, "errno", None) in _FINAL:
                    raise
                failures += 1
                if failures > self._patience.retries_max:
                    if failures == 1:
                        raise
                    raise StorageUnavailable(f"{error} (tried {failures} times)") from error
            self._pause_s(self._patience.pause_ms(failures, self._draw()) / 1000)
