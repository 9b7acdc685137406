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
from weir.state.keys.xxhash64 import PADDING_BYTES, Bytes, Ints, Words, unaligned_words

Rows: TypeAlias = "Ints | slice"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_CAPACITY_MIN = 1_024
_WORD_BITS = np.uint64(64)


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
            # Bytes are read as whole words, too.
            capacity = -(-(2 * end + PADDING_BYTES) // 8) * 8
            grown = np.empty((capacity, *self._buffer.shape[1:]), self._buffer.dtype)
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
        stored, starts, lengths = offsets.take(slots, mode="clip"), column.starts[rows], column.lengths[rows]
        same: Mask = offsets.take(slots + 1, mode="clip") - stored == lengths
        stored_words, words = self._data.padded.view(np.uint64), unaligned_words(column.data)
        # The first eight bytes and the last, which are all that there is of most strings.
        last = np.maximum(lengths - 8, 0)
        first_differing = _words_at(stored_words, stored) ^ words[starts]
        last_differing = _words_at(stored_words, stored + last) ^ words[starts + last]
        differing = first_differing | last_differing
        if len(short := np.flatnonzero(lengths < 8)):
            # What is beyond the end is shifted out.
            differing[short] <<= (8 * (8 - lengths[short])).view(np.uint64)
        same &= differing == 0
        done, left = 8, np.flatnonzero(same & (lengths > 16))
        while len(left):
            equal = _words_at(stored_words, stored[left] + done) == words[starts[left] + done]
            same[left] = equal
            done += 8
            left = left[equal & (lengths[left] > done + 8)]
        return _and_same_validity(same, self._validity.view, slots, valid=column.valid, rows=rows)

    def freeze(self) -> FrozenBytes:
        return FrozenBytes(self._offsets.view, self._data.view, self._validity.view, self._data_type)


def _words_at(words: Words, positions: Ints) -> Words:
    """The eight bytes from these on. From places all over the memory, whole words come much faster than others."""
    places, bits = positions >> 3, ((positions & 7) << 3).view(np.uint64)
    lower, upper = words.take(places, mode="clip"), words.take(places + 1, mode="clip")
    return (lower >> bits) | (upper << (_WORD_BITS - bits))


def _and_same_validity(same: Mask, stored: Valid, slots: Ints, *, valid: Valid, rows: Rows) -> Mask:
    if stored is None and valid is None:
        return same
    stored_valid = np.True_ if stored is None else stored[slots]
    same &= stored_valid == (np.True_ if valid is None else valid[rows])
    return same
