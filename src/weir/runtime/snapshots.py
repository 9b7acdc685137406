"""A subtask's snapshots: written behind the stream's back, and read again on restore.

Comes in: what operators froze. Goes out: state files with checksums, and the
acknowledgement (or the refusal) of the checkpoint. One snapshot of a subtask is
written at a time, so that a sink's epochs are prepared in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, CorruptCheckpoint
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid
from weir.operators.base import KEY_GROUP_COLUMN, Frozen, InlinePart, OperatorContext, Restored, key_group_range
from weir.runtime import layout
from weir.runtime.ports import Background, Clock, Control, Storage
from weir.runtime.sink_end import SinkEnd
from weir.snapshot.manifest import Manifest, checksum
from weir.snapshot.messages import FileRef, Json, OperatorPart, SnapshotDeclined, SnapshotTaken


@dataclass(frozen=True)
class Snapshot:
    """The synchronous part of one subtask's snapshot."""

    checkpoint: CheckpointId
    frozen: Mapping[Uid, Frozen]
    prepare: Callable[[], Json] | None
    """Makes the sink's epoch durable; must run whether or not the checkpoint completes."""
    started_ms: float


@dataclass(frozen=True)
class _Written:
    """What the background part brought about."""

    parts: tuple[OperatorPart, ...]
    committable: Json
    refusal: str | None


class Snapshotter:
    """Writes the snapshots of one subtask, one after the other."""

    def __init__(
        self,
        subtask: SubtaskId,
        attempt: AttemptId,
        *,
        storage: Storage,
        background: Background,
        control: Control,
        clock: Clock,
        sink: SinkEnd | None,
    ) -> None:
        self._subtask = subtask
        self._attempt = attempt
        self._storage = storage
        self._background = background
        self._control = control
        self._clock = clock
        self._sink = sink
        self._queue: deque[Snapshot] = deque()
        self._aborted: set[CheckpointId] = set()
        self._busy = False

    def begin(self, snapshot: Snapshot) -> None:
        """Write this snapshot as soon as the ones before it are written."""
        self._queue.append(snapshot)
        self._next()

    def abort(self, checkpoint: CheckpointId) -> None:
        """Do not bother to write the state of this one if it is still in the queue."""
        if any(s.checkpoint == checkpoint for s in self._queue):
            self._aborted.add(checkpoint)

    def decline(self, checkpoint: CheckpointId, reason: str) -> None:
        """This subtask will not snapshot for the checkpoint; the driver need not wait for it."""
        self._control.send(SnapshotDeclined(self._attempt, checkpoint, self._subtask, reason))

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        snapshot = self._queue.popleft()
        skip = snapshot.checkpoint in self._aborted
        self._aborted.discard(snapshot.checkpoint)
        self._background.run(lambda: self._write(snapshot, skip), lambda result: self._written(snapshot, result))

    def _write(self, snapshot: Snapshot, skip: bool) -> _Written:
        # First the sink: its epoch is part of every later snapshot, whatever becomes of this one. A failure here
        # loses rows, so it is raised and ends the attempt; a failure to write state only declines the checkpoint.
        committable = snapshot.prepare() if snapshot.prepare else None
        if skip:
            return _Written((), committable, "aborted before it was written")
        try:
            parts = tuple(self._write_part(snapshot.checkpoint, uid, frozen) for uid, frozen in snapshot.frozen.items())
        except OSError as error:
            return _Written((), committable, f"{type(error).__name__}: {error}")
        return _Written(parts, committable, None)

    def _write_part(self, checkpoint: CheckpointId, uid: Uid, frozen: Frozen) -> OperatorPart:
        files: dict[str, FileRef] = {}
        for state, build in frozen.tables.items():
            data = encode_table(build())
            path = layout.state_path(checkpoint, self._attempt, uid, self._subtask.index, state)
            self._storage.write(path, data)
            files[state] = FileRef(path, data.size, checksum(data))
        return OperatorPart(uid, frozen.inline, files)

    def _written(self, snapshot: Snapshot, result: _Written | BaseException) -> None:
        self._busy = False
        if isinstance(result, BaseException):
            raise result
        parts = result.parts
        if self._sink is not None:
            self._sink.prepared(snapshot.checkpoint, result.committable)
            parts = (*parts, OperatorPart(self._sink.uid, self._sink.inline))
        if result.refusal is None:
            duration_ms = round(self._clock.now_ms() - snapshot.started_ms)
            self._control.send(SnapshotTaken(self._attempt, snapshot.checkpoint, self._subtask, parts, duration_ms))
        else:
            self.decline(snapshot.checkpoint, result.refusal)
        self._next()


def restored_part(manifest: Manifest, context: OperatorContext, storage: Storage) -> Restored | None:
    """What the checkpoint holds for one operator of one subtask; None when it knows nothing of its uid."""
    operator = manifest.operators.get(context.uid)
    if operator is None:
        return None
    inline = [InlinePart(part.index, operator.parallelism, part.inline) for part in operator.parts]
    own = context.key_groups
    tables: dict[str, list[pa.Table]] = {}
    for part in operator.parts:
        held = key_group_range(part.index, operator.parallelism, manifest.max_parallelism)
        if held.start >= own.stop or own.start >= held.stop:
            continue
        for state, file in part.files.items():
            table = decode_table(_read_file(storage, file), file)
            covered = own.start <= held.start and held.stop <= own.stop
            tables.setdefault(state, []).append(table if covered else _only(table, own))
    return Restored(inline, tables)


def encode_table(table: pa.Table) -> pa.Buffer:
    """A state table as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode_table(data: pa.Buffer, file: FileRef) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptCheckpoint(f"state file {file.path} is not an Arrow file: {error}") from error


def _read_file(storage: Storage, file: FileRef) -> pa.Buffer:
    try:
        data = storage.read(file.path)
    except FileNotFoundError:
        raise CheckpointError(
            f"state file {file.path} is missing although the manifest names it; restore it from a backup or start "
            "from another checkpoint"
        ) from None
    if data.size != file.length_bytes:
        raise CorruptCheckpoint(f"state file {file.path} has {data.size} bytes; the manifest says {file.length_bytes}")
    found = checksum(data)
    if found != file.checksum:
        raise CorruptCheckpoint(f"state file {file.path} has checksum {found}; the manifest says {file.checksum}")
    return data


def _only(table: pa.Table, key_groups: range) -> pa.Table:
    # Rows are sorted by key group, so a subtask's share is one slice.
    groups = table.column(KEY_GROUP_COLUMN).to_numpy()
    start, stop = np.searchsorted(groups, [key_groups.start, key_groups.stop])
    return table.slice(int(start), int(stop - start))
