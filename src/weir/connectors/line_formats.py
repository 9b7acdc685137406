"""Blocks of lines in, tables out: text, jsonl and csv, vectorised.

A parser raises ValueError for a block that holds a malformed line; `parse_lines`
then finds the lines that are to blame. Never touches files.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from weir.errors import SchemaError
from weir.schema import format_schema, format_type

_HAS_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True)
class Malformed:
    """A line that cannot be read: where it begins in its block, what it holds, and why not."""

    start: int
    line: int
    content: bytes
    cause: str


class LineParser(ABC):
    """Turns blocks of whole lines into tables of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def parse(self, data: bytes) -> pa.Table:
        """All rows of the block, or a ValueError when a line is malformed."""

    def checked(self, table: pa.Table) -> pa.Table:
        """The table with the declared types; ValueError when a value is missing where none may be."""
        if not table.schema.equals(self.schema):
            table = table.cast(pa.schema([field.with_nullable(True) for field in self.schema]))
            table = pa.Table.from_arrays(table.columns, schema=self.schema)
        for field in self.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"column {field.name!r} is declared not null, and has no value")
        return table


def parse_lines(parser: LineParser, data: bytes, stop_at_first: bool) -> tuple[pa.Table, list[Malformed]]:
    """The rows of the well-formed lines, and the malformed lines (only the first, with `stop_at_first`)."""
    try:
        return parser.parse(data), []
    except ValueError:
        starts = line_starts(data)
        good: list[pa.Table] = []
        bad: list[Malformed] = []
        _divide(parser, data, starts, (0, len(starts) - 1), good, bad, stop_at_first)
        return pa.concat_tables([parser.schema.empty_table(), *good]), bad


def _divide(
    parser: LineParser,
    data: bytes,
    starts: Sequence[int],
    lines: tuple[int, int],
    good: list[pa.Table],
    bad: list[Malformed],
    stop_at_first: bool,
) -> None:
    """Halve until a part is good or is a single line: few lines are bad, so few parts are looked at twice."""
    first, end = lines
    if stop_at_first and bad:
        return
    try:
        good.append(parser.parse(data[starts[first] : starts[end]]))
    except ValueError as error:
        if end - first == 1:
            content = data[starts[first] : starts[end]].rstrip(b"\r\n")
            bad.append(Malformed(starts[first], first, content, str(error)))
            return
        middle = (first + end) // 2
        _divide(parser, data, starts, (first, middle), good, bad, stop_at_first)
        _divide(parser, data, starts, (middle, end), good, bad, stop_at_first)


def line_starts(data: bytes) -> list[int]:
    """Where each line begins, and the end."""
    starts = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
    whole = [0, *starts.tolist()]
    return whole if whole[-1] == len(data) else [*whole, len(data)]


class TextParser(LineParser):
    """Every line is a row of one string column."""

    def parse(self, data: bytes) -> pa.Table:
        # Looking for one byte is thirty times as fast as looking for two.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if not data.endswith(b"\n"):
            data += b"\n"
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
        # Without the newlines, the end of line i moves forward by i.
        offsets = np.zeros(len(ends) + 1, dtype=np.int32)
        offsets[1:] = ends - np.arange(len(ends))
        text = data.replace(b"\n", b"")
        array = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))
        array.validate(full=True)
        return pa.Table.from_arrays([array], schema=self.schema)


class JsonParser(LineParser):
    """Every line is an object; what the schema does not name is ignored, and what is missing is null."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        for field in schema:
            _check_json(field.type, field)
        read = pa.schema([pa.field(field.name, _json_type(field.type)) for field in schema])
        self._options = arrow_json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
        self._binary = [field.name for field in schema if pa.types.is_binary(field.type)]

    def parse(self, data: bytes) -> pa.Table:
        if not data or data.isspace():
            return self.schema.empty_table()
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = arrow_json.read_json(pa.BufferReader(data), read_options=options, parse_options=self._options)
        table = table.select(self.schema.names)
        for name in self._binary:
            table = table.set_column(table.column_names.index(name), name, _from_base64(table[name]))
        return self.checked(table)


def _check_json(kind: pa.DataType, field: pa.Field, depth: int = 0) -> None:
    if pa.types.is_map(kind) or (depth and pa.types.is_binary(kind)):
        raise SchemaError(
            f"jsonl: column {field.name!r} of type {format_type(field.type)} cannot be read; "
            f"declare maps as structs, and binary inside nested values as string"
        )
    for i in range(kind.num_fields):
        _check_json(kind.field(i).type, field, depth + 1)


def _json_type(kind: pa.DataType) -> pa.DataType:
    """What pyarrow reads a JSON value as, before it is cast to the declared type."""
    if pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_json_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _json_type(inner.type)) for inner in kind])
    return kind


def _from_base64(column: pa.ChunkedArray) -> pa.Array:
    try:
        decoded = pl.Series(column).str.decode("base64", strict=True)
    except pl.exceptions.ComputeError as error:
        raise ValueError(f"binary is base64 in JSON: {error}") from error
    return decoded.to_arrow().cast(pa.binary())


class CsvParser(LineParser):
    """Every line is a record, without newlines inside values. Empty is null; "" is an empty string."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str], delimiter: str) -> None:
        super().__init__(schema)
        nested = [field for field in schema if pa.types.is_nested(field.type)]
        if nested:
            kind = format_type(nested[0].type)
            raise SchemaError(f"csv: column {nested[0].name!r} of type {kind} cannot be read; csv has no nested values")
        self._columns = list(columns)
        self._delimiter = delimiter
        self._instants = [f.name for f in schema if pa.types.is_timestamp(f.type) and f.type.tz is not None]
        self._zones_vary = False

    def parse(self, data: bytes) -> pa.Table:
        if not data.lstrip(b"\r\n"):
            return self.schema.empty_table()
        if not self._zones_vary:
            try:
                return self.checked(self._read(data, {}))
            except pa.ArrowInvalid as error:
                if not self._instants or "zone offset" not in str(error):
                    raise
                self._zones_vary = True
        table = self._read(data, dict.fromkeys(self._instants, pa.string()))
        for name in self._instants:
            instants = _instants_of(table[name], self.schema.field(name).type)
            table = table.set_column(table.column_names.index(name), name, instants)
        return self.checked(table)

    def _read(self, data: bytes, other_types: dict[str, pa.DataType]) -> pa.Table:
        types = {field.name: other_types.get(field.name, field.type) for field in self.schema}
        return arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(column_names=self._columns, use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=self.schema.names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _instants_of(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Instants from text with or without a zone; without one they are UTC."""
    zoned = compute.match_substring_regex(column, _HAS_ZONE)
    with_zone = compute.if_else(zoned, column, pa.scalar(None, pa.string())).cast(kind)
    without = compute.if_else(zoned, pa.scalar(None, pa.string()), column).cast(pa.timestamp(kind.unit)).cast(kind)
    return compute.coalesce(with_zone, without)


def csv_columns(header: bytes, *, schema: pa.Schema, delimiter: str, where: str) -> list[str]:
    """The column names of a header line; SchemaError when a declared column is not among them."""
    names = next(csv.reader([header.decode("utf-8", "replace")], delimiter=delimiter), [])
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaError(
            f"{where}: the header has no column {', '.join(map(repr, missing))}; it has {', '.join(names) or 'nothing'}"
            f", and the schema is ({format_schema(schema)}). Mend the schema, or set header=False if there is none"
        )
    return names
