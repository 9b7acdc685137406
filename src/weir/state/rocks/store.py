"""One state in RocksDB: its database, and what of it lies in storage already.

Comes in: a directory of its own, and how keys and values are written there. Goes out:
frozen databases; and after a restore, the database with what a checkpoint held: its
files as they are where that is possible, rows of its tables otherwise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from weir.config import RocksDb
from weir.errors import ConfigError, CorruptCheckpoint, LocalDiskFailed
from weir.snapshot.parts import StatePart
from weir.state.frozen import FrozenState, RestoredPart, RestoredState
from weir.state.place import StatePlace
from weir.state.rocks.converting import ConvertingDatabase, Evolution, FrozenConverting, split
from weir.state.rocks.database import DATABASE, Database, Memory
from weir.state.rocks.snapshot import OLD, OLD_PREFIX, ROCKSDB, FrozenRocks, RocksLayout, StoredBase, fetch

RESTORE_ROWS = 32_768
"""Rows of a restored table that are written at once."""


def local_place(place: StatePlace) -> tuple[str, int]:
    """The directory for databases, and the budget of memory of one operator; ConfigError when there is none."""
    if place.directory is None:
        raise ConfigError(
            "the rocksdb backend needs a local directory, and there is none where this job runs; use the heap backend"
            " here"
        )
    if not isinstance(place.backend, RocksDb):
        raise ConfigError(f"the rocksdb backend cannot be set up from {place.backend!r}")
    budget_bytes = place.backend.memory_max_bytes
    return place.directory, max(budget_bytes // max(place.tables_per_task, 1), 1)


class RocksStore:
    """A state's database. It is another one after `restore`."""

    def __init__(self, directory: str, layout: RocksLayout, memory: Memory) -> None:
        self.layout = layout
        self._directory = directory
        self._memory = memory
        self._stored, self._stored_old = StoredBase(), StoredBase()
        self._frozen = 0
        # What a process that was killed has left.
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.database = Database(os.path.join(directory, DATABASE), memory)

    def freeze(self, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> FrozenState:
        """The database as it is now; `keep`: what of its tables is still valid."""
        self._frozen += 1
        directory = os.path.join(self._directory, f"frozen-{self._frozen}")
        frozen = FrozenRocks(self.database, directory, layout=self.layout, stored=self._stored, keep=keep)
        if not isinstance(self.database, ConvertingDatabase) or self.database.old is None:
            return frozen
        evolution = self.database.evolution
        old = FrozenRocks(
            self.database.old,
            f"{directory}-old",
            layout=evolution.old,
            stored=self._stored_old,
            keep=lambda table: keep(evolution.table(table)),
            prefix=OLD_PREFIX,
        )
        return FrozenConverting(frozen, old, evolution)

    def restore(
        self,
        restored: RestoredState,
        *,
        adapt: Callable[[pa.Table], pa.Table],
        name: str,
        evolution: Callable[[RocksLayout], Evolution | None] = lambda old: None,
    ) -> None:
        """Take over what a checkpoint holds; `adapt` makes of one of its tables what belongs here, `evolution` says
        whether and how values of another layout can be converted later."""
        whole = restored.whole
        if whole is not None and self.layout.opens(whole.part):
            self.database.close()
            shutil.rmtree(self.database.path)
            self.database = self._opened(whole, self.database.path, name, self._stored)
            return
        if whole is not None and whole.part.format == ROCKSDB:
            is_of_two = OLD in whole.part.detail
            new, old = split(whole.part) if is_of_two else (None, whole.part)
            if new is None or self.layout.opens(new):
                found = evolution(RocksLayout.of(old.detail))
                if found is not None:
                    self._restore_two(whole, new, old, evolution=found, name=name)
                    return
        for table in restored.tables():
            for batch in adapt(table).to_batches(max_chunksize=RESTORE_ROWS):
                self.database.write(sorted(self.layout.entries(batch)))

    def _opened(self, part: RestoredPart, directory: str, name: str, stored: StoredBase) -> Database:
        """The database that a part holds."""
        fetch(part, directory)
        database = self._open(directory, name)
        stored.base, stored.base_sequence = part.part, database.sequence
        return database

    def _open(self, directory: str, name: str, old: Database | None = None, by: Evolution | None = None) -> Database:
        try:
            if old is None or by is None:
                return Database(directory, self._memory)
            return ConvertingDatabase(directory, self._memory, old=old, evolution=by)
        except LocalDiskFailed:
            raise
        except Exception as error:
            raise CorruptCheckpoint(f"state {name!r}: its files are no database: {error}") from error

    def _restore_two(
        self, whole: RestoredPart, new: StatePart | None, old: StatePart, *, evolution: Evolution, name: str
    ) -> None:
        """Open a database of another type as it is, and put one in front of it. `new`: what was converted before."""
        self.database.close()
        shutil.rmtree(self.database.path)
        path = os.path.join(self._directory, "old")
        before = self._opened(replace(whole, part=old), path, name, self._stored_old)
        if new is not None:
            fetch(replace(whole, part=new), self.database.path)
        self.database = self._open(self.database.path, name, before, evolution)
        if new is not None:
            self._stored.base, self._stored.base_sequence = new, self.database.sequence

    def close(self) -> None:
        self.database.close()
