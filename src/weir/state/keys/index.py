"""Keys to dense slots, a batch at a time.

Comes in: key columns and their hashes. Goes out: for each row the slot of its key,
0 to n-1 in order of appearance; and the keys by slot. Open addressing over NumPy
arrays; integers that lie close together are found without a hash. Never touches what
is stored under the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.keys.columns import (
    KeyColumn,
    check_key_type,
    fixed_values,
    is_bytes,
    plain_type,
    read_column,
    valid_rows,
    without_views,
)
from weir.state.keys.dense import DenseKeys, may_be_dense
from weir.state.keys.hashing import hash_keys
from weir.state.keys.store import Appendable, BytesStore, FixedStore, FrozenBytes, FrozenFixed, Mask
from weir.state.keys.xxhash64 import Ints, Words

Slots: TypeAlias = "npt.NDArray[np.int32]"
Store: TypeAlias = "FixedStore | BytesStore"

_TABLE_SIZE_MIN = 1_024
_FIRST_ROWS = 2_048
"""Rows that are inserted before the others: where a batch has few keys, the others then find theirs."""

_SHRINK_FACTOR = 32
"""A table so many times larger than its use is dropped on clear()."""


@dataclass(frozen=True)
class FrozenKeys:
    """The keys of an index as they were; safe to read while the index goes on."""

    hashes: Words
    columns: tuple[FrozenFixed | FrozenBytes, ...]

    def __len__(self) -> int:
        return len(self.hashes)

    def keys(self, slots: Ints | None = None) -> list[pa.Array]:
        """The key columns of these slots, or of all in slot order."""
        return [column.build(slots) for column in self.columns]


class KeyIndex:
    """Slots of keys. Null is a key of its own, NaN equals NaN, and -0.0 equals 0.0.

    >>> index = KeyIndex(pa.schema({"word": pa.string()}))
    >>> index.slots([pa.array(["to", "be", "to"])]).tolist() in ([0, 1, 0], [1, 0, 1])
    True
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            check_key_type(field.type, field.name)
        self._types = [field.type for field in schema]
        self._exact = len(schema) == 1 and _hash_is_exact(plain_type(schema.field(0).type))
        self._dense = DenseKeys() if len(schema) == 1 and may_be_dense(schema.field(0).type) else None
        """In place of the table, until keys come that lie far apart."""
        self._null_slot = -1
        self._start(_TABLE_SIZE_MIN, capacity=0)

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> Words:
        """The hashes of all keys in slot order."""
        return self._hashes.view

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        table = self._table_slots.nbytes + self._table_hashes.nbytes
        dense = 0 if self._dense is None else self._dense.size_bytes
        return table + dense + self._hashes.size_bytes + sum(store.size_bytes for store in self._stores)

    def keys(self, slots: Ints | None = None) -> list[pa.Array]:
        """The key columns of these slots, or of all in slot order."""
        return self.freeze().keys(slots)

    def freeze(self) -> FrozenKeys:
        """The keys as they are now, without a copy."""
        return FrozenKeys(self._hashes.view, tuple(store.freeze() for store in self._stores))

    def clear(self) -> None:
        """Forget every key. What was frozen or read before stays as it was."""
        used, size = len(self), len(self._table_slots)
        if self._dense is not None:
            self._dense = DenseKeys()
            self._start_stores(used)
        elif size > max(_SHRINK_FACTOR * used, _TABLE_SIZE_MIN):
            self._start(_table_size(used), capacity=used)
        else:
            self._table_slots.fill(-1)
            self._start_stores(used)

    def slots(self, columns: Sequence[pa.Array], hashes: Words | None = None) -> Ints:
        """The slot of each row's key; keys that are new get the next slots. `hashes`: if they are known already."""
        if not self._exact:
            hashes = hash_keys(columns) if hashes is None else hashes
            columns = [without_views(column) for column in columns]
            return self._probe(_Batch(columns, hashes, [read_column(column) for column in columns]))
        valid = valid_rows(columns[0])
        if valid is None:
            return self._slots_of(columns[0], hashes)
        # A null has a slot outside of the table: its hash may be that of a value.
        slots = np.empty(len(columns[0]), np.int64)
        rows = np.flatnonzero(valid)
        if len(rows):
            slots[rows] = self._slots_of(columns[0].take(pa.array(rows)), None if hashes is None else hashes[rows])
        slots[~valid] = self._slot_of_null(columns[0], row=int(np.argmin(valid)))
        return slots

    def _slots_of(self, column: pa.Array, hashes: Words | None) -> Ints:
        """The slots of keys that are not null, where equal hashes mean equal keys."""
        if not len(column):
            return np.empty(0, np.int64)
        if self._dense is not None and not pa.types.is_dictionary(column.type):
            values = fixed_values(column).astype(np.int64, copy=False)
            if self._dense.covers(values, keys=len(self) + len(column)):
                return self._dense_slots(self._dense, column, values)
        if self._dense is not None:
            self._dense = None
            self._grow(len(self))
        return self._probe(_Batch([column], hash_keys([column]) if hashes is None else hashes, ()))

    def _dense_slots(self, dense: DenseKeys, column: pa.Array, values: Ints) -> Ints:
        slots, added = dense.find(values, count=len(self))
        if added is not None:
            new = column.take(pa.array(added))
            self._append([new], hash_keys([new]))
        return slots.astype(np.int64)

    def _probe(self, batch: _Batch) -> Ints:
        positions = (batch.hashes & self._mask).view(np.int64)
        found = self._table_slots.take(positions, mode="clip")
        same = self._table_hashes.take(positions, mode="clip") == batch.hashes
        if not self._exact:
            self._keep_equal(same, found, batch, None)
        if not same.all() or found.min(initial=0) < 0:
            free = np.flatnonzero(found < 0)
            stuck = np.flatnonzero(~same & (found >= 0))
            rows, places = self._walk(stuck, (positions[stuck] + 1) & int(self._mask), batch=batch, found=found)
            rows, places = np.concatenate((free, rows)), np.concatenate((positions[free], places))
            self._insert(rows, places, batch=batch, found=found)
        return found.astype(np.int64)

    def _walk(self, rows: Ints, positions: Ints, *, batch: _Batch, found: Slots) -> tuple[Ints, Ints]:
        """Move rows on until they meet their own key, noted in `found`, or a free place: those are returned."""
        free_rows, free_positions = [rows[:0]], [positions[:0]]
        while len(rows):
            met = self._table_slots[positions]
            found[rows] = met
            same = self._table_hashes[positions] == batch.hashes[rows]
            free = met < 0
            if free.any():
                indexes = np.flatnonzero(free)
                free_rows.append(rows[indexes])
                free_positions.append(positions[indexes])
                same &= ~free
            if not self._exact:
                self._keep_equal(same, met, batch, rows)
            onward = np.flatnonzero(~(same | free))
            rows, positions = rows[onward], (positions[onward] + 1) & int(self._mask)
        return np.concatenate(free_rows), np.concatenate(free_positions)

    def _insert(self, rows: Ints, positions: Ints, *, batch: _Batch, found: Slots) -> None:
        """Give slots to rows that stand at free places; several rows may share a place, or a key."""
        first = _FIRST_ROWS
        while len(rows):
            table = self._table_slots
            claims = np.arange(-2, -2 - len(rows[:first]), -1, dtype=np.int32)
            table[positions[:first]] = claims
            won = table[positions[:first]] == claims
            indexes = np.flatnonzero(won)
            winners, places, count = rows[indexes], positions[indexes], len(self)
            if 2 * (count + len(winners)) > len(table):
                self._grow(count + len(winners))
                positions = (batch.hashes[rows] & self._mask).view(np.int64)
            else:
                found[winners] = table[places] = np.arange(count, count + len(winners), dtype=np.int32)
                self._table_hashes[places] = hashes = batch.hashes[winners]
                taken = pa.array(winners)
                self._append([array.take(taken) for array in batch.arrays], hashes)
                left = np.flatnonzero(np.concatenate((~won, np.ones(len(rows) - len(won), np.bool_))))
                rows, positions, first = rows[left], positions[left], len(rows)
            rows, positions = self._walk(rows, positions, batch=batch, found=found)

    def _keep_equal(self, same: Mask, slots: Slots, batch: _Batch, rows: Ints | None) -> None:
        """Of the rows with the hash of a stored key, keep those that have the key itself, in place."""
        candidates = np.flatnonzero(same & (slots >= 0))
        if not len(candidates):
            return
        stored = slots[candidates].astype(np.int64)
        numbers: Ints | slice = candidates if rows is None else rows[candidates]
        if rows is None and len(candidates) == len(same):
            numbers = slice(None)
        equal = np.ones(len(candidates), np.bool_)
        for store, column in zip(self._stores, batch.columns, strict=True):
            equal &= store.equal(stored, column, numbers)  # type: ignore[arg-type]
        same[candidates] = equal

    def _append(self, columns: Sequence[pa.Array], hashes: Words) -> None:
        for store, column in zip(self._stores, columns, strict=True):
            store.append(read_column(column))  # type: ignore[arg-type]
        self._hashes.append(hashes)

    def _slot_of_null(self, column: pa.Array, *, row: int) -> int:
        if self._null_slot < 0:
            self._null_slot = len(self)
            null = column.slice(row, 1)
            self._append([null], hash_keys([null]))
        return self._null_slot

    def _grow(self, count: int) -> None:
        """A larger table with the keys that there are."""
        size = _table_size(2 * count)
        self._make_table(size)
        hashes = self._hashes.view
        slots = np.arange(len(hashes), dtype=np.int32)
        slots = slots[slots != self._null_slot]
        positions = (hashes[slots] & self._mask).view(np.int64)
        while len(slots):
            free = self._table_slots[positions] < 0
            self._table_slots[positions[free]] = slots[free]
            placed = self._table_slots[positions] == slots
            self._table_hashes[positions[placed]] = hashes[slots[placed]]
            slots, positions = slots[~placed], (positions[~placed] + 1) & (size - 1)

    def _start(self, table_size: int, *, capacity: int) -> None:
        self._make_table(table_size)
        self._start_stores(capacity)

    def _make_table(self, size: int) -> None:
        self._mask = np.uint64(size - 1)
        self._table_slots = np.full(size, -1, np.int32)
        self._table_hashes: npt.NDArray[Any] = np.zeros(size, np.uint64)

    def _start_stores(self, capacity: int) -> None:
        self._null_slot = -1
        self._hashes = Appendable(np.uint64, capacity=capacity)
        self._stores: list[Store] = [
            (BytesStore if is_bytes(plain_type(data_type)) else FixedStore)(data_type, capacity)
            for data_type in self._types
        ]


@dataclass(frozen=True)
class _Batch:
    """The rows that a call of slots() is about."""

    arrays: Sequence[pa.Array]
    hashes: Words
    columns: Sequence[KeyColumn]
    """The arrays as NumPy sees them; empty where hashes alone tell keys apart."""


def _hash_is_exact(data_type: pa.DataType) -> bool:
    """Whether two values of this type are equal when their hashes are: XXH64 of up to eight bytes has an inverse."""
    types = pa.types
    if types.is_timestamp(data_type) or types.is_duration(data_type):
        return bool(data_type.unit == "us")
    return bool(
        types.is_boolean(data_type)
        or (types.is_integer(data_type) and not types.is_uint64(data_type))
        or types.is_float32(data_type)
        or types.is_float64(data_type)
        or types.is_date32(data_type)
    )


def _table_size(keys: int) -> int:
    """The power of two that keeps the table at most half full."""
    return max(_TABLE_SIZE_MIN, 1 << (2 * keys - 1).bit_length())
