"""Frozen and restored states as tables, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from weir.snapshot.parts import FileRef, StatePart
from weir.state.frozen import FrozenState, RestoredPart, RestoredParts, RestoredSlice, RestoredState
from weir.state.keys.splitting import KeySplitter


class FrozenTable(FrozenState):
    """A state that is built as one table, later."""

    def __init__(self, build: Callable[[], pa.Table]) -> None:
        self._build = build

    def tables(self) -> Iterator[pa.Table]:
        yield self._build()


@dataclass(frozen=True)
class RestoredTables:
    """Tables that are at hand already."""

    given: Sequence[pa.Table]

    def tables(self) -> Iterator[pa.Table]:
        yield from self.given

    @property
    def whole(self) -> RestoredPart | None:
        return None

    def slices(self) -> Sequence[RestoredSlice]:
        return ()


def table_of(frozen: FrozenState) -> pa.Table:
    """A frozen state as one table."""
    return pa.concat_tables(frozen.tables())


def as_restored(tables: Mapping[str, Sequence[pa.Table]]) -> dict[str, RestoredState]:
    """Tables, as an operator or a backend is given them."""
    return {name: RestoredTables(parts) for name, parts in tables.items()}


class Shelf:
    """Files in memory: where frozen states put theirs, and where they are read again."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.put_bytes = 0
        self.breaths = 0
        self.prefix = ""

    def put(self, name: str, data: pa.Buffer | bytes, *, shared: bool = False) -> FileRef:
        path = f"{'shared' if shared else 'own'}/{self.prefix}{name}"
        if path in self.content:
            raise AssertionError(f"{path} was put twice")
        self.content[path] = bytes(memoryview(data))
        self.put_bytes += len(self.content[path])
        return FileRef(path, len(self.content[path]), "")

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        return self.put(name, Path(local_path).read_bytes(), shared=shared)

    def breathe(self) -> None:
        self.breaths += 1

    def read(self, file: FileRef) -> pa.Buffer:
        return pa.py_buffer(self.content[file.path])

    def fetch(self, file: FileRef, local_path: str) -> None:
        Path(local_path).write_bytes(self.content[file.path])

    def tables(self, part: StatePart, key_groups: range = range(1 << 15), own: range | None = None) -> list[pa.Table]:
        """The tables of a part, as a subtask with the key groups `own` would restore them."""
        return list(RestoredParts([RestoredPart(part, key_groups, self)], own or key_groups).tables())


def split_by_owner(
    batch: pa.RecordBatch, keys: Sequence[str], parallelism: int, max_parallelism: int
) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of one batch by the subtask that owns their key."""
    return KeySplitter(keys, parallelism, max_parallelism).split(batch)
