"""Rows that wait for their turn in one subtask, on their way into a checkpoint and out of it.

Comes in: batches in the order in which they came, and which of their rows still wait. Goes
out: a part that names the files that earlier checkpoints have written of them, and new ones
for the others; and the rows again, to be dealt out. Reads nothing that the stream still changes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import CheckpointError
from weir.snapshot.parts import FileRef, StatePart
from weir.state.frozen import (
    FILE_BYTES_MAX,
    FrozenState,
    RestoredPart,
    StateWriter,
    decode_table,
    encode_table,
    write_tables,
)
from weir.state.keys.hashing import take_rows
from weir.state.operator_state import REDISTRIBUTE, SPLIT

WAITING = "waiting"
"""The format: files of rows, and an index of the stretches of them that still wait, in their order."""

VERSION = 1
"""Of the format."""

INDEX = "index"

WASTE_MAX = 4
"""A file is referred to while one row of so many still waits."""

_INDEX_SCHEMA = pa.schema([("file", pa.string()), ("start", pa.int64()), ("stop", pa.int64())])

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BatchPlace:
    """Where in a file a batch is."""

    name: str
    start: int
    rows: int


@dataclass(frozen=True)
class Stored:
    """The same, in a file that a completed checkpoint names."""

    place: BatchPlace
    file: FileRef
    file_rows: int


class StoredBatch(Protocol):
    """A batch that waits, and the file that has it."""

    stored: Stored | None
    """Set by the loop's thread."""

    def batch(self) -> pa.RecordBatch:
        """All of its rows. For any thread."""


@dataclass(frozen=True, eq=False)
class WaitingRows:
    """Which rows of a batch waited at a barrier; None: all."""

    of: StoredBatch
    left: Mask | None = None

    def count(self, rows: int) -> int:
        """How many, of so many rows of the batch."""
        return rows if self.left is None else int(self.left.sum())

    def stretches(self, place: BatchPlace) -> list[_Piece]:
        """Where they are in the batch's file."""
        left = np.ones(place.rows, np.bool_) if self.left is None else self.left
        edges = np.flatnonzero(np.diff(np.concatenate(([False], left, [False])))) + place.start
        return [_Piece(place.name, start, stop) for start, stop in edges.reshape(-1, 2).tolist()]

    def rows(self) -> pa.RecordBatch:
        """They themselves."""
        batch = self.of.batch()
        return batch if self.left is None else take_rows(batch, np.flatnonzero(self.left))


class FrozenWaiting(FrozenState):
    """All rows of one subtask that wait. At another parallelism they are dealt out."""

    def __init__(self, schema: pa.Schema, waiting: Sequence[WaitingRows], names: Iterator[int]) -> None:
        """`names`: gives each file of the subtask another number."""
        self._schema = schema
        self._waiting = waiting
        self._names = names
        self._new: list[tuple[StoredBatch, Stored]] = []

    def tables(self) -> Iterator[pa.Table]:
        yield self._schema.empty_table()
        for waiting in self._waiting:
            yield pa.Table.from_batches([waiting.rows()], self._schema)

    def write(self, out: StateWriter) -> StatePart:
        known = [waiting.of.stored for waiting in self._waiting]
        used: dict[str, int] = {}
        for waiting, stored in zip(self._waiting, known, strict=True):
            if stored is not None:
                name, rows = stored.place.name, stored.place.rows
                used[name] = used.get(name, 0) + waiting.count(rows)
        files, pieces = _Files(self._schema, self._names, out), []
        for waiting, stored in zip(self._waiting, known, strict=True):
            if stored is None or used[stored.place.name] * WASTE_MAX < stored.file_rows:
                pieces += files.add(waiting)
            else:
                files.written[stored.place.name] = stored.file
                pieces += waiting.stretches(stored.place)
        files.close()
        self._new = files.new
        columns = [[getattr(piece, f.name) for piece in pieces] for f in _INDEX_SCHEMA]
        index = pa.table([pa.array(c, f.type) for c, f in zip(columns, _INDEX_SCHEMA)], schema=_INDEX_SCHEMA)
        code = base64.b64encode(self._schema.serialize().to_pybytes()).decode()
        detail = {"version": VERSION, "schema": code, REDISTRIBUTE: SPLIT}
        return StatePart(WAITING, {**files.written, INDEX: out.put(INDEX, encode_table(index))}, detail)

    def export(self, out: StateWriter) -> StatePart:
        return replace(write_tables(self.tables(), out), detail={REDISTRIBUTE: SPLIT})

    def confirmed(self, part: StatePart) -> None:
        for batch, stored in self._new:
            batch.stored = stored


@dataclass(frozen=True)
class _Piece:
    """Rows of a file that wait."""

    file: str
    start: int
    stop: int


class _Files:
    """New files, of about FILE_BYTES_MAX each."""

    def __init__(self, schema: pa.Schema, names: Iterator[int], out: StateWriter) -> None:
        self._schema = schema
        self._names = names
        self._out = out
        self.written: dict[str, FileRef] = {}
        self.new: list[tuple[StoredBatch, Stored]] = []
        """What is in them, for later checkpoints."""
        self._open()

    def add(self, waiting: WaitingRows) -> list[_Piece]:
        """Put a batch into a file; only what is left of it, if that is little."""
        batch = waiting.of.batch()
        place = BatchPlace(self._name, self._rows, batch.num_rows)
        if waiting.count(batch.num_rows) * WASTE_MAX < batch.num_rows:
            batch = waiting.rows()
            pieces = [_Piece(self._name, self._rows, self._rows + batch.num_rows)]
        else:
            self._entered.append((waiting.of, place))
            pieces = waiting.stretches(place)
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self._out.breathe()
        if self._bytes >= FILE_BYTES_MAX:
            self.close()
        return pieces

    def close(self) -> None:
        """Write the file that is open."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            file = self._out.put(self._name, encode_table(table), shared=True)
            self.written[self._name] = file
            self.new += [(of, Stored(place, file, self._rows)) for of, place in self._entered]
            self._open()

    def _open(self) -> None:
        self._name = f"w{next(self._names):012d}"
        self._batches: list[pa.RecordBatch] = []
        self._entered: list[tuple[StoredBatch, BatchPlace]] = []
        self._rows = self._bytes = 0


# --- Out of a checkpoint ------------------------------------------------------------------------------


def read_waiting(part: RestoredPart) -> Iterator[pa.Table]:
    """The rows of the format "waiting", in their order."""
    detail = part.part.detail
    if detail["version"] != VERSION:
        raise CheckpointError(
            f"a state was written in version {detail['version']!r} of the format of rows that wait, but this version "
            f"of Weir reads version {VERSION}; restore it with the version that wrote it, and take a savepoint there"
        )
    yield pa.ipc.read_schema(pa.py_buffer(base64.b64decode(detail["schema"]))).empty_table()
    files, name, table = part.part.files, "", pa.table({})
    index = decode_table(part.files.read(files[INDEX]), files[INDEX].path)
    for file, start, stop in zip(*(column.to_pylist() for column in index.columns), strict=True):
        if file != name:
            name, table = file, decode_table(part.files.read(files[file]), files[file].path)
        yield table.slice(start, stop - start)
