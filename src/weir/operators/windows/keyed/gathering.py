"""Rows of keys from several places, side by side.

Comes in: where the rows of keys are, one place after the other, the oldest first. Goes out: batches
put together as they are, and for each key which of their rows are its own. Copies each row once at
most, and holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.windows.keyed.head import KeyedHead
from weir.operators.windows.pieces import expanded
from weir.state.keys.xxhash64 import Ints


@dataclass(frozen=True, eq=False)
class Arrived:
    """The rows of a batch by key."""

    batch: pa.RecordBatch
    slots: Ints
    """The keys, each once."""
    rows: Ints
    """By key, in their order."""
    starts: Ints
    """By key: where in these its rows begin,"""
    counts: Ints
    """and how many there are."""
    before: Ints
    """By key: the number of its first row here,"""
    after: Ints
    """and of the row that comes next."""
    first: Ints
    """By key: the number of the first row that waits, or of its first row here."""
    numbered: int
    """The number of the batch's first row among all."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """All rows of some keys."""

    batch: pa.RecordBatch
    rows: Ints
    """By key, in their order."""
    starts: Ints
    """By key: where in these its rows begin."""
    first: Ints
    """By key: the number of the first."""


class Sources:
    """Where the rows of some keys are, one place after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._batches: list[pa.RecordBatch] = []
        self._where: list[Ints] = []
        """What of these was found, by source and then by key."""
        self._rows = self._found = 0
        self._starts: list[Ints] = []
        self._counts: list[Ints] = []

    def add(self, head: KeyedHead, slots: Ints, counts: Ints) -> bool:
        """The last rows of these keys in a head, so many of each; whether there are any."""
        some = counts.nonzero()[0]
        if not len(some):
            return False
        rows, where = head.taken(slots[some], counts[some])
        self._add(rows, where, counts.cumsum() - counts, counts)
        return True

    def add_some(self, rows: Sequence[pa.RecordBatch], which: Ints, starts: Ints, counts: Ints) -> None:
        """Those of a part of the keys."""
        all_starts, all_counts = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        all_starts[which], all_counts[which] = starts, counts
        self._add(rows, None, all_starts, all_counts)

    def _add(self, rows: Sequence[pa.RecordBatch], where: Ints | None, starts: Ints, counts: Ints) -> None:
        count = sum(batch.num_rows for batch in rows)
        where = np.arange(count) if where is None else where
        self._batches += rows
        self._where.append(self._rows + where if self._rows else where)
        self._starts.append(self._found + starts)
        self._counts.append(counts)
        self._rows += count
        self._found += len(where)

    def with_batch(self, arrived: Arrived, which: Ints) -> Gathered:
        """All of these, and behind them those that have just come."""
        counts, after, starts = arrived.counts[which], arrived.after[which], arrived.starts[which]
        if not self._batches:
            return Gathered(arrived.batch, arrived.rows, starts, after - counts)
        self._add([arrived.batch], arrived.rows, starts, counts)
        return self.all(after)

    def all(self, after: Ints) -> Gathered:
        """All of these; there is one at least. `after`: by key, the number of the row that comes next."""
        batch = self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        where = self._where[0] if len(self._where) == 1 else np.concatenate(self._where)
        if len(self._counts) == 1:
            return Gathered(batch, where, self._starts[0], after - self._counts[0])
        counts = np.empty((len(after), len(self._counts)), np.int64)
        begins = np.empty_like(counts)
        for number, (column, starts) in enumerate(zip(self._counts, self._starts)):
            counts[:, number], begins[:, number] = column, starts
        rows = where[expanded(begins.ravel(), counts.ravel())]
        totals = np.add.reduce(counts, axis=1)
        return Gathered(batch, rows, totals.cumsum() - totals, after - totals)
