"""Columns of byte strings: put together, cut apart, gathered, without a step per row.

Comes in: NumPy arrays and Arrow buffers. Goes out: byte strings as RocksDB wants them,
or Arrow arrays of what they hold. Knows nothing of keys, types of states or databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.state.keys.columns import Valid
from weir.state.keys.xxhash64 import Bytes, Ints


@dataclass(frozen=True)
class ByteStrings:
    """One byte string per row: `data[offsets[i] : offsets[i + 1]]`."""

    data: Bytes
    offsets: Ints

    @staticmethod
    def fixed(values: npt.NDArray[Any]) -> ByteStrings:
        """One value, or one row of values, of the same width in each."""
        length = len(values)
        width = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1) if width else np.zeros(0, np.uint8)
        return ByteStrings(data, np.arange(length + 1, dtype=np.int64) * width)

    @staticmethod
    def of_bytes(array: pa.Array) -> ByteStrings:
        """A large_binary array without nulls."""
        _, offsets_buffer, data_buffer = array.buffers()
        if offsets_buffer is None or not len(array):
            return ByteStrings(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64))
        offsets = np.frombuffer(offsets_buffer, np.int64, count=array.offset + len(array) + 1)[array.offset :]
        data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
        return ByteStrings(data[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def array(self) -> pa.Array:
        """As a large_binary array."""
        buffers = [
            None,
            pa.py_buffer(np.ascontiguousarray(self.offsets)),
            pa.py_buffer(np.ascontiguousarray(self.data)),
        ]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers, 0)


def join(parts: Sequence[ByteStrings]) -> ByteStrings:
    """The byte strings of each row, one after the other."""
    if len(parts) == 1:
        return parts[0]
    separator = pa.scalar(b"", pa.large_binary())
    return ByteStrings.of_bytes(pc.binary_join_element_wise(*(part.array() for part in parts), separator))


def to_bytes_list(strings: ByteStrings) -> list[bytes]:
    """The byte strings as Python objects."""
    lengths = strings.lengths
    if not len(lengths):
        return []
    if lengths[0] and (lengths == lengths[0]).all():
        same: list[bytes] = strings.data.view(f"V{lengths[0]}").tolist()
        return same
    data = strings.data.tobytes()
    offsets = strings.offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(offsets)]


def from_bytes_list(values: Sequence[bytes]) -> ByteStrings:
    """Python byte strings as one buffer."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return ByteStrings(np.frombuffer(b"".join(values), np.uint8), offsets)


def gather(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Rows of `width` bytes, from each start on."""
    if not len(starts) or not width:
        return np.zeros((len(starts), width), np.uint8)
    if len(data) == len(starts) * width:
        return data.reshape(-1, width)
    return np.lib.stride_tricks.sliding_window_view(data, width)[starts]


def build_bytes(data: Bytes, starts: Ints, lengths: Ints, *, valid: Valid, kind: pa.DataType) -> pa.Array:
    """An array of strings or bytes from pieces of a buffer that follow one another; those of nulls have no length."""
    rows = len(starts)
    # Arrow knows no gaps: pieces and gaps become one array, of which it takes every other element.
    bounds = np.zeros(2 * rows + 1, np.int64)
    bounds[:-1:2] = starts
    bounds[1::2] = starts + lengths
    bounds[-1] = len(data)
    np.maximum.accumulate(bounds, out=bounds)
    both = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.large_binary(), 2 * rows, both, 0).take(pa.array(np.arange(0, 2 * rows, 2)))
    bitmap, null_count = validity(valid)
    buffers = [bitmap, *pieces.buffers()[1:]]
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    large = pa.large_string() if is_text else pa.large_binary()
    array = pa.Array.from_buffers(large, rows, buffers, null_count)
    if pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    return array if large == kind else array.cast(kind)


def validity(valid: Valid) -> tuple[pa.Buffer | None, int]:
    """A null bitmap, and how many nulls it has."""
    if valid is None:
        return None, 0
    null_count = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if null_count else None), null_count
