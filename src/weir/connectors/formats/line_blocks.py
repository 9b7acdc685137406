"""A file of lines as blocks of whole lines, in bounded memory.

Comes in: an open file and a split of it. Goes out: blocks, each with the byte at
which it begins. A block holds the lines that begin within one stretch of BLOCK_BYTES
of the file: blocks are the same wherever reading began. Knows no format: what a line
is, and where the first one begins, is told from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from weir.connectors.formats.csv_records import BYTE_ORDER_MARK
from weir.connectors.formats.splits import Split, codec_of
from weir.errors import DataError, StorageUnavailable
from weir.runtime.storage.stores.readable import ReadableStorage

BLOCK_BYTES = 4 << 20
READ_AHEAD_BYTES = 64 << 10
LINE_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class LineBlock:
    """Whole lines, with their newlines, from byte `offset`; the next block begins at `next_offset`."""

    data: bytes
    offset: int
    next_offset: int


class LineEnds(Protocol):
    """Finds ends of lines, or of records, in a buffer that grows at its end."""

    def restart(self, offset: int) -> None:
        """The buffer begins anew, at this byte of the file."""

    def find(self, buffer: bytes, start: int) -> int:
        """Just behind the line that holds byte `start` of the buffer; -1: its end is not there yet."""


class NewlineEnds:
    """A line ends at a newline, whatever stands around it."""

    def restart(self, offset: int) -> None:
        self._searched = 0

    def find(self, buffer: bytes, start: int) -> int:
        found = buffer.find(b"\n", max(start, self._searched))
        self._searched = len(buffer)
        return found + 1 if found >= 0 else -1


class LineBlocks:
    """The blocks of one split, from the beginning or from the offset of a line."""

    def __init__(
        self,
        storage: ReadableStorage,
        split: Split,
        offset: int | None = None,
        *,
        where: str,
        block_bytes: int = BLOCK_BYTES,
        ends: LineEnds | None = None,
    ) -> None:
        self._storage = storage
        self._split = split
        self._where = where
        self._block_bytes = block_bytes
        self._compressed = codec_of(split.file) is not None
        self._file = open_unchanged(storage, split, where)
        if codec_of(split.file):
            self._file = pa.CompressedInputStream(self._file, codec_of(split.file))
        self._ended = False
        self._buffer = b""
        self._ends: LineEnds = ends or NewlineEnds()
        self._offset = offset if offset is not None else max(split.start - 1, 0)
        self._go_to(self._offset)
        self._ends.restart(self._offset)
        if offset is None and split.start > 0:
            # The line that reaches into the split belongs to the split before.
            self._cut(self._line_end(self._offset))

    def read(self) -> LineBlock | None:
        """The next block; None at the end of the split."""
        if not self._compressed and self._offset >= self._split.end:
            return None
        boundary = (self._offset // self._block_bytes + 1) * self._block_bytes
        if not self._compressed:
            boundary = min(boundary, self._split.end)
        offset = self._offset
        data = self._cut(self._line_end(boundary - 1))
        if not data:
            return None
        if offset == 0 and data.startswith(BYTE_ORDER_MARK):
            data = data[len(BYTE_ORDER_MARK) :]
        return LineBlock(data, offset, self._offset)

    def close(self) -> None:
        self._file.close()

    def _line_end(self, position: int) -> int:
        """The end of the line that holds byte `position`: just behind its newline, or the end of the file."""
        ahead_bytes = READ_AHEAD_BYTES
        while True:
            self._fill(position + ahead_bytes)
            found = self._ends.find(self._buffer, max(position - self._offset, 0))
            if found >= 0:
                return self._offset + found
            end = self._offset + len(self._buffer)
            if self._ended:
                return end
            if end - position > LINE_BYTES_MAX:
                raise too_long(self._where, position)
            ahead_bytes *= 2

    def _cut(self, end: int) -> bytes:
        """Take the buffered bytes up to byte `end` of the file."""
        data, self._buffer = self._buffer[: end - self._offset], self._buffer[end - self._offset :]
        self._offset += len(data)
        self._ends.restart(self._offset)
        return data

    def _fill(self, end: int) -> None:
        """Have the bytes up to `end` in the buffer, or all that there are."""
        missing = end - self._offset - len(self._buffer)
        if missing <= 0 or self._ended:
            return
        data = self._read(missing)
        self._ended = len(data) < missing
        self._buffer += data
        if self._ended and not self._compressed and self._offset + len(self._buffer) < self._split.file_bytes:
            raise DataError(
                f"{self._where}: the file ended at byte {self._offset + len(self._buffer)}, and had "
                f"{self._split.file_bytes} bytes when it was listed; files must not change while they are read"
            )

    def _go_to(self, offset: int) -> None:
        if not self._compressed:
            self._file.seek(offset)
            return
        while offset > 0:
            data = self._read(min(offset, self._block_bytes))
            if not data:
                raise DataError(f"{self._where}: the file is shorter than where the checkpoint stands")
            offset -= len(data)

    def _read(self, count: int) -> bytes:
        """Exactly `count` bytes unless the file ends."""
        with damage_named(self._where):
            data: bytes = self._file.read(count)
            while self._compressed and len(data) < count and (more := self._file.read(count - len(data))):
                data += more
            return data


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """What pyarrow says about a damaged compressed file (an OSError without a number), with the file's name."""
    try:
        yield
    except OSError as error:
        if error.errno is not None or isinstance(error, StorageUnavailable):
            raise
        raise DataError(f"{where}: the file is damaged: {error}. Replace it, or take it away") from error


def open_unchanged(storage: ReadableStorage, split: Split, where: str) -> pa.NativeFile:
    """The file of a split; DataError when it is not the one that was listed."""
    try:
        opened = storage.open_input(split.file)
    except FileNotFoundError as error:
        raise DataError(f"{where}: the file was listed, and is gone; put it back: it is not read to its end") from error
    found_bytes = opened.size()
    if found_bytes != split.file_bytes:
        opened.close()
        raise DataError(
            f"{where}: the file had {split.file_bytes} bytes when it was listed, and has {found_bytes} now; files must "
            f"appear whole (write elsewhere, then rename) and never change: give the new content a new name"
        )
    return opened


def open_lines(storage: ReadableStorage, file: str) -> pa.NativeFile:
    """A file, decompressed if its ending says so."""
    opened = storage.open_input(file)
    codec = codec_of(file)
    return pa.CompressedInputStream(opened, codec) if codec else opened


def count_lines(storage: ReadableStorage, file: str, end: int) -> int:
    """How many newlines there are before byte `end`: slow, for messages."""
    count = 0
    with open_lines(storage, file) as opened:
        while end > 0 and (data := opened.read(min(BLOCK_BYTES, end))):
            count += data.count(b"\n")
            end -= len(data)
    return count


def first_line(storage: ReadableStorage, file: str, where: str, *, ends: LineEnds) -> bytes:
    """The first line of a file, without its newline."""
    ends.restart(0)
    with damage_named(where), open_lines(storage, file) as opened:
        data, end = b"", -1
        while end < 0 and len(data) < LINE_BYTES_MAX and (more := opened.read(max(READ_AHEAD_BYTES, len(data)))):
            data += more
            end = ends.find(data, 0)
    line = data if end < 0 else data[:end]
    return line.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\n").removesuffix(b"\r")


def too_long(where: str, position: int) -> DataError:
    return DataError(
        f"{where}: the line around byte {position} is longer than {LINE_BYTES_MAX} bytes; is this a file of lines, "
        f"and is each quote of a csv file closed?"
    )
