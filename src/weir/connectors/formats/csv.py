"""Blocks of CSV records in, tables out.

Arrow reads whole blocks. What it takes for a number, and should not, is looked at again as text.
Never touches files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as arrow_csv

from weir.connectors.formats.csv_records import BYTE_ORDER_MARK, RECORD_START, Quotes, record_starts
from weir.connectors.formats.lines import LineParser
from weir.connectors.formats.text_types import plain_type, text_problem
from weir.errors import DataError, SchemaError
from weir.schema import format_schema, format_type
from weir.state.values.conversion import shown
from weir.state.values.infinities import infinite_count

_HAS_ZONE = r"[T ].*(Z|[+-]\d{2}(:?\d{2})?)$"
"""All forms that Arrow takes; a date alone has no zone, though it ends like one."""
_HEXADECIMAL = r"^\s*0[xX]"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"


class CsvParser(LineParser):
    """Every record is a row. Empty is null; "" is an empty string. Where there is one column, so is an empty line."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str], delimiter: str) -> None:
        super().__init__(schema)
        for field in schema:
            problem = text_problem(field.type, "csv")
            if problem:
                kind = format_type(field.type)
                raise SchemaError(f"csv: column {field.name!r} of type {kind} cannot be read: {problem}")
        self.quotes = Quotes(delimiter)
        self._columns = list(columns)
        self._delimiter = delimiter
        self._types = {field.name: plain_type(field.type) for field in schema}
        self._integers = [name for name, kind in self._types.items() if pa.types.is_integer(kind)]
        self._floats = [name for name, kind in self._types.items() if pa.types.is_floating(kind)]
        self._instants = [
            name for name, kind in self._types.items() if pa.types.is_timestamp(kind) and kind.tz is not None
        ]
        self._zones_vary = False
        """Whether to try the slower way at once, which reads the same forms as the same instants."""

    def starts(self, data: bytes) -> list[int]:
        return record_starts(data, self.quotes)

    def parse(self, data: bytes) -> pa.Table:
        if not data or (len(self._columns) > 1 and not data.lstrip(b"\r\n")):
            return self.schema.empty_table()
        if self.quotes.turns(data, RECORD_START)[1].inside:
            raise ValueError("a quote is opened, and never closed")
        table = self._read_instants(data)
        self._check_numbers(data, table)
        return self.checked(table)

    def _read_instants(self, data: bytes) -> pa.Table:
        if not self._zones_vary:
            try:
                return self._read(data, self._types)
            except pa.ArrowInvalid as error:
                if not self._instants or "zone offset" not in str(error):
                    raise
                self._zones_vary = True
        table = self._read(data, {**self._types, **dict.fromkeys(self._instants, pa.string())})
        for name in self._instants:
            instants = _instants_of(table[name], self._types[name])
            table = table.set_column(table.column_names.index(name), name, instants)
        return table

    def _check_numbers(self, data: bytes, table: pa.Table) -> None:
        """Arrow reads 0x10 as 16, and 1e999 as infinite."""
        infinite = [name for name in self._floats if infinite_count(table[name])]
        integers = self._integers if b"0x" in data or b"0X" in data else []
        if not infinite and not integers:
            return
        texts = self._read(data, {**self._types, **dict.fromkeys([*infinite, *integers], pa.string())})
        for name in integers:
            _refuse(texts[name], compute.match_substring_regex(texts[name], _HEXADECIMAL), name, "is no decimal number")
        for name in infinite:
            meant = compute.match_substring_regex(texts[name], _INFINITE)
            too_large = compute.and_(compute.is_inf(table[name]), compute.invert(meant))
            _refuse(texts[name], too_large, name, f"does not fit into {format_type(self._types[name])}")

    def _read(self, data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        if data.startswith(BYTE_ORDER_MARK):
            # Arrow takes one away, which here is part of a value: that of the file is gone already.
            data = BYTE_ORDER_MARK + data
        return arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(column_names=self._columns, use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=b'"' in data,
                ignore_empty_lines=len(self._columns) > 1,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=self.schema.names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _refuse(texts: pa.ChunkedArray, wrong: pa.ChunkedArray, name: str, problem: str) -> None:
    found = texts.filter(wrong)
    if len(found):
        raise ValueError(f"column {name!r}: {shown(found[0].as_py())} {problem}")


def _instants_of(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Instants from text with or without a zone; without one they are UTC."""
    zoned = compute.match_substring_regex(column, _HAS_ZONE)
    with_zone = compute.if_else(zoned, column, pa.scalar(None, pa.string())).cast(kind)
    without = compute.if_else(zoned, pa.scalar(None, pa.string()), column).cast(pa.timestamp(kind.unit)).cast(kind)
    return compute.coalesce(with_zone, without)


def csv_columns(header: bytes, *, schema: pa.Schema, delimiter: str, where: str) -> list[str]:
    """The column names of a header; SchemaError when a declared column is not among them, or several times."""
    if len(record_starts(header, Quotes(delimiter))) > 2:
        raise DataError(
            f"{where}: the header ends in a carriage return without a newline, and rows would be lost behind it; "
            f"end the lines of the file with newlines"
        )
    text = io.StringIO(header.decode("utf-8", "replace"), newline="")
    names = next(csv.reader(text, delimiter=delimiter), [])
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaError(
            f"{where}: the header has no column {', '.join(map(repr, missing))}; it has {', '.join(names) or 'nothing'}"
            f", and the schema is ({format_schema(schema)}). Mend the schema, or set header=False if there is none"
        )
    if twice := [name for name in schema.names if names.count(name) > 1]:
        raise SchemaError(f"{where}: the header has column {twice[0]!r} more than once; rename one in the file")
    return names
