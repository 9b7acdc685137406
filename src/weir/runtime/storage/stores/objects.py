"""The `Storage` port over object stores: S3, Google Cloud Storage, Azure.

An object appears whole or not at all, and is durable when the store says so. What is created
once is put on the condition that nothing is there, and decided by reading it back when the store
says that something is: its first reply may have been lost. There are no directories and no
renames: a move is a copy on the same condition, then a delete.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa

from weir.errors import StorageFull, StorageUnavailable
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.files import TEMPORARY, checked
from weir.runtime.storage.stores.ranged_reads import ranged_file
from weir.texts import quoted

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20
"""Larger files are uploaded in parts of this size."""
PARTS_AT_ONCE_MAX = 4
CARRIED_BYTES_MAX = 4 << 20
"""Smaller files are moved through this process, which takes fewer requests than a copy within the store."""
DELETED_AT_ONCE_MAX = 1_000
DELETE_ROUNDS_MAX = 10

_NO_ROOM = re.compile(r"StorageFull|QuotaExceeded|InsufficientCapacity|InsufficientStorage|\b507\b|No space left")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_NO_FILE = ("NoSuchKey", "NoSuchVersion", "NotFound", "BlobNotFound", "PathNotFound", "ResourceNotFound")
_CODE, _MESSAGE = (re.compile(rf"<{name}>([^<]*)</{name}>") for name in ("Code", "Message"))
_QUERY = re.compile(r"(\w+://[^\s?]+)\?\S+")


class ObjectStorage:
    """A directory of a bucket. May be used by many threads."""

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        *,
        location: str,
        secrets: Sequence[str] = (),
        repeating: ObjectStore | None = None,
    ) -> None:
        """`repeating`: the same store, for uploads and copies in parts, each of which it repeats itself."""
        self._store = store
        self._repeating = repeating or store
        self._root = root
        self._location = location
        self._secrets = secrets

    def __repr__(self) -> str:
        return f"ObjectStorage({self._location!r})"

    @property
    def creates_atomically(self) -> bool:
        """Tried out: there are servers that ignore the condition, and some that refuse it."""
        probe = self._at(f"{TEMPORARY}{uuid.uuid4().hex}")
        with self._translated(self._location, "try a conditional put in"):
            try:
                obstore.put(self._store, probe, b"first", mode="create")
                obstore.put(self._store, probe, b"second", mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return bytes(obstore.get(self._store, probe).bytes()) == b"first"
            except (obstore.exceptions.NotSupportedError, NotImplementedError):
                return False
            finally:
                self._delete_file(probe)
        return False

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        with self._translated(self._name(path), "write"):
            self._put(self._at(path), data)

    def publish(self, path: str, data: bytes) -> None:
        with self._translated(self._name(path), "publish"):
            self._put(self._at(path), data)

    def create(self, path: str, data: bytes) -> bool:
        with self._translated(self._name(path), "create"):
            return self._create(self._at(path), data)

    def read(self, path: str) -> pa.Buffer:
        with self._translated(self._name(path), "read"):
            return self._get(self._at(path))

    def list(self, path: str) -> list[str]:
        directories, objects = self._below(path)
        return sorted({*directories, *objects})

    def delete(self, path: str) -> None:
        key = self._at(path)
        with self._translated(self._name(path), "delete"):
            if checked(path):
                self._delete_file(key)
            for _ in range(DELETE_ROUNDS_MAX):
                try:
                    return self._delete_below(key)
                except FileNotFoundError:
                    continue  # another one deletes here, too: look again what is left
            raise StorageUnavailable(f"files vanished in each of {DELETE_ROUNDS_MAX} rounds; who else deletes there?")

    def prune(self, path: str) -> None:
        """There are no directories without files here."""

    def move(self, source: str, target: str) -> None:
        old, new = self._at(source), self._at(target)
        with self._translated(self._name(source), f"move to {self._name(target)}:"):
            if not self._copied(old, new) and not self._are_twins(old, new):
                raise FileExistsError(f"{self._name(target)} is there already, with other content")
            self._delete_file(old)

    def sizes(self, path: str) -> dict[str, int]:
        return {name: item["size"] for name, item in sorted(self._below(path)[1].items())}

    def details(self, path: str) -> dict[str, FileDetails]:
        return {name: _details(item) for name, item in sorted(self._below(path)[1].items())}

    def detail(self, path: str) -> FileDetails:
        with self._translated(self._name(path), "look at"):
            return _details(obstore.head(self._store, self._at(path)))

    def open_input(self, path: str) -> pa.NativeFile:
        with self._translated(self._name(path), "open"):
            head = obstore.head(self._store, self._at(path))

        def fetch(start: int, end: int) -> memoryview:
            # Of one and the same version of the file, whatever happens to it meanwhile.
            options: Any = {"range": (start, end)} | ({"if_match": head["e_tag"]} if head["e_tag"] else {})
            with self._translated(self._name(path), "read"):
                return memoryview(obstore.get(self._store, self._at(path), options=options).bytes())

        return ranged_file(fetch, head["size"])

    def is_file(self, path: str) -> bool:
        if not self._at(path):
            return False
        with self._translated(self._name(path), "look at"):
            try:
                obstore.head(self._store, self._at(path))
            except FileNotFoundError:
                return False
            return True

    def is_directory(self, path: str) -> bool:
        with self._translated(self._name(path), "look at"):
            return any(len(found) for found in obstore.list(self._store, self._at(path) or None, chunk_size=1))

    def _create(self, key: str, data: pa.Buffer | bytes) -> bool:
        try:
            obstore.put(self._store, key, _bytes_of(data), mode="create")
            return True
        except obstore.exceptions.AlreadyExistsError:
            pass
        try:
            return bool(self._get(key) == pa.py_buffer(data))
        except FileNotFoundError:
            raise StorageUnavailable("the store said that it is there, and it is not; try again") from None

    def _put(self, key: str, data: pa.Buffer | bytes) -> None:
        store = self._repeating if len(_bytes_of(data)) > PART_BYTES else self._store
        obstore.put(store, key, _bytes_of(data), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE_MAX)

    def _get(self, key: str) -> pa.Buffer:
        return pa.py_buffer(obstore.get(self._store, key).bytes())

    def _below(self, path: str) -> tuple[set[str], dict[str, ObjectMeta]]:
        """The directories directly below, and the files with what is known of them."""
        with self._translated(self._name(path), "list"):
            found = obstore.list_with_delimiter(self._store, self._at(path) or None)
        directories = {_last(prefix) for prefix in found["common_prefixes"]}
        # Consoles and other tools mark a directory by an empty object that ends with a slash, which is not shown here.
        inside = {_last(item["path"]): item for item in found["objects"] if item["path"] != self._at(path)}
        objects = {name: item for name, item in inside.items() if item["size"] or name not in directories}
        return directories, {name: item for name, item in objects.items() if not name.startswith(TEMPORARY)}

    def _copied(self, old: str, new: str) -> bool:
        """Copy, or False when something has the new name."""
        if obstore.head(self._store, old)["size"] <= CARRIED_BYTES_MAX:
            return self._create(new, self._get(old))
        try:
            obstore.copy(self._repeating, old, new, overwrite=False)
        except obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def _are_twins(self, old: str, new: str) -> bool:
        size = obstore.head(self._store, old)["size"]
        if obstore.head(self._store, new)["size"] != size:
            return False
        for start in range(0, size, PART_BYTES):
            end = min(start + PART_BYTES, size)
            first, second = (obstore.get_range(self._store, key, start=start, end=end) for key in (old, new))
            if memoryview(first) != memoryview(second):
                return False
        return True

    def _delete_below(self, key: str) -> None:
        for found in obstore.list(self._store, key or None, chunk_size=DELETED_AT_ONCE_MAX):
            obstore.delete(self._store, [str(item["path"]) for item in found])

    def _delete_file(self, key: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def _at(self, path: str) -> str:
        return "/".join(part for part in (self._root, checked(path)) if part)

    def _name(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location

    @contextmanager
    def _translated(self, where: str, action: str) -> Iterator[None]:
        """Turn what obstore raises into what the port promises, in one line and without secrets."""
        try:
            yield
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise StorageUnavailable(f"{action} {where}: there is no such bucket") from None
            if (code := _CODE.search(str(error))) and code[1] not in _NO_FILE:
                # Not found was the account, perhaps, and not the file.
                raise StorageUnavailable(f"{action} {where}: {self._redacted(str(error))}") from None
            raise FileNotFoundError(f"{where}: no such file") from None
        except StorageUnavailable as error:
            raise StorageUnavailable(f"{action} {where}: {error}") from None
        except (obstore.exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
            cause = self._redacted(str(error)) or type(error).__name__
            kind = StorageFull if _NO_ROOM.search(str(error)) else StorageUnavailable
            raise kind(f"{action} {where}: {cause}") from None

    def _redacted(self, text: str) -> str:
        # The first line says what happened; below it are the store's own words, as XML, and what is of interest to
        # obstore's authors only.
        for secret in self._secrets:
            text = text.replace(secret, "***")
        said = ": ".join(quoted(found[1]) for part in (_CODE, _MESSAGE) if (found := part.search(text)))
        line = _QUERY.sub(r"\1", quoted(text.split("\n", 1)[0].partition("<?xml")[0].strip()))
        return f"{line} {said.rstrip('.')}".strip()


def _bytes_of(data: pa.Buffer | bytes) -> Any:
    """As obstore wants it."""
    return memoryview(data).cast("B")


def _last(key: str) -> str:
    return key.rpartition("/")[2]


def _details(item: ObjectMeta) -> FileDetails:
    # In whole seconds: some stores list a file's time more exactly than they tell it of the file alone.
    return FileDetails(item["size"], int(item["last_modified"].timestamp()) * 1_000_000)
