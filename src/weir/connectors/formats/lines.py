"""Blocks of lines in, tables out: what the formats of lines have in common, and plain text.

A parser raises ValueError for a block that holds a malformed line; `parse_lines`
then finds the lines that are to blame. Vectorised. Never touches files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.connectors.formats.exact_values import cast_exactly


@dataclass(frozen=True)
class Malformed:
    """A line that cannot be read: where it begins in its block, what it holds, and why not."""

    start: int
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
        """The table with the declared types; ValueError when a value does not fit, or is missing where none may be."""
        return cast_exactly(table, self.schema)

    def starts(self, data: bytes) -> list[int]:
        """Where each line of a block begins, and the end."""
        return line_starts(data)


def parse_lines(parser: LineParser, data: bytes, stop_at_first: bool) -> tuple[pa.Table, list[Malformed]]:
    """The rows of the well-formed lines, and the malformed lines (only the first, with `stop_at_first`)."""
    try:
        return parser.parse(data), []
    except ValueError:
        starts = parser.starts(data)
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
            bad.append(Malformed(starts[first], content, str(error)))
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
