"""State on its way into a checkpoint and out of it.

A `FrozenState` is one state of one subtask as it was at a barrier: made at once, written
later by a background thread. A `RestoredState` is what a checkpoint holds of it for one
subtask. Both also speak in tables, which every backend understands: that is how state
moves between backends, parallelisms and formats. Knows no storage: it is handed a writer.

A state table has the key group (int32) as its first column, then the key columns, then
the values; no key comes twice. The rows of each of its record batches are sorted by key
group, so that some key groups are one slice of each.
"""

from __future__ import annotations

import base64
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.snapshot.parts import FileRef, StatePart

KEY_GROUP_COLUMN = "__key_group"
"""First column (int32) of every keyed state table; the rows of each record batch are sorted by it."""

GONE_COLUMN = "__gone"
"""Last column (bool), in files only, of tables whose keys can be forgotten."""

ARROW = "arrow"
"""The format of whole tables: Arrow IPC files, in the order of their numbers one table."""

FILE_BYTES_MAX = 32 << 20
"""A state is cut into files of about this size: no more of it than that lies in memory twice, or is written at once."""


class StateWriter(Protocol):
    """Where a frozen state puts its files. Used by one background thread."""

    def put(self, name: str, data: pa.Buffer | bytes, *, shared: bool = False) -> FileRef:
        """Write a file. `shared`: later checkpoints may refer to it, too."""

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        """Write a copy of a local file."""

    def breathe(self) -> None:
        """Called between small pieces of work: leaves the processor to the stream for a while, if it must."""


class FrozenState(ABC):
    """One state of one subtask as it was at a barrier; the state itself goes on changing.

    `tables`, `write`, `export` and `discard` are called by a background thread, `confirmed` and `released` by the
    loop's.
    """

    @abstractmethod
    def tables(self) -> Iterator[pa.Table]:
        """The state in pieces that are one table together; at least one, if only for its schema. May be called
        again."""

    def write(self, out: StateWriter) -> StatePart:
        """Put the state's files; the default writes the whole table."""
        return write_tables(self.tables(), out)

    def keep_for_export(self) -> None:
        """`export` will be called after `write`, so that `write` must not let go of anything."""

    def export(self, out: StateWriter) -> StatePart:
        """Put the whole table, for a savepoint: it refers to no other file, and any backend reads it."""
        return write_tables(self.tables(), out)

    def discard(self, breathe: Callable[[], None]) -> None:
        """No table is asked for any more. To free much memory takes long, too: it is done here, in pieces, and not
        where `released` would hold up the stream."""

    def confirmed(self, part: StatePart) -> None:
        """The checkpoint exists that `write` made this part for: its shared files may be referred to from now on."""

    def released(self) -> None:
        """Nobody reads this any more. Called exactly once, whatever became of the checkpoint."""


def write_tables(tables: Iterable[pa.Table], out: StateWriter) -> StatePart:
    """A whole table in the format that everybody reads."""
    return StatePart(ARROW, put_tables(tables, out))


def put_tables(
    tables: Iterable[pa.Table], out: StateWriter, *, shared: bool = False, first: int = 0
) -> dict[str, FileRef]:
    """Tables as Arrow files of about FILE_BYTES_MAX, numbered from `first` on."""
    files: dict[str, FileRef] = {}
    file: _ArrowFile | None = None
    for table in tables:
        if file is not None and file.size_bytes + table.nbytes > FILE_BYTES_MAX:
            files |= file.put(f"{first + len(files):05d}", out, shared=shared)
            file = None
        file = file or _ArrowFile(table.schema)
        file.add(table)
        out.breathe()
    if file is not None:
        files |= file.put(f"{first + len(files):05d}", out, shared=shared)
    return files


class _ArrowFile:
    """An Arrow IPC file in memory, encoded piece by piece: what is done at once holds up the stream."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(self._sink, schema)
        self.size_bytes = 0

    def add(self, table: pa.Table) -> None:
        self._writer.write_table(table)
        self.size_bytes += table.nbytes

    def content(self) -> pa.Buffer:
        self._writer.close()
        return self._sink.getvalue()

    def put(self, name: str, out: StateWriter, *, shared: bool) -> dict[str, FileRef]:
        return {name: out.put(name, self.content(), shared=shared)}


def encode_table(table: pa.Table) -> pa.Buffer:
    """A state table as an Arrow IPC file."""
    file = _ArrowFile(table.schema)
    file.add(table)
    return file.content()


def decode_table(data: pa.Buffer, path: str) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptCheckpoint(f"state file {path} is not an Arrow file: {error}") from error


# --- Out of a checkpoint ------------------------------------------------------------------------------


class StateFiles(Protocol):
    """The files of a checkpoint, checked against the manifest when they are read."""

    def read(self, file: FileRef) -> pa.Buffer:
        """The content."""

    def fetch(self, file: FileRef, local_path: str) -> None:
        """Put the content into a new local file; it may be a link to a copy that must not be changed."""


@dataclass(frozen=True)
class RestoredPart:
    """What one old subtask had put in for a state."""

    part: StatePart
    key_groups: range
    """Those that the old subtask owned."""
    files: StateFiles


class RestoredState(Protocol):
    """What a checkpoint holds of one state for one subtask."""

    def tables(self) -> Iterator[pa.Table]:
        """Exactly the rows of this subtask's key groups; no key twice in all of them."""

    @property
    def whole(self) -> RestoredPart | None:
        """The part whose key groups are exactly this subtask's, if there is one: its files may be taken as they are."""

    def slices(self) -> Sequence[RestoredSlice]:
        """The parts that have rows of this subtask, in the order of their key groups, for who knows their format; none
        where only the tables are right."""


