"""Rows that wait for their calls, as a snapshot has them.

Comes in: batches, and which of their rows have left. Goes out: what is left of each, by
reference; and where there is state by key, a table by key group that goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState
from weir.state.keys.hashing import hash_keys, key_groups, take_rows
from weir.state.waiting import Mask, Stored, WaitingRows

_GROUP = pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)


class HeldBatch:
    """A batch some rows of which are on their way."""

    def __init__(self, number: int, batch: pa.RecordBatch) -> None:
        self.number = number
        self.count = batch.num_rows
        self.stored: Stored | None = None
        self._batch = batch
        self._left: Mask | None = None
        self._is_frozen = False

    def batch(self) -> pa.RecordBatch:
        return self._batch

    def leave(self, index: int) -> None:
        """A row is on its way no more."""
        if self._left is None:
            self._left = np.ones(self._batch.num_rows, np.bool_)
        elif self._is_frozen:
            self._left = self._left.copy()
        self._is_frozen = False
        self._left[index] = False
        self.count -= 1

    def freeze(self) -> WaitingRows:
        """Which rows are on their way now."""
        self._is_frozen = True
        return WaitingRows(self, self._left)


class FrozenRowsByKey(FrozenState):
    """Rows in flight by key group. At another parallelism they go with the state of their keys."""

    def __init__(self, rows: FrozenState, keys: Sequence[str], max_parallelism: int) -> None:
        self._rows = rows
        self._keys = keys
        self._max_parallelism = max_parallelism

    def tables(self) -> Iterator[pa.Table]:
        table = pa.concat_tables(self._rows.tables())
        columns = [column.combine_chunks() for column in table.columns]
        keys = [columns[table.schema.get_field_index(key)] for key in self._keys]
        groups = key_groups(hash_keys(keys), self._max_parallelism).astype(np.int32)
        # Stable: those of a key stay in their order.
        order = np.argsort(groups, kind="stable")
        schema = rows_schema(table.schema, by_key=True)
        batch = pa.RecordBatch.from_arrays([pa.array(groups), *columns], schema=schema)
        yield pa.Table.from_batches([take_rows(batch, order)])


def rows_schema(rows: pa.Schema, *, by_key: bool) -> pa.Schema:
    """Of the table of rows in flight."""
    return pa.schema([_GROUP, *rows]) if by_key else rows
