"""Batches in, the bytes of one file out: jsonl, csv, parquet and Arrow.

Vectorised: Polars writes the text formats, pyarrow the others. Never touches storage.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet

from weir.errors import ConfigError, SchemaError
from weir.schema import format_type


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
        problem = _problem(field.type, format)
        if problem:
            raise SchemaError(
                f"sink {name!r}: {format} cannot hold column {field.name!r} of type {format_type(field.type)}: "
                f"{problem}; convert or drop the column before writing, or use format='parquet'"
            )


def _problem(kind: pa.DataType, format: str) -> str:
    if format == "csv":
        if pa.types.is_nested(kind):
            return "csv has no nested values"
        if _is_binary(kind):
            return "csv is text"
    if format == "jsonl" and pa.types.is_nested(kind) and any(_is_binary(inner) for inner in _leaves(kind)):
        return "binary inside a nested value has no form in JSON"
    if format == "jsonl" and any(pa.types.is_map(k) and not pa.types.is_string(k.key_type) for k in _nodes(kind)):
        return "keys of JSON objects are strings"
    return ""


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _nodes(kind: pa.DataType) -> list[pa.DataType]:
    """A type and all types inside it."""
    return [kind, *(node for i in range(kind.num_fields) for node in _nodes(kind.field(i).type))]


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    return [node for node in _nodes(kind) if node.num_fields == 0]


def encode_jsonl(table: pa.Table) -> pa.Buffer:
    """One JSON object a line. Binary becomes base64, a decimal a string, and NaN null: JSON has no such values."""
    frame = pl.DataFrame(table)
    binary = [name for name, kind in frame.schema.items() if kind == pl.Binary]
    if binary:
        frame = frame.with_columns(pl.col(binary).bin.encode("base64"))
    out = io.BytesIO()
    frame.write_ndjson(out)
    return pa.py_buffer(out.getvalue())


def _encode_csv(table: pa.Table) -> pa.Buffer:
    """A header, then one row a line; null is empty and an empty string is "", instants are ISO 8601 in UTC."""
    frame = pl.DataFrame(table)
    instants = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime) and kind.time_zone]
    if instants:
        in_utc = pl.col(instants).dt.convert_time_zone("UTC").dt.to_string("%Y-%m-%dT%H:%M:%S%.6fZ")
        frame = frame.with_columns(in_utc)
    out = io.BytesIO()
    frame.write_csv(out)
    return pa.py_buffer(out.getvalue())


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
