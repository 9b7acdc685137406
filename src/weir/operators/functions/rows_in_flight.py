"""Rows that wait for their calls, as a snapshot has them.

Comes in: the rows, and their keys where there is state by key. Goes out: their table, dealt
out at another parallelism, or by key group with the state of their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from weir.snapshot.parts import StatePart
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState, StateWriter, write_tables
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.operator_state import REDISTRIBUTE, SPLIT

_GROUP = pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)


class FrozenRows(FrozenState):
    """Rows in flight. At another parallelism they are dealt out."""

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        self._table = pa.Table.from_batches(batches, schema)

    def tables(self) -> Iterator[pa.Table]:
        yield self._table

    def write(self, out: StateWriter) -> StatePart:
        part = write_tables(self.tables(), out)
        return replace(part, detail={**(part.detail or {}), REDISTRIBUTE: SPLIT})

    def export(self, out: StateWriter) -> StatePart:
        return self.write(out)


class FrozenRowsByKey(FrozenState):
    """The same by key group. At another parallelism they go with the state of their keys."""

    def __init__(self, rows: FrozenState, keys: Sequence[str], max_parallelism: int) -> None:
        self._rows = rows
        self._keys = keys
        self._max_parallelism = max_parallelism

    def tables(self) -> Iterator[pa.Table]:
        table = pa.concat_tables(self._rows.tables()).combine_chunks()
        columns = [table.column(key).combine_chunks() for key in self._keys]
        groups = key_groups(hash_keys(columns), self._max_parallelism).astype(np.int32)
        # Stable: those of a key stay in their order.
        order = np.argsort(groups, kind="stable")
        yield table.add_column(0, _GROUP, pa.array(groups)).take(pa.array(order)).combine_chunks()


def rows_schema(rows: pa.Schema, *, by_key: bool) -> pa.Schema:
    """Of the table of rows in flight."""
    return pa.schema([_GROUP, *rows]) if by_key else rows
