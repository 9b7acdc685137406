"""Values of one type as values of another, or an error that says which does not fit.

Comes in: arrays as a file has them. Goes out: arrays as the schema declares them. What Arrow's own
casts let pass in silence, a double that becomes infinite as a float, is an error here too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as compute

from weir.schema import format_type
from weir.state.infinities import as_list, has_floats, infinite_count

Flags: TypeAlias = "npt.NDArray[np.bool_]"


class Unfit(ValueError):
    """A value that cannot be kept, with its column, and its row counted from that of the table."""

    def __init__(self, column: str, row: int, problem: str) -> None:
        super().__init__(f"column {column!r} {problem}")
        self.column = column
        self.row = row


def cast_exactly(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in these types; Unfit names the first value of a column that does not fit."""
    if table.schema.equals(schema):
        return table
    arrays = []
    for field in schema:
        column = table[field.name]
        kind = field.type
        try:
            cast = column if column.type == kind else column.cast(kind)
        except pa.ArrowException as error:
            row = _first_row(column, kind)
            value = column[row].as_py() if row < len(column) else None
            raise Unfit(
                field.name, row, f"has {value!r}, which does not fit into {format_type(kind)} ({error})"
            ) from error
        if cast.type != column.type and infinite_count(cast) != infinite_count(column):
            row = _first_infinite(column, cast)
            raise Unfit(field.name, row, f"has {column[row].as_py()!r}, which does not fit into {format_type(kind)}")
        if cast.null_count and not field.nullable:
            row = cast.combine_chunks().is_null().index(True).as_py()
            raise Unfit(field.name, row, "is declared not null, and has no value")
        arrays.append(cast)
    return pa.Table.from_arrays(arrays, schema=schema)


def keeps_zone(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether an instant stays one: what a clock shows is another thing, and nobody has said in which zone."""
    types = pa.types
    return not (types.is_timestamp(found) and types.is_timestamp(declared) and found.tz and not declared.tz)


def special_columns(table: pa.Table) -> dict[str, Flags]:
    """The columns that hold NaN or an infinity, also inside nested values, and in which rows."""
    found = {
        field.name: _special(column.combine_chunks())
        for field, column in zip(table.schema, table.columns, strict=True)
        if has_floats(field.type)
    }
    return {name: rows for name, rows in found.items() if rows.any()}


def has_repeated_keys(array: pa.Array) -> bool:
    """Whether any map, at any depth, has a key more than once."""
    kind = array.type
    if not pa.types.is_nested(kind):
        return False
    if pa.types.is_struct(kind):
        return any(map(has_repeated_keys, array.flatten()))
    listed = as_list(array)
    items = listed.flatten()
    if pa.types.is_map(kind):
        entries = [compute.list_parent_indices(listed), items.field("key")]
        if pl.DataFrame(pa.table(entries, names=["map", "key"])).is_duplicated().any():
            return True
    return has_repeated_keys(items)


def _special(array: pa.Array) -> Flags:
    kind, rows = array.type, len(array)
    if pa.types.is_floating(kind):
        # A null is NaN in NumPy.
        special: Flags = ~np.isfinite(array.to_numpy(zero_copy_only=False))
        return special & array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else special
    if not has_floats(kind):
        return np.zeros(rows, np.bool_)
    if pa.types.is_struct(kind):
        special = np.zeros(rows, np.bool_)
        for child in array.flatten():
            special |= _special(child)
        return special
    listed = as_list(array)
    parents = compute.list_parent_indices(listed).to_numpy()
    special = np.zeros(rows, np.bool_)
    special[parents[_special(listed.flatten())]] = True
    return special


def _first_row(column: pa.ChunkedArray, kind: pa.DataType) -> int:
    """The first row that cannot be cast, by halving."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    return low


def _first_infinite(column: pa.ChunkedArray, cast: pa.ChunkedArray) -> int:
    pairs: Any = zip(column, cast)
    counts = ((infinite_count(pa.array([one])), infinite_count(pa.array([other]))) for one, other in pairs)
    return next(row for row, (before, after) in enumerate(counts) if before != after)
