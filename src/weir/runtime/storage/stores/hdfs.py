"""The `Storage` port over HDFS, by hdfs-native: no Java in this process.

What must appear whole is written aside and renamed; the name node's rename refuses to replace
unless told otherwise, so that of several creators one wins. (Its exclusive create does so, too,
but shows an empty file first.) Servers and accounts come from the URI, HADOOP_CONF_DIR and the
environment (HADOOP_USER_NAME, Kerberos tickets).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from weir.errors import ConfigError, StorageFull, StorageUnavailable
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import TEMPORARY, checked, is_abandoned
from weir.runtime.storage.stores.ranged_reads import ranged_file

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

CLIENT_OPTIONS = {
    # Named here because the client's own defaults keep a caller waiting for three minutes.
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.socket-timeout": "60000",
}
DIRECTORY_MODE = 0o755
PIECE_BYTES = 8 << 20
"""What is copied at once on its way to the data nodes."""

_NO_ROOM = ("QuotaExceeded", "could only be written to 0 of", "No space left", "OutOfSpace")
_NOT_A_DIRECTORY = ("ParentNotDirectoryException", "is not a directory")
_WRITING = ("write", "publish", "create")
"""Where a file that is gone was our own: another writer of the same name has taken it away."""
_LOOKING = ("read", "look at", "open")
"""Where a file that stands in for a directory means that there is nothing."""
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"


def open_hdfs(location: str, shown: str) -> HdfsStorage:
    """The directory of an hdfs:// or viewfs:// URI. Options at its end are Hadoop's settings."""
    try:
        from hdfs_native import Client
    except ImportError:
        raise ConfigError(
            f"storage location {shown!r}: HDFS needs the extra weir[hdfs]; pip install 'weir[hdfs]'"
        ) from None
    uri = urlsplit(location)
    try:
        client = Client(f"{uri.scheme}://{uri.netloc}", CLIENT_OPTIONS | dict(parse_qsl(uri.query)))
    except Exception as error:  # Whatever is wrong with Hadoop's settings; the library has no errors of its own.
        raise ConfigError(f"storage location {shown!r}: {_first_line(error)}") from None
    return HdfsStorage(client, unquote(uri.path).rstrip("/"), location=shown)


