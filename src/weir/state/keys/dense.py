"""Slots of integer keys that lie close together, by the key itself.

Comes in: columns of integers. Goes out: their slots, as long as a table with a place for
each integer between the least and the greatest key is worth its memory. One look into it
replaces the hash and the search. Knows nothing of hashes, nulls or what the slots hold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.keys.xxhash64 import Ints

SPAN_MIN = 1 << 20
"""Places that a table may always have: 4 MiB."""

SPAN_PER_KEY = 4
"""Places for each key, above that: no more memory than a hash table needs."""


class DenseKeys:
    """A place for each integer in a range: the slot of that key, or -1."""

    def __init__(self) -> None:
        self._base = 0
        self._end = 0
        """One more than the greatest key; there may be places beyond."""
        self._places: npt.NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def size_bytes(self) -> int:
        return self._places.nbytes

    def covers(self, values: Ints, *, keys: int) -> bool:
        """Make sure that there is a place for each of these; False: they lie too far apart for `keys` keys."""
        low, high = int(values.min()), int(values.max()) + 1
        if self._base <= low and high <= self._base + len(self._places):
            self._end = max(self._end, high)
            return True
        if len(self._places):
            low, high = min(low, self._base), max(high, self._end)
        span, span_max = high - low, max(SPAN_MIN, SPAN_PER_KEY * keys)
        if span > span_max:
            return False
        # Keys that grow, such as numbers that are handed out one after the other, must not copy the table each time.
        longer = np.full(min(2 * span, span_max), -1, np.int32)
        longer[self._base - low : self._end - low] = self._places[: self._end - self._base]
        self._base, self._end, self._places = low, high, longer
        return True

    def known(self, values: Ints) -> Ints:
        """The slots of these keys, or -1. Changes nothing."""
        inside = np.flatnonzero((values >= self._base) & (values < self._base + len(self._places)))
        slots = np.full(len(values), -1, np.int64)
        slots[inside] = self._places[values[inside] - self._base]
        return slots

    def find(self, values: Ints, *, count: int) -> tuple[npt.NDArray[np.int32], Ints | None]:
        """The slots of these keys, and one row of each that is new, if there are any: they get slots from `count`."""
        offsets = values - self._base if self._base else values
        found = self._places.take(offsets, mode="clip")
        if found.min() >= 0:
            return found, None
        missing = np.flatnonzero(found < 0)
        places = offsets[missing]
        # Several rows may have one new key: the one that stands there in the end adds it.
        self._places[places] = numbers = np.arange(len(missing), dtype=np.int32)
        added = np.flatnonzero(self._places[places] == numbers)
        self._places[places[added]] = np.arange(count, count + len(added), dtype=np.int32)
        found[missing] = self._places[places]
        return found, missing[added]


def may_be_dense(data_type: pa.DataType) -> bool:
    """Whether values of this type can stand for their own place."""
    return bool(pa.types.is_integer(data_type) and not pa.types.is_uint64(data_type))
