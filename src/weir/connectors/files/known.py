"""Files that must not change: what was known of each when it was first seen, and what is found of it now.

Comes in: names as they are listed, opened or restored. Goes out: open files, or a DataError that says what has
changed. Length and time of modification are compared; the content of small files, too, which are read whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from weir.errors import DataError
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.readable import ReadableStorage
from weir.snapshot.parts import Json

SMALL_FILE_BYTES = 65_536
"""Files up to this length are compared by content."""


@dataclass(frozen=True)
class KnownFile:
    """What a file was. `digest`: of the content of a small file, once it was read."""

    size_bytes: int
    modified_us: int | None = None
    digest: int | None = None


class KnownFiles:
    """The files of one reader. It opens them like the storage that it stands for."""

    def __init__(
        self,
        storage: ReadableStorage,
        *,
        where: Callable[[str], str],
        check_modified: bool = True,
        follow_links: bool = False,
    ) -> None:
        self._storage = storage
        self._where = where
        self._check_modified = check_modified
        self._follow_links = follow_links
        self._files: dict[str, KnownFile] = {}

    def as_storage(self) -> ReadableStorage:
        return cast("ReadableStorage", self)

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def restore(self, file: str, size_bytes: int, more: Mapping[str, Json]) -> None:
        """What a checkpoint says of a file; those of an older version say no more than its length."""
        modified_us, digest = more.get(file) or (None, None)
        self._files[file] = KnownFile(size_bytes, modified_us, digest)

    def position(self, files: Iterable[str]) -> dict[str, Json]:
        """What is worth keeping of these files besides their lengths."""
        known = {file: self._files[file] for file in files if file in self._files}
        return {
            file: [one.modified_us, one.digest]
            for file, one in known.items()
            if one.modified_us is not None or one.digest is not None
        }

    def check(self, found: Mapping[str, FileDetails]) -> None:
        """Compare what is listed with what is known of it."""
        for file, details in found.items():
            if file in self._files:
                self._compare(file, self._files[file], details)

    def see(self, file: str, details: FileDetails) -> None:
        """A file is listed, for the first time or again."""
        check_link(file, details, self._where(file), follow=self._follow_links)
        if file in self._files:
            self._compare(file, self._files[file], details)
        elif details.size_bytes:  # one without content is not there yet
            self._files[file] = KnownFile(details.size_bytes, details.modified_us)

    def open_input(self, file: str) -> pa.NativeFile:
        """A file for reading, if it is still what it was."""
        known = self._files.get(file)
        if known is None:
            return self._storage.open_input(file)
        details = self._storage.detail(file)
        check_link(file, details, self._where(file), follow=self._follow_links)
        self._compare(file, known, details)
        opened = self._storage.open_input(file)
        if known.size_bytes > SMALL_FILE_BYTES:
            return opened
        with opened:
            content = opened.read()
        digest = zlib.crc32(content)
        if known.digest is not None and known.digest != digest and len(content) == known.size_bytes:
            raise self._rewritten(file, "has other content than when it was first read")
        self._files[file] = replace(self._files[file], digest=digest)
        return pa.BufferReader(content)

    def _compare(self, file: str, known: KnownFile, found: FileDetails) -> None:
        if known.size_bytes != found.size_bytes:
            raise DataError(
                f"{self._where(file)}: the file had {known.size_bytes} bytes when it was first seen, and has "
                f"{found.size_bytes} now; files must appear whole (write elsewhere, then rename) and never change: "
                f"give the new content a new name"
            )
        if not self._check_modified or None in (known.modified_us, found.modified_us):
            return
        if known.modified_us == found.modified_us:
            return
        if known.digest is None or zlib.crc32(self._storage.open_input(file).read()) != known.digest:
            raise self._rewritten(file, "was written again since it was first seen")
        self._files[file] = replace(known, modified_us=found.modified_us)

    def _rewritten(self, file: str, what: str) -> DataError:
        return DataError(
            f"{self._where(file)}: the file {what}, at the same length; files must never change: give the new content "
            f"a new name. If it was only copied or touched, Files(check_modified=False) takes it for the same"
        )


def are_unchanged(position: Mapping[str, Json], found: Mapping[str, FileDetails], *, check_modified: bool) -> bool:
    """Whether the files that a reader has done with look as it has seen them. Those that do not, a reader looks into;
    those that are gone are nobody's business any more."""
    for split, size_bytes in position["done"].items():
        file = split.rpartition("@")[0]
        details, (modified_us, _) = found.get(file), position.get("files", {}).get(file) or (None, None)
        if details is None:
            continue
        is_touched = None not in (modified_us, details.modified_us) and modified_us != details.modified_us
        if details.size_bytes != size_bytes or (check_modified and is_touched):
            return False
    return True


def check_link(file: str, details: FileDetails, where: str, *, follow: bool) -> None:
    """DataError for a link that leaves the directory, unless that was asked for."""
    if details.leaves_to is not None and not follow:
        raise DataError(
            f"{where}: it is a link to {details.leaves_to}, outside of the directory that is read; "
            f"take it away, or follow such links with Files(follow_links=True)"
        )
