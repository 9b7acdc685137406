"""Python rows in, one table of a declared schema out, or a SchemaError that shows the row.

For rows that are at hand on the driver. Never touches files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.connectors.formats.exact_values import cast_exactly, is_kin, keeps_zone
from weir.errors import SchemaError
from weir.schema import format_schema, format_type
from weir.state.values.conversion import NotOfType, to_array
from weir.texts import quoted

_SHOWN_CHARACTERS_MAX = 120
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


def table_of_rows(rows: Iterable[Any], schema: pa.Schema | None) -> pa.Table:
    """A table from tuples, dicts, scalars (one column), a pyarrow Table or RecordBatch, or a Polars DataFrame."""
    ready = _as_table(rows)
    if ready is not None:
        return ready if schema is None else _fitted(ready, schema)
    listed = list(rows)
    if schema is None:
        return _inferred(listed)
    columns = _columns(listed, schema)
    arrays = [_array(values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_table(rows: Any) -> pa.Table | None:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "to_arrow") and hasattr(rows, "columns"):
        # Polars gives large and view types by default, which most users did not mean to choose.
        table = rows.to_arrow(compat_level=None) if hasattr(rows, "lazy") else rows.to_arrow()
        return table.cast(pa.schema([pa.field(f.name, _common(f.type), f.nullable) for f in table.schema]))
    return None


def _common(kind: pa.DataType) -> pa.DataType:
    """The type as `parse_schema` would have it."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_common(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _common(f.type), f.nullable) for f in kind])
    return kind


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if sorted(table.column_names) != sorted(schema.names):
        raise SchemaError(
            f"collection: the table has columns {', '.join(table.column_names)}; "
            f"the schema declares {', '.join(schema.names)}"
        )
    for field in schema:
        if not keeps_zone(table.field(field.name).type, field.type):
            raise SchemaError(
                f"collection: column {field.name!r} of the table holds instants, and timestamp_ntz has no zone; "
                "declare it timestamp"
            )
        if not is_kin(table.field(field.name).type, field.type, made=True):
            raise SchemaError(
                f"collection: the table ({format_schema(table.schema)}) cannot become the declared schema "
                f"({format_schema(schema)}): column {field.name!r} is of another type; cast it before"
            )
    try:
        return cast_exactly(table.select(schema.names), schema)
    except _ARROW_ERRORS as error:
        raise SchemaError(
            f"collection: the table ({format_schema(table.schema)}) cannot become "
            f"the declared schema ({format_schema(schema)}): {error}"
        ) from error


def _inferred(rows: Sequence[Any]) -> pa.Table:
    if not rows:
        raise SchemaError("collection: there are no rows to infer a schema from; give one, such as 'a long, b string'")
    try:
        if all(isinstance(row, Mapping) for row in rows):
            return pa.Table.from_pylist([dict(row) for row in rows])
        if not any(isinstance(row, (tuple, list, Mapping)) for row in rows):
            return pa.table({"value": pa.array(rows)})
    except _ARROW_ERRORS as error:
        raise SchemaError(f"collection: no schema fits all rows: {error}; give one, such as 'a long'") from error
    raise SchemaError("collection: tuples need a schema for their column names; give one, such as 'a long, b string'")


def _columns(rows: Sequence[Any], schema: pa.Schema) -> Sequence[Sequence[Any]]:
    """One sequence of values for each field."""
    names = schema.names
    if not rows:
        return [() for _ in names]
    if all(isinstance(row, Mapping) for row in rows):
        expected = set(names)
        for number, row in enumerate(rows):
            if row.keys() != expected:
                raise _wrong_keys(number, row, names)
        return [[row[name] for row in rows] for name in names]
    # A list is a row like a tuple, unless the one column holds lists.
    holds_lists = len(names) == 1 and pa.types.is_list(schema.field(0).type)
    if all(isinstance(row, tuple if holds_lists else (tuple, list)) for row in rows):
        for number, row in enumerate(rows):
            if len(row) != len(names):
                raise SchemaError(
                    f"collection, row {number}: {len(row)} values for the {len(names)} columns "
                    f"{', '.join(names)}: {_shown(row)}"
                )
        return list(zip(*rows, strict=True))
    if len(names) == 1 and not any(isinstance(row, (tuple, Mapping)) for row in rows):
        return [rows]
    first = type(rows[0])
    odd = next((number for number, row in enumerate(rows) if not isinstance(row, first)), 0)
    raise SchemaError(
        f"collection, row {odd}: found {_shown(rows[odd])}; rows are all tuples or all dicts"
        f"{', or all scalars of the one column' if len(names) == 1 else ''} ({format_schema(schema)})"
    )


def _wrong_keys(number: int, row: Mapping[Any, Any], names: Sequence[str]) -> SchemaError:
    unknown = [repr(key) for key in row if key not in names]
    missing = [repr(name) for name in names if name not in row]
    problems = [f"unknown {', '.join(unknown)}"] if unknown else []
    problems += [f"missing {', '.join(missing)}"] if missing else []
    return SchemaError(
        f"collection, row {number}: {' and '.join(problems)}: {_shown(row)}; the columns are {', '.join(names)}"
    )


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        array = _converted(values, field.type)
    except pa.ArrowException as error:
        raise SchemaError(f"collection: column {field.name!r} is {format_type(field.type)}: {error}") from error
    except NotOfType as problem:
        raise SchemaError(
            f"collection, row {problem.index}: column {field.name!r} is {format_type(field.type)}, found "
            f"{_shown(values[problem.index])} of type {type(values[problem.index]).__name__} ({_cut(problem.reason)})"
        ) from None
    if array.null_count and not field.nullable:
        number = array.is_null().index(True).as_py()
        raise SchemaError(f"collection, row {number}: column {field.name!r} is declared not null, found None")
    return array


def _converted(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind) and set(map(type, values)) <= {int, type(None)}:
        return pa.array(values, kind)  # counted in the type's unit, from 1970
    return to_array(_whole_numbers(values) if pa.types.is_integer(kind) else values, kind)


def _whole_numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Floats that are whole as integers: what was computed is often one of those. Others stay, and are refused."""
    if not any(issubclass(kind, float) for kind in set(map(type, values))):
        return values
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return quoted(text, _SHOWN_CHARACTERS_MAX)
