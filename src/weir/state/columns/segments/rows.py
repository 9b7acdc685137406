"""Rows in the order of their keys, and what this order is.

Comes in: batches, hashes and times. Goes out: sorted rows. The highest bits of an order are
those of the key group, so that some key groups are one stretch of each segment. Holds nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.columns.kernels import Rule
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import key_groups, take_rows
from weir.state.keys.xxhash64 import Ints, Words

ORDER_COLUMN, TIME_COLUMN = "__order", "__time"
"""The first columns of a segment's file. No table shows them."""

WORD_BITS = 64

SEGMENT_BYTES_MAX = 16 << 20
"""A segment is about so large at most: no more is written to storage, or brought into memory, for a few of its rows."""

RUN_ROWS_MIN = 64
"""Rows in which so many follow each other in order, on average, are put into order as runs."""

TIES_SHARE_MAX = 4
"""Where no more than one row in so many has the order of another, those alone are put right."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SortedRows:
    """Rows, what they are sorted by, and their times."""

    order: Words
    times: Ints
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def size_bytes(self) -> int:
        return int(self.batch.nbytes) + self.order.nbytes + self.times.nbytes

    def slice(self, start: int, stop: int) -> SortedRows:
        return SortedRows(self.order[start:stop], self.times[start:stop], self.batch.slice(start, stop - start))

    def take(self, rows: Ints) -> SortedRows:
        return SortedRows(self.order[rows], self.times[rows], take_rows(self.batch, rows))


Combine = Callable[[SortedRows], SortedRows]
"""What becomes of rows that are merged: all rows of a key are among them, or none. It must keep their order."""


@dataclass(frozen=True)
class ChainRule:
    """Rows of one key are one where their stretches of time are less than the gap apart."""

    first: str
    """The name of the column with the first time of a row's stretch."""
    last: str
    gap_us: int


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """What the segments of one state are made of.

    batches: the schema of the rows as their operator knows them
    table:   the schema of the state table: key group, keys, the other columns, and the mark if it is shown
    mark:    the name of the table's column that shows a row's mark; None: a row that is marked is gone
    shared:  the bits of an order in which rows of one key may differ
    by_time: rows of one order are sorted by time, and those of one time by age
    time:    the name of the table's column that is the rows' time, where no batch has it
    rules:   by column, what becomes of it where rows of one key and time are shown as one; the others are keys
    chain:   which rows of one key are shown as one, if time alone does not say so
    """

    batches: pa.Schema
    table: pa.Schema
    max_parallelism: int
    mark: str | None = None
    shared: int = 0
    by_time: bool = False
    time: str | None = None
    rules: Mapping[str, Rule] | None = None
    chain: ChainRule | None = None

    @classmethod
    def of(cls, detail: Any) -> SegmentLayout:
        """What a reader of a checkpoint knows of it."""
        table = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(detail["schema"])))
        return cls(
            pa.schema([]),
            table,
            max_parallelism=detail["max_parallelism"],
            mark=detail["mark"],
            by_time=True,
            time=detail.get("time"),
            rules=detail.get("rules"),
            chain=None if detail.get("chain") is None else ChainRule(*detail["chain"]),
        )

    @property
    def detail(self) -> dict[str, Any]:
        """The same, on its way into a checkpoint."""
        return {
            "schema": self.code,
            "max_parallelism": self.max_parallelism,
            "mark": self.mark,
            "time": self.time,
            "rules": None if self.rules is None else dict(self.rules),
            "chain": None if self.chain is None else list(astuple(self.chain)),
        }

    @cached_property
    def code(self) -> str:
        """The table's schema as text: a part of another one cannot be opened."""
        return base64.b64encode(self.table.serialize().to_pybytes()).decode()

    @cached_property
    def file_schema(self) -> pa.Schema:
        internal = [pa.field(ORDER_COLUMN, pa.uint64()), pa.field(TIME_COLUMN, pa.int64())]
        return pa.schema([*internal, *self.batches])

    def sorted(self, order: Words, times: Ints, batch: pa.RecordBatch) -> SortedRows:
        """Rows in their order."""
        return SortedRows(order, times, batch).take(self.arranged(order, times))

    def arranged(self, order: Words, times: Ints) -> Ints:
        """Where the rows of that order are."""
        return by_order_and_time(order, times) if self.by_time else np.argsort(order)

    def file_batch(self, rows: SortedRows) -> pa.RecordBatch:
        """What a segment's file holds."""
        columns = [pa.array(rows.order), pa.array(rows.times), *rows.batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.file_schema)

    def rows_of(self, batch: pa.RecordBatch) -> SortedRows:
        """The opposite of `file_batch`; copies nothing."""
        return rows_in_file(batch, self.batches)

    def as_table(self, rows: SortedRows, marks: Mask | None) -> pa.Table:
        """Rows as the state table shows them: sorted by key group."""
        if self.mark is None and marks is not None:
            rows, marks = rows.take(np.flatnonzero(~marks)), None
        bits = group_bits(self.max_parallelism)
        groups = (rows.order >> np.uint64(WORD_BITS - bits)).astype(np.int32) if bits else np.zeros(len(rows), np.int32)
        columns = {KEY_GROUP_COLUMN: pa.array(groups), **dict(zip(rows.batch.schema.names, rows.batch.columns))}
        if self.time is not None:
            columns[self.time] = pa.array(rows.times)
        if self.mark is not None:
            columns[self.mark] = pa.array(np.zeros(len(rows), np.bool_) if marks is None else marks)
        arrays = [columns[field.name] for field in self.table]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self.table)]
        return pa.Table.from_arrays(arrays, schema=self.table)


