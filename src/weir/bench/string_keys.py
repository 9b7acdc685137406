"""The keyed workloads' keys as strings: a region and eight digits, such as `eu-00000042`.

Comes in: the numbers of keys. Goes out: their strings, of 11 to 15 bytes, as an Arrow array;
and the numbers again. NumPy only: both ways cost little beside what is measured.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = "npt.NDArray[np.int64]"

KEYS_MAX = 100_000_000
"""More do not fit into eight digits."""

REGIONS = (b"eu-", b"asia-", b"africa-", b"north-")
"""Key k is of region k modulo four. None is longer than a word."""

_WORD_BYTES = 8
_PREFIXES = np.array([np.frombuffer(region.ljust(_WORD_BYTES), np.uint64)[0] for region in REGIONS])
_LENGTHS = np.array([len(region) for region in REGIONS])
_FOUR_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint32).astype(np.uint64)


def strings_of(numbers: Numbers) -> pa.Array:
    """The key of each number."""
    regions = numbers & (len(REGIONS) - 1)
    lengths = _LENGTHS.take(regions)
    ends = np.cumsum(lengths + _WORD_BYTES)
    offsets = np.zeros(len(numbers) + 1, np.int32)
    offsets[1:] = ends
    data = np.empty(int(offsets[-1]), np.uint8)
    # The eight bytes from any byte on. What a prefix leaves behind its end the digits overwrite.
    words = np.ndarray((max(len(data) - _WORD_BYTES + 1, 0),), np.uint64, data, strides=(1,))
    words[offsets[:-1]] = _PREFIXES.take(regions)
    upper = numbers // 10_000
    digits = _FOUR_DIGITS.take(upper) | (_FOUR_DIGITS.take(numbers - 10_000 * upper) << np.uint64(32))
    words[ends - _WORD_BYTES] = digits
    return pa.Array.from_buffers(pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


def numbers_of(strings: pa.Array) -> Numbers:
    """The number of each key, from its last eight bytes."""
    _, offsets_buffer, data_buffer = strings.buffers()
    if not len(strings):
        return np.empty(0, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32, count=strings.offset + len(strings) + 1)
    data = np.frombuffer(data_buffer, np.uint8)
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), np.uint64, data, strides=(1,))
    digits = words[offsets[strings.offset + 1 :] - _WORD_BYTES] & np.uint64(0x0F0F0F0F0F0F0F0F)
    # Neighbours are put together: digits to pairs, to fours, to the number.
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    numbers: Numbers = ((fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)).view(np.int64)
    return numbers
