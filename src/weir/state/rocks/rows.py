"""Whole rows by key in RocksDB, a batch at a time: what columnar state spills to.

Comes in: key columns, and rows for them. Goes out: the rows that are there, as columns,
and frozen databases. Nothing here is one call per row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.frozen import FrozenState, RestoredState
from weir.state.keys.xxhash64 import Ints
from weir.state.place import StatePlace
from weir.state.rocks.database import Memory
from weir.state.rocks.snapshot import RocksLayout
from weir.state.rocks.store import RocksStore, local_place
from weir.state.rocks.values import check_value_type

DATABASE_SHARE = 0.5
"""Of the memory budget; the rest is for the rows that are held as columns."""


class RocksRows:
    """A database of rows. `schema`: of the state table: key group, `keys` key columns, values."""

    def __init__(self, schema: pa.Schema, *, keys: int, max_parallelism: int, place: StatePlace) -> None:
        directory, budget_bytes = local_place(place)
        self.rows_budget_bytes = int(budget_bytes * (1 - DATABASE_SHARE))
        """What the rows that the caller holds may take."""
        self._layout = RocksLayout(schema, keys=keys, max_parallelism=max_parallelism, rows=True)
        check_value_type(self._layout.kind, "rows")
        memory = Memory(max(int(budget_bytes * DATABASE_SHARE), 1))
        self._store = RocksStore(os.path.join(directory, "rows"), self._layout, memory)
        self._swept = b""

    def get(self, keys: Sequence[pa.Array]) -> tuple[Ints, list[pa.Array]]:
        """Which of these keys are there, and the values of those."""
        encoded = self._layout.keys.encode(keys)
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        found = self._store.database.get_many([encoded[i] for i in order])
        rows = [(i, value) for i, value in zip(order, found) if value is not None]
        return np.array([i for i, _ in rows], np.int64), self._layout.columns([value for _, value in rows])

    def put(self, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Store a row for each key."""
        groups = pa.nulls(len(keys[0]), pa.int32())
        batch = pa.RecordBatch.from_arrays([groups, *keys, *values], schema=self._layout.schema)
        self._store.database.write(sorted(self._layout.entries(batch)))

    def delete(self, keys: Sequence[pa.Array]) -> None:
        self._store.database.write((), sorted(self._layout.keys.encode(keys)))

    def sweep(self, rows_max: int, expired: Callable[[pa.Array], npt.NDArray[np.bool_]]) -> None:
        """Look at some rows, where the last call ended, and delete those whose last column has expired."""
        database = self._store.database
        entries = list(islice(database.scan_from(self._swept), rows_max))
        self._swept = entries[-1][0] if len(entries) == rows_max else b""
        if entries:
            gone = np.flatnonzero(expired(self._layout.columns([value for _, value in entries])[-1]))
            database.write((), [entries[i][0] for i in gone])

    def freeze(self, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> FrozenState:
        """The database as it is now. `keep`: leaves rows out of tables."""
        return self._store.freeze(keep)

    def restore(self, state: RestoredState, keep: Callable[[pa.Table], pa.Table] = lambda table: table) -> None:
        """Take over a state's rows."""
        self._store.restore(state, adapt=lambda table: keep(table.cast(self._layout.schema)), name="rows")

    def close(self) -> None:
        self._store.close()
