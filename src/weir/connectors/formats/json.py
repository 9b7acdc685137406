"""Blocks of JSON lines in, tables out.

Arrow reads whole blocks. Lines with maps, or with NaN and the infinities, which are strings in our
files, are first put into a form that it takes. Never touches files.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.json as arrow_json

from weir.connectors.formats.exact_values import cast_exactly
from weir.connectors.formats.json_values import SPECIAL, for_arrow
from weir.connectors.formats.lines import LineParser
from weir.connectors.formats.text_types import nodes_of, plain_type, text_problem
from weir.errors import SchemaError
from weir.schema import format_type
from weir.state.values.infinities import infinite_count, with_doubles

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

_OPEN, _CLOSE, _NEWLINE, _RETURN = b"{}\n\r"
_IS_SPACE = np.isin(np.arange(256), list(b" \t\r\n"))
_SPECIAL = tuple(f'"{name}"'.encode() for name in SPECIAL)


class JsonParser(LineParser):
    """Every line is an object; what the schema does not name is ignored, and what is missing is null."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        for field in schema:
            problem = text_problem(field.type, "jsonl")
            if problem:
                kind = format_type(field.type)
                raise SchemaError(f"jsonl: column {field.name!r} of type {kind} cannot be read: {problem}")
        self._plain = pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])
        self._read_schema = pa.schema([pa.field(field.name, _read_type(field.type)) for field in self._plain])
        self._binary = [field.name for field in self._plain if _is_bytes(field.type)]
        nodes = [node for field in self._plain for node in nodes_of(field.type)]
        self._has_maps = any(map(pa.types.is_map, nodes))
        self._has_floats = any(map(pa.types.is_floating, nodes))
        self._has_singles = any(map(pa.types.is_float32, nodes))

    def parse(self, data: bytes) -> pa.Table:
        first, last = _ends_of_lines(data)
        if not len(first):
            return self.schema.empty_table()
        if (first != _OPEN).any():
            # Arrow takes null for a row, and at the beginning of a block does not survive it.
            raise ValueError("the line does not begin with '{': each must be one JSON object")
        if self._has_maps:
            data = self._rewritten(data, everywhere=True)
        try:
            table = self._read(data, self._read_schema)
        except pa.ArrowInvalid:
            if self._has_maps or not self._has_floats or not _is_special(data):
                raise
            data = self._rewritten(data, everywhere=False)
            table = self._read(data, self._read_schema)
        if (last != _CLOSE).any() or table.num_rows != len(first):
            # To Arrow, newlines are nothing but space: objects could go on, or begin, anywhere.
            raise ValueError("the line is not exactly one JSON object")
        if self._has_singles and any(map(infinite_count, table.columns)):
            # Read once more with room for what has none, which then is an error with a value.
            wide = pa.schema([pa.field(field.name, with_doubles(field.type)) for field in self._read_schema])
            cast_exactly(self._read(data, wide), self._read_schema)
        for name in self._binary:
            table = table.set_column(table.column_names.index(name), name, _from_base64(table[name]))
        if self._has_maps:
            arrays = [_with_maps(_one(table[field.name]), field.type) for field in self._plain]
            table = pa.Table.from_arrays(arrays, schema=self._plain)
        return self.checked(table)

    def _read(self, data: bytes, schema: pa.Schema) -> pa.Table:
        read_options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        table = arrow_json.read_json(pa.BufferReader(data), read_options=read_options, parse_options=options)
        return table.select(self.schema.names)

    def _rewritten(self, data: bytes, *, everywhere: bool) -> bytes:
        lines = data.splitlines(keepends=True) if b"\r" not in data else [line + b"\n" for line in data.split(b"\n")]
        return b"".join(
            for_arrow(line, self._plain) if line.strip() and (everywhere or _is_special(line)) else line
            for line in lines
        )


def _ends_of_lines(data: bytes) -> tuple[Bytes, Bytes]:
    """The first and the last byte of each line that is not blank, space apart."""
    content = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(content == _NEWLINE)
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(min(len(ends), 1), np.int64), ends[:-1] + 1])
    ends = ends - (content[ends - 1] == _RETURN)
    first, last = content[starts], content[ends - 1]
    if (first == _OPEN).all() and (last == _CLOSE).all():
        return first, last
    solid = np.flatnonzero(~_IS_SPACE[content])
    begin, end = np.searchsorted(solid, starts), np.searchsorted(solid, ends)
    holds = begin < end
    return content[solid[begin[holds]]], content[solid[end[holds] - 1]]


def _is_special(data: bytes) -> bool:
    return any(name in data for name in _SPECIAL)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _read_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow reads a JSON value as, before it becomes the declared type."""
    if pa.types.is_date(kind) or _is_bytes(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        # Times without a zone, too: Arrow would move those that have one to UTC.
        return pa.string()
    if pa.types.is_map(kind):
        entry = [pa.field("key", _read_type(kind.key_type)), pa.field("value", _read_type(kind.item_type))]
        return pa.list_(pa.struct(entry))
    if pa.types.is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _read_type(inner.type)) for inner in kind])
    return kind


def _from_base64(column: pa.ChunkedArray) -> pa.Array:
    try:
        decoded = pl.Series(column).str.decode("base64", strict=True)
    except pl.exceptions.ComputeError as error:
        raise ValueError(f"binary is base64 in JSON: {error}") from error
    return decoded.to_arrow().cast(pa.binary())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _with_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists of entries as maps, at any depth; values of other types are cast."""
    if not any(map(pa.types.is_map, nodes_of(kind))):
        return array.cast(kind)
    if pa.types.is_struct(kind):
        children = [_with_maps(array.field(index), inner.type) for index, inner in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = array.values.field("key"), array.values.field("value")
        if keys.null_count:
            raise ValueError("a key of a map is null")
        entries = _with_maps(keys, kind.key_type), _with_maps(items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, *entries, type=kind, mask=array.is_null())
    values = _with_maps(array.values, kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
