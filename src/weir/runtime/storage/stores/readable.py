"""The storage port for those who read parts of files: with sizes, details, and input at any position.

Comes in: nothing. Goes out: the two protocols. Implements nothing; all that the real opener opens is of this kind.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from weir.runtime.ports import Storage
from weir.runtime.storage.stores.details import FileDetails


class ReadableStorage(Storage, Protocol):
    """Storage that also tells sizes and reads parts of files. All that `open_storage` returns is of this kind."""

    def sizes(self, path: str) -> dict[str, int]:
        """The files directly below, with their length in bytes; empty when there is no such directory."""

    def details(self, path: str) -> dict[str, FileDetails]:
        """What is known of the files directly below; empty when there is no such directory."""

    def detail(self, path: str) -> FileDetails:
        """What is known of one file, or FileNotFoundError."""

    def open_input(self, path: str) -> pa.NativeFile:
        """A file for reading at any position, or FileNotFoundError."""

    def is_file(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...


class ReadableOpener(Protocol):
    """An `Opener` of such storage."""

    def __call__(self, location: str, create: bool = True) -> ReadableStorage: ...
