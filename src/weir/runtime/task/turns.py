"""Whose turn it is, among several that want one, and how many rows are a turn. Pure.

Channels are the bits of a number: to find the next of many costs no more than of few.
"""

from __future__ import annotations

from collections.abc import Iterator

TURN_ROWS_FIRST = 1_000
"""So many are a turn before any was seen: nobody knows how slow a user's function is."""

TURN_ROWS_MIN = 256
"""To take fewer at once would cost more than it is worth."""

COST_WEIGHT = 0.2
"""Of the newest turn, in what a row is taken to cost."""


class TurnSize:
    """How many rows take about so long, by what rows have cost lately.

    >>> size = TurnSize(65_536, 20.0)
    >>> size.rows_max, [size.took(rows=1_000, ms=1_000) for _ in range(20)][-1], size.rows_max
    (1000, None, 256)
    """

    def __init__(self, rows_max: int, turn_ms: float) -> None:
        """`rows_max`: never more."""
        self._most = rows_max
        self._turn_ms = turn_ms
        self._row_ms = turn_ms / TURN_ROWS_FIRST

    @property
    def rows_max(self) -> int:
        if self._row_ms * self._most <= self._turn_ms:
            return self._most
        return min(self._most, max(TURN_ROWS_MIN, int(self._turn_ms / self._row_ms)))

    def took(self, rows: int, ms: float) -> None:
        """So many rows were a turn."""
        if rows:
            weight = COST_WEIGHT * min(rows / TURN_ROWS_MIN, 1.0)  # few rows say little of what a row costs
            self._row_ms += weight * (ms / rows - self._row_ms)


class Turns:
    """One after the other, of those that want to."""

    def __init__(self) -> None:
        self._last = -1

    def next_of(self, channels: int) -> int | None:
        """The next behind the last one; `channels`: a bit for each that wants a turn."""
        if not channels:
            return None
        behind = self._last + 1
        self._last = _first(channels >> behind << behind or channels)
        return self._last


def members(channels: int) -> Iterator[int]:
    """The numbers of the bits that are set, in order."""
    while channels:
        yield (channel := _first(channels))
        channels &= ~(1 << channel)


def _first(channels: int) -> int:
    return (channels & -channels).bit_length() - 1
