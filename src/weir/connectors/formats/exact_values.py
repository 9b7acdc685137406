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
from weir.state.values.conversion import shown
from weir.state.values.infinities import as_list, has_floats, infinite_count
from weir.texts import quoted

Flags: TypeAlias = "npt.NDArray[np.bool_]"

_FAMILIES = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_floating, pa.types.is_floating),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_time, pa.types.is_time),
    (pa.types.is_large_string, pa.types.is_string),
    (pa.types.is_large_binary, pa.types.is_binary),
    (pa.types.is_fixed_size_binary, pa.types.is_binary),
    (pa.types.is_dictionary, pa.types.is_string),
)
"""What a column may be, and as what it may be declared; a value that does not fit is an error."""
_MADE_FAMILIES = (
    (pa.types.is_null, lambda kind: True),
    (pa.types.is_floating, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_decimal),
    (pa.types.is_integer, pa.types.is_temporal),
    (pa.types.is_date, pa.types.is_timestamp),
    (pa.types.is_string_view, pa.types.is_string),
    (pa.types.is_binary_view, pa.types.is_binary),
)
"""What a column may be besides, when the user's own code has made it: numbers of NumPy, text of Polars."""

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


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
    return pa.Table.from_arrays([cast_column(table[field.name], field) for field in schema], schema=schema)


def cast_column(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """One column in the type of its field; Unfit names the first value that does not fit."""
    kind = field.type
    try:
        cast = column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        row = _first_row(column, kind)
        value = column[row].as_py() if row < len(column) else None
        raise Unfit(
            field.name, row, f"has {shown(value)}, which does not fit into {format_type(kind)} ({quoted(str(error))})"
        ) from error
    if cast.type != column.type and infinite_count(cast) != infinite_count(column):
        row = _first_infinite(column, cast)
        raise Unfit(field.name, row, f"has {shown(column[row].as_py())}, which does not fit into {format_type(kind)}")
    if cast.null_count and not field.nullable:
        row = cast.is_null().index(True).as_py()
        raise Unfit(field.name, row, "is declared not null, and has no value")
    return cast


def is_kin(found: pa.DataType, declared: pa.DataType, *, made: bool = False) -> bool:
    """Whether a column may be declared like this: each value is then the same in the other type, or an error. What is
    inside of nested ones keeps to the same rules. `made`: by the user's own code, where a field too many is a mistake;
    of a file, a schema may leave fields out."""
    if found == declared:
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(declared):
        kinds = {field.name: field.type for field in found}
        if made and len(kinds) != declared.num_fields:
            return False
        return all(field.name in kinds and is_kin(kinds[field.name], field.type, made=made) for field in declared)
    if pa.types.is_map(found) and pa.types.is_map(declared):
        pairs = ((found.key_type, declared.key_type), (found.item_type, declared.item_type))
        return all(is_kin(one, other, made=made) for one, other in pairs)
    if _is_list(found) and _is_list(declared):
        return is_kin(found.value_type, declared.value_type, made=made)
    families = (*_FAMILIES, *_MADE_FAMILIES) if made else _FAMILIES
    return keeps_zone(found, declared) and any(of(found) and to(declared) for of, to in families)


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _LISTS)


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
