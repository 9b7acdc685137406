"""The `Storage` port over local files.

They are made durable with fsync, of the file and of its directory, and appear
at once by a rename that does not replace (renames.py). Errors leave as
StorageFull, StorageUnavailable, FileNotFoundError or FileExistsError.
"""

from __future__ import annotations

import errno
import filecmp
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from weir.errors import ProtocolViolation, StorageFull, StorageUnavailable, shown
from weir.runtime.storage.stores.details import FileDetails, local_details
from weir.runtime.storage.stores.renames import can_rename_exclusively, rename_exclusively

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_PRUNED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
DIRECTORY_TRIES_MAX = 3
TEMPORARY = ".weir-tmp-"
"""Files that begin like this are half-written and never listed."""

ABANDONED_AFTER_S = 3600.0
"""A temporary file that is older was left by a writer that died: others rename theirs at once."""


def checked(path: str) -> str:
    """A relative path without odd parts: nothing may leave the storage's directory."""
    parts = [part for part in path.split("/") if part]
    if path.startswith("/") or any(part in (".", "..") for part in parts):
        raise ProtocolViolation(f"storage path {path!r} is not a plain relative path")
    return "/".join(parts)


@contextmanager
def translated(path: str, action: str) -> Iterator[None]:
    """Turn an OSError into what the port promises."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageUnavailable):
        raise
    except (OSError, pa.ArrowException) as error:
        cause = str(error) or type(error).__name__
        # A traceback shows the causes, too, and file systems put whole URIs into their messages.
        behind = error if shown(cause) == cause else None
        if getattr(error, "errno", None) in _NO_ROOM:
            raise StorageFull(f"{action} {path}: no room left ({cause})") from behind
        raise StorageUnavailable(f"{action} {path}: {cause}") from behind


@contextmanager
def _leads_nowhere() -> Iterator[None]:
    """What would lie below a file is not there."""
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), error.filename) from None


class LocalStorage:
    """A directory of the local file system, or of one that is mounted."""

    def __init__(self, root: str, create: bool = True) -> None:
        self._root = root
        if create:
            with translated(root, "create directory"):
                _make_directories(root)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    @property
    def creates_atomically(self) -> bool:
        with translated(self._root, "try a rename in"):
            return can_rename_exclusively(self._root, TEMPORARY)

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        target = self._at(path)
        with translated(target, "write"):
            _write_below(target, data)
            _sync_directory(os.path.dirname(target))

    def publish(self, path: str, data: bytes) -> None:
        target = self._at(path)
        with translated(target, "publish"), self._temporary(target, data) as temporary:
            os.replace(temporary, target)
            _sync_directory(os.path.dirname(target))

    def create(self, path: str, data: bytes) -> bool:
        target = self._at(path)
        with translated(target, "create"), self._temporary(target, data) as temporary:
            try:
                rename_exclusively(temporary, target)
            except FileExistsError:
                if not _holds(target, data):
                    return False
            _sync_directory(os.path.dirname(target))
            return True

    def read(self, path: str) -> pa.Buffer:
        with translated(self._at(path), "read"), _leads_nowhere(), open(self._at(path), "rb") as file:
            return pa.py_buffer(file.read())

    def list(self, path: str) -> list[str]:
        with translated(self._at(path), "list"):
            try:
                return sorted(name for name in os.listdir(self._at(path)) if not name.startswith(TEMPORARY))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, path: str) -> None:
        target = self._at(path)
        with translated(target, "delete"), suppress(FileNotFoundError):
            if os.path.isdir(target) and not os.path.islink(target):
                _remove_tree(target)
            else:
                os.unlink(target)
            _sync_directory(os.path.dirname(target))

    def prune(self, path: str) -> None:
        target = self._at(path)
        with translated(target, "remove directory"):
            try:
                _remove_abandoned(target)
                os.rmdir(target)
            except OSError as error:
                if error.errno not in _NOT_PRUNED:
                    raise
                return
            _sync_directory(os.path.dirname(target))

    def move(self, source: str, target: str) -> None:
        old, new = self._at(source), self._at(target)
        with translated(old, f"move to {new}:"):
            _make_directories(os.path.dirname(new))
            try:
                rename_exclusively(old, new)
            except FileNotFoundError:
                _sync_directory(os.path.dirname(new))  # An earlier try may have moved it, and failed to sync.
                raise
            except FileExistsError:
                if not filecmp.cmp(old, new, shallow=False):
                    raise
                os.unlink(old)
            # The new name first: at no time does a crash leave neither.
            _sync_directory(os.path.dirname(new))
            if os.path.dirname(old) != os.path.dirname(new):
                _sync_directory(os.path.dirname(old))

    def sizes(self, path: str) -> dict[str, int]:
        with translated(self._at(path), "list"):
            try:
                entries = os.scandir(self._at(path))
            except (FileNotFoundError, NotADirectoryError):
                return {}
            with entries:
                found = dict(_sizes(entries))
        return {name: found[name] for name in sorted(found) if not name.startswith(TEMPORARY)}

    def open_input(self, path: str) -> pa.NativeFile:
        with translated(self._at(path), "open"), _leads_nowhere():
            return pa.OSFile(self._at(path), "rb")

    def is_file(self, path: str) -> bool:
        return stat.S_ISREG(self._mode(path))

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(self._mode(path))

    def details(self, path: str) -> dict[str, FileDetails]:
        found = {}
        for name in self.sizes(path):
            with suppress(FileNotFoundError), translated(self._at(path), "look at"):  # taken away just now
                found[name] = local_details(os.path.join(self._at(path), name))
        return found

    def detail(self, path: str) -> FileDetails:
        with translated(self._at(path), "look at"), _leads_nowhere():
            return local_details(self._at(path))

    def _mode(self, path: str) -> int:
        """0 when there is nothing. A disk that does not answer is another thing."""
        with translated(self._at(path), "look at"), suppress(FileNotFoundError), _leads_nowhere():
            return os.stat(self._at(path)).st_mode
        return 0

    def _at(self, path: str) -> str:
        return os.path.join(self._root, checked(path)) if checked(path) else self._root

    @contextmanager
    def _temporary(self, target: str, data: bytes) -> Iterator[str]:
        """A durable file beside the target with the content; gone afterwards."""
        temporary = os.path.join(os.path.dirname(target), f"{TEMPORARY}{uuid.uuid4().hex}")
        try:
            _write_below(temporary, data)
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _write_below(path: str, data: pa.Buffer | bytes) -> None:
    """Write a file, and make the directories above it. One that is pruned before the file is in it is made again."""
    for remaining in reversed(range(DIRECTORY_TRIES_MAX)):
        try:
            _make_directories(os.path.dirname(path))
            _write_durably(path, data)
            return
        except FileNotFoundError as error:
            if not remaining:
                raise StorageUnavailable(f"write {path}: its directory is taken away again and again") from error


def _sizes(entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[str, int]]:
    for entry in entries:
        with suppress(FileNotFoundError):  # taken away just now
            if entry.is_file():
                yield entry.name, entry.stat().st_size


def _write_durably(path: str, data: pa.Buffer | bytes) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise


def _holds(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == memoryview(data)
    except FileNotFoundError:
        raise StorageUnavailable(f"create {path}: it was there, and is gone; try again") from None


def _make_directories(path: str) -> None:
    """Make a directory and its parents, each durable in its own parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_directories(parent)
    with suppress(FileExistsError):
        os.mkdir(path)
        _sync_directory(parent)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "there is a file where a directory is needed", path)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(directory: str) -> None:
    with os.scandir(directory) as entries:
        temporaries = [entry for entry in entries if entry.name.startswith(TEMPORARY)]
    for entry in temporaries:
        with suppress(FileNotFoundError):  # it was renamed just now
            if is_abandoned(entry.stat(follow_symlinks=False).st_mtime):
                os.unlink(entry.path)


def is_abandoned(modified_s: float) -> bool:
    """Whether nobody will ever give a temporary file its name."""
    return time.time() - modified_s > ABANDONED_AFTER_S


def _remove_tree(path: str) -> None:
    """Several may delete the same directory at once; what another one took is gone as wanted."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
        with suppress(FileNotFoundError):
            os.rmdir(directory)
