"""Where the first record of a split of CSV begins.

Comes in: splits of files. Goes out: the byte at which the first record of a split begins. Whether a
newline ends a record depends on all quotes before it, so a subtask looks at a file from its beginning,
in bounded pieces, and goes on from where it last knew: at most once over each file.
"""

from __future__ import annotations

import pyarrow as pa

from weir.connectors.formats.csv_records import BYTE_ORDER_MARK, RECORD_START, Quotes, QuoteSide, RecordEnds
from weir.connectors.formats.line_blocks import (
    BLOCK_BYTES,
    LINE_BYTES_MAX,
    READ_AHEAD_BYTES,
    damage_named,
    open_unchanged,
    too_long,
)
from weir.connectors.formats.splits import Split
from weir.errors import DataError
from weir.runtime.storage.stores.readable import ReadableStorage

STEP_BYTES = 4 * BLOCK_BYTES
"""What is looked at before the subtask turns to the rest of its work."""


class CsvEntrances:
    """How far the file at hand was looked at. Splits come file by file, from front to back."""

    def __init__(self) -> None:
        self._file, self._offset, self._side = "", 0, RECORD_START

    def know(self, file: str, offset: int, side: QuoteSide = RECORD_START) -> None:
        """At this byte of a file, things stand like this."""
        if file != self._file or offset > self._offset:
            self._file, self._offset, self._side = file, offset, side

    def known(self, file: str, offset: int) -> tuple[int, QuoteSide]:
        """The last place not behind `offset` that is known."""
        if file != self._file or self._offset > offset:
            return 0, RECORD_START
        return self._offset, self._side


class CsvEntrance:
    """Looks for the first record of one split, step by step."""

    def __init__(
        self, storage: ReadableStorage, split: Split, *, quotes: Quotes, entrances: CsvEntrances, where: str
    ) -> None:
        self._split = split
        self._quotes = quotes
        self._entrances = entrances
        self._where = where
        self._file: pa.NativeFile = open_unchanged(storage, split, where)
        first = self._read(len(BYTE_ORDER_MARK))
        self._begin = len(first) if first == BYTE_ORDER_MARK else 0
        """Where the first record begins."""
        self._offset, self._side = entrances.known(split.file, split.start)
        if self._offset < self._begin:
            self._offset, self._side = self._begin, RECORD_START
        self._file.seek(self._offset)

    def step(self) -> int | None:
        """Look at a bounded piece. Where the first record begins, or the end of the file; None: not known yet."""
        end = min(self._offset + STEP_BYTES, self._split.start)
        while self._offset < end:
            self._pass(self._read(min(BLOCK_BYTES, end - self._offset)))
        self._entrances.know(self._split.file, self._offset, self._side)
        if self._offset < self._split.start:
            return None
        # A record that begins behind the mark at the beginning of the file belongs to the first split.
        at_record = not self._side.inside and self._side.before == RECORD_START.before and self._offset > self._begin
        return self._offset if at_record else self._next_record()

    def close(self) -> None:
        self._file.close()

    def _pass(self, data: bytes) -> None:
        if not data:
            raise DataError(
                f"{self._where}: the file ended at byte {self._offset}, and had {self._split.file_bytes} bytes when it "
                f"was listed; files must not change while they are read"
            )
        self._side = self._quotes.turns(data, self._side)[1]
        self._offset += len(data)

    def _next_record(self) -> int:
        """Behind the record that reaches into the split: it belongs to the split before."""
        ends = RecordEnds(self._quotes)
        ends.restart(self._offset, self._side)
        buffer = b""
        while data := self._read(max(READ_AHEAD_BYTES, len(buffer))):
            buffer += data
            if (found := ends.find(buffer, 0)) >= 0:
                return self._offset + found
            if len(buffer) > LINE_BYTES_MAX:
                raise too_long(self._where, self._offset)
        return self._offset + len(buffer)

    def _read(self, count: int) -> bytes:
        with damage_named(self._where):
            data: bytes = self._file.read(count)
            return data
