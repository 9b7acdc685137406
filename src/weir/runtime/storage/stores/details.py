"""What storage knows of a file besides its name.

Comes in: nothing, or a path on this machine. Goes out: its length, when it was last written,
and whether it is a link that leaves its directory. Opens nothing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass


@dataclass(frozen=True)
class FileDetails:
    """Of one file. `modified_us` is None where the storage does not tell; `leaves_to`: where a link points, outside
    of its directory."""

    size_bytes: int
    modified_us: int | None = None
    leaves_to: str | None = None


def local_details(place: str) -> FileDetails:
    """Those of a file on this machine, or FileNotFoundError."""
    found = os.lstat(place)
    leaves_to = None
    if stat.S_ISLNK(found.st_mode):
        directory, target = os.path.realpath(os.path.dirname(place)), os.path.realpath(place)
        leaves_to = None if os.path.commonpath([directory, target]) == directory else target
        found = os.stat(place)
    return FileDetails(found.st_size, found.st_mtime_ns // 1_000, leaves_to)
