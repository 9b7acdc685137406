"""Whole rows by key in RocksDB, a batch at a time: what columnar state spills to.

Comes in: key columns, and rows for them. Goes out: the rows that are there, as columns,
and frozen databases. Nothing here is one call per row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.config import RocksDb, size_bytes
from weir.errors import ConfigError
from weir.state.frozen import FrozenState, RestoredState
from weir.state.place import StatePlace
from weir.state.rocks_database import DATABASE, Database, Memory
from weir.state.rocks_snapshot import FrozenRocks, History, RocksLayout, fetch
from weir.state.rocks_values import check_value_type
from weir.state.xxhash64 import Ints

RESTORE_ROWS = 32_768
"""Rows of a restored table that are written at once."""

DATABASE_SHARE = 0.5
"""Of the memory budget; the rest is for the rows that are held as columns."""


class RocksRows:
    """A database of rows. `schema`: of the state table: key group, `keys` key columns, values."""

    def __init__(self, schema: pa.Schema, *, keys: int, max_parallelism: int, place: StatePlace) -> None:
        if place.directory is None:
            raise ConfigError(
                "the rocksdb backend needs a local directory, and there is none where this job runs; use the heap"
                " backend here"
            )
        assert isinstance(place.backend, RocksDb)
        budget_bytes = size_bytes(place.backend.memory_max, "RocksDb.memory_max") // max(place.tables_per_task, 1)
        self.rows_budget_bytes = int(budget_bytes * (1 - DATABASE_SHARE))
        """What the rows that the caller holds may take."""
        self._layout = RocksLayout(schema, keys=keys, max_parallelism=max_parallelism, rows=True)
        check_value_type(self._layout.kind, "rows")
        self._memory = Memory(max(int(budget_bytes * DATABASE_SHARE), 1))
        self._directory = os.path.join(place.directory, "rows")
        self._history = History()
        self._frozen = 0
        self._swept = b""
        # What a process that was killed has left.
        shutil.rmtree(self._directory, ignore_errors=True)
        os.makedirs(self._directory)
        self._database = Database(os.path.join(self._directory, DATABASE), self._memory)

    def get(self, keys: Sequence[pa.Array]) -> tuple[Ints, list[pa.Array]]:
        """Which of these keys are there, and the values of those."""
        encoded = self._layout.keys.encode(keys)
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        found = self._database.get_many([encoded[i] for i in order])
        rows = [(i, value) for i, value in zip(order, found) if value is not None]
        return np.array([i for i, _ in rows], np.int64), self._layout.columns([value for _, value in rows])

    def put(self, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Store a row for each key."""
        groups = pa.nulls(len(keys[0]), pa.int32())
        batch = pa.RecordBatch.from_arrays([groups, *keys, *values], schema=self._layout.schema)
        self._database.write(sorted(self._layout.entries(batch)))

    def delete(self, keys: Sequence[pa.Array]) -> None:
        self._database.write((), sorted(self._layout.keys.encode(keys)))

    def sweep(self, rows_max: int, expired: Callable[[pa.Array], npt.NDArray[np.bool_]]) -> None:
        """Look at some rows, where the last call ended, and delete those whose last column has expired."""
        entries = list(islice(self._database.scan_from(self._swept), rows_max))
        self._swept = entries[-1][0] if len(entries) == rows_max else b""
        if entries:
            gone = np.flatnonzero(expired(self._layout.columns([value for _, value in entries])[-1]))
            self._database.write((), [entries[i][0] for i in gone])

    def freeze(self, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> FrozenState:
        """The database as it is now. `keep`: leaves rows out of tables."""
        self._frozen += 1
        directory = os.path.join(self._directory, f"frozen-{self._frozen}")
        return FrozenRocks(self._database, directory, layout=self._layout, history=self._history, keep=keep)

    def restore(self, state: RestoredState, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> None:
        """Take over a state's rows."""
        whole = state.whole
        if whole is not None and self._layout.opens(whole.part):
            self._database.close()
            shutil.rmtree(self._database.path)
            fetch(whole, self._database.path)
            self._database = Database(self._database.path, self._memory)
            self._history.base, self._history.base_sequence = whole.part, self._database.sequence
            return
        for table in state.tables():
            for batch in keep(table.cast(self._layout.schema)).to_batches(max_chunksize=RESTORE_ROWS):
                self._database.write(sorted(self._layout.entries(batch)))

    def close(self) -> None:
        self._database.close()
