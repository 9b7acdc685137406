"""A file that is read piece by piece from somewhere else, as a pyarrow file.

Comes in: a function that fetches a range of bytes, and the file's length. Goes out: a
file that can be read at any position, with some read-ahead. Never keeps more than that.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa

READ_AHEAD_BYTES = 1 << 20

Fetch = Callable[[int, int], "bytes | memoryview"]
"""The bytes from a first position to a last one, which is not part of them."""


class RangedFile(pa.PythonFile):  # type: ignore[misc]
    """A file that knows how it is read, so that others can put something around that."""

    fetch: Fetch


def ranged_file(fetch: Fetch, size_bytes: int) -> RangedFile:
    """A file of this length, read through `fetch`; an error of it is an error of the read."""
    file = RangedFile(io.BufferedReader(_Ranges(fetch, size_bytes), READ_AHEAD_BYTES), mode="r")
    file.fetch = fetch
    return file


class _Ranges(io.RawIOBase):
    def __init__(self, fetch: Fetch, size_bytes: int) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._size_bytes)
        if end <= self._position:
            return 0
        piece = memoryview(self._fetch(self._position, end))
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)
