"""Storage by location: a URI or a local path in, the `Storage` port out.

Also the storage that lives in memory, and the check that a location can be
written. The implementations are in stores/.
"""

from __future__ import annotations

import os
import posixpath
import re
import threading
import uuid
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from weir.errors import ConfigError, JobError, StorageFull, shown
from weir.runtime.ports import Storage
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import TEMPORARY, LocalStorage, checked
from weir.runtime.storage.stores.retry import DEFAULT_PATIENCE, Patience, PatientStorage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_COLON = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/?)")
"""What begins like a URI, and is none. One letter may be a drive."""
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "az")
_HADOOP = ("hdfs", "viewfs")
KNOWN_SCHEMES = ("file", *_OBJECT_STORES, *_HADOOP)

StorageFactory = Callable[[str], Storage]
_registered: dict[str, StorageFactory] = {}


class ReadableStorage(Storage, Protocol):
    """Storage that also tells sizes and reads parts of files. All that `open_storage` returns can be made one."""

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


def register_scheme(scheme: str, factory: StorageFactory) -> None:
    """Let `open_storage` hand URIs of this scheme to `factory`, in this process."""
    _registered[scheme] = factory


def absolute_location(location: str | os.PathLike[str]) -> str:
    """The same place, whatever the working directory of the process that opens it. ConfigError when it is none.

    >>> absolute_location("s3://bucket/out/")
    's3://bucket/out'
    """
    text = os.fspath(location)
    if not text.strip():
        raise ConfigError("an empty string is not a location; give a path or a URI such as s3://bucket/directory")
    if text != text.strip() and not text.startswith(os.sep):  # in which the name of a job may be the last part
        raise ConfigError(
            f"storage location {shown(text)!r} begins or ends with white space: take it away, or write the whole "
            f"path of a directory that is called so"
        )
    if scheme_of(text) is None:
        return os.path.abspath(os.path.expanduser(_path_in(text)))
    if not text.partition("://")[2].partition("?")[0].strip("/"):
        raise ConfigError(f"storage location {shown(text)!r} names no place; write what follows the ://, too")
    return text.rstrip("/") if "?" not in text else text


def _path_in(text: str) -> str:
    """The path in what is no URI. Hadoop writes file:/path; anything else that nearly is one would land in a directory
    of such a name, on this machine, and nobody would look for it there."""
    match = _COLON.match(text)
    scheme = match[1].lower() if match else ""
    if match is None or not (match[2] or scheme in (*KNOWN_SCHEMES, *_registered)):
        return text
    if scheme == "file" and match[2]:
        return text[len("file:") :]
    meant = f"{match[1]}:{'///' if scheme in ('file', *_HADOOP) else '//'}{text[match.end() :]}"
    raise ConfigError(
        f"a storage location begins with {match[1]}:{match[2]} and is neither a URI nor a path: did you mean "
        f"{shown(meant)!r}? A local directory of such a name is ./{match[1]}:{match[2]}…"
    )


def location_below(location: str | os.PathLike[str], name: str) -> str:
    """The place `name` below a location, absolute too; options at the end of a URI stay there.

    >>> location_below("s3://bucket/checkpoints/?region=eu-west-1", "my job")
    's3://bucket/checkpoints/my%20job?region=eu-west-1'
    """
    text = absolute_location(location)
    if scheme_of(text) is None:
        return os.path.join(text, name)
    place, mark, options = text.partition("?")
    return f"{place.rstrip('/')}/{quote(name)}{mark}{options}"


def split_location(location: str) -> tuple[str, str]:
    """The directory that a location lies in, as a location, and its name there.

    >>> split_location("s3://bucket/in/a%20file?endpoint=https://host")
    ('s3://bucket/in?endpoint=https://host', 'a file')
    """
    if scheme_of(location) is None:
        return os.path.split(location)
    place, mark, options = location.partition("?")
    directory, _, name = place.rstrip("/").rpartition("/")
    return f"{directory}{mark}{options}", unquote(name)


def shown_location(location: str | os.PathLike[str]) -> str:
    """A location as messages name it: without the options of a URI, and without credentials.

    >>> shown_location("s3://key:secret@bucket/out?secret_access_key=x")
    's3://…@bucket/out'
    """
    text = os.fspath(location)
    return text if scheme_of(text) is None else shown(text).partition("?")[0].rstrip("/")


def place_of(location: str | os.PathLike[str]) -> tuple[str, ...]:
    """A location as the parts that lead to it: two that mean the same place have the same, however they are written.

    >>> place_of("gcs://bucket/a//b/../c?endpoint=x") == place_of("gs://bucket/a/c/")
    True
    """
    text = absolute_location(location)
    scheme = scheme_of(text)
    if scheme is None or scheme == "file":
        return ("file", *filter(None, os.path.realpath(_local_path(text)).split(os.sep)))
    parts = urlsplit(text)
    path = posixpath.normpath(unquote(parts.path) or "/")
    user, _, host = parts.netloc.rpartition("@")
    kind = {"gcs": "gs", "abfss": "abfs"}.get(scheme, scheme)
    bucket = (user.partition(":")[0], host) if kind == "abfs" else (host,)
    return (kind, *bucket, *filter(None, path.split("/")))


