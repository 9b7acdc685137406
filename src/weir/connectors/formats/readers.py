"""One split of one file as blocks of rows, whatever the format.

Comes in: a split and where to go on in it. Goes out: blocks of rows with their place.
Malformed lines become an error, a side file, or nothing, as the source says.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import pyarrow as pa

from weir.connectors.formats.arrow import ArrowSplit, arrow_schema_of
from weir.connectors.formats.csv import CsvParser, csv_columns
from weir.connectors.formats.csv_entrances import CsvEntrance, CsvEntrances
from weir.connectors.formats.csv_records import Quotes, RecordEnds
from weir.connectors.formats.json import JsonParser
from weir.connectors.formats.line_blocks import BLOCK_BYTES, LineBlock, LineBlocks, count_lines, first_line
from weir.connectors.formats.lines import LineParser, Malformed, TextParser, parse_lines
from weir.connectors.formats.parquet import ParquetSplit, check_columns, file_schema
from weir.connectors.formats.splits import Format, Split, codec_of, format_of
from weir.connectors.names import name_of
from weir.errors import DataError
from weir.runtime.ports import Opener
from weir.runtime.storage.stores.readable import ReadableStorage
from weir.schema import format_schema
from weir.texts import quoted

OnError = Literal["fail", "skip", "side_file"]
CONTENT_SHOWN_MAX = 200
CAUSE_SHOWN_MAX = 500
"""Most characters of a malformed line, and of what is wrong with it, that go into an error."""


@dataclass(frozen=True)
class RowBlock:
    """Rows that begin at `offset` of a split; the next block begins at `next_offset`. None: where the split does."""

    rows: pa.RecordBatch
    offset: int | None
    next_offset: int | None


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
    opener: Opener
    """Opens the directory of side files."""
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
            ends = RecordEnds(Quotes(self.delimiter))
            header = first_line(self.storage, file, self.where(file), ends=ends)
            columns = csv_columns(header, schema=self.schema, delimiter=self.delimiter, where=self.where(file))
        return CsvParser(self.schema, columns, self.delimiter)

    def check(self, file: str) -> None:
        """SchemaError when the file's own description of its columns does not fit the schema."""
        format = format_of(file, self.format)
        if format == "parquet":
            check_columns(file_schema(self.storage, file, self.where(file)), self.schema, self.where(file))
        elif format == "arrow":
            check_columns(arrow_schema_of(self.storage, file, self.where(file)), self.schema, self.where(file))
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


def open_split(
    reading: Reading, split: Split, offset: int | None, skip_rows: int, *, entrances: CsvEntrances
) -> tuple[SplitReader, int]:
    """A reader from block `offset` (None: the beginning), and how many of the first rows were read before."""
    format = format_of(split.file, reading.format)
    if format == "parquet" or format == "arrow":
        # Their offsets are rows, so they begin at the row itself.
        return _TableReader(_SPLITS[format], reading, split, (offset or 0) + skip_rows), 0
    parser = reading.parser(split.file)
    if isinstance(parser, CsvParser):
        return _CsvReader(reading, split, offset, parser=parser, entrances=entrances), skip_rows
    return _LineReader(reading, split, offset, parser=parser), skip_rows


_SPLITS: Mapping[Format, type[ParquetSplit | ArrowSplit]] = {"parquet": ParquetSplit, "arrow": ArrowSplit}


class _TableReader(SplitReader):
    """Of files that are tables already."""

    def __init__(self, kind: type[ParquetSplit | ArrowSplit], reading: Reading, split: Split, start_row: int) -> None:
        where = reading.where(split.file)
        self._split = kind(reading.storage, split, start_row, schema=reading.schema, where=where)

    def read(self) -> RowBlock | None:
        found = self._split.read()
        if found is None:
            return None
        table, row = found
        return RowBlock(_one_batch(table), row, row + table.num_rows)

    def close(self) -> None:
        self._split.close()


