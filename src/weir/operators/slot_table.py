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
from weir.operators.builtin_aggregates import make_kernel
from weir.state.frozen import KEY_GROUP_COLUMN, FrozenState, RestoredState
from weir.state.hashing import hash_keys
from weir.state.key_index import KeyIndex
from weir.state.slot_snapshot import CHANGES, GONE_COLUMN, SlotHistory
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
        self, key_schema: pa.Schema, schema: pa.Schema, *, defaults: Sequence[pa.Scalar], max_parallelism: int
    ) -> None:
        self._layout = _Layout(key_schema, schema, list(defaults), max_parallelism)
        self._slots = _Slots(self._layout)

    def __len__(self) -> int:
        """Keys that have values."""
        return self._slots.count - self._slots.forgotten

    def find(self, columns: Sequence[pa.Array]) -> BatchKeys:
        """The distinct keys of a batch. Good until the next `write`."""
        slots = self._slots.find(columns)
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
        if self._slots.forgotten > max(REBUILD_KEYS_MIN, FORGOTTEN_SHARE_MAX * self._slots.count):
            self._slots = self._slots.rebuilt()

    def freeze(self) -> FrozenState:
        return self._slots.freeze()

    def restore(self, state: RestoredState) -> None:
        """Take the rows over; tables must have the key group, the keys, and the values of the schema."""
        width = len(self._layout.key_schema)
        for table in state.tables():
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                columns = batch.columns[1 + width :]
                slots = self._slots.find(batch.columns[1 : 1 + width])
                self._slots.write(slots, columns, np.zeros(len(slots), np.bool_))
        whole = state.whole
        if whole is not None and whole.part.format == CHANGES:
            self._slots.history.restored(whole.part)


@dataclass(frozen=True)
class _Layout:
    key_schema: pa.Schema
    schema: pa.Schema
    defaults: list[pa.Scalar]
    max_parallelism: int

    @property
    def stored(self) -> pa.Schema:
        fields = [pa.field(KEY_GROUP_COLUMN, pa.int32()), *self.key_schema, *self.schema]
        return pa.schema([*fields, pa.field(GONE_COLUMN, pa.bool_())])


class _Slots:
    """The slots of a table until it is built anew; snapshots may read them longer. Gone slots hold the defaults."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        self._index = KeyIndex(layout.key_schema)
        self._kernels = [make_kernel([field], ["last"], field.name) for field in layout.schema]
        self._gone: npt.NDArray[np.bool_] = np.ones(1_024, np.bool_)
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
            self.forgotten += int(gone.sum()) - int(self._gone[slots].sum())
            self._gone[slots] = gone

    def freeze(self) -> FrozenState:
        return self.history.freeze(self._index.freeze())

    def rebuilt(self) -> _Slots:
        """The same without what is forgotten."""
        twin = _Slots(self._layout)
        kept = np.flatnonzero(~self._gone[: self.count])
        for start in range(0, len(kept), BATCH_ROWS):
            slots = kept[start : start + BATCH_ROWS]
            twin.write(twin.find(self.keys(slots)), self.values(slots), np.zeros(len(slots), np.bool_))
        return twin

    def _stored(self, slots: Ints) -> list[pa.Array]:
        return [*self.values(slots), pa.array(self._gone[slots])]

    def _add(self, count: int) -> None:
        """Slots for new keys, which are gone until they are written."""
        fresh = np.arange(self.count, count)
        if count > len(self._gone):
            grown = np.ones(2 * count, np.bool_)
            grown[: len(self._gone)] = self._gone
            self._gone = grown
        with self.history.changing(fresh, count):
            for kernel, default in zip(self._kernels, self._layout.defaults, strict=True):
                kernel.merge(fresh, [pa.repeat(default, len(fresh))], count=count)
        self.forgotten += count - self.count
        self.count = count
