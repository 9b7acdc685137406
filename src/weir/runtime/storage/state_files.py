"""The files of a subtask's state in storage: written into a checkpoint, and read out of one.

Comes in: the storage port, the local copies if there are any, and what operators froze. Goes out: files with length and
checksum, which are checked again when they are read. Knows no format of any file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid
from weir.operators.base import OperatorContext, Restored, RestoredInline, key_group_range
from weir.runtime.ports import Copies, Storage
from weir.runtime.storage import layout
from weir.runtime.storage.local_copies import NO_COPIES
from weir.snapshot.manifest import Manifest, checksum
from weir.snapshot.parts import FileRef
from weir.state.frozen import RestoredPart, RestoredParts, RestoredState
from weir.state.local_disk import refusal
from weir.state.operator_state import RestoredOperatorState, redistribution_of


class CheckpointWriter:
    """Puts the files of one state of one operator of one subtask into a checkpoint."""

    def __init__(
        self,
        storage: Storage,
        checkpoint: CheckpointId,
        attempt: AttemptId,
        *,
        uid: Uid,
        subtask: SubtaskId,
        state: str,
        breathe: Callable[[], None],
        copies: Copies = NO_COPIES,
    ) -> None:
        self._storage = storage
        self._copies = copies
        self._checkpoint = checkpoint
        self._attempt = attempt
        self._name = layout.state_name(uid, subtask.index, state)
        self._breathe = breathe
        self.written_bytes = 0

    def put(self, name: str, data: pa.Buffer | bytes, *, shared: bool = False) -> FileRef:
        path = self._path(name, shared)
        self._storage.write(path, data)
        self._copies.keep(path, data)
        return self._written(path, data)

    def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
        path = self._path(name, shared)
        with pa.memory_map(local_path) as file:
            data = file.read_buffer()
            self._storage.write(path, data)
            self._copies.keep_file(path, local_path)
            return self._written(path, data)

    def _written(self, path: str, data: pa.Buffer | bytes) -> FileRef:
        length_bytes = memoryview(data).nbytes
        self.written_bytes += length_bytes
        return FileRef(path, length_bytes, checksum(data, between=self._breathe))

    def _path(self, name: str, shared: bool) -> str:
        directory = layout.shared_path if shared else layout.state_path
        return directory(self._checkpoint, self._attempt, f"{self._name}-{name}")

    def breathe(self) -> None:
        self._breathe()


class CheckpointFiles:
    """Files of a checkpoint, each checked against what the manifest says of it."""

    def __init__(
        self, storage: Storage, copies: Copies = NO_COPIES, was_read: Callable[[int], None] = lambda length_bytes: None
    ) -> None:
        """`was_read`: told of each file, how long it is."""
        self._storage = storage
        self._copies = copies
        self._was_read = was_read

    def read(self, file: FileRef) -> pa.Buffer:
        data = self._read(file)
        self._was_read(file.length_bytes)
        return data

    def _read(self, file: FileRef) -> pa.Buffer:
        copy = self._copies.find(file)
        if copy is not None:
            with pa.OSFile(copy) as local:
                return local.read_buffer()
        try:
            data = self._storage.read(file.path)
        except FileNotFoundError:
            raise CheckpointError(
                f"state file {file.path} is missing although the manifest names it; restore it from a backup or start "
                "from another checkpoint"
            ) from None
        check_file(data, file)
        return data

    def fetch(self, file: FileRef, local_path: str) -> None:
        copy = self._copies.find(file)
        if copy is not None:
            try:
                os.link(copy, local_path)
                self._was_read(file.length_bytes)
                return
            except OSError:
                pass  # on another disk, or removed just now
        content = self.read(file)
        try:
            with open(local_path, "wb") as fetched:
                fetched.write(content)
        except OSError as error:
            raise refusal(error, os.path.dirname(local_path), content.size) from error
        if copy is None:
            self._copies.keep_file(file.path, local_path)


def check_file(data: pa.Buffer, file: FileRef) -> None:
    """CorruptCheckpoint when the content is not what the manifest says."""
    if data.size != file.length_bytes:
        raise CorruptCheckpoint(f"state file {file.path} has {data.size} bytes; the manifest says {file.length_bytes}")
    found = checksum(data)
    if found != file.checksum:
        raise CorruptCheckpoint(f"state file {file.path} has checksum {found}; the manifest says {file.checksum}")


class ForeignParts(RestoredParts):
    """Parts that lie in another job's storage, or in a savepoint: no checkpoint of this job may refer to their files,
    so that they are only read as tables."""

    @property
    def whole(self) -> RestoredPart | None:
        return None


def restored_part(
    manifest: Manifest,
    context: OperatorContext,
    storage: Storage,
    *,
    copies: Copies = NO_COPIES,
    is_own: bool = True,
    was_read: Callable[[int], None] = lambda length_bytes: None,
) -> Restored | None:
    """What the checkpoint holds for one operator of one subtask; None when it knows nothing of its uid."""
    operator = manifest.operators.get(context.uid)
    if operator is None:
        return None
    inline = [RestoredInline(part.index, operator.parallelism, part.inline) for part in operator.parts]
    own = context.key_groups
    files = CheckpointFiles(storage, copies, was_read)
    found: dict[str, list[RestoredPart]] = {}
    dealt: dict[str, list[RestoredPart]] = {}
    for part in operator.parts:
        held = key_group_range(part.index, operator.parallelism, manifest.max_parallelism)
        for name, state in part.states.items():
            if redistribution_of(state.detail) is not None:
                dealt.setdefault(name, []).append(RestoredPart(state, held, files))
            elif held.start < own.stop and own.start < held.stop:
                found.setdefault(name, []).append(RestoredPart(state, held, files))
    kind = RestoredParts if is_own else ForeignParts
    states: dict[str, RestoredState] = {name: kind(parts, own) for name, parts in found.items()}
    for name, parts in dealt.items():
        redistribute = redistribution_of(parts[0].part.detail) or ""
        states[name] = RestoredOperatorState(parts, redistribute, context.index, context.parallelism, is_own)
    return Restored(inline, states)
