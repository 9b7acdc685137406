"""One state in RocksDB: its database, and what of it lies in storage already.

Comes in: a directory of its own, and how keys and values are written there. Goes out:
frozen databases; and after a restore, the database with what a checkpoint held: its
files as they are where that is possible, rows of its tables otherwise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pyarrow as pa

from weir.config import RocksDb
from weir.errors import ConfigError, CorruptCheckpoint, LocalDiskFailed
from weir.state.frozen import FrozenState, RestoredState
from weir.state.place import StatePlace
from weir.state.rocks.database import DATABASE, Database, Memory
from weir.state.rocks.snapshot import FrozenRocks, RocksLayout, StoredBase, fetch

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
        self._stored = StoredBase()
        self._frozen = 0
        # What a process that was killed has left.
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.database = Database(os.path.join(directory, DATABASE), memory)

    def freeze(self, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> FrozenState:
        """The database as it is now; `keep`: what of its tables is still valid."""
        self._frozen += 1
        directory = os.path.join(self._directory, f"frozen-{self._frozen}")
        return FrozenRocks(self.database, directory, layout=self.layout, stored=self._stored, keep=keep)

    def restore(self, restored: RestoredState, *, adapt: Callable[[pa.Table], pa.Table], name: str) -> None:
        """Take over what a checkpoint holds; `adapt` makes of one of its tables what belongs here."""
        whole = restored.whole
        if whole is not None and self.layout.opens(whole.part):
            self.database.close()
            shutil.rmtree(self.database.path)
            fetch(whole, self.database.path)
            try:
                self.database = Database(self.database.path, self._memory)
            except LocalDiskFailed:
                raise
            except Exception as error:
                raise CorruptCheckpoint(f"state {name!r}: its files are no database: {error}") from error
            self._stored.base, self._stored.base_sequence = whole.part, self.database.sequence
            return
        for table in restored.tables():
            for batch in adapt(table).to_batches(max_chunksize=RESTORE_ROWS):
                self.database.write(sorted(self.layout.entries(batch)))

    def close(self) -> None:
        self.database.close()
