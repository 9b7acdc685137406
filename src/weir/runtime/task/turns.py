"""Whose turn it is, among several that want one. Pure.

Channels are the bits of a number: to find the next of many costs no more than of few.
"""

from __future__ import annotations

from collections.abc import Iterator


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