class HdfsStorage:
    """A directory of HDFS. May be used by many threads."""

    def __init__(self, client: Client, root: str, *, location: str) -> None:
        self._client = client
        self._root = root
        self._location = location

    def __repr__(self) -> str:
        return f"HdfsStorage({self._location!r})"

    @property
    def creates_atomically(self) -> bool:
        return True

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        with self._translated(self._name(path), "write"):
            self._write(self._at(path), data)

    def publish(self, path: str, data: bytes) -> None:
        with self._translated(self._name(path), "publish"), self._aside(self._at(path), data) as temporary:
            self._client.rename(temporary, self._at(path), True)

    def create(self, path: str, data: bytes) -> bool:
        target = self._at(path)
        with self._translated(self._name(path), "create"), self._aside(target, data) as temporary:
            try:
                self._client.rename(temporary, target, False)
                return True
            except FileExistsError:
                # The client repeats a call whose reply was lost: it may have been this very one.
                return bool(self._read(target) == pa.py_buffer(data))

    def read(self, path: str) -> pa.Buffer:
        with self._translated(self._name(path), "read"):
            return self._read(self._at(path))

    def list(self, path: str) -> list[str]:
        return sorted(map(_name_of, self._below(path)))

    def delete(self, path: str) -> None:
        with self._translated(self._name(path), "delete"):
            self._client.delete(self._at(path), True)

    def prune(self, path: str) -> None:
        with self._translated(self._name(path), "remove directory"):
            if not self.is_directory(path):
                return
            self._remove_abandoned(self._at(path))
            try:
                self._client.delete(self._at(path), False)
            except RuntimeError as error:
                if _NOT_EMPTY not in str(error):
                    raise

    def move(self, source: str, target: str) -> None:
        old, new = self._at(source), self._at(target)
        with self._translated(self._name(source), f"move to {self._name(target)}:"):
            if self._kind(old) is None:
                raise FileNotFoundError(f"{self._name(source)}: no such file")
            self._make_parent(new)
            try:
                self._client.rename(old, new, False)
            except FileExistsError:
                if not self._are_twins(old, new):
                    raise FileExistsError(f"{self._name(target)} is there already, with other content") from None
                self._client.delete(old, False)

    def sizes(self, path: str) -> dict[str, int]:
        return {_name_of(status): status.length for status in self._below(path) if not status.isdir}

    def details(self, path: str) -> dict[str, FileDetails]:
        return {_name_of(status): _details(status) for status in self._below(path) if not status.isdir}

    def detail(self, path: str) -> FileDetails:
        with self._translated(self._name(path), "look at"):
            return _details(self._client.get_file_info(self._at(path)))

    def open_input(self, path: str) -> pa.NativeFile:
        with self._translated(self._name(path), "open"):
            reader = self._client.read(self._at(path))

        def fetch(start: int, end: int) -> bytes:
            with self._translated(self._name(path), "read"):
                return reader.read_range(start, end - start)

        return ranged_file(fetch, len(reader))

    def is_file(self, path: str) -> bool:
        with self._translated(self._name(path), "look at"):
            return self._kind(self._at(path)) == "file"

    def is_directory(self, path: str) -> bool:
        with self._translated(self._name(path), "look at"):
            return self._kind(self._at(path)) == "directory"

    def _write(self, target: str, data: pa.Buffer | bytes) -> None:
        from hdfs_native import WriteOptions

        view = memoryview(data)
        with self._client.create(target, WriteOptions(overwrite=True, create_parent=True)) as file:
            for start in range(0, len(view), PIECE_BYTES):
                # As bytes: the client takes other buffers apart one by one.
                file.write(bytes(view[start : start + PIECE_BYTES]))

    def _read(self, target: str) -> pa.Buffer:
        reader = self._client.read(target)
        return pa.py_buffer(reader.read_range(0, len(reader)) if len(reader) else b"")

    def _below(self, path: str) -> Sequence[FileStatus]:
        with self._translated(self._name(path), "list"):
            try:
                found = list(self._client.list_status(self._at(path), False))
            except FileNotFoundError:
                return []
        # A file lists itself, under its own path.
        inside = [status for status in found if status.path.rstrip("/") != self._at(path)]
        return sorted((status for status in inside if not _name_of(status).startswith(TEMPORARY)), key=_name_of)

    def _remove_abandoned(self, directory: str) -> None:
        with suppress(FileNotFoundError):  # another one has removed it just now
            for status in list(self._client.list_status(directory, False)):
                if _name_of(status).startswith(TEMPORARY) and is_abandoned(status.modification_time / 1_000):
                    self._client.delete(status.path, False)

    def _kind(self, target: str) -> str | None:
        try:
            return "directory" if self._client.get_file_info(target).isdir else "file"
        except FileNotFoundError:
            return None
        except RuntimeError as error:
            if any(text in str(error) for text in _NOT_A_DIRECTORY):
                return None
            raise

    def _are_twins(self, old: str, new: str) -> bool:
        lengths = {self._client.get_file_info(path).length for path in (old, new)}
        return len(lengths) == 1 and self._read(old) == self._read(new)

    def _make_parent(self, target: str) -> None:
        self._client.mkdirs(target.rpartition("/")[0] or "/", DIRECTORY_MODE, True)

    @contextmanager
    def _aside(self, target: str, data: bytes) -> Iterator[str]:
        """A whole file beside the target with the content; gone afterwards."""
        temporary = f"{target.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            self._write(temporary, data)
            yield temporary
        finally:
            with suppress(OSError, RuntimeError):  # what is left of it is listed by nobody
                self._client.delete(temporary, False)

    def _at(self, path: str) -> str:
        return f"{self._root}/{checked(path)}" if checked(path) else self._root or "/"

    def _name(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location

    @contextmanager
    def _translated(self, where: str, action: str) -> Iterator[None]:
        """Turn what the client raises into what the port promises."""
        try:
            yield
        except (FileExistsError, StorageUnavailable):
            raise
        except FileNotFoundError as error:
            if action in _WRITING:
                raise StorageUnavailable(f"{action} {where}: {_first_line(error)}") from None
            raise FileNotFoundError(f"{where}: no such file") from None
        except (OSError, RuntimeError, ValueError) as error:
            text = str(error)
            if action in _LOOKING and any(part in text for part in _NOT_A_DIRECTORY):
                raise FileNotFoundError(f"{where}: no such file") from None
            kind = StorageFull if any(part in text for part in _NO_ROOM) else StorageUnavailable
            raise kind(f"{action} {where}: {_first_line(error)}") from None


def _name_of(status: FileStatus) -> str:
    return status.path.rstrip("/").rpartition("/")[2]


def _first_line(error: BaseException) -> str:
    """Without the name node's stack, which it sends along."""
    text = str(error).replace("\\n", "\n").replace("\\t", "\t")
    return text.split("\n", 1)[0].strip() or type(error).__name__


def _details(status: FileStatus) -> FileDetails:
    return FileDetails(status.length, status.modification_time * 1_000)
