"""Where records of CSV begin and end: at newlines outside of quotes, and in a block also at returns without one.

Comes in: the bytes of a file, in pieces, from a place whose state is known. Goes out: the ends of
records, and the state behind each piece. Vectorised, except for files with quotes inside of plain
values. Reads no files.

A quote opens a value only where a value begins; anywhere else in a plain value it is a character. In
a quoted value two quotes are one character, and a single one closes it. Closing and opening again at
once is the same as two quotes, so every quote that is not a plain character changes sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.state.keys.xxhash64 import Ints

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some editors put before the first character of a file."""

_QUOTE, _NEWLINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]


@dataclass(frozen=True)
class QuoteSide:
    """Where a place of a file lies: inside of quotes or outside, and what stands before it."""

    inside: bool = False
    before: int = _NEWLINE
    closed: bool = False
    """The byte before is a quote that closed a value."""


RECORD_START = QuoteSide()


class Quotes:
    """Which quotes change sides, for one delimiter."""

    def __init__(self, delimiter: str) -> None:
        self._begins_value = np.zeros(256, np.bool_)
        self._begins_value[[ord(delimiter), _NEWLINE, _RETURN]] = True

    def turns(self, data: bytes, side: QuoteSide) -> tuple[Ints, QuoteSide]:
        """The places of the quotes that change sides in a piece that begins on `side`, and the side behind it."""
        if not data:
            return np.empty(0, np.int64), side
        if b'"' not in data:
            return np.empty(0, np.int64), replace(side, before=data[-1], closed=False)
        content = np.frombuffer(data, dtype=np.uint8)
        turns = np.flatnonzero(content == _QUOTE)
        if not self._all_turn(content, turns, side):
            turns = self._those_that_turn(data, turns, side)
        inside = side.inside ^ bool(len(turns) & 1)
        closed = not inside and len(turns) > 0 and int(turns[-1]) == len(data) - 1
        return turns, QuoteSide(inside, data[-1], closed)

    def _all_turn(self, content: npt.NDArray[Any], quotes: Ints, side: QuoteSide) -> bool:
        """Whether each quote that would open a value stands at the beginning of one, or behind one that closed."""
        opening = quotes[1 if side.inside else 0 :: 2]
        if len(opening) and opening[0] == 0:
            if not (side.closed or self._begins_value[side.before]):
                return False
            opening = opening[1:]
        before = content[opening - 1]
        # By turns, the quote before an opening one has closed a value.
        return bool((self._begins_value[before] | (before == _QUOTE)).all())

    def _those_that_turn(self, data: bytes, quotes: Ints, side: QuoteSide) -> Ints:
        """One quote after the other: some are plain characters."""
        turns = []
        inside, closed_at = side.inside, -1 if side.closed else -2
        for place in quotes.tolist():
            if inside:
                inside, closed_at = False, place
            elif closed_at == place - 1 or self._begins_value[data[place - 1] if place else side.before]:
                inside = True
            else:
                continue
            turns.append(place)
        return np.array(turns, np.int64)


class RecordEnds:
    """Finds ends of records in a buffer that begins at a record, or on a side that is known, and grows at its end."""

    def __init__(self, quotes: Quotes) -> None:
        self._quotes = quotes
        self.restart(0)

    def restart(self, offset: int, side: QuoteSide = RECORD_START) -> None:
        """The buffer begins anew, at this byte of the file."""
        self._side = side
        self._begins_inside = side.inside
        self._scanned = 0
        self._is_file_start = offset == 0
        self._turns: Ints = np.empty(0, np.int64)

    def find(self, buffer: bytes, start: int) -> int:
        """Just behind the record that holds byte `start`; -1: its end is not there yet."""
        if self._is_file_start and not self._scanned and buffer.startswith(BYTE_ORDER_MARK):
            self._scanned = len(BYTE_ORDER_MARK)
        turns, self._side = self._quotes.turns(buffer[self._scanned :], self._side)
        self._turns = np.concatenate([self._turns, turns + self._scanned])
        self._scanned = len(buffer)
        while (place := buffer.find(b"\n", start)) >= 0:
            before = int(np.searchsorted(self._turns, place))
            if (before + self._begins_inside) % 2 == 0:
                return place + 1
            if before == len(self._turns):
                return -1
            start = int(self._turns[before])
        return -1


def record_starts(data: bytes, quotes: Quotes) -> list[int]:
    """Where each record of a block begins, and the end."""
    turns, _ = quotes.turns(data, RECORD_START)
    ends = _ends(data)
    outside = ends[np.searchsorted(turns, ends) % 2 == 0] if len(turns) else ends
    whole = [0, *(outside + 1).tolist()]
    return whole if whole[-1] == len(data) else [*whole, len(data)]


def _ends(data: bytes) -> Ints:
    """The bytes that end a record outside of quotes: newlines, and returns without one."""
    content = np.frombuffer(data, dtype=np.uint8)
    is_end = content == _NEWLINE
    if b"\r" in data:
        is_end[:-1] |= (content[:-1] == _RETURN) & ~is_end[1:]
        is_end[-1] |= content[-1] == _RETURN
    return np.flatnonzero(is_end)
