"""Append-only storage of keys by slot.

Comes in: canonical key columns. Goes out: whether rows equal stored keys, and Arrow
arrays of stored keys. What was appended never changes, so a frozen store can be read
by another thread while this one goes on appending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.keys.columns import BytesColumn, FixedColumn, Valid, build_fixed, plain_type
from weir.state.keys.xxhash64 import PADDING_BYTES, Bytes, Ints, unaligned_words

Rows: TypeAlias = "Ints | slice"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_CAPACITY_MIN = 1_024


class Appendable:
    """A NumPy array that grows at its end. A view of it stays right whatever is appended later."""

    def __init__(self, dtype: npt.DTypeLike, *, width: int = 1, capacity: int = _CAPACITY_MIN) -> None:
        shape = (max(capacity, _CAPACITY_MIN),)
        self._buffer: npt.NDArray[Any] = np.empty(shape if width == 1 else (*shape, width), dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> npt.NDArray[Any]:
        return self._buffer[: self._length]

    @property
    def padded(self) -> npt.NDArray[Any]:
        """What was appended and whatever lies behind it: at least PADDING_BYTES more elements."""
        return self._buffer

    @property
    def size_bytes(self) -> int:
        """With the room to grow."""
        return self._buffer.nbytes

    def append(self, values: npt.NDArray[Any]) -> None:
        end = self._length + len(values)
        if end + PADDING_BYTES > len(self._buffer):
            grown = np.empty((2 * end + PADDING_BYTES, *self._buffer.shape[1:]), self._buffer.dtype)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = values
        self._length = end


class _Validity:
    """Which stored keys are null; takes no room until the first null."""

    def __init__(self) -> None:
        self._valid: Appendable | None = None

    def append(self, valid: Valid, *, before: int, count: int) -> None:
        if self._valid is None:
            if valid is None:
                return
            self._valid = Appendable(np.bool_, capacity=before + count)
            self._valid.append(np.ones(before, np.bool_))
        self._valid.append(np.ones(count, np.bool_) if valid is None else valid)

    @property
    def view(self) -> Valid:
        return None if self._valid is None else self._valid.view


@dataclass(frozen=True)
class FrozenFixed:
    """Fixed-width keys up to some length."""

    values: npt.NDArray[Any]
    valid: Valid
    data_type: pa.DataType

    def build(self, slots: Ints | None) -> pa.Array:
        """The keys of these slots, or of all."""
        if slots is None:
            return build_fixed(self.values, self.valid, self.data_type)
        return build_fixed(self.values[slots], None if self.valid is None else self.valid[slots], self.data_type)


class FixedStore:
    """Keys of one width."""

    def __init__(self, data_type: pa.DataType, capacity: int) -> None:
        self._data_type = plain_type(data_type)
        self._capacity = capacity
        self._values: Appendable | None = None
        self._validity = _Validity()

    @property
    def size_bytes(self) -> int:
        return 0 if self._values is None else self._values.size_bytes

    def append(self, column: FixedColumn) -> None:
        if self._values is None:
            width = 1 if column.values.ndim == 1 else column.values.shape[1]
            self._values = Appendable(column.values.dtype, width=width, capacity=self._capacity)
        self._validity.append(column.valid, before=len(self._values), count=len(column.values))
        self._values.append(column.values)

    def equal(self, slots: Ints, column: FixedColumn, rows: Rows) -> Mask:
        """Whether the keys of these slots equal these rows of a column."""
        if self._values is None:
            return np.zeros(len(slots), np.bool_)
        same: Mask = np.equal(self._values.view[slots], column.values[rows])
        if same.ndim == 2:
            same = np.logical_and.reduce(same, axis=1)
        return _and_same_validity(same, self._validity.view, slots, valid=column.valid, rows=rows)

    def freeze(self) -> FrozenFixed:
        values = np.empty(0, np.int64) if self._values is None else self._values.view
        return FrozenFixed(values, self._validity.view, self._data_type)


@dataclass(frozen=True)
class FrozenBytes:
    """Byte-string keys up to some length."""

    offsets: Ints
    data: Bytes
    valid: Valid
    data_type: pa.DataType

    def build(self, slots: Ints | None) -> pa.Array:
        """The keys of these slots, or of all."""
        types = pa.types
        text = types.is_string(self.data_type) or types.is_large_string(self.data_type)
        bitmap = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        large = pa.large_string() if text or types.is_string_view(self.data_type) else pa.large_binary()
        keys = pa.Array.from_buffers(large, len(self.offsets) - 1, buffers)
        return (keys if slots is None else keys.take(pa.array(slots))).cast(self.data_type)


class BytesStore:
    """Keys that are byte strings, end to end in one buffer."""

    def __init__(self, data_type: pa.DataType, capacity: int) -> None:
        self._data_type = plain_type(data_type)
        self._offsets = Appendable(np.int64, capacity=capacity + 1 + PADDING_BYTES)
        self._offsets.append(np.zeros(1, np.int64))
        self._data = Appendable(np.uint8, capacity=8 * capacity)
        self._validity = _Validity()

    @property
    def size_bytes(self) -> int:
        return self._offsets.size_bytes + self._data.size_bytes

    def append(self, column: BytesColumn) -> None:
        ends = np.cumsum(column.lengths)
        total = int(ends[-1]) if len(ends) else 0
        data = column.data[:total]
        if total != len(column.data) - PADDING_BYTES:  # bytes below nulls lie in between
            data = column.data[np.repeat(column.starts - ends + column.lengths, column.lengths) + np.arange(total)]
        self._validity.append(column.valid, before=len(self._offsets) - 1, count=len(ends))
        self._offsets.append(ends + len(self._data))
        self._data.append(data)

    def equal(self, slots: Ints, column: BytesColumn, rows: Rows) -> Mask:
        """Whether the keys of these slots equal these rows of a column."""
        offsets = self._offsets.view
        stored_starts, starts, lengths = offsets.take(slots, mode="clip"), column.starts[rows], column.lengths[rows]
        same: Mask = offsets.take(slots + 1, mode="clip") - stored_starts == lengths
        stored_words, words = unaligned_words(self._data.padded), unaligned_words(column.data)
        # The first word of every string, and of longer ones word after word; what is beyond the end is shifted out.
        excess_bits = 8 * np.maximum(8 - lengths, 0)
        same &= ((stored_words[stored_starts] ^ words[starts]) << excess_bits.view(np.uint64)) == 0
        done, left = 8, np.flatnonzero(same & (lengths > 8))
        while len(left):
            differing = stored_words[stored_starts[left] + done] ^ words[starts[left] + done]
            excess_bits = 8 * np.maximum(8 + done - lengths[left], 0)
            same[left] = equal = (differing << excess_bits.view(np.uint64)) == 0
            done += 8
            left = left[equal & (lengths[left] > done)]
        return _and_same_validity(same, self._validity.view, slots, valid=column.valid, rows=rows)

    def freeze(self) -> FrozenBytes:
        return FrozenBytes(self._offsets.view, self._data.view, self._validity.view, self._data_type)


def _and_same_validity(same: Mask, stored: Valid, slots: Ints, *, valid: Valid, rows: Rows) -> Mask:
    if stored is None and valid is None:
        return same
    stored_valid = np.True_ if stored is None else stored[slots]
    same &= stored_valid == (np.True_ if valid is None else valid[rows])
    return same
