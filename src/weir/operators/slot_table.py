"""Values by key in slots, for functions of whole batches.

Comes in: key columns, and new values for them. Goes out: a number for each key of a
batch, the values of those keys as columns, and snapshots. Keys whose values are all
null are forgotten, and their room is used again once there are many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.operators.aggregate_frames import distinct
from weir.operators.base import OperatorContext
from weir.operators.builtin_aggregates import make_kernel
from weir.operators.slot_store import SlotStore, store_for
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState, RestoredState
from weir.state.hashing import hash_keys
from weir.state.key_index import KeyIndex
from weir.state.slot_snapshot import GONE_COLUMN, SlotHistory
from weir.state.xxhash64 import Ints

REBUILD_KEYS_MIN = 65_536
"""With fewer keys than this it does not matter how many of them are forgotten."""

FORGOTTEN_SHARE_MAX = 0.5
"""Of the slots, before the table is built anew without them."""

BATCH_ROWS = 65_536
"""Rows that are taken over at once."""


@dataclass(frozen=True)
class BatchKeys:
    """The keys of one batch."""

    rows: Ints
    """For each row of the batch, which of its distinct keys it has."""
    slots: Ints
    """The slots of the distinct keys."""
    columns: list[pa.Array]
    """The distinct keys."""


class SlotTable:
    """Columns of values by key. `schema`: of the values; `defaults`: what a key without values has."""

    def __init__(
        self, key_schema: pa.Schema, schema: pa.Schema, *, defaults: Sequence[pa.Scalar], context: OperatorContext
    ) -> None:
        self._layout = _Layout(key_schema, schema, list(defaults), context.max_parallelism)
        self._slots = _Slots(self._layout)
        self._store = store_for(self._layout.table, keys=len(key_schema), context=context)
        """With one, the slots are only those of keys that were used of late."""

    def __len__(self) -> int:
        """Keys that have values in memory."""
        return self._slots.count - self._slots.forgotten

    def find(self, columns: Sequence[pa.Array]) -> BatchKeys:
        """The distinct keys of a batch. Good until the next `write`."""
        before = self._slots.count
        slots = self._slots.find(columns)
        if self._store is not None and self._slots.count > before:
            self._load(self._store, np.arange(before, self._slots.count))
        touched = distinct(slots, self._slots.count)
        number = np.empty(self._slots.count, np.int64)  # only read where it was written
        number[touched] = np.arange(len(touched))
        return BatchKeys(number[slots], touched, self._slots.keys(touched))

    def read(self, slots: Ints) -> list[pa.Array]:
        """The values of these slots; a key without values has the defaults."""
        return self._slots.values(slots)

    def write(self, slots: Ints, columns: Sequence[pa.Array]) -> None:
        """Set the values of these slots, each given once. All null: the key is forgotten."""
        gone: npt.NDArray[np.bool_] = np.ones(len(slots), np.bool_)
        for column in columns:
            gone &= column.is_null().to_numpy(zero_copy_only=False) if column.null_count else False
        self._slots.write(slots, columns, gone)
        if self._store is not None:
            self._spill(self._store, slots)
        elif self._slots.forgotten > max(REBUILD_KEYS_MIN, FORGOTTEN_SHARE_MAX * self._slots.count):
            self._slots = self._slots.rebuilt()

    def freeze(self) -> FrozenState:
        if self._store is not None:
            self._store.write(self._slots.row, self._slots.gone)
            return self._store.freeze()
        return self._slots.freeze()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def restore(self, state: RestoredState) -> None:
        """Take the rows over; tables must have the key group, the keys, and the values of the schema."""
        if self._store is not None:
            self._store.restore(state)
            return
        width = len(self._layout.key_schema)
        for table in state.tables():
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                columns = batch.columns[1 + width :]
                slots = self._slots.find(batch.columns[1 : 1 + width])
                self._slots.write(slots, columns, np.zeros(len(slots), np.bool_))
        self._slots.history.restored(state)

    def _load(self, store: SlotStore, fresh: Ints) -> None:
        found, columns = store.load(self._slots.keys(fresh))
        if len(found):
            self._slots.write(fresh[found], columns, np.zeros(len(found), np.bool_))

    def _spill(self, store: SlotStore, slots: Ints) -> None:
        store.changed(slots, self._slots.count)
        full = store.is_full(self._slots.count)
        if full or store.must_write:
            store.write(self._slots.row, self._slots.gone)
        if full:
            self._slots = _Slots(self._layout)


@dataclass(frozen=True)
class _Layout:
    key_schema: pa.Schema
    schema: pa.Schema
    defaults: list[pa.Scalar]
    max_parallelism: int

    @property
    def table(self) -> pa.Schema:
        """Of the state table."""
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *self.key_schema, *self.schema])

    @property
    def stored(self) -> pa.Schema:
        """Of the state table with the mark of what is forgotten."""
        return self.table.append(pa.field(GONE_COLUMN, pa.bool_()))


class _Slots:
    """The slots of a table until it is built anew; snapshots may read them longer. Gone slots hold the defaults."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        self._index = KeyIndex(layout.key_schema)
        self._kernels = [make_kernel([field], ["last"], field.name) for field in layout.schema]
        self.gone: npt.NDArray[np.bool_] = np.ones(1_024, np.bool_)
        self.count = 0
        self.forgotten = 0
        self.history = SlotHistory(
            layout.stored, keys=len(layout.key_schema), max_parallelism=layout.max_parallelism, read=self._stored
        )

    def find(self, columns: Sequence[pa.Array]) -> Ints:
        slots = self._index.slots(columns, hash_keys(columns))
        if len(self._index) > self.count:
            self._add(len(self._index))
        return slots

    def keys(self, slots: Ints) -> list[pa.Array]:
        return self._index.keys(slots)

    def values(self, slots: Ints) -> list[pa.Array]:
        return [kernel.read(slots)[0] for kernel in self._kernels]

    def write(self, slots: Ints, columns: Sequence[pa.Array], gone: npt.NDArray[np.bool_]) -> None:
        if gone.any():
            mask = pa.array(gone)
            columns = [pc.if_else(mask, d, column) for d, column in zip(self._layout.defaults, columns, strict=True)]
        with self.history.changing(slots, self.count):
            for kernel, column in zip(self._kernels, columns, strict=True):
                kernel.merge(slots, [column], count=self.count)
            self.forgotten += int(gone.sum()) - int(self.gone[slots].sum())
            self.gone[slots] = gone

    def row(self, slots: Ints) -> tuple[list[pa.Array], list[pa.Array]]:
        return self.keys(slots), self.values(slots)

    def freeze(self) -> FrozenState:
        return self.history.freeze(self._index.freeze())

    def rebuilt(self) -> _Slots:
        """The same without what is forgotten."""
        twin = _Slots(self._layout)
        kept = np.flatnonzero(~self.gone[: self.count])
        for start in range(0, len(kept), BATCH_ROWS):
            slots = kept[start : start + BATCH_ROWS]
            twin.write(twin.find(self.keys(slots)), self.values(slots), np.zeros(len(slots), np.bool_))
        return twin

    def _stored(self, slots: Ints) -> list[pa.Array]:
        return [*self.values(slots), pa.array(self.gone[slots])]

    def _add(self, count: int) -> None:
        """Slots for new keys, which are gone until they are written."""
        fresh = np.arange(self.count, count)
        if count > len(self.gone):
            grown = np.ones(2 * count, np.bool_)
            grown[: len(self.gone)] = self.gone
            self.gone = grown
        with self.history.changing(fresh, count):
            for kernel, default in zip(self._kernels, self._layout.defaults, strict=True):
                kernel.merge(fresh, [pa.repeat(default, len(fresh))], count=count)
        self.forgotten += count - self.count
        self.count = count