def open_storage(
    location: str | os.PathLike[str], create: bool = True, *, patience: Patience = DEFAULT_PATIENCE
) -> Storage:
    """The storage at a local path or URI; `create` makes the directory when it is not there. It is asked again, with
    `patience`, when a call fails."""
    text = absolute_location(location)
    scheme = scheme_of(text)
    if scheme in _registered:
        return _registered[scheme](text)
    if scheme is None or scheme == "file":
        return PatientStorage(LocalStorage(_local_path(text), create=create), patience)
    if scheme not in KNOWN_SCHEMES:
        raise ConfigError(
            f"storage location {text!r}: the scheme {scheme!r} is not known; "
            f"use a local path or one of {', '.join(f'{known}://' for known in KNOWN_SCHEMES)}"
        )
    return PatientStorage(_open_remote(text, scheme), patience)


def _local_path(text: str) -> str:
    if scheme_of(text) is None:
        return text
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost"):
        raise ConfigError(
            f"storage location {shown(text)!r}: {_host(uri.netloc)!r} would be a host, and files are local; write "
            f"file:///directory, or a path"
        )
    return url2pathname(uri.path)


def _host(authority: str) -> str:
    return authority.rpartition("@")[2].partition(":")[0]


def _open_remote(text: str, scheme: str) -> ReadableStorage:
    if scheme in _HADOOP:
        from weir.runtime.storage.stores.hdfs import open_hdfs

        return open_hdfs(text, shown_location(text))
    from weir.runtime.storage.stores.clouds import open_object_store
    from weir.runtime.storage.stores.objects import ObjectStorage

    opened = open_object_store(text, shown_location(text))
    return ObjectStorage(
        opened.store, opened.root, location=shown_location(text), secrets=opened.secrets, repeating=opened.repeating
    )


def scheme_of(location: str) -> str | None:
    """The scheme of a URI; None for a local path.

    >>> scheme_of("s3://bucket/x"), scheme_of("/tmp/x")
    ('s3', None)
    """
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def open_writable(location: str | os.PathLike[str], what: str, *, patience: Patience = DEFAULT_PATIENCE) -> Storage:
    """Open and probe a location for validation; `what` names it in the JobError."""
    place = f"{what} at {shown_location(location)!r}"
    try:
        storage = open_storage(location, patience=patience)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    except OSError as error:
        raise _not_writable(place, error) from error
    check_writable(storage, place)
    return storage


def claimable(storage: Storage, location: str, *, exclusive: bool) -> Storage:
    """Refuse storage in which two drivers could both take themselves for the owner of a job's checkpoints. `exclusive`:
    the user says that there is only one who writes."""
    try:
        if storage.creates_atomically:
            return storage
    except OSError as error:
        raise _not_writable(
            f"Checkpoints.to: the checkpoint location at {shown_location(location)!r}", error
        ) from error
    if exclusive:
        return Unshared(storage)
    raise ConfigError(
        f"Checkpoints.to: {shown_location(location)!r} cannot create a file atomically, so two drivers of one job "
        f"could not tell which of them owns its checkpoints. Choose other storage, or set "
        f"Checkpoints(exclusive_storage=True) if no other process will ever write there"
    )


def check_writable(storage: Storage, what: str) -> None:
    """Write and delete a probe. A JobError names `what` and the cause when that fails."""
    probe = f"{TEMPORARY}{uuid.uuid4().hex}"  # one's own: others may try the same at this moment
    try:
        storage.write(probe, b"probe")
        storage.delete(probe)
    except OSError as error:
        raise _not_writable(what, error) from error


def _not_writable(what: str, error: OSError) -> JobError:
    return JobError(f"{what} cannot be written: {error}. Choose another location, or make this one writable.")


def readable(storage: Storage) -> ReadableStorage:
    """The storage itself when it can read parts of files; otherwise wrapped so that it reads them whole."""
    if hasattr(storage, "sizes") and hasattr(storage, "open_input"):
        return cast("ReadableStorage", storage)
    return cast("ReadableStorage", _WholeFiles(storage))


