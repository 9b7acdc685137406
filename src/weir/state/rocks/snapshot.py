"""A RocksDB database on its way into a checkpoint and out of it.

Comes in: links to the files of a database as it was. Goes out: a part of files that only
holds what is new, and state tables. RocksDB never changes a file once it is written, and
one database never gives two files the same name. Another database may: one that went
back to an earlier checkpoint goes on counting from there. So a file is only ever taken
for known if this very database was restored from it, or had it confirmed.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.snapshot.parts import FileRef, StatePart
from weir.state.declared.cursor import TOUCHED_COLUMN
from weir.state.frozen import FrozenState, RestoredPart, StateWriter
from weir.state.rocks.database import Database, Links, open_read_only, scan
from weir.state.rocks.keys import RocksKeys
from weir.state.rocks.values import pack, unpack

ROCKSDB = "rocksdb"
VERSION = 1
"""Of how keys and values are written."""

VERSION_OF_TWO = 2
"""Of parts with the files of two databases: converting.py."""

OLD = "old"
"""In the detail of such a part: what the older database is like."""

OLD_PREFIX = "old."
"""Before the names of the older database's files."""

PIECE_ROWS = 8_192
"""Rows that become one table: more would hold the stream's thread too long."""

STAMP_BYTES = 8
"""A value that can expire begins with the time when it was last touched."""

_NOT_KEPT = ("LOCK", "LOG", "IDENTITY")
"""Files that a database makes anew."""


