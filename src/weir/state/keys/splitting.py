"""Batches split by the subtask that owns each row's key.

Comes in: batches. Goes out: their rows by owner. The owners of integer keys that lie
close together are remembered, which saves the hash of each row, as a column does that holds it.
Holds no state of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.keys.columns import fixed_values, numpy_type
from weir.state.keys.dense import may_be_dense
from weir.state.keys.hashing import hash_keys, key_groups, take_rows
from weir.state.keys.xxhash64 import Ints, Words

REMEMBERED_SPAN_MAX = 1 << 20
"""Keys between the least and the greatest whose owners are remembered."""

REMEMBERED_SPAN_PER_ROW = 4
"""Before that pays, there must have been some rows: each key in between is hashed once."""

_SCANNED_OWNERS_MAX = 4
"""Up to so many owners, one scan for each is faster than a sort."""


class KeySplitter:
    """Splits the batches of one edge."""

    def __init__(
        self, keys: Sequence[str], parallelism: int, max_parallelism: int, *, hashed_as: str | None = None
    ) -> None:
        """`hashed_as`: the column with the hash of the keys, if there is one."""
        self._keys = list(keys)
        self._hashed_as = hashed_as
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        # Sixteen bits at most: NumPy sorts those by radix.
        dtype = np.uint8 if parallelism <= 256 else np.uint16
        self._by_group = (np.arange(max_parallelism) * parallelism // max_parallelism).astype(dtype)
        self._remembered: _Remembered | None = _Remembered(self) if len(self._keys) == 1 else None

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """The rows by the subtask that owns their key, in their old order; owners without rows are left out."""
        if not batch.num_rows:
            return []
        if self._parallelism == 1:
            return [(0, batch)]
        order, counts = _group_rows(self._owners(batch), self._parallelism)
        present = np.flatnonzero(counts)
        if len(present) == 1:
            return [(int(present[0]), batch)]
        # One gather for all and slices of it: measured faster than a gather or a filter per owner, and
        # Arrow's take faster than Polars' gather for numbers (2 times) and for strings (4 times).
        gathered = take_rows(batch, order)
        ends = np.cumsum(counts)
        return [(int(i), gathered.slice(int(ends[i] - counts[i]), int(counts[i]))) for i in present]

    def hashed(self, columns: Sequence[pa.Array]) -> npt.NDArray[Any]:
        """The owner of each key."""
        return self._of(hash_keys(columns))

    def _of(self, hashes: Words) -> npt.NDArray[Any]:
        return self._by_group.take(key_groups(hashes, self._max_parallelism), mode="clip")

    def _owners(self, batch: pa.RecordBatch) -> npt.NDArray[Any]:
        if self._hashed_as is not None:
            return self._of(fixed_values(batch.column(self._hashed_as)))
        columns = [batch.column(key) for key in self._keys]
        if self._remembered is not None and not columns[0].null_count:
            owners = self._remembered.owners(columns[0])
            if owners is not None:
                return owners
            if self._remembered.is_hopeless:
                self._remembered = None
        return self.hashed(columns)


class _Remembered:
    """The owner of each integer in a range."""

    def __init__(self, splitter: KeySplitter) -> None:
        self._splitter = splitter
        self._rows = 0
        self._low = 0
        self._high = 0
        """All keys so far are between these."""
        self._base = 0
        self._table: npt.NDArray[Any] = np.empty(0, np.uint8)
        self.is_hopeless = False
        """Keys of this type, or so far apart, are never remembered."""

    def owners(self, column: pa.Array) -> npt.NDArray[Any] | None:
        """None: they are not known without a hash."""
        if not may_be_dense(column.type):
            self.is_hopeless = True
            return None
        values = fixed_values(column).astype(np.int64, copy=False)
        low, high = int(values.min()), int(values.max()) + 1
        if not self._base <= low < high <= self._base + len(self._table) and not self._covers(low, high, column):
            return None
        owners: npt.NDArray[Any] = self._table.take(values - self._base if self._base else values, mode="clip")
        return owners

    def _covers(self, low: int, high: int, column: pa.Array) -> bool:
        """Make a new table, if that is worth it by now."""
        if self._rows:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high, self._rows = low, high, self._rows + len(column)
        span = high - low
        self.is_hopeless = span > REMEMBERED_SPAN_MAX
        if span > min(REMEMBERED_SPAN_MAX, REMEMBERED_SPAN_PER_ROW * self._rows):
            return False
        # Half as much again: keys that grow must not make a new table with each batch.
        dtype = numpy_type(column.type)
        end = min(high + span // 2, low + REMEMBERED_SPAN_MAX, int(np.iinfo(dtype).max) + 1)
        numbers = pa.array(np.arange(low, end, dtype=np.int64).astype(dtype), column.type)
        self._base, self._table = low, self._splitter.hashed([numbers])
        return True


def _group_rows(owners: npt.NDArray[Any], parallelism: int) -> tuple[Ints, Ints]:
    """The rows of owner 0, then those of owner 1 and so on, and how many each has."""
    if parallelism <= _SCANNED_OWNERS_MAX:
        rows = [np.flatnonzero(owners == owner) for owner in range(parallelism)]
        return np.concatenate(rows), np.array([len(own) for own in rows])
    return np.argsort(owners, kind="stable"), np.bincount(owners, minlength=parallelism)
