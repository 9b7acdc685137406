"""Batches in, the bytes of one file out: jsonl, csv, parquet and Arrow.

Vectorised: Polars writes the text formats, pyarrow the others. Never touches storage.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet

from weir.connectors.formats.exact_values import Flags, has_repeated_keys, special_columns
from weir.connectors.formats.json_values import with_special_floats
from weir.connectors.formats.text_types import plain_type, text_problem
from weir.errors import ConfigError, DataError, SchemaError
from weir.schema import format_type
from weir.state.values.infinities import flat_parts

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The first of January of the year 1 and the last of December of 9999, from 1970."""

_UNITS_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def encode(batches: Sequence[pa.RecordBatch], format: str) -> pa.Buffer:
    """One file with the rows of all batches, which have one schema."""
    return _ENCODERS[format](pa.Table.from_batches(batches))


def check_format(format: str) -> str:
    """The format itself, or a ConfigError that lists the known ones."""
    if format not in FILE_FORMATS:
        raise ConfigError(f"FileSink.format: {format!r} is not one of {', '.join(FILE_FORMATS)}")
    return format


def check_encodable(schema: pa.Schema, *, format: str, name: str) -> None:
    """SchemaError when a column has a type that the format cannot hold."""
    for field in schema:
        problem = text_problem(field.type, format) if format in ("csv", "jsonl") else ""
        if problem:
            raise SchemaError(
                f"sink {name!r}: {format} cannot hold column {field.name!r} of type {format_type(field.type)}: "
                f"{problem}; convert or drop the column before writing, or use format='parquet'"
            )


def _check_years(table: pa.Table, format: str) -> None:
    """Text has four digits for a year."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for part in (part for chunk in column.chunks for part in flat_parts(chunk)):
            kind = part.type
            if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) or part.null_count == len(part):
                continue
            days = 1 if pa.types.is_date32(kind) else _UNITS_A_DAY[kind.unit]
            numbers = compute.min_max(part.cast(pa.int32() if days == 1 else pa.int64())).as_py()
            if numbers["min"] < _FIRST_DAY * days or numbers["max"] >= (_LAST_DAY + 1) * days:
                raise DataError(
                    f"column {field.name!r}: a {format_type(kind)} lies outside of the years 1 to 9999, and {format} "
                    f"has no form for it; filter such rows out before writing, or use format='parquet'"
                )


def encode_jsonl(table: pa.Table) -> pa.Buffer:
    """One JSON object a line. Binary becomes base64, a decimal a string, instants are ISO 8601 in UTC; NaN and the
    infinities are the strings "NaN", "Infinity" and "-Infinity", since JSON has no such numbers."""
    _check_years(table, "jsonl")
    _check_keys(table)
    table = table.cast(pa.schema([field.with_type(_in_utc(plain_type(field.type))) for field in table.schema]))
    frame = pl.DataFrame(table)
    binary = [name for name, kind in frame.schema.items() if kind == pl.Binary]
    if binary:
        frame = frame.with_columns(pl.col(binary).bin.encode("base64"))
    special = special_columns(table)
    if not special:
        return pa.py_buffer(_lines(frame))
    return pa.py_buffer(_lines_with_special(frame, table, special))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The same type with UTC for every zone: ISO 8601 has no seconds in offsets, and old ones of many places have."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _in_utc(inner.type), inner.nullable) for inner in kind])
    return pa.map_(kind.key_type, _in_utc(kind.item_type)) if pa.types.is_map(kind) else kind


def _check_keys(table: pa.Table) -> None:
    """A JSON object has each key once; Arrow's maps need not."""
    for field, column in zip(table.schema, table.columns, strict=True):
        if any(has_repeated_keys(chunk) for chunk in column.chunks):
            raise DataError(
                f"column {field.name!r}: a {format_type(field.type)} has a key more than once, and jsonl has no form "
                "for it; keep one of each before writing, or use format='parquet'"
            )


def _lines(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()


def _lines_with_special(frame: pl.DataFrame, table: pa.Table, special: Mapping[str, Flags]) -> bytes:
    """Polars writes null for floats that JSON has no numbers for: write rows with such columns as strings."""
    lines = np.empty(len(frame), object)
    flat = [name for name in special if not pa.types.is_nested(table.schema.field(name).type)]
    pattern = sum(special[name].astype(np.int64) << number for number, name in enumerate(flat)) + np.zeros(len(frame))
    for code in np.unique(pattern).astype(np.int64).tolist():
        rows = np.flatnonzero(pattern == code)
        texts = [_special_text(name) for number, name in enumerate(flat) if code >> number & 1]
        lines[rows] = _lines(frame[rows].with_columns(texts)).splitlines()
    _mend_nested(lines, table, special)
    return b"\n".join(lines) + b"\n"


def _special_text(name: str) -> pl.Expr:
    infinite = pl.when(pl.col(name) > 0).then(pl.lit("Infinity")).otherwise(pl.lit("-Infinity"))
    return pl.when(pl.col(name).is_nan()).then(pl.lit("NaN")).otherwise(infinite).alias(name)


def _mend_nested(lines: npt.NDArray[Any], table: pa.Table, special: Mapping[str, Flags]) -> None:
    """Inside nested values there are no columns to turn into strings: line by line."""
    named = pa.schema([field for field in table.schema if field.name in special and pa.types.is_nested(field.type)])
    if not named.names:
        return
    rows = np.flatnonzero(np.logical_or.reduce([special[name] for name in named.names]))
    values = table.select(named.names).take(pa.array(rows)).to_pylist()
    for row, found in zip(rows.tolist(), values, strict=True):
        lines[row] = with_special_floats(lines[row], found, named)


def _encode_csv(table: pa.Table) -> pa.Buffer:
    """A header, then one row a line; null is empty and an empty string is "", instants are ISO 8601 in UTC."""
    _check_years(table, "csv")
    times = [_time_text(field) for field in table.schema if pa.types.is_timestamp(field.type)]
    out = io.BytesIO()
    pl.DataFrame(table).with_columns(times).write_csv(out)
    return pa.py_buffer(out.getvalue())


def _time_text(field: pa.Field) -> pl.Expr:
    """As many digits as the type has: what is written is read with the same type."""
    fraction = {"s": "", "ms": "%.3f", "us": "%.6f", "ns": "%.9f"}[field.type.unit]
    column = pl.col(field.name)
    if field.type.tz is None:
        return column.dt.to_string(f"%Y-%m-%dT%H:%M:%S{fraction}")
    return column.dt.convert_time_zone("UTC").dt.to_string(f"%Y-%m-%dT%H:%M:%S{fraction}Z")


def _encode_parquet(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    parquet.write_table(table, out)
    return out.getvalue()


def _encode_arrow(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


_ENCODERS: dict[str, Callable[[pa.Table], pa.Buffer]] = {
    "jsonl": encode_jsonl,
    "csv": _encode_csv,
    "parquet": _encode_parquet,
    "arrow": _encode_arrow,
}
FILE_FORMATS = ("jsonl", "csv", "parquet", "arrow")
