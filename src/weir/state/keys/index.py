"""Keys to dense slots, a batch at a time.

Comes in: key columns and their hashes. Goes out: for each row the slot of its key,
0 to n-1 in order of appearance; and the keys by slot. Open addressing over one NumPy
array, whose entries hold a slot and half of its key's hash; integers that lie close
together are found without a hash. Never touches what is stored under the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
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

Store: TypeAlias = "FixedStore | BytesStore"

_TABLE_SIZE_MIN = 1_024
_FIRST_ROWS = 2_048
"""Rows that are inserted before the others: where a batch has few keys, the others then find theirs."""

_REPEATS_MIN = 2
"""Rows to each new key of a batch, from which on it pays to insert some rows of the next batch before the others."""

_WINDOW = np.arange(8)
"""Places that are looked at together."""

_MOVED_AT_ONCE = 16_384
"""Keys that move to a larger table at once: what is in between stays in the processor's cache."""

_SLOT = np.uint64(0x00000000_FFFFFFFF)
"""Of an entry: the slot and one; a free place is zero. The other half is the lower half of the key's hash, by which a
key moves to a larger table without a look at its whole hash."""

_WORD_BITS = 64
_HALF = np.uint64(32)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Odd, and with bits as they come: multiplication by the golden ratio."""

_ONE = np.uint64(1)

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

    def __init__(self, schema: pa.Schema, *, room: int = 0) -> None:
        """`room`: for so many keys, before it has to grow; it takes no memory until it is used."""
        for field in schema:
            check_key_type(field.type, field.name)
        self._types = [field.type for field in schema]
        self._exact = len(schema) == 1 and _hash_is_exact(plain_type(schema.field(0).type))
        self._dense = DenseKeys() if len(schema) == 1 and may_be_dense(schema.field(0).type) else None
        """In place of the table, until keys come that lie far apart."""
        self._has_repeats = True
        """Whether new keys had several rows each in the last batch that had some."""
        self._null_slot = -1
        self._start(_table_size(room) if room else _TABLE_SIZE_MIN, capacity=room)

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> Words:
        """The hashes of all keys in slot order."""
        return self._hashes.view

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        dense = 0 if self._dense is None else self._dense.size_bytes
        return self._table.nbytes + dense + self._hashes.size_bytes + sum(store.size_bytes for store in self._stores)

    def keys(self, slots: Ints | None = None) -> list[pa.Array]:
        """The key columns of these slots, or of all in slot order."""
        return self.freeze().keys(slots)

    def freeze(self) -> FrozenKeys:
        """The keys as they are now, without a copy."""
        return FrozenKeys(self._hashes.view, tuple(store.freeze() for store in self._stores))

    def clear(self) -> None:
        """Forget every key. What was frozen or read before stays as it was."""
        used, size = len(self), len(self._table)
        if self._dense is not None:
            self._dense = DenseKeys()
            self._start_stores(used)
        elif size > max(_SHRINK_FACTOR * used, _TABLE_SIZE_MIN):
            self._start(_table_size(used), capacity=used)
        else:
            self._table.fill(0)
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

    def known(self, columns: Sequence[pa.Array], hashes: Words | None = None) -> Ints:
        """The slot of each row's key, or -1. Changes nothing: another thread may read the keys meanwhile."""
        if self._exact and (valid := valid_rows(columns[0])) is not None:
            slots, rows = np.full(len(valid), self._null_slot), np.flatnonzero(valid)
            slots[rows] = self.known([columns[0].take(pa.array(rows))], None if hashes is None else hashes[rows])
            return slots
        columns = [without_views(column) for column in columns]
        if self._dense is not None:
            column = columns[0].dictionary_decode() if pa.types.is_dictionary(columns[0].type) else columns[0]
            return self._dense.known(fixed_values(column).astype(np.int64, copy=False))
        hashes = hash_keys(columns) if hashes is None else hashes
        read = () if self._exact else [read_column(column) for column in columns]
        return self._search(_Batch(columns, hashes, read))[0]

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
            slots = np.arange(len(self), dtype=np.int64)
            self._grow(len(self), _entries(self._hashes.view, slots)[slots != self._null_slot])
        return self._probe(_Batch([column], hash_keys([column]) if hashes is None else hashes, ()))

    def _dense_slots(self, dense: DenseKeys, column: pa.Array, values: Ints) -> Ints:
        slots, added = dense.find(values, count=len(self))
        if added is not None:
            new = column.take(pa.array(added))
            self._append([new], hash_keys([new]))
        return slots.astype(np.int64)

    def _probe(self, batch: _Batch) -> Ints:
        found, rows, places = self._search(batch)
        if len(rows):
            self._insert(rows, places, batch=batch, found=found)
        return found

    def _search(self, batch: _Batch) -> tuple[Ints, Ints, Ints]:
        """The slot of each row's key, or -1; which rows have none, and the free place that each of them stands at."""
        positions = self._homes(batch.hashes << _HALF)
        same, found = self._met(positions, batch, None)
        if same.all():
            return found, found[:0], found[:0]
        free = np.flatnonzero(found < 0)
        stuck = np.flatnonzero(~same & (found >= 0))
        rows, places = self._walk(stuck, (positions[stuck] + 1) & self._mask, batch=batch, found=found)
        return found, np.concatenate((free, rows)), np.concatenate((positions[free], places))

    def _met(self, positions: Ints, batch: _Batch, rows: Ints | None) -> tuple[Mask, Ints]:
        """Whether these rows, or all, stand at their own key, and the slots that they meet; -1: the place is free."""
        hashes = batch.hashes if rows is None else batch.hashes[rows]
        entries = self._table.take(positions, mode="clip")
        slots = (entries & _SLOT).view(np.int64) - 1
        same: Mask = (entries ^ (hashes << _HALF)) <= _SLOT
        same &= slots >= 0
        if self._exact:
            same &= self._hashes.padded.take(slots, mode="clip") == hashes
        else:
            self._keep_equal(same, slots, batch, rows)
        return same, slots

    def _walk(self, rows: Ints, positions: Ints, *, batch: _Batch, found: Ints) -> tuple[Ints, Ints]:
        """Move rows on until they meet their own key, noted in `found`, or a free place: those are returned."""
        free_rows, free_positions = [rows[:0]], [positions[:0]]
        while len(rows):
            positions = self._onward(positions, batch.hashes[rows])
            same, met = self._met(positions, batch, rows)
            found[rows] = met
            free = np.flatnonzero(met < 0)
            free_rows.append(rows[free])
            free_positions.append(positions[free])
            onward = np.flatnonzero(~same & (met >= 0))
            rows, positions = rows[onward], (positions[onward] + 1) & self._mask
        return np.concatenate(free_rows), np.concatenate(free_positions)

    def _onward(self, positions: Ints, hashes: Words) -> Ints:
        """From these places on, the first that are free, or where half of the hash is the same."""
        halves, entries = hashes << _HALF, self._table.take(positions, mode="clip")
        left = np.flatnonzero(((entries ^ halves) > _SLOT) & (entries != 0))
        positions = positions.copy()
        positions[left] += 1  # beyond the last place, too: the mask comes below
        while len(left):
            # Then eight places at a time, which lie side by side: few rows have farther to go.
            places = (positions[left][:, None] + _WINDOW) & self._mask
            entries = self._table.take(places, mode="clip")
            stops = ((entries ^ halves[left][:, None]) <= _SLOT) | (entries == 0)
            eights = stops.view(np.uint64).ravel()
            steps = np.bitwise_count((eights & (~eights + _ONE)) - _ONE).astype(np.int64) >> 3  # 8: none of them
            positions[left] = (positions[left] + steps) & self._mask
            left = left[steps == len(_WINDOW)]
        return positions

    def _homes(self, halves: Words) -> Ints:
        """Where halves of hashes, in the upper half of a word, belong. Any of their bits may be the same in all: the
        lowest are in keys of one key group, of which a subtask has few; so each has a say in each bit of the place."""
        return ((halves * _SPREAD) >> self._shift).view(np.int64)

    def _insert(self, rows: Ints, positions: Ints, *, batch: _Batch, found: Ints) -> None:
        """Give slots to rows that stand at free places; several rows may share a place, or a key."""
        first = _FIRST_ROWS if self._has_repeats else len(rows)
        unknown, known = len(rows), len(self)
        while len(rows):
            table = self._table
            claims = np.arange(1, 1 + len(rows[:first]), dtype=np.uint64)
            table[positions[:first]] = claims
            won = table[positions[:first]] == claims
            indexes = np.flatnonzero(won)
            winners, places, count = rows[indexes], positions[indexes], len(self)
            if 2 * (count + len(winners)) > len(table):
                table[places] = 0
                # In the order of their places, which are close together in a larger table, too.
                self._grow(count + len(winners), table[np.flatnonzero(table)])
                positions = self._homes(batch.hashes[rows] << _HALF)
            else:
                hashes, slots = batch.hashes[winners], np.arange(count, count + len(winners), dtype=np.int64)
                found[winners] = slots
                table[places] = _entries(hashes, slots)
                taken = pa.array(winners)
                self._append([array.take(taken) for array in batch.arrays], hashes)
                left = np.flatnonzero(np.concatenate((~won, np.ones(len(rows) - len(won), np.bool_))))
                rows, positions, first = rows[left], positions[left], len(rows)
            rows, positions = self._walk(rows, positions, batch=batch, found=found)
        self._has_repeats = unknown > _REPEATS_MIN * (len(self) - known)

    def _keep_equal(self, same: Mask, slots: Ints, batch: _Batch, rows: Ints | None) -> None:
        """Of the rows with the hash of a stored key, keep those that have the key itself, in place."""
        candidates = np.flatnonzero(same)
        if not len(candidates):
            return
        stored = slots[candidates]
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

    def _grow(self, count: int, entries: Words) -> None:
        """A larger table with these entries, for so many keys."""
        self._make_table(_table_size(2 * count))
        for start in range(0, len(entries), _MOVED_AT_ONCE):
            moved = entries[start : start + _MOVED_AT_ONCE]
            positions = self._homes(moved & ~_SLOT)
            while len(moved):
                free = np.flatnonzero(self._table.take(positions, mode="clip") == 0)
                self._table[positions[free]] = moved[free]
                left = np.flatnonzero(self._table.take(positions, mode="clip") != moved)
                moved, positions = moved[left], (positions[left] + 1) & self._mask

    def _start(self, table_size: int, *, capacity: int) -> None:
        self._make_table(table_size)
        self._start_stores(capacity)

    def _make_table(self, size: int) -> None:
        self._mask = size - 1
        self._shift = np.uint64(_WORD_BITS - self._mask.bit_length())
        self._table: Words = np.zeros(size, np.uint64)

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


def _entries(hashes: Words, slots: Ints) -> Words:
    """What stands in the table for keys with these hashes in these slots."""
    return (hashes << _HALF) | (slots + 1).view(np.uint64)


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
