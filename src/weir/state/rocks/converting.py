"""A database whose values are of two types: those of a checkpoint that was restored, and what they have become since.

Comes in: a database as it was in the checkpoint, and how its values evolve. Goes out: a database of the type that is
declared now. What is read is converted, the rest a few entries at a time; a key is in one of the two only. Frozen, it
is one part with the files of both, which says how the older ones become the newer: whoever reads it sees one type.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError
from weir.schema import format_type
from weir.snapshot.parts import StatePart
from weir.state.frozen import FrozenState, RestoredPart, StateWriter
from weir.state.rocks.database import Database, Memory
from weir.state.rocks.snapshot import (
    OLD,
    OLD_PREFIX,
    ROCKSDB,
    STAMP_BYTES,
    VERSION_OF_TWO,
    FrozenRocks,
    RocksLayout,
    fetch,
    tables_in,
)
from weir.state.rocks.values import pack, unpack
from weir.state.values.evolution import evolve


class Evolution:
    """How the values of one layout become those of another. What the keys are made of is the same in both."""

    def __init__(self, old: RocksLayout, new: RocksLayout, default: Any) -> None:
        """`default`: of the state, from which fields that are new in a struct get their values."""
        self.old = old
        self._new = new
        self._default = default if isinstance(default, dict) and pa.types.is_struct(new.kind) else None

    @staticmethod
    def between(old: RocksLayout, new: RocksLayout, default: Any) -> Evolution | None:
        """None: more than the values has changed."""
        same = old.keys.schema == new.keys.schema and old.detail["max_parallelism"] == new.detail["max_parallelism"]
        if not same or old.map_key != new.map_key or old.stamped != new.stamped or old.rows or new.rows:
            return None
        return Evolution(old, new, default)

    @staticmethod
    def of(detail: Any) -> Evolution:
        """That of a part with the files of both."""
        old, new = RocksLayout.of(detail[OLD]["detail"]), RocksLayout.of(detail)
        encoded = detail[OLD]["default"]
        if encoded is None:
            return Evolution(old, new, None)
        with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(encoded))) as stream:
            (default,) = stream.read_all().column(0).to_pylist()
        return Evolution(old, new, default)

    @property
    def detail(self) -> Any:
        """For `of`."""
        encoded = None
        if self._default is not None:
            sink = pa.BufferOutputStream()
            table = pa.table({"default": pa.array([self._default], self._new.kind)})
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            encoded = base64.b64encode(sink.getvalue().to_pybytes()).decode()
        old = {"detail": self.old.detail, "default": encoded}
        return {**self._new.detail, "version": VERSION_OF_TWO, OLD: old}

    def values(self, packed: Sequence[bytes]) -> list[bytes]:
        """Byte strings of the old layout as those of the new one."""
        if not packed:
            return []
        end = STAMP_BYTES if self.old.stamped else 0
        values = pack(self._evolved(unpack([value[end:] for value in packed], self.old.kind)))
        return [before[:end] + value for before, value in zip(packed, values)] if end else values

    def table(self, table: pa.Table) -> pa.Table:
        """A table of the old layout as one of the new."""
        columns = list(table.columns)
        value = len(columns) - (2 if self.old.stamped else 1)
        columns[value] = pa.chunked_array([self._evolved(chunk) for chunk in columns[value].chunks], self._new.kind)
        return pa.Table.from_arrays(columns, schema=self._new.schema)

    def _evolved(self, array: pa.Array) -> pa.Array:
        try:
            return evolve(array, self._new.kind, self._default)
        except pa.ArrowException as error:
            kinds = f"stored as {format_type(array.type)}, declared as {format_type(self._new.kind)}"
            raise CheckpointError(f"a state's value cannot be converted: {kinds}: {error}") from None


class ConvertingDatabase(Database):
    """A database of converted entries, in front of one of those that are not."""

    def __init__(self, directory: str, memory: Memory, *, old: Database, evolution: Evolution) -> None:
        super().__init__(directory, memory)
        self.old: Database | None = old
        """None: everything is converted."""
        self.evolution = evolution
        self._next = b""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found = super().get_many(keys)
        if self.old is not None:
            missing = [i for i, value in enumerate(found) if value is None]
            there = self.old.get_many([keys[i] for i in missing])
            unconverted = [(i, value) for i, value in zip(missing, there) if value is not None]
            for (i, _), value in zip(unconverted, self.evolution.values([value for _, value in unconverted])):
                found[i] = value
        return found

    def get(self, key: bytes) -> bytes | None:
        (value,) = self.get_many([key])
        return value

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        puts, deletes = list(puts), list(deletes)
        super().write(puts, deletes)
        if self.old is not None:
            self.old.write((), sorted({*(key for key, _ in puts), *deletes}))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.old is None:
            return super().scan(prefix)
        entries = list(self.old.scan(prefix))
        found = dict(zip([key for key, _ in entries], self.evolution.values([value for _, value in entries])))
        found.update(super().scan(prefix))
        return iter(sorted(found.items()))

    def convert(self, entries_max: int) -> None:
        """Convert some more, where the last call ended. Nothing, while the older database is being frozen."""
        if self.old is None:
            return
        self.old.settle(wait=False)
        if self.old.is_frozen:
            return
        entries = list(islice(self.old.scan_from(self._next), entries_max))
        keys = [key for key, _ in entries]
        # In both for a moment; a snapshot cannot come in between.
        super().write(zip(keys, self.evolution.values([value for _, value in entries])))
        self.old.write((), keys)
        if len(entries) == entries_max:
            self._next = keys[-1]
        else:
            # Behind what was read nothing is left, and before it nothing was.
            self.old.close()
            shutil.rmtree(self.old.path, ignore_errors=True)
            self.old = None

    def close(self) -> None:
        super().close()
        if self.old is not None:
            self.old.close()


class FrozenConverting(FrozenState):
    """Both databases as they were at a barrier."""

    def __init__(self, new: FrozenRocks, old: FrozenRocks, evolution: Evolution) -> None:
        self._new = new
        self._old = old
        self._evolution = evolution

    def tables(self) -> Iterator[pa.Table]:
        yield from self._new.tables()
        yield from self._old.tables()

    def write(self, out: StateWriter) -> StatePart:
        old, new = self._old.write(out), self._new.write(out)
        files = {**new.files, **{f"{OLD_PREFIX}{name}": file for name, file in old.files.items()}}
        return StatePart(ROCKSDB, files, self._evolution.detail)

    def confirmed(self, part: StatePart) -> None:
        new, old = split(part)
        self._new.confirmed(new)
        self._old.confirmed(old)

    def released(self) -> None:
        self._new.released()
        self._old.released()


def split(part: StatePart) -> tuple[StatePart, StatePart]:
    """The part of each of the two databases."""
    detail = part.detail
    new = {name: file for name, file in part.files.items() if not name.startswith(OLD_PREFIX)}
    old = {name.removeprefix(OLD_PREFIX): file for name, file in part.files.items() if name.startswith(OLD_PREFIX)}
    of_new = {
        **{name: value for name, value in detail.items() if name != OLD},
        "version": detail[OLD]["detail"]["version"],
    }
    return StatePart(ROCKSDB, new, of_new), StatePart(ROCKSDB, old, detail[OLD]["detail"])


def read_rocksdb(part: RestoredPart) -> Iterator[pa.Table]:
    """The tables of a database in a checkpoint, or of two as one type."""
    layout = RocksLayout.of(part.part.detail)
    with tempfile.TemporaryDirectory(prefix="weir-state-") as directory:
        path, old_path = os.path.join(directory, "database"), os.path.join(directory, "old")
        if OLD not in part.part.detail:
            fetch(part, path)
            yield from tables_in(path, layout)
            return
        new, old = split(part.part)
        fetch(replace(part, part=new), path)
        yield from tables_in(path, layout)
        fetch(replace(part, part=old), old_path)
        evolution = Evolution.of(part.part.detail)
        yield from map(evolution.table, tables_in(old_path, evolution.old))