class _LineReader(SplitReader):
    def __init__(self, reading: Reading, split: Split, offset: int | None, *, parser: LineParser) -> None:
        self._reading = reading
        self._split = split
        self._where = reading.where(split.file)
        self._parser = parser
        self._open(offset)

    def _open(self, offset: int | None) -> None:
        self._blocks = LineBlocks(
            self._reading.storage, self._split, offset, where=self._where, block_bytes=self._reading.block_bytes
        )

    def read(self) -> RowBlock | None:
        block = self._blocks.read()
        if block is None:
            return None
        header_bytes = self._header_bytes(block)
        stop = self._reading.on_error == "fail"
        table, malformed = parse_lines(self._parser, block.data[header_bytes:], stop_at_first=stop)
        if malformed:
            self._handle(malformed, block, header_bytes)
        return RowBlock(_one_batch(table), block.offset, block.next_offset)

    def close(self) -> None:
        self._blocks.close()

    def _header_bytes(self, block: LineBlock) -> int:
        """How much of the block is no row."""
        return 0

    def _handle(self, malformed: Sequence[Malformed], block: LineBlock, header_bytes: int) -> None:
        if self._reading.on_error == "fail":
            self._fail(malformed[0], block, header_bytes)
        if self._reading.on_error == "side_file":
            self._put_aside(malformed, block, header_bytes)
        self.skipped += len(malformed)

    def _fail(self, line: Malformed, block: LineBlock, header_bytes: int) -> NoReturn:
        content = line.content.decode("utf-8", "backslashreplace")
        format = format_of(self._split.file, self._reading.format)
        before = count_lines(self._reading.storage, self._split.file, block.offset + header_bytes + line.start)
        place = f"{self._where}, line {before + 1}: cannot be read as {format}"
        raise DataError(
            f"{place} ({format_schema(self._reading.schema)}): {quoted(line.cause, CAUSE_SHOWN_MAX)}. "
            f"Found: {quoted(content, CONTENT_SHOWN_MAX)!r}. "
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
                "error": quoted(line.cause, CAUSE_SHOWN_MAX),
                "content": line.content.decode("utf-8", "backslashreplace"),
            }
            for line in malformed
        ]
        name = f"malformed-{name_of(self._reading.uid)}-{name_of(self._split.file)}-{block.offset}.jsonl"
        text = "".join(json.dumps(record) + "\n" for record in records)
        self._reading.opener(str(self._reading.side_file)).publish(name, text.encode())


class _CsvReader(_LineReader):
    """Records may hold newlines: where the first one begins depends on all before it, and takes a while to find."""

    def __init__(
        self, reading: Reading, split: Split, offset: int | None, *, parser: CsvParser, entrances: CsvEntrances
    ) -> None:
        self._quotes = parser.quotes
        self._entrances = entrances
        self._entrance: CsvEntrance | None = None
        super().__init__(reading, split, offset, parser=parser)

    def _open(self, offset: int | None) -> None:
        if offset is None and self._split.start > 0:
            self._entrance = CsvEntrance(
                self._reading.storage,
                self._split,
                quotes=self._quotes,
                entrances=self._entrances,
                where=self._where,
            )
            return
        self._blocks = LineBlocks(
            self._reading.storage,
            self._split,
            offset or 0,
            where=self._where,
            block_bytes=self._reading.block_bytes,
            ends=RecordEnds(self._quotes),
        )

    def read(self) -> RowBlock | None:
        if self._entrance is not None:
            begin = self._entrance.step()
            if begin is not None:
                self._entrance.close()
                self._entrance = None
                self._open(begin)
            return RowBlock(pa.RecordBatch.from_pylist([], self._reading.schema), None, None)
        block = super().read()
        if block is not None and block.next_offset is not None and codec_of(self._split.file) is None:
            self._entrances.know(self._split.file, block.next_offset)
        return block

    def close(self) -> None:
        if self._entrance is not None:
            self._entrance.close()
        else:
            super().close()

    def _header_bytes(self, block: LineBlock) -> int:
        if block.offset > 0 or not self._reading.header:
            return 0
        ends = RecordEnds(self._quotes)
        end = ends.find(block.data, 0)
        return end if end >= 0 else len(block.data)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