@dataclass(frozen=True)
class RestoredSlice:
    """A part, and which of its key groups are this subtask's. Its files may be read, but nothing may refer to them."""

    part: RestoredPart
    own: range


@dataclass(frozen=True)
class RestoredParts:
    """The parts of old subtasks that overlap with this one's key groups."""

    parts: Sequence[RestoredPart]
    own: range

    def tables(self) -> Iterator[pa.Table]:
        for part in self.parts:
            covered = self.own.start <= part.key_groups.start and part.key_groups.stop <= self.own.stop
            for table in reader(part.part.format)(part):
                yield table if covered else only(table, self.own)

    @property
    def whole(self) -> RestoredPart | None:
        return self.parts[0] if len(self.parts) == 1 and self.parts[0].key_groups == self.own else None

    def slices(self) -> Sequence[RestoredSlice]:
        parts = sorted(self.parts, key=lambda part: part.key_groups.start)
        shared = [
            range(max(part.key_groups.start, self.own.start), min(part.key_groups.stop, self.own.stop))
            for part in parts
        ]
        return [RestoredSlice(part, own) for part, own in zip(parts, shared, strict=True) if own]


@dataclass(frozen=True)
class CheckedState:
    """A restored state whose tables are checked, or changed, as they come."""

    state: RestoredState
    check: Callable[[pa.Table], pa.Table]

    def tables(self) -> Iterator[pa.Table]:
        for table in self.state.tables():
            yield self.check(table)

    @property
    def whole(self) -> RestoredPart | None:
        return self.state.whole

    def slices(self) -> Sequence[RestoredSlice]:
        return ()


def part_schema(part: RestoredPart) -> pa.Schema:
    """The schema of a part's tables. Most parts say it themselves, so that nothing needs to be read."""
    encoded = (part.part.detail or {}).get("schema")
    if encoded is None:
        return next(iter(reader(part.part.format)(part))).schema
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    gone = schema.get_field_index(GONE_COLUMN)
    return schema if gone < 0 else schema.remove(gone)


def read_arrow(part: RestoredPart) -> Iterator[pa.Table]:
    for name in sorted(part.part.files):
        file = part.part.files[name]
        yield decode_table(part.files.read(file), file.path)


def reader(format: str) -> Callable[[RestoredPart], Iterator[pa.Table]]:
    """How the tables of a format are read."""
    if format not in READERS:
        raise CheckpointError(
            f"state format {format!r} is unknown to this Weir ({', '.join(sorted(READERS))}); restore it with the Weir "
            "that wrote it, or a newer one"
        )
    module, name = READERS[format]
    read: Callable[[RestoredPart], Iterator[pa.Table]] = getattr(importlib.import_module(module), name)
    return read


READERS: Mapping[str, tuple[str, str]] = {
    ARROW: ("weir.state.frozen", "read_arrow"),
    "changes": ("weir.state.changes", "read_changes"),
    "segments": ("weir.state.columns.segments.snapshot", "read_segments"),
    "timers": ("weir.state.timers.snapshot", "read_timers"),
    "waiting": ("weir.state.waiting", "read_waiting"),
    "rocksdb": ("weir.state.rocks.converting", "read_rocksdb"),
}
"""Format to the module and function that reads it; imported when it is needed."""


def only(table: pa.Table, key_groups: range) -> pa.Table:
    """The rows of some key groups."""
    return pa.Table.from_batches([_slice(batch, key_groups) for batch in table.to_batches()], table.schema)


def _slice(batch: pa.RecordBatch, key_groups: range) -> pa.RecordBatch:
    groups: Any = batch.column(KEY_GROUP_COLUMN).to_numpy()
    start, stop = np.searchsorted(groups, [key_groups.start, key_groups.stop])
    return batch.slice(int(start), int(stop - start))
