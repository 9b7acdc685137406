"""Local copies of the state files that are written to storage, for a restart on the same host.

Comes in: what was written, and which checkpoint is complete. Goes out: the paths of copies,
found by length and checksum. Copies are a convenience: whatever goes wrong with one, storage
has the file. Bounded by what the last completed checkpoint names. Storage is only read.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable

import pyarrow as pa

from weir.errors import WeirError
from weir.ids import CheckpointId
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.snapshot.manifest import checksum, decode
from weir.snapshot.parts import FileRef

_UNFINISHED = ".unfinished"


class LocalCopies:
    """Copies of state files in a local directory, which all tasks of a run on a host share. `storage`: of the job's
    checkpoints, whose manifests say what is still wanted."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._lock = threading.Lock()
        self._completed: CheckpointId | None = None
        """The last one, as long as the copies before it are not removed."""

    def find(self, file: FileRef) -> str | None:
        """The path of a copy that is exactly what the manifest says, if there is one. One that is not is removed."""
        path = self._path(file.path)
        try:
            if os.path.getsize(path) == file.length_bytes:
                with open(path, "rb") as copy:
                    if checksum(copy.read() if file.length_bytes else b"") == file.checksum:
                        return path
            os.unlink(path)
        except OSError:
            pass
        return None

    def keep_file(self, path: str, local_path: str) -> None:
        """Keep a file that will not be changed in place, by a link if that is possible."""
        self._keep(path, lambda copy: _link_or_copy(local_path, copy))

    def keep(self, path: str, data: pa.Buffer | bytes) -> None:
        def write(copy: str) -> None:
            with open(copy, "wb") as file:
                file.write(data)

        self._keep(path, write)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Copies that belong to no checkpoint from this one on may go; they do with the next file that is kept."""
        self._completed = checkpoint

    def tidy(self) -> None:
        """Remove the copies that no checkpoint wants any more."""
        with self._lock:
            completed, self._completed = self._completed, None
            if completed is None:
                return
            try:
                manifest = decode(self._storage.read(layout.manifest_path(completed)).to_pybytes())
            except (OSError, WeirError):
                return  # it is retired by now; the next one will do
            wanted = {file.path for file in manifest.files}
            for path in self._paths():
                since = _checkpoint_of(path)
                if path not in wanted and (since is None or since <= completed):
                    _unlink(self._path(path))

    def _keep(self, path: str, make: Callable[[str], None]) -> None:
        self.tidy()
        copy = self._path(path)
        # One's own: what another task has begun at this moment is linked to a file that it works with.
        unfinished = f"{copy}.{uuid.uuid4().hex}{_UNFINISHED}"
        try:
            os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
            make(unfinished)
            os.replace(unfinished, copy)
        except OSError:
            _unlink(unfinished)  # the disk is full, say: then there is no copy

    def _path(self, path: str) -> str:
        return os.path.join(self._directory, *path.split("/"))

    def _paths(self) -> list[str]:
        found = []
        for directory, _, names in os.walk(self._directory):
            below = os.path.relpath(directory, self._directory)
            found += [name if below == "." else "/".join([*below.split(os.sep), name]) for name in names]
        return found


class NoCopies:
    """Nothing is kept."""

    def find(self, file: FileRef) -> str | None:
        return None

    def keep(self, path: str, data: pa.Buffer | bytes) -> None:
        pass

    def keep_file(self, path: str, local_path: str) -> None:
        pass

    def completed(self, checkpoint: CheckpointId) -> None:
        pass


NO_COPIES = NoCopies()


def _checkpoint_of(path: str) -> CheckpointId | None:
    """The checkpoint that a state file was written for."""
    directory, _, name = path.partition("/")
    return layout.shared_since(name) if directory == layout.SHARED else layout.checkpoint_of(directory)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
