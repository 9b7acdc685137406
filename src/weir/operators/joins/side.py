"""One side of a join: what its rows are keyed by, and where they have their event time.

Comes in: batches of the side. Goes out: times, hashes and key columns, and whether two
rows have the same key. As in SQL, a null in a key equals nothing. Holds no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import DataError, SchemaError
from weir.operators.time.watermarks import check_time_column, times_us
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.columns import check_key_type, plain_type, read_column, valid_rows, without_views
from weir.state.keys.hashing import hash_keys, take_rows
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints, Words

SETTLED = "__settled"
"""The column, in state tables only, that says whether a row of an outer join has come out already."""


@dataclass(frozen=True, eq=False)
class JoinSide:
    """What is known of one side's rows. `time_offset_us` is added to the column of times."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    time_offset_us: int = 0

    def check(self) -> None:
        """SchemaError when rows of this side cannot be joined."""
        check_time_column(self.time, self.schema)
        for key in self.keys:
            check_key_type(self.schema.field(key).type, key)

    @cached_property
    def key_positions(self) -> tuple[int, ...]:
        return tuple(self.schema.get_field_index(key) for key in self.keys)

    @cached_property
    def stored(self) -> pa.Schema:
        """The state table: key group, keys, the other columns."""
        others = [field for field in self.schema if field.name not in self.keys]
        keys = [self.schema.field(key) for key in self.keys]
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False), *keys, *others])

    @cached_property
    def settling(self) -> pa.Schema:
        """The same with a column for rows of an outer join that have come out already."""
        return self.stored.append(pa.field(SETTLED, pa.bool_(), nullable=False))

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(position) for position in self.key_positions]

    def hashes(self, batch: pa.RecordBatch) -> Words:
        return hash_keys(self.key_columns(batch))

    def times(self, batch: pa.RecordBatch) -> Ints:
        column = batch.column(self.time)
        if column.null_count:
            row = batch.slice(column.is_null().index(True).as_py(), 1).to_pylist()[0]
            raise DataError(f"row {row} of the {self.name} side has no time in {self.time!r}; leave such rows out")
        times: Ints = times_us(column).to_numpy()
        return times + self.time_offset_us if self.time_offset_us else times

    def whole_keys(self, batch: pa.RecordBatch) -> Mask | None:
        """Which rows have no null in their key; None: all."""
        masks = [mask for column in self.key_columns(batch) if (mask := valid_rows(column)) is not None]
        return np.logical_and.reduce(masks) if masks else None


def check_same_keys(left: JoinSide, right: JoinSide) -> None:
    """SchemaError unless both sides are keyed by columns of the same types, in the same order."""
    if len(left.keys) != len(right.keys):
        raise SchemaError(
            f"the left side is keyed by {_listed(left)}, the right one by {_listed(right)}: "
            "both need the same number of key columns"
        )
    for one, other in zip(left.keys, right.keys, strict=True):
        types = plain_type(left.schema.field(one).type), plain_type(right.schema.field(other).type)
        if types[0] != types[1]:
            raise SchemaError(
                f"the left side's key {one!r} is of type {types[0]}, the right side's {other!r} of type {types[1]}; "
                "equal values of different types do not meet: cast one of them with with_columns() before key_by()"
            )


def _listed(side: JoinSide) -> str:
    return ", ".join(f"{key} ({side.schema.field(key).type})" for key in side.keys)


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask | None:
    """Where the rows of both have the same key; None: everywhere."""
    masks = [mask for one, other in zip(left, right, strict=True) if (mask := _equal(one, other)) is not None]
    return np.logical_and.reduce(masks) if masks else None


def _equal(left: pa.Array, right: pa.Array) -> Mask | None:
    left, right = _plain(left), _plain(right)
    if pa.types.is_floating(left.type):
        one, other = read_column(left), read_column(right)
        same: Mask = one.values == other.values  # type: ignore[union-attr]
        for valid in (one.valid, other.valid):
            same = same if valid is None else same & valid
    elif pa.types.is_null(left.type):
        same = np.zeros(len(left), np.bool_)
    else:
        found = pc.equal(left, right)
        same = (pc.fill_null(found, False) if found.null_count else found).to_numpy(zero_copy_only=False)
    return None if same.all() else same


def _plain(array: pa.Array) -> pa.Array:
    return without_views(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)


def gathered(batches: Sequence[pa.RecordBatch], order: Ints | None = None) -> pa.RecordBatch:
    """Several batches as one, in this order, in memory of its own."""
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return whole if order is None else take_rows(whole, order)
