"""Whose turn it is, among several that want one. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Turns:
    """One after the other, of those that want to."""

    def __init__(self) -> None:
        self._last = -1

    def next_of(self, channels: Sequence[int]) -> int | None:
        """The next behind the last one; `channels` are in order."""
        if channels:
            self._last = next((channel for channel in channels if channel > self._last), channels[0])
        return self._last if channels else None
