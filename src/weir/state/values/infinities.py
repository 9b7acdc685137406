"""Infinities in arrays, also inside nested values: what becomes of a double that is too large for a float.

Comes in: arrays, or Python values for a type. Goes out: how many infinities there are, or an array that has no more
of them than the values. Arrow makes them in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa


def array_of(values: Any, kind: pa.DataType, *, from_pandas: bool = False) -> pa.Array:
    """`pa.array`; a value that would only become infinite is an OverflowError."""
    array = pa.array(values, kind, from_pandas=from_pandas)
    wide = with_doubles(kind)
    found = infinite_count(array) if wide != kind else 0
    if found and found != infinite_count(pa.array(values, wide, from_pandas=from_pandas)):
        raise OverflowError("a value is too large for a float, and would become infinite")
    return array


def infinite_count(column: pa.Array | pa.ChunkedArray) -> int:
    """How many infinities there are."""
    if not has_floats(column.type):
        return 0
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(_infinite(chunk) for chunk in chunks)


def _infinite(array: pa.Array) -> int:
    floats = (part for part in flat_parts(array) if pa.types.is_floating(part.type))
    return sum(int(np.isinf(part.drop_null().to_numpy(zero_copy_only=False)).sum()) for part in floats)


def flat_parts(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays that a nested one comes to, or itself; without what null parents hide."""
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from flat_parts(child)
    elif pa.types.is_nested(array.type):
        yield from flat_parts(as_list(array).flatten())
    else:
        yield array


def as_list(array: pa.Array) -> pa.Array:
    """A map as the list of its entries, which is what Arrow can flatten."""
    if not pa.types.is_map(array.type):
        return array
    entry = [pa.field("key", array.type.key_type, nullable=False), pa.field("value", array.type.item_type)]
    return array.cast(pa.list_(pa.struct(entry)))


def has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind)) or any(has_floats(kind.field(i).type) for i in range(kind.num_fields))


@lru_cache(maxsize=256)
def with_doubles(kind: pa.DataType) -> pa.DataType:
    """The same type with doubles for smaller floats."""
    types = pa.types
    if types.is_floating(kind):
        return pa.float64()
    if types.is_struct(kind):
        return pa.struct([field.with_type(with_doubles(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(with_doubles(kind.key_type), with_doubles(kind.item_type))
    if types.is_list(kind):
        return pa.list_(with_doubles(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(with_doubles(kind.value_type))
    return pa.list_(with_doubles(kind.value_type), kind.list_size) if types.is_fixed_size_list(kind) else kind
