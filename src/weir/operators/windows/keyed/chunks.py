"""Rows as they came, one batch after the other; small batches are put together, large ones are not touched.

Comes in: batches. Goes out: any rows by their places, which count from 0 on. What is there
never changes, so that whoever was handed it may read on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

CHUNK_ROWS_MAX = 262_144
CHUNK_BYTES_MAX = 32 << 20
"""Batches are put together up to that."""

RATIO = 2
"""A batch is at least so many times larger than the next, once they were put together."""

LOOSE_MAX = 32
"""So many batches lie one by one before they are."""

SMALL_ROWS = 4_096
"""All rows are handed over where they are no more than that, or twice as many as were asked for."""


class Chunks:
    """Batches, each with the places of its rows."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._loose = 0
        """The last of them, which were not put together yet."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._batches)

    def seal(self) -> None:
        """No more batches come; from now on any thread may read."""
        self._loose = 0

    def add(self, batch: pa.RecordBatch) -> int:
        """The place of its first row; the others follow."""
        first = self._count
        self._batches.append(batch)
        self._starts.append(first)
        self._count += batch.num_rows
        self._loose += 1
        if self._loose >= LOOSE_MAX:
            self._put_together()
        return first

    def taken(self, places: Ints) -> tuple[Sequence[pa.RecordBatch], Ints | None]:
        """Batches with these rows, and maybe others; and where in them each is, if not one by one."""
        if self._count <= max(SMALL_ROWS, 2 * len(places)):
            return self._batches, places
        if self._loose > 1:
            self._put_together()
        of = np.searchsorted(np.array(self._starts), places, side="right") - 1
        # NumPy sorts numbers of sixteen bits at most by radix; there are hardly ever more batches.
        order = np.argsort(of.astype(np.min_scalar_type(len(self._batches))), kind="stable")
        ordered, parts, stop = places[order], [], 0
        for number, count in enumerate(np.bincount(of).tolist()):
            if count:
                start, stop = stop, stop + count
                parts.append(take_rows(self._batches[number], ordered[start:stop] - self._starts[number]))
        if len(parts) == 1:
            return parts, None
        where = np.empty(len(places), np.int64)
        where[order] = np.arange(len(places))
        return parts, where

    def _put_together(self) -> None:
        self._loose = 0
        first, last = len(self._batches) - 1, self._batches[-1]
        rows, size_bytes = last.num_rows, last.nbytes
        while first and (before := self._batches[first - 1]).num_rows < RATIO * rows:
            if rows + before.num_rows > CHUNK_ROWS_MAX or size_bytes + before.nbytes > CHUNK_BYTES_MAX:
                break
            first, rows, size_bytes = first - 1, rows + before.num_rows, size_bytes + before.nbytes
        if first < len(self._batches) - 1:
            self._batches[first:] = [pa.concat_batches(self._batches[first:])]
            del self._starts[first + 1 :]
