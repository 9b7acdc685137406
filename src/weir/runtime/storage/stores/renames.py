"""A rename of a local file that never replaces another one.

Comes in: two paths of one file system. Goes out: the file under its new name, or
FileExistsError. Linux and macOS have a call for this; elsewhere, and on file systems
that lack it, a hard link and an unlink do, with both names for a moment in between.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCL = 4
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)

_ExclusiveRename = Callable[[bytes, bytes], int]


def rename_exclusively(source: str, target: str) -> None:
    """Rename; FileExistsError, and nothing changed, when the new name is taken."""
    rename = _system_call()
    if rename is not None:
        if rename(os.fsencode(source), os.fsencode(target)) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NOT_SUPPORTED:
            raise OSError(code, os.strerror(code), source, None, target)
    os.link(source, target)
    os.unlink(source)


def can_rename_exclusively(directory: str, prefix: str) -> bool:
    """Whether the file system of this directory knows either way. Leaves nothing behind."""
    first, second = (os.path.join(directory, f"{prefix}{uuid.uuid4().hex}") for _ in range(2))
    try:
        for name in (first, second):
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            rename_exclusively(first, second)
        except FileExistsError:
            return True
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return False
            raise
        return False
    finally:
        for name in (first, second):
            with suppress(FileNotFoundError):
                os.unlink(name)


def _system_call() -> _ExclusiveRename | None:
    """None where the C library has no such call."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        if sys.platform == "darwin":
            exclusive = library.renamex_np
            return lambda source, target: int(exclusive(source, target, _RENAME_EXCL))
        at = library.renameat2
        return lambda source, target: int(at(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_NOREPLACE))
    except AttributeError:
        return None
