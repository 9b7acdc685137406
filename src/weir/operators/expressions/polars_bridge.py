"""Arrow batches as Polars frames, and back, at the least cost.

Comes in: record batches of any Arrow type, or frames. Goes out: frames that share
the batch's memory where they can, and batches with exactly the schema that was
declared. In flight, strings are `string`, bytes `binary` and lists `list` wherever
Weir makes them: Arrow cannot filter or gather its view types, and a filtered view
would drag its whole buffer through the exchange. What a source declares is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from weir.errors import SchemaError
from weir.schema import format_type


def to_polars(batch: pa.RecordBatch, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A frame of a batch, or of some of its columns; only strings and bytes cost anything (5 ns each)."""
    return pl.DataFrame(batch if columns is None else batch.select(list(columns)))


def to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with this schema; the frame's columns are found by name. SchemaError when one cannot be cast."""
    return pa.RecordBatch.from_arrays(
        [series_to_arrow(frame.get_column(field.name), field.type) for field in schema], schema=schema
    )


def series_to_arrow(series: pl.Series, kind: pa.DataType) -> pa.Array:
    """An array of this type."""
    if isinstance(series.dtype, (pl.Categorical, pl.Enum)) and not pa.types.is_dictionary(kind):
        series = series.cast(pl.String)
    # From views to strings is one copy; Polars' own export of strings, and then Arrow's cast, is one and a half.
    flat = series.dtype in (pl.String, pl.Binary)
    array = series.to_arrow(compat_level=pl.CompatLevel.newest() if flat else pl.CompatLevel.oldest())
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        text = f"column {series.name!r}: {format_type(array.type)} does not fit the declared {format_type(kind)}"
        raise SchemaError(f"{text}: {error}", without_rows=text) from None


def arrow_schema(frame: pl.DataFrame) -> pa.Schema:
    """The schema, in the types that Weir uses in flight, that a frame's columns will have."""
    return pa.schema([pa.field(series.name, _arrow_type(series)) for series in frame])


def _arrow_type(series: pl.Series) -> pa.DataType:
    try:
        return in_flight_type(series.clear().to_arrow(compat_level=pl.CompatLevel.oldest()).type)
    except pa.ArrowException:
        raise SchemaError(
            f"column {series.name!r}: Arrow has no type for Polars' {series.dtype}; cast it to another"
        ) from None


def in_flight_type(kind: pa.DataType) -> pa.DataType:
    """The form of an Arrow type that Weir uses in flight: no views, no large offsets, no dictionaries."""
    types = pa.types
    if types.is_dictionary(kind):
        return in_flight_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(in_flight_type(kind.key_type), in_flight_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(in_flight_type(kind.value_type), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, in_flight_type(field.type), field.nullable) for field in kind])
    if types.is_nested(kind) and not types.is_union(kind):
        return pa.list_(in_flight_type(kind.value_type))
    return kind


def filter_batch(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows where the mask is true; null counts as false."""
    if not any(map(_is_view, batch.schema.types)):
        return batch.filter(mask)
    keep: Any = pl.Series(mask).fill_null(False)
    arrays = [
        series_to_arrow(pl.Series("", column).filter(keep), column.type)
        if _is_view(column.type)
        else column.filter(mask)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
