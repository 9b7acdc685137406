"""One split of one file as blocks of rows, whatever the format.

Comes in: a split and where to go on in it. Goes out: blocks of rows with their place.
Malformed lines become an error, a side file, or nothing, as the source says.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import pyarrow as pa

from weir.connectors.file_splits import Format, Split, format_of
from weir.connectors.line_blocks import BLOCK_BYTES, LineBlock, LineBlocks, count_lines, first_line
from weir.connectors.line_formats import (
    CsvParser,
    JsonParser,
    LineParser,
    Malformed,
    TextParser,
    csv_columns,
    parse_lines,
)
from weir.connectors.parquet_split import ParquetSplit, check_columns, file_schema
from weir.connectors.part_names import name_of_uid
from weir.errors import DataError
from weir.runtime.storage import ReadableStorage, open_storage
from weir.schema import format_schema

OnError = Literal["fail", "skip", "side_file"]
CONTENT_SHOWN_MAX = 200


@dataclass(frozen=True)
class RowBlock:
    """Rows that begin at `offset` of a split; the next block begins at `next_offset`."""

    rows: pa.RecordBatch
    offset: int
    next_offset: int


@dataclass(frozen=True)
class Reading:
    """How the files of one source are read."""

    storage: ReadableStorage
    location: str
    operator: str
    """Name and uid, as messages give them."""
    uid: str
    schema: pa.Schema
    format: Format | None
    header: bool
    delimiter: str
    on_error: OnError
    side_file: str | None
    block_bytes: int = BLOCK_BYTES

    def where(self, file: str) -> str:
        return f"source {self.operator}: {self.location}/{file}"

    def parser(self, file: str) -> LineParser:
        """The parser for one file of lines."""
        format = format_of(file, self.format)
        if format == "text":
            return TextParser(self.schema)
        if format == "jsonl":
            return JsonParser(self.schema)
        columns = self.schema.names
        if self.header:
            header = first_line(self.storage, file, self.where(file))
            columns = csv_columns(header, schema=self.schema, delimiter=self.delimiter, where=self.where(file))
        return CsvParser(self.schema, columns, self.delimiter)

    def check(self, file: str) -> None:
        """SchemaError when the file's own description of its columns does not fit the schema."""
        if format_of(file, self.format) == "parquet":
            check_columns(file_schema(self.storage, file, self.where(file)), self.schema, self.where(file))
        else:
            self.parser(file)


class SplitReader(ABC):
    """Reads one split to its end."""

    skipped = 0
    """Malformed lines that did not become rows."""

    @abstractmethod
    def read(self) -> RowBlock | None:
        """The next block, possibly without rows; None at the end."""

    @abstractmethod
    def close(self) -> None: ...


def open_split(reading: Reading, split: Split, offset: int | None, skip_rows: int) -> tuple[SplitReader, int]:
    """A reader from block `offset` (None: the beginning), and how many of the first rows were read before."""
    if format_of(split.file, reading.format) == "parquet":
        # Its offsets are rows, so it begins at the row itself.
        return _ParquetReader(reading, split, (offset or 0) + skip_rows), 0
    return _LineReader(reading, split, offset), skip_rows


class _ParquetReader(SplitReader):
    def __init__(self, reading: Reading, split: Split, start_row: int) -> None:
        where = reading.where(split.file)
        self._split = ParquetSplit(reading.storage, split, start_row, schema=reading.schema, where=where)

    def read(self) -> RowBlock | None:
        found = self._split.read()
        if found is None:
            return None
        table, row = found
        return RowBlock(_one_batch(table), row, row + table.num_rows)

    def close(self) -> None:
        self._split.close()


class _LineReader(SplitReader):
    def __init__(self, reading: Reading, split: Split, offset: int | None) -> None:
        self._reading = reading
        self._split = split
        self._where = reading.where(split.file)
        self._parser = reading.parser(split.file)
        self._drops_header = isinstance(self._parser, CsvParser) and reading.header
        self._blocks = LineBlocks(reading.storage, split, offset, where=self._where, block_bytes=reading.block_bytes)

    def read(self) -> RowBlock | None:
        block = self._blocks.read()
        if block is None:
            return None
        data, header_bytes = block.data, 0
        if block.offset == 0 and self._drops_header:
            header_bytes = data.find(b"\n") + 1 or len(data)
            data = data[header_bytes:]
        stop = self._reading.on_error == "fail"
        table, malformed = parse_lines(self._parser, data, stop_at_first=stop)
        if malformed:
            self._handle(malformed, block, header_bytes)
        return RowBlock(_one_batch(table), block.offset, block.next_offset)

    def close(self) -> None:
        self._blocks.close()

    def _handle(self, malformed: Sequence[Malformed], block: LineBlock, header_bytes: int) -> None:
        if self._reading.on_error == "fail":
            self._fail(malformed[0], block, header_bytes)
        if self._reading.on_error == "side_file":
            self._put_aside(malformed, block, header_bytes)
        self.skipped += len(malformed)

    def _fail(self, line: Malformed, block: LineBlock, header_bytes: int) -> NoReturn:
        content = line.content.decode("utf-8", "backslashreplace")
        shown = content if len(content) <= CONTENT_SHOWN_MAX else content[:CONTENT_SHOWN_MAX] + "…"
        format = format_of(self._split.file, self._reading.format)
        before = count_lines(self._reading.storage, self._split.file, block.offset + header_bytes)
        place = f"{self._where}, line {before + line.line + 1}: cannot be read as {format}"
        raise DataError(
            f"{place} ({format_schema(self._reading.schema)}): {line.cause}. Found: {shown!r}. "
            f"Mend the line, or go on without it: Files(on_error='side_file', "
            f"side_file=directory) puts such lines there, on_error='skip' drops them",
            without_rows=place,
        )

    def _put_aside(self, malformed: Sequence[Malformed], block: LineBlock, header_bytes: int) -> None:
        """A file for each block, named by its place: reading the block again writes the same file again."""
        records = [
            {
                "file": self._split.file,
                "offset": block.offset + header_bytes + line.start,
                "error": line.cause,
                "content": line.content.decode("utf-8", "backslashreplace"),
            }
            for line in malformed
        ]
        name = f"malformed-{name_of_uid(self._reading.uid)}-{name_of_uid(self._split.file)}-{block.offset}.jsonl"
        text = "".join(json.dumps(record) + "\n" for record in records)
        open_storage(str(self._reading.side_file)).publish(name, text.encode())


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
