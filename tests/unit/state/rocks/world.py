"""What the tests of the rocksdb backend share: backends with directories of their own, and a store of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.states import table_of
from weir.config import RocksDb
from weir.snapshot.parts import FileRef, StatePart
from weir.state.backends import make_backend
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace
from weir.state.rocks.backend import RocksBackend

KEYS = pa.schema([("k", pa.int64())])
GROUPS = 128


class Store:
    """Files of checkpoints, as a writer and a reader of states see them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        self.checkpoint = 0
        self.uploaded_bytes = 0

    def put(self, name: str, data: Any, *, shared: bool = False) -> FileRef:
        assert "-" not in name
        path = f"{self.checkpoint}-{name}"
        target = self.path / path
        assert not target.exists()
        target.write_bytes(data)
        self.uploaded_bytes += target.stat().st_size
        return FileRef(path, target.stat().st_size, "")

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        assert shared
        return self.put(name, Path(local_path).read_bytes())

    def breathe(self) -> None:
        pass

    def read(self, file: FileRef) -> pa.Buffer:
        return pa.py_buffer((self.path / file.path).read_bytes())

    def fetch(self, file: FileRef, local_path: str) -> None:
        os.link(self.path / file.path, local_path)


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path / "store")
        self.made: list[RocksBackend] = []

    def backend(self, groups: range = range(GROUPS), now_ms: Any = lambda: 0, memory: str = "32MB") -> RocksBackend:
        place = StatePlace(backend=RocksDb(memory), directory=str(self.path / f"task-{len(self.made)}"), now_ms=now_ms)
        made = make_backend(KEYS, max_parallelism=GROUPS, key_groups=groups, place=place)
        assert isinstance(made, RocksBackend)
        self.made.append(made)
        return made

    def write(self, backend: RocksBackend, name: str = "s", *, confirm: bool = True) -> StatePart:
        """One checkpoint."""
        self.store.checkpoint += 1
        self.store.uploaded_bytes = 0
        frozen = backend.freeze()[name]
        part = frozen.write(self.store)
        frozen.released()
        if confirm:
            frozen.confirmed(part)
        return part

    def restored(self, *parts: tuple[StatePart, range], own: range = range(GROUPS)) -> dict[str, RestoredParts]:
        found = [RestoredPart(part, groups, self.store) for part, groups in parts]
        return {"s": RestoredParts(found, own)}

    def whole(self, part: StatePart) -> dict[str, RestoredParts]:
        return self.restored((part, range(GROUPS)))


def values(backend: RocksBackend, handle: Any, keys: Sequence[int]) -> list[Any]:
    encoded = backend.keys([pa.array(keys, pa.int64())])
    backend.begin(encoded)
    found = []
    for backend.cursor.key in encoded:
        found.append(handle.get())
    backend.end()
    return found


def update(backend: RocksBackend, handle: Any, keys: Sequence[int], value: Any) -> None:
    encoded = backend.keys([pa.array(keys, pa.int64())])
    backend.begin(encoded)
    for key, backend.cursor.key in zip(keys, encoded):
        handle.set(value(key) if callable(value) else value)
    backend.end()


def as_dict(frozen: Any) -> dict[int, Any]:
    table = table_of(frozen)
    return dict(zip(table.column("k").to_pylist(), table.column("value").to_pylist()))
