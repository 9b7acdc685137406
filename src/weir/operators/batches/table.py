"""Values by key in slots, for functions of whole batches.

Comes in: key columns, and new values for them. Goes out: the rows of a batch by key, the
values of those keys as columns, and snapshots. Keys whose values are all null are
forgotten, and their room is used again once there are many of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.operators.aggregates.builtin import make_kernel
from weir.operators.aggregates.slot_store import Mask, SlotStore, store_for
from weir.operators.base import OperatorContext
from weir.operators.batches.expiry import TOUCHED, Expiry, expiry_for
from weir.state.columns.growing import grown
from weir.state.columns.key_order import group_sorted, stable_order
from weir.state.columns.slots import SlotChanges
from weir.state.declared.base import Ttl
from weir.state.frozen import GONE_COLUMN, KEY_GROUP_COLUMN, FrozenState, RestoredState
from weir.state.keys.index import KeyIndex
from weir.state.keys.xxhash64 import Ints

REBUILD_KEYS_MIN = 65_536
"""With fewer keys than this it does not matter how many of them are forgotten."""

FORGOTTEN_SHARE_MAX = 0.5
"""Of the slots, before the table is built anew without them."""

BATCH_ROWS = 65_536
"""Rows that are taken over at once."""

SWEPT_SLOTS_LEAST = 4_096
"""Slots that are looked through for expired values with each batch."""


@dataclass(frozen=True)
class BatchKeys:
    """The keys of one batch."""

    order: Ints | None
    """The rows of the batch by key, those of a key in their old order; None: they are so already."""
    rows: Ints
    """For each row, in that order, which of the distinct keys it has: ascending."""
    slots: Ints
    """The slots of the distinct keys."""
    columns: list[pa.Array]
    """The distinct keys."""


class SlotTable:
    """Columns of values by key. `schema`: of the values; `defaults`: what a key without values has."""

    def __init__(
        self,
        key_schema: pa.Schema,
        schema: pa.Schema,
        *,
        defaults: Sequence[pa.Scalar],
        ttls: Sequence[Ttl | None],
        context: OperatorContext,
    ) -> None:
        expiry = expiry_for(ttls, context.place.now_ms)
        self._layout = _Layout(key_schema, schema, list(defaults), expiry, context.max_parallelism)
        self._expiry = expiry
        self._store = store_for(self._layout.table, keys=len(key_schema), context=context)
        """With one, the slots are only those of keys that were used of late."""
        self._slots = self._new_slots()

    def __len__(self) -> int:
        """Keys that have values in memory."""
        return self._slots.count - self._slots.forgotten

    def find(self, columns: Sequence[pa.Array]) -> BatchKeys:
        """The rows of a batch by key. Good until the next `write`."""
        self._tidy(len(columns[0]))
        before = self._slots.count
        slots = self._slots.find(columns)
        if self._store is not None and self._slots.count > before:
            self._load(self._store, np.arange(before, self._slots.count))
        order = stable_order(slots, self._slots.count)
        grouped = group_sorted(slots if order is None else slots.take(order))
        return BatchKeys(order, grouped.of, grouped.numbers, self._slots.keys(grouped.numbers))

    def read(self, slots: Ints) -> list[pa.Array]:
        """The values of these slots; a key without values, and a value that has expired, is the default."""
        columns = self._slots.values(slots)
        if self._expiry is None:
            return columns
        return self._expiry.masked(columns[:-1], columns[-1], self._layout.defaults)

    def write(self, slots: Ints, columns: Sequence[pa.Array]) -> None:
        """Set the values of these slots, each given once. All null: the key is forgotten."""
        gone: Mask = None
        if all(column.null_count for column in columns):
            gone = np.logical_and.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])
        if self._expiry is not None:
            columns = [*columns, self._expiry.stamps(len(slots))]
        self._slots.write(slots, columns, gone)
        if self._store is not None:
            self._spill(self._store, slots)

    def touch(self, slots: Ints, columns: Sequence[pa.Array]) -> None:
        """These values were read and left as they are: with refresh="read" they live on."""
        if self._expiry is None or not self._expiry.on_read:
            return
        held = ~(self._slots.gone[slots] | self._expiry.rows(self._slots.values(slots)[-1]))
        if held.all():
            self.write(slots, columns)
        elif held.any():
            self.write(slots[held], [column.filter(pa.array(held)) for column in columns])

    def freeze(self) -> FrozenState:
        if self._store is not None:
            self._store.write(self._slots.row, self._slots.gone)
            return self._store.freeze(self._unexpired)
        return self._slots.freeze()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def restore(self, state: RestoredState) -> None:
        """Take the rows over; tables must have the schema of this one."""
        if self._store is not None:
            self._store.restore(state, self._unexpired)
            return
        width, complete = len(self._layout.key_schema), True
        for table in state.tables():
            rows = self._unexpired(table)
            complete &= rows.num_rows == table.num_rows
            for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
                slots = self._slots.find(batch.columns[1 : 1 + width])
                self._slots.write(slots, batch.columns[1 + width :])
        if complete and self._slots.changes is not None:
            self._slots.changes.restored(state)

    def _tidy(self, rows: int) -> None:
        """Make room, in proportion to the rows that come in."""
        if self._store is not None:
            if self._expiry is not None:
                self._store.sweep(rows, self._expiry.rows)
            return
        if self._expiry is not None:
            self._slots.sweep(max(rows, SWEPT_SLOTS_LEAST), self._expiry)
        if self._slots.forgotten > max(REBUILD_KEYS_MIN, FORGOTTEN_SHARE_MAX * self._slots.count):
            self._slots = self._slots.rebuilt()

    def _unexpired(self, table: pa.Table) -> pa.Table:
        if self._expiry is None:
            return table
        expired = self._expiry.rows(table.column(table.num_columns - 1))
        return table.filter(pa.array(~expired)) if expired.any() else table

    def _load(self, store: SlotStore, fresh: Ints) -> None:
        found, columns = store.load(self._slots.keys(fresh))
        if len(found):
            # What has expired is masked wherever it is read, and swept out of the database in its turn.
            self._slots.write(fresh[found], columns)

    def _spill(self, store: SlotStore, slots: Ints) -> None:
        store.changed(slots, self._slots.count)
        full = store.is_full(self._slots.count)
        if full or store.must_write:
            store.write(self._slots.row, self._slots.gone)
        if full:
            self._slots = self._new_slots()

    def _new_slots(self) -> _Slots:
        # The database knows what changed, and is frozen itself.
        return _Slots(self._layout, tracked=self._store is None)


@dataclass(frozen=True)
class _Layout:
    key_schema: pa.Schema
    schema: pa.Schema
    """Of the values."""
    defaults: list[pa.Scalar]
    expiry: Expiry | None
    max_parallelism: int

    @cached_property
    def held(self) -> list[pa.Field]:
        """What there is by slot: the values, and when they were touched."""
        return [*self.schema, *([TOUCHED] if self.expiry is not None else [])]

    @cached_property
    def empty(self) -> list[pa.Scalar]:
        """What a slot holds whose key has no values."""
        return [*self.defaults, *([pa.scalar(0, TOUCHED.type)] if self.expiry is not None else [])]

    @cached_property
    def table(self) -> pa.Schema:
        """Of the state table."""
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *self.key_schema, *self.held])

    @cached_property
    def stored(self) -> pa.Schema:
        """Of the state table with the mark of what is forgotten."""
        return self.table.append(pa.field(GONE_COLUMN, pa.bool_()))


class _Slots:
    """The slots of a table until it is built anew; snapshots may read them longer. Gone slots hold the defaults."""

    def __init__(self, layout: _Layout, *, tracked: bool) -> None:
        self._layout = layout
        self._index = KeyIndex(layout.key_schema)
        self._kernels = [make_kernel([field], ["last"], field.name) for field in layout.held]
        self._swept = 0
        self.gone: npt.NDArray[np.bool_] = np.ones(1_024, np.bool_)
        self.count = 0
        self.forgotten = 0
        self.changes: SlotChanges | None = None
        """What snapshots need to know, if they are made of these slots."""
        if tracked:
            keys = len(layout.key_schema)
            self.changes = SlotChanges(
                layout.stored, keys=keys, max_parallelism=layout.max_parallelism, read=self._stored
            )

    def find(self, columns: Sequence[pa.Array]) -> Ints:
        slots = self._index.slots(columns)
        if len(self._index) > self.count:
            self._add(len(self._index))
        return slots

    def keys(self, slots: Ints) -> list[pa.Array]:
        return self._index.keys(slots)

    def values(self, slots: Ints) -> list[pa.Array]:
        return [kernel.read(slots)[0] for kernel in self._kernels]

    def write(self, slots: Ints, columns: Sequence[pa.Array], gone: Mask = None) -> None:
        """`gone`: which of the slots hold nothing any more."""
        if gone is not None and gone.any():
            mask = pa.array(gone)
            columns = [pc.if_else(mask, d, column) for d, column in zip(self._layout.empty, columns, strict=True)]
        else:
            gone = None
        with self._changing(slots):
            for kernel, column in zip(self._kernels, columns, strict=True):
                kernel.merge(slots, [column], count=self.count)
            if gone is not None or self.forgotten:
                self.forgotten -= int(np.count_nonzero(self.gone[slots]))
                self.forgotten += 0 if gone is None else int(np.count_nonzero(gone))
                self.gone[slots] = False if gone is None else gone

    def sweep(self, slots_max: int, expiry: Expiry) -> None:
        """Look at some slots, where the last call ended, and forget those that have expired."""
        stop = min(self._swept + slots_max, self.count)
        slots: Ints = np.arange(self._swept, stop)
        self._swept = 0 if stop == self.count else stop
        expired = expiry.rows(self._kernels[-1].read(slots)[0])
        expired &= ~self.gone[slots]
        if expired.any():
            slots = slots[expired]
            self.write(slots, self.values(slots), np.ones(len(slots), np.bool_))

    def row(self, slots: Ints) -> tuple[list[pa.Array], list[pa.Array]]:
        return self.keys(slots), self.values(slots)

    def freeze(self) -> FrozenState:
        assert self.changes is not None
        return self.changes.freeze(self._index.freeze())

    def rebuilt(self) -> _Slots:
        """The same without what is forgotten."""
        twin = _Slots(self._layout, tracked=self.changes is not None)
        kept = np.flatnonzero(~self.gone[: self.count])
        for start in range(0, len(kept), BATCH_ROWS):
            slots = kept[start : start + BATCH_ROWS]
            twin.write(twin.find(self.keys(slots)), self.values(slots))
        return twin

    def _stored(self, slots: Ints) -> list[pa.Array]:
        columns, gone = self.values(slots), self.gone[slots]
        if self._layout.expiry is not None:
            gone |= self._layout.expiry.rows(columns[-1])
        return [*columns, pa.array(gone)]

    def _add(self, count: int) -> None:
        """Slots for new keys, which are gone until they are written."""
        fresh = np.arange(self.count, count)
        self.gone = grown(self.gone, count, True)
        self.forgotten += count - self.count
        self.count = count
        with self._changing(fresh):
            for kernel, empty in zip(self._kernels, self._layout.empty, strict=True):
                kernel.merge(fresh, [pa.repeat(empty, len(fresh))], count=count)

    @contextmanager
    def _changing(self, slots: Ints) -> Iterator[None]:
        if self.changes is None:
            yield
        else:
            with self.changes.changing(slots, self.count):
                yield
