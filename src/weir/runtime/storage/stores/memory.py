"""Storage in this process's memory, with a limit: what jobs without a checkpoint location use.

Comes in: calls of the storage port. Goes out: files that were written here before. Touches no disk; nothing of it
outlives the process.
"""

from __future__ import annotations

import threading

import pyarrow as pa

from weir.errors import StorageFull
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import checked


class MemoryStorage:
    """A directory in this process's memory, with a limit. Safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._files: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()

    @property
    def creates_atomically(self) -> bool:
        return True

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        # Copied, so that what a caller later does to its own memory changes nothing here.
        buffer = pa.py_buffer(bytes(data))
        with self._lock:
            self._put(checked(path), buffer)

    publish = write

    def create(self, path: str, data: bytes) -> bool:
        buffer = pa.py_buffer(bytes(data))
        with self._lock:
            if checked(path) in self._files:
                return bool(self._get(checked(path)) == buffer)
            self._put(checked(path), buffer)
            return True

    def read(self, path: str) -> pa.Buffer:
        with self._lock:
            return self._get(checked(path))

    def list(self, path: str) -> list[str]:
        prefix = _prefix(path)
        with self._lock:
            return sorted({key[len(prefix) :].split("/")[0] for key in self._files if key.startswith(prefix)})

    def delete(self, path: str) -> None:
        prefix = _prefix(path)
        with self._lock:
            for key in [key for key in self._files if key == checked(path) or key.startswith(prefix)]:
                del self._files[key]

    def prune(self, path: str) -> None:
        """There are no directories without files here."""

    def move(self, source: str, target: str) -> None:
        with self._lock:
            buffer = self._get(checked(source))
            there = self._files.get(checked(target))
            if there is not None and there != buffer:
                raise FileExistsError(f"{target}: another file has this name in memory storage")
            del self._files[checked(source)]
            self._files[checked(target)] = buffer

    def sizes(self, path: str) -> dict[str, int]:
        prefix = _prefix(path)
        with self._lock:
            below = {key[len(prefix) :]: buffer.size for key, buffer in self._files.items() if key.startswith(prefix)}
        return {name: size for name, size in sorted(below.items()) if "/" not in name}

    def details(self, path: str) -> dict[str, FileDetails]:
        return {name: FileDetails(size) for name, size in self.sizes(path).items()}

    def detail(self, path: str) -> FileDetails:
        return FileDetails(self.read(path).size)

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def is_file(self, path: str) -> bool:
        with self._lock:
            return checked(path) in self._files

    def is_directory(self, path: str) -> bool:
        return not checked(path) or bool(self.list(path))

    def _get(self, key: str) -> pa.Buffer:
        if key not in self._files:
            raise FileNotFoundError(f"{key}: no such file in memory storage")
        return self._files[key]

    def _put(self, key: str, buffer: pa.Buffer) -> None:
        replaced = self._files.get(key)
        used_bytes = self._used_bytes() - (0 if replaced is None else replaced.size) + buffer.size
        if used_bytes > self._limit_bytes:
            raise StorageFull(
                f"{key}: {buffer.size} bytes more would make {used_bytes} bytes in memory, above the limit of "
                f"{self._limit_bytes}; raise the limit (Checkpoints.memory_limit) or give a storage location"
            )
        self._files[key] = buffer

    def _used_bytes(self) -> int:
        return sum(buffer.size for buffer in self._files.values())


def _prefix(path: str) -> str:
    return f"{checked(path)}/" if checked(path) else ""