class RocksLayout:
    """What the byte strings of one state are made of."""

    def __init__(self, schema: pa.Schema, *, keys: int, max_parallelism: int, rows: bool = False) -> None:
        """`schema`: of the state table; `keys`: how many key columns it has; `rows`: all columns after them are one
        value, as a struct."""
        self.schema = schema
        self.keys = RocksKeys(pa.schema(list(schema)[1 : 1 + keys]), max_parallelism)
        rest = list(schema)[1 + keys :]
        if rows:
            rest = [pa.field("row", pa.struct(rest))]
        self.rows = rows
        self.stamped = rest[-1].name == TOUCHED_COLUMN
        values = rest[:-1] if self.stamped else rest
        self.kind: pa.DataType = values[-1].type
        self.map_key: pa.DataType | None = values[0].type if len(values) > 1 else None
        encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
        self.detail = {
            "version": VERSION,
            "schema": encoded,
            "keys": keys,
            "max_parallelism": max_parallelism,
            "rows": rows,
        }
        """What a reader must know."""

    @staticmethod
    def of(detail: Any) -> RocksLayout:
        """The layout of a part in a checkpoint."""
        if detail.get("version") not in (VERSION, VERSION_OF_TWO):
            raise CheckpointError(
                f"a state was written in version {detail.get('version')!r} of the rocksdb format, but this version of"
                f" Weir reads versions up to {VERSION_OF_TWO}; restore it with the version that wrote it, and take a"
                " savepoint there"
            )
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(detail["schema"])))
        return RocksLayout(schema, keys=detail["keys"], max_parallelism=detail["max_parallelism"], rows=detail["rows"])

    def opens(self, part: StatePart) -> bool:
        """Whether a part's files can be opened as they are."""
        return part.format == ROCKSDB and part.detail == self.detail

    def table(self, entries: Sequence[tuple[bytes, bytes]]) -> pa.Table:
        """Entries, sorted by key, as a state table."""
        keys = [key for key, _ in entries]
        values = [value for _, value in entries]
        groups, columns = self.keys.decode(keys)
        arrays = [pa.array(groups), *columns]
        if self.map_key is not None:
            arrays.append(unpack([key[end:] for key, end in zip(keys, self.keys.ends(keys))], self.map_key))
        if self.stamped:
            stamps = unpack([value[:STAMP_BYTES] for value in values], pa.int64())
            values = [value[STAMP_BYTES:] for value in values]
            arrays += [unpack(values, self.kind), stamps]
        else:
            arrays += self.columns(values)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def columns(self, values: Sequence[bytes]) -> list[pa.Array]:
        """The value columns of byte strings, where they have no stamp."""
        array = unpack(values, self.kind)
        columns: list[pa.Array] = array.flatten() if self.rows else [array]
        return columns

    def entries(self, batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
        """The opposite of `table`, for rows in any order."""
        columns = batch.columns
        count = len(self.keys.schema)
        keys = self.keys.encode(columns[1 : 1 + count])
        rest = columns[1 + count :]
        if self.map_key is not None:
            keys = [key + inner for key, inner in zip(keys, pack(rest[0]))]
            rest = rest[1:]
        values = pack(pa.StructArray.from_arrays(rest, fields=list(self.kind)) if self.rows else rest[0])
        if self.stamped:
            values = [stamp + value for stamp, value in zip(pack(rest[1]), values)]
        return list(zip(keys, values))


class StoredBase:
    """What of a database lies in storage already."""

    def __init__(self) -> None:
        self.base: StatePart | None = None
        self.base_sequence = -1


class FrozenRocks(FrozenState):
    """A database as it was at a barrier."""

    def __init__(
        self,
        database: Database,
        directory: str,
        *,
        layout: RocksLayout,
        stored: StoredBase,
        keep: Callable[[pa.Table], pa.Table],
        prefix: str = "",
    ) -> None:
        """`prefix`: before the names of files, so that those of several databases can be told apart in storage."""
        self._layout = layout
        self._stored = stored
        self._keep = keep
        self._prefix = prefix
        self._sequence = database.sequence
        self._base, self._base_sequence = stored.base, stored.base_sequence
        self._links: Links = database.freeze(directory)

    def tables(self) -> Iterator[pa.Table]:
        self._links.make()
        for table in tables_in(self._links.directory, self._layout):
            yield self._keep(table)

    def write(self, out: StateWriter) -> StatePart:
        base = self._base
        if base is not None and self._sequence == self._base_sequence:
            return base
        self._links.make()
        files: dict[str, FileRef] = {}
        for name in sorted(os.listdir(self._links.directory)):
            path = os.path.join(self._links.directory, name)
            if base is not None and name.endswith(".sst") and name in base.files:
                files[name] = base.files[name]
            elif not name.startswith(_NOT_KEPT) and (os.path.getsize(path) or not name.endswith(".log")):
                files[name] = out.put_file(self._prefix + name.replace("-", "%2D"), path, shared=True)
            out.breathe()
        return StatePart(ROCKSDB, files, self._layout.detail)

    def confirmed(self, part: StatePart) -> None:
        self._stored.base, self._stored.base_sequence = part, self._sequence

    def released(self) -> None:
        self._links.remove()


def tables_in(directory: str, layout: RocksLayout) -> Iterator[pa.Table]:
    """The table of a database that nobody changes, in pieces."""
    database = open_read_only(directory)
    try:
        entries = scan(database)
        empty = True
        while piece := list(islice(entries, PIECE_ROWS)):
            empty = False
            yield layout.table(piece)
        if empty:
            yield layout.schema.empty_table()
        del entries
    finally:
        database.close()


# --- Out of a checkpoint ------------------------------------------------------------------------------


def fetch(part: RestoredPart, directory: str) -> None:
    """Put a database's files into a new directory."""
    os.makedirs(directory)
    for name, file in part.part.files.items():
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptCheckpoint(f"a state's part names a file {name!r}, which is no name of a database's file")
        path = os.path.join(directory, name)
        part.files.fetch(file, path)
        if not name.endswith(".sst"):
            _own(path)


def _own(path: str) -> None:
    """Put a copy in the place of what may be a link: RocksDB writes on in some of its files."""
    copy = f"{path}.copy"
    shutil.copyfile(path, copy)
    os.replace(copy, path)
