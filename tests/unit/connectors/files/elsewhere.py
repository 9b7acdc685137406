"""File sources and sinks whose directory is a storage that the test holds."""

from __future__ import annotations

from typing import Any

from weir.config import Settings
from weir.connectors import Files, FileSink
from weir.runtime.ports import Opener, Storage
from weir.runtime.storage.stores.readable import ReadableOpener, ReadableStorage


class FilesIn(Files):
    """`Files` in this storage."""

    def __init__(self, storage: ReadableStorage, **given: Any) -> None:
        self._storage = storage
        super().__init__("storage://of/the/test", **given)

    def opener(self, settings: Settings) -> ReadableOpener:
        return lambda location, create=True: self._storage


class FileSinkIn(FileSink):
    """`FileSink` in this storage."""

    def __init__(self, storage: Storage, format: Any, **given: Any) -> None:
        self._storage = storage
        super().__init__("storage://of/the/test", format, **given)

    def opener(self, settings: Settings) -> Opener:
        return lambda location, create=True: self._storage