def rows_in_file(batch: pa.RecordBatch, schema: pa.Schema | None = None) -> SortedRows:
    """What a segment's file holds. `schema`: of its rows, where that is known."""
    own = pa.schema(list(batch.schema)[2:]) if schema is None else schema
    rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=own)
    return SortedRows(batch.column(0).to_numpy(), batch.column(1).to_numpy(), rows)


def group_bits(max_parallelism: int) -> int:
    """How many of an order's highest bits are the key group's."""
    return (max_parallelism - 1).bit_length()


def places(hashes: Words, max_parallelism: int) -> Words:
    """An order by key: the key group, then other bits of the hash.

    >>> places(np.array([5, 128 + 5], np.uint64), 128).tolist() == [5 << 57, (5 << 57) + 1]
    True
    """
    bits = group_bits(max_parallelism)
    if not bits:
        return hashes
    groups = key_groups(hashes, max_parallelism).astype(np.uint64)
    return (groups << np.uint64(WORD_BITS - bits)) | (hashes >> np.uint64(bits))


def by_order_and_time(order: Words, times: Ints) -> Ints:
    """The same as np.lexsort((times, order)), which takes longer: rows of one order are few, or runs that are sorted
    follow each other."""
    if RUN_ROWS_MIN * np.count_nonzero(order[1:] < order[:-1]) > len(order):
        # NumPy's fastest way does not keep the order of equals; in what has no order, it takes a sixth of the time.
        rows = np.argsort(order)
        ordered = order[rows]
        ties = np.flatnonzero(ordered[1:] == ordered[:-1])
        if not len(ties):
            return rows
        if TIES_SHARE_MAX * len(ties) <= len(order):
            concerned = np.union1d(ties, ties + 1)
            some = rows[concerned]
            rows[concerned] = some[np.lexsort((some, times[some], order[some]))]
            return rows
    rows = np.argsort(order, kind="stable")
    ordered, timed = order[rows], times[rows]
    begins = ordered[1:] != ordered[:-1]
    wrong = np.flatnonzero(~begins & (timed[1:] < timed[:-1]))
    if len(wrong):
        groups = np.concatenate((np.zeros(1, np.int64), np.cumsum(begins)))
        flagged = np.zeros(int(groups[-1]) + 1, np.bool_)
        flagged[groups[wrong]] = True
        concerned = np.flatnonzero(flagged[groups])
        some = rows[concerned]
        rows[concerned] = some[np.lexsort((times[some], order[some]))]
    return rows


def joined(parts: Sequence[SortedRows]) -> SortedRows:
    """The rows of several, one after the other: not sorted any more."""
    if len(parts) == 1:
        return parts[0]
    order, times = np.concatenate([p.order for p in parts]), np.concatenate([p.times for p in parts])
    return SortedRows(order, times, pa.concat_batches([p.batch for p in parts]))
