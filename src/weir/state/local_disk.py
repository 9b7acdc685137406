"""What to say when state cannot be written to the local disk. Comes in: what the system said of it."""

from __future__ import annotations

import re
import shutil

from weir.errors import LocalDiskFailed

_NO_ROOM = re.compile(r"No space left|[Qq]uota exceeded|File too large")


def is_full(error: Exception) -> bool:
    """Whether there is no room."""
    return bool(_NO_ROOM.search(str(error)))


def refusal(error: Exception, directory: str, bytes: int | None = None) -> LocalDiskFailed:
    """`bytes`: how many were to be written, where that is known."""
    what = "state" if bytes is None else f"state of {bytes:,} bytes"
    try:
        room = f"{shutil.disk_usage(directory).free:,} bytes are free there"
    except OSError as other:
        room = f"and how much is free there is not known: {other}"
    return LocalDiskFailed(
        f"{what} cannot be written to the local directory {directory}: {error}; {room}. Make room, or choose another "
        "place with RocksDb(directory=…)"
    )
