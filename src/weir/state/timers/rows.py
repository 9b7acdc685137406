"""The log of timers as sorted rows: what was set and deleted, by time, then by key.

Comes in: timers that a head hands over, and rows of the log. Goes out: rows of the log, of
which the newest of a key and time holds. Half of a row's order is its time within a bucket,
so that what is due is the beginning of each segment; the rest are bits of the key's hash, so
that many timers of one time need not be taken at once. Holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.state.columns.segments.rows import SegmentLayout, SortedRows
from weir.state.declared.cursor import Key
from weir.state.keys.codec import KeyCodec
from weir.state.keys.columns import FixedColumn, is_bytes, read_column
from weir.state.keys.hashing import hash_keys
from weir.state.keys.xxhash64 import Ints, Words
from weir.state.timers.tables import DOMAINS, TimeDomain, timer_schema

TIME_BITS = 40
"""A bucket is so many bits of microseconds wide: almost 13 days."""

HASH_BITS = 64 - TIME_BITS

SET_COLUMN = "__set"
"""The last column of the log, in files only: whether a timer was set or deleted."""

PIECE_ROWS = 10_000
"""Timers that become rows at once."""

_IN_BUCKET = (1 << TIME_BITS) - 1
_ALL_HASHES = (1 << HASH_BITS) - 1


def log_layout(key_schema: pa.Schema, max_parallelism: int) -> SegmentLayout:
    """How the log of timers with these keys lies in segments."""
    columns = [*KeyCodec(key_schema).schema, pa.field(SET_COLUMN, pa.bool_())]
    table = timer_schema(key_schema)
    return SegmentLayout(pa.schema(columns), table, max_parallelism=max_parallelism, by_time=True)


def bucket_of(time_us: int, domain: TimeDomain) -> int:
    """The bucket of a time; the two domains share none."""
    return (time_us & ~_IN_BUCKET) + DOMAINS.index(domain)


def domain_of(bucket_us: int) -> TimeDomain:
    return DOMAINS[bucket_us & 1]


# --- Where a row lies -----------------------------------------------------------------------------------


def rank(bucket_us: int, order: int) -> int:
    """Where a row lies among those of all buckets of its domain.

    >>> rank(bucket_of(7, "event"), 7 << HASH_BITS) == begin_of(7)
    True
    """
    return ((bucket_us & ~_IN_BUCKET) << HASH_BITS) + order


def begin_of(time_us: int) -> int:
    """The rank of the first row that a time can have."""
    return time_us << HASH_BITS


def end_of(time_us: int) -> int:
    """The rank of the last."""
    return (time_us << HASH_BITS) + _ALL_HASHES


def order_in(bucket_us: int, rank: int) -> int:
    """The order of the last row of a bucket that is of this rank or below; -1: all are above."""
    return max(min(rank - ((bucket_us & ~_IN_BUCKET) << HASH_BITS), (1 << 64) - 1), -1)


def time_at(rank: int) -> int:
    """The time of a row."""
    return rank >> HASH_BITS


# --- What holds -----------------------------------------------------------------------------------------


def newest(rows: SortedRows) -> SortedRows:
    """Of the rows of one key and time, which are in the order of age: the last."""
    again = rows.order[1:] == rows.order[:-1]
    if not again.any():
        return rows
    begins = np.concatenate(([True], ~again))
    together = ~begins | np.concatenate((again, [False]))
    concerned = np.flatnonzero(together)
    # Rows of equal order are of one time; keys of theirs may share the bits of a hash.
    codes = [rows.order[concerned], *(code for column in rows.batch.columns[:-1] for code in _codes(column, concerned))]
    by_key = np.lexsort(codes[::-1])
    followed = np.ones(len(by_key) - 1, np.bool_)
    for code in codes:
        followed &= code[by_key[1:]] == code[by_key[:-1]]
    kept = np.ones(len(rows), np.bool_)
    kept[concerned[by_key[:-1][followed]]] = False
    return rows.take(np.flatnonzero(kept))


def standing(rows: SortedRows) -> SortedRows:
    """The timers that are left, where nothing older is known of their keys and times."""
    rows = newest(rows)
    is_set = rows.batch.column(rows.batch.num_columns - 1)
    return rows if is_set.true_count == len(rows) else rows.take(np.flatnonzero(is_set))


def _codes(column: pa.Array, rows: Ints) -> list[np.ndarray[Any, Any]]:
    """Numbers that are equal for equal keys."""
    column = column.take(pa.array(rows))
    if is_bytes(column.type):
        return [column.dictionary_encode().indices.fill_null(-1).to_numpy()]
    read = read_column(column)
    assert isinstance(read, FixedColumn)
    values = [read.values] if read.values.ndim == 1 else list(read.values.T)
    return values if read.valid is None else [*values, read.valid]


# --- Out of a head --------------------------------------------------------------------------------------


@dataclass
class SealedTimers:
    """What was set and deleted since the head before, with nothing in common. Nothing of it changes any more."""

    buckets: Mapping[int, Collection[Key]]
    gone: Mapping[int, Collection[Key]]


def sorted_log(
    heads: Mapping[TimeDomain, SealedTimers],
    layout: SegmentLayout,
    columns_of: Callable[[Sequence[Key]], list[pa.Array]],
) -> Iterator[tuple[int, SortedRows]]:
    """The rows of heads that were sealed together, by bucket."""
    for domain, head in heads.items():
        parts = [
            _part(times, columns_of(keys), is_set, layout)
            for held, is_set in ((head.buckets, True), (head.gone, False))
            for times, keys in _in_pieces(held)
        ]
        if not parts:
            continue
        times = np.concatenate([times for times, _ in parts])
        batch = pa.concat_batches([batch for _, batch in parts])
        order = _orders(times, hash_keys(batch.columns[:-1]))
        buckets = times & ~_IN_BUCKET
        for bucket_us in np.unique(buckets).tolist():
            rows = SortedRows(order, times, batch).take(np.flatnonzero(buckets == bucket_us))
            yield bucket_of(bucket_us, domain), layout.sorted(rows.order, rows.times, rows.batch)


def _orders(times: Ints, hashes: Words) -> Words:
    inside = (times & _IN_BUCKET).view(np.uint64) << np.uint64(HASH_BITS)
    return inside | (hashes >> np.uint64(TIME_BITS))


def _part(
    times: Sequence[int], columns: list[pa.Array], is_set: bool, layout: SegmentLayout
) -> tuple[Ints, pa.RecordBatch]:
    arrays = [*columns, pa.repeat(pa.scalar(is_set), len(times))]
    return np.array(times, np.int64), pa.RecordBatch.from_arrays(arrays, schema=layout.batches)


def _in_pieces(held: Mapping[int, Collection[Key]]) -> Iterator[tuple[list[int], list[Key]]]:
    times: list[int] = []
    keys: list[Key] = []
    for time_us, bucket in held.items():
        listed = list(bucket)
        for start in range(0, len(listed), PIECE_ROWS):
            some = listed[start : start + PIECE_ROWS]
            keys += some
            times += [time_us] * len(some)
            if len(keys) >= PIECE_ROWS:
                yield times, keys
                times, keys = [], []
    if keys:
        yield times, keys
