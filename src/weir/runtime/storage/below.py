"""Storage within storage: a directory of one, and one that only a single process writes to.

Comes in: a storage. Goes out: the port again. Opens nothing, and holds nothing of its own.
"""

from __future__ import annotations

import pyarrow as pa

from weir.runtime.ports import Storage
from weir.runtime.storage.stores.files import checked


class Below:
    """A directory of a storage, as a storage."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = checked(directory)

    @property
    def creates_atomically(self) -> bool:
        return self._storage.creates_atomically

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self._storage.write(self._at(path), data)

    def publish(self, path: str, data: bytes) -> None:
        self._storage.publish(self._at(path), data)

    def create(self, path: str, data: bytes) -> bool:
        return self._storage.create(self._at(path), data)

    def read(self, path: str) -> pa.Buffer:
        return self._storage.read(self._at(path))

    def list(self, path: str) -> list[str]:
        return self._storage.list(self._at(path))

    def delete(self, path: str) -> None:
        self._storage.delete(self._at(path))

    def prune(self, path: str) -> None:
        self._storage.prune(self._at(path))

    def move(self, source: str, target: str) -> None:
        self._storage.move(self._at(source), self._at(target))

    def _at(self, path: str) -> str:
        return f"{self._directory}/{checked(path)}" if path else self._directory


class Unshared(Below):
    """A storage to which nobody else writes: there, who looks first may write then."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, "")

    def create(self, path: str, data: bytes) -> bool:
        try:
            return bool(self.read(path).to_pybytes() == data)
        except FileNotFoundError:
            self.publish(path, data)
            return True

    def _at(self, path: str) -> str:
        return path
