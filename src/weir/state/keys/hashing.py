"""Where a key lives: Spark SQL's xxhash64, key groups, and the subtask that owns them.

Comes in: key columns. Goes out: hashes that agree bit for bit with Spark's
`xxhash64(columns…)`, and key groups. Never touches state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.state.keys.columns import (
    DECIMAL_LONG_DIGITS_MAX,
    BytesColumn,
    KeyColumn,
    check_key_type,
    is_view,
    read_column,
    without_views,
)
from weir.state.keys.xxhash64 import PADDING_BYTES, Bytes, Ints, Seed, Words, hash_bytes, hash_ints, hash_longs

__all__ = ["check_key_type", "hash_columns", "hash_keys", "key_groups", "owner_of", "take_rows"]

SPARK_SEED = np.uint64(42)

_TAKE, _UNCHECKED = pc.get_function("take"), pc.TakeOptions(boundscheck=False)

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def hash_keys(columns: Sequence[pa.Array]) -> Words:
    """Spark SQL's `xxhash64(columns…)`, as unsigned words.

    >>> hash_keys([pa.array([1, 2]), pa.array(["a", None])]).view("int64").tolist()
    [-8527884376001292090, -3341702809300393011]
    """
    if len(columns) == 1 and pa.types.is_dictionary(columns[0].type) and not columns[0].null_count:
        indices: Ints = columns[0].indices.to_numpy()
        return hash_keys([columns[0].dictionary])[indices]
    return hash_columns([read_column(column) for column in columns], [column.type for column in columns])


def hash_columns(columns: Sequence[KeyColumn], types: Sequence[pa.DataType]) -> Words:
    """The same over columns that were read already, so that one reading serves hash and lookup."""
    seed: Seed = SPARK_SEED
    for column, data_type in zip(columns, types, strict=True):
        hashes = _hash_column(column, data_type, seed)
        seed = hashes if column.valid is None else np.where(column.valid, hashes, seed)
    if not isinstance(seed, np.ndarray):
        raise ValueError("a hash needs at least one key column")
    return seed


def _hash_column(column: KeyColumn, data_type: pa.DataType, seed: Seed) -> Words:
    types = pa.types
    if types.is_dictionary(data_type):
        data_type = data_type.value_type
    if isinstance(column, BytesColumn):
        return hash_bytes(column.starts, column.lengths, data=column.data, seed=seed)
    values = column.values
    if types.is_float16(data_type):
        values = values.view(np.float16).astype(np.float32).view(np.int32)
    elif types.is_timestamp(data_type) or types.is_duration(data_type):
        values = _microseconds(values, data_type.unit)
    elif types.is_date64(data_type):
        values = (values // 86_400_000).astype(np.int32)
    elif types.is_uint64(data_type):
        # Spark has no such type: where it reads one, it makes a decimal(20, 0) of it.
        return _hash_wide(np.column_stack((values.view(np.int64), np.zeros(len(values), np.int64))), seed)
    elif values.ndim == 2:
        return _hash_wide(values, seed)
    if types.is_decimal(data_type) and data_type.precision <= DECIMAL_LONG_DIGITS_MAX:
        values = values.astype(np.int64)
    if values.dtype.itemsize == 8 or types.is_uint32(data_type):
        return hash_longs(values.astype(np.int64, copy=False).view(np.uint64), seed)
    return hash_ints(values.astype(np.int32, copy=False).view(np.uint32).astype(np.uint64), seed)


def _microseconds(values: npt.NDArray[Any], unit: str) -> Ints:
    if unit == "ns":
        return values // 1_000
    with np.errstate(over="ignore"):
        return values if unit == "us" else values * _MICROSECONDS[unit]


def _hash_wide(words: npt.NDArray[np.int64], seed: Seed) -> Words:
    """Hash 128-bit integers as Spark does: the shortest big-endian two's complement that holds the value."""
    count = len(words)
    data: Bytes = np.zeros(16 * count + PADDING_BYTES, np.uint8)
    table = data[: 16 * count].reshape(count, 16)
    table[:] = np.ascontiguousarray(words).view(np.uint8).reshape(count, 16)[:, ::-1]
    magnitude = table ^ np.where(words[:, 1] < 0, np.uint8(255), np.uint8(0))[:, None]
    significant = magnitude != 0
    first = np.where(significant.any(axis=1), significant.argmax(axis=1), 15)
    needs_sign_byte = magnitude[np.arange(count), first] >= 128
    lengths = (16 - first + needs_sign_byte).astype(np.int64)
    starts = 16 * np.arange(1, count + 1, dtype=np.int64) - lengths
    return hash_bytes(starts, lengths, data=data, seed=seed)


def key_groups(hashes: Words, max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key group of each hash: pmod(hash, max_parallelism), as Spark SQL would say."""
    if max_parallelism & (max_parallelism - 1) == 0:
        return (hashes & np.uint64(max_parallelism - 1)).astype(np.int32)
    return (hashes.view(np.int64) % max_parallelism).astype(np.int32)


def owner_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group; the inverse of the ranges that subtasks are given.

    >>> [owner_of(g, 3, 128) for g in (0, 42, 43, 85, 86, 127)]
    [0, 0, 1, 1, 2, 2]
    """
    return key_group * parallelism // max_parallelism


def take_rows(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """These rows of a batch."""
    indices = pa.array(rows)
    if not any(map(is_view, batch.schema.types)):
        # Twice as fast as batch.take: whoever asks knows which rows there are. And a third faster than pc.take.
        return _TAKE.call([batch, indices], _UNCHECKED)
    arrays = [without_views(column).take(indices).cast(column.type) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