class _WholeFiles:
    """A storage with the port's methods only, read file by file."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def sizes(self, path: str) -> dict[str, int]:
        found = {}
        for name in self._storage.list(path):
            try:
                found[name] = len(memoryview(self._storage.read(f"{path}/{name}" if path else name)))
            except FileNotFoundError:
                continue  # a directory
        return found

    def details(self, path: str) -> dict[str, FileDetails]:
        return {name: FileDetails(size) for name, size in self.sizes(path).items()}

    def detail(self, path: str) -> FileDetails:
        return FileDetails(len(memoryview(self._storage.read(path))))

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._storage.read(path))

    def is_file(self, path: str) -> bool:
        if not path:
            return False
        try:
            self._storage.read(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return bool(self._storage.list(path))

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)


class Below:
    """A directory of a storage, as a storage."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = checked(directory)

    @property
    def creates_atomically(self) -> bool:
        return self._storage.creates_atomically

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self._storage.write(self._at(path), data)

    def publish(self, path: str, data: bytes) -> None:
        self._storage.publish(self._at(path), data)

    def create(self, path: str, data: bytes) -> bool:
        return self._storage.create(self._at(path), data)

    def read(self, path: str) -> pa.Buffer:
        return self._storage.read(self._at(path))

    def list(self, path: str) -> list[str]:
        return self._storage.list(self._at(path))

    def delete(self, path: str) -> None:
        self._storage.delete(self._at(path))

    def prune(self, path: str) -> None:
        self._storage.prune(self._at(path))

    def move(self, source: str, target: str) -> None:
        self._storage.move(self._at(source), self._at(target))

    def _at(self, path: str) -> str:
        return f"{self._directory}/{checked(path)}" if path else self._directory


class Unshared(Below):
    """A storage to which nobody else writes: there, who looks first may write then."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, "")

    def create(self, path: str, data: bytes) -> bool:
        try:
            return bool(self.read(path).to_pybytes() == data)
        except FileNotFoundError:
            self.publish(path, data)
            return True

    def _at(self, path: str) -> str:
        return path


class MemoryStorage:
    """A directory in this process's memory, with a limit. Safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._files: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()

    @property
    def creates_atomically(self) -> bool:
        return True

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._used_bytes()

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        # Copied, so that what a caller later does to its own memory changes nothing here.
        buffer = pa.py_buffer(bytes(data))
        with self._lock:
            self._put(checked(path), buffer)

    publish = write

    def create(self, path: str, data: bytes) -> bool:
        buffer = pa.py_buffer(bytes(data))
        with self._lock:
            if checked(path) in self._files:
                return bool(self._get(checked(path)) == buffer)
            self._put(checked(path), buffer)
            return True

    def read(self, path: str) -> pa.Buffer:
        with self._lock:
            return self._get(checked(path))

    def list(self, path: str) -> list[str]:
        prefix = _prefix(path)
        with self._lock:
            return sorted({key[len(prefix) :].split("/")[0] for key in self._files if key.startswith(prefix)})

    def delete(self, path: str) -> None:
        prefix = _prefix(path)
        with self._lock:
            for key in [key for key in self._files if key == checked(path) or key.startswith(prefix)]:
                del self._files[key]

    def prune(self, path: str) -> None:
        """There are no directories without files here."""

    def move(self, source: str, target: str) -> None:
        with self._lock:
            buffer = self._get(checked(source))
            there = self._files.get(checked(target))
            if there is not None and there != buffer:
                raise FileExistsError(f"{target}: another file has this name in memory storage")
            del self._files[checked(source)]
            self._files[checked(target)] = buffer

    def sizes(self, path: str) -> dict[str, int]:
        prefix = _prefix(path)
        with self._lock:
            below = {key[len(prefix) :]: buffer.size for key, buffer in self._files.items() if key.startswith(prefix)}
        return {name: size for name, size in sorted(below.items()) if "/" not in name}

    def details(self, path: str) -> dict[str, FileDetails]:
        return {name: FileDetails(size) for name, size in self.sizes(path).items()}

    def detail(self, path: str) -> FileDetails:
        return FileDetails(self.read(path).size)

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def is_file(self, path: str) -> bool:
        with self._lock:
            return checked(path) in self._files

    def is_directory(self, path: str) -> bool:
        return not checked(path) or bool(self.list(path))

    def _get(self, key: str) -> pa.Buffer:
        if key not in self._files:
            raise FileNotFoundError(f"{key}: no such file in memory storage")
        return self._files[key]

    def _put(self, key: str, buffer: pa.Buffer) -> None:
        replaced = self._files.get(key)
        used_bytes = self._used_bytes() - (0 if replaced is None else replaced.size) + buffer.size
        if used_bytes > self._limit_bytes:
            raise StorageFull(
                f"{key}: {buffer.size} bytes more would make {used_bytes} bytes in memory, above the limit of "
                f"{self._limit_bytes}; raise the limit (Checkpoints.memory_limit) or give a storage location"
            )
        self._files[key] = buffer

    def _used_bytes(self) -> int:
        return sum(buffer.size for buffer in self._files.values())


def _prefix(path: str) -> str:
    return f"{checked(path)}/" if checked(path) else ""
