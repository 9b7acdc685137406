"""What is known of the files of a directory besides their names.

Comes in: a storage and a path. Goes out: lengths, and where the storage tells, when a file was last written
and whether it is a link that leaves the directory. Opens nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from weir.runtime.ports import Storage
from weir.runtime.storage import readable


@dataclass(frozen=True)
class FileDetails:
    """Of one file. `modified_us` is None where the storage does not tell; `leaves_to`: where a link points, outside
    of its directory."""

    size_bytes: int
    modified_us: int | None = None
    leaves_to: str | None = None


class DetailedStorage(Protocol):
    """Storage that tells more than lengths."""

    def local_path(self, path: str) -> str:
        """Where a path lies on this machine."""


def details_below(storage: Storage, path: str) -> dict[str, FileDetails]:
    """The files directly below, by name."""
    if not hasattr(storage, "local_path"):
        return {name: FileDetails(size) for name, size in readable(storage).sizes(path).items()}
    directory = cast("DetailedStorage", storage).local_path(path)
    sizes = readable(storage).sizes(path)
    found: dict[str, FileDetails] = {}
    if not sizes:
        return found
    with os.scandir(directory) as entries:
        for entry in (entry for entry in entries if entry.name in sizes):
            with suppress(FileNotFoundError):  # taken away just now
                found[entry.name] = _details(entry.path, entry.stat(), entry.is_symlink())
    return found


def details_of(storage: Storage, path: str, size_bytes: int) -> FileDetails:
    """Those of one file, whose length is known."""
    if not hasattr(storage, "local_path"):
        return FileDetails(size_bytes)
    place = cast("DetailedStorage", storage).local_path(path)
    own = os.lstat(place)
    is_link = stat.S_ISLNK(own.st_mode)
    return _details(place, os.stat(place) if is_link else own, is_link)


def _details(place: str, found: os.stat_result, is_link: bool) -> FileDetails:
    leaves_to = None
    if is_link:
        directory, target = os.path.realpath(os.path.dirname(place)), os.path.realpath(place)
        leaves_to = None if os.path.commonpath([directory, target]) == directory else target
    return FileDetails(found.st_size, found.st_mtime_ns // 1_000, leaves_to)
