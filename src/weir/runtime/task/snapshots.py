"""A subtask's snapshots, written behind the stream's back.

Comes in: what operators froze. Goes out: state files with checksums, and the
acknowledgement (or the refusal) of the checkpoint. One snapshot of a subtask is
written at a time, so that a sink's epochs are prepared in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weir.errors import code_of
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid
from weir.operators.base import Frozen
from weir.runtime.ports import Background, Clock, Control, Copies, Opener, Storage
from weir.runtime.storage.local_copies import NO_COPIES
from weir.runtime.storage.savepoints import SavepointWriter
from weir.runtime.storage.state_files import CheckpointWriter
from weir.runtime.task.sink_end import SinkEnd
from weir.snapshot.messages import SnapshotDeclined, SnapshotTaken
from weir.snapshot.parts import Json, OperatorPart, Position, StatePart
from weir.state.frozen import FrozenState


@dataclass(frozen=True)
class Said:
    """What a subtask says of itself with its part of a checkpoint, as SnapshotTaken does."""

    in_flight: bool = False
    inputs_ended: bool = False
    time_ended: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The synchronous part of one subtask's snapshot."""

    checkpoint: CheckpointId
    frozen: Mapping[Uid, Frozen]
    prepare: Callable[[], Json] | None
    """Makes the sink's epoch durable; must run whether or not the checkpoint completes."""
    started_ms: float
    savepoint: str | None = field(default=None, repr=False)
    """Where the states are to be exported to, besides."""
    is_stateless: bool = False
    """They are exported only: of the checkpoint itself are positions, and what the sink has to commit."""
    said: Said = Said()


@dataclass(frozen=True)
class _Written:
    """What the background part brought about."""

    parts: tuple[OperatorPart, ...]
    committable: Json
    refusal: str | None
    uploaded_bytes: int = 0
    exported: tuple[OperatorPart, ...] = ()
    export_refused: str | None = None
    code: str = ""
    """Of the error that is the reason for the refusal."""


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
        opener: Opener,
        copies: Copies = NO_COPIES,
        builds_on_others: bool = True,
    ) -> None:
        """`builds_on_others`: what is written may refer to files of the newest complete checkpoint. Not where that may
        be one without state: then it keeps none of theirs."""
        self._subtask = subtask
        self._attempt = attempt
        self._storage = storage
        self._background = background
        self._control = control
        self._clock = clock
        self._sink = sink
        self._opener = opener
        self._copies = copies
        self._builds_on_others = builds_on_others
        self._queue: deque[Snapshot] = deque()
        self._aborted: set[CheckpointId] = set()
        self._unconfirmed: dict[CheckpointId, list[tuple[FrozenState, StatePart]]] = {}
        """Written, and neither complete nor given up; at most as many as checkpoints may be under way."""
        self._busy = False

    def begin(self, snapshot: Snapshot) -> None:
        """Write this snapshot as soon as the ones before it are written."""
        self._queue.append(snapshot)
        self._next()

    def abort(self, checkpoint: CheckpointId) -> None:
        """Do not bother to write the state of this one if it is still in the queue."""
        self._unconfirmed.pop(checkpoint, None)
        if any(s.checkpoint == checkpoint for s in self._queue):
            self._aborted.add(checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint exists: the next ones may refer to its files."""
        for frozen, part in self._unconfirmed.pop(checkpoint, ()):
            if self._builds_on_others:
                frozen.confirmed(part)
        for older in [other for other in self._unconfirmed if other < checkpoint]:
            del self._unconfirmed[older]

    def decline(self, checkpoint: CheckpointId, reason: str, code: str = "") -> None:
        """This subtask will not snapshot for the checkpoint; the driver need not wait for it."""
        self._control.send(SnapshotDeclined(self._attempt, checkpoint, self._subtask, reason, code))

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        snapshot = self._queue.popleft()
        skip = snapshot.checkpoint in self._aborted
        self._aborted.discard(snapshot.checkpoint)
        self._background.run(lambda: self._write(snapshot, skip), lambda result: self._written(snapshot, result))

    def _write(self, snapshot: Snapshot, skip: bool) -> _Written:
        try:
            return self._write_all(snapshot, skip)
        finally:
            for frozen in snapshot.frozen.values():
                for state in frozen.states.values():
                    state.discard(self._background.breathe)

    def _write_all(self, snapshot: Snapshot, skip: bool) -> _Written:
        # First the sink: its epoch is part of every later snapshot, whatever becomes of this one. A failure here
        # loses rows, so it is raised and ends the attempt; a failure to write state only declines the checkpoint.
        committable = snapshot.prepare() if snapshot.prepare else None
        if skip:
            return _Written((), committable, "aborted before it was written")
        if snapshot.savepoint is not None:
            for frozen in snapshot.frozen.values():
                for state in frozen.states.values():
                    state.keep_for_export()
        try:
            parts, uploaded_bytes = self._write_parts(snapshot)
        except OSError as error:
            return _Written((), committable, f"{type(error).__name__}: {error}", code=code_of(error))
        if snapshot.savepoint is None:
            return _Written(parts, committable, None, uploaded_bytes)
        try:
            exported = self._export(snapshot, snapshot.savepoint)
        except Exception as error:
            # A place that cannot be written is the savepoint's trouble, and not the checkpoint's.
            refused = f"{type(error).__name__}: {error}"
            return _Written(parts, committable, None, uploaded_bytes, export_refused=refused)
        return _Written(parts, committable, None, uploaded_bytes, exported)

    def _export(self, snapshot: Snapshot, savepoint: str) -> tuple[OperatorPart, ...]:
        """The same states as whole tables of the savepoint. What the sink has still to commit is not in it: the
        savepoint is published when that is committed."""
        storage = self._opener(savepoint)

        def export(state: FrozenState, uid: Uid, name: str) -> StatePart:
            return state.export(self._writer(SavepointWriter, storage, snapshot, uid, name, copies=NO_COPIES))

        return _parts(snapshot, export)

    def _write_parts(self, snapshot: Snapshot) -> tuple[tuple[OperatorPart, ...], int]:
        """What each operator has put in, and how many bytes were written."""
        uploaded_bytes = 0

        def write(state: FrozenState, uid: Uid, name: str) -> StatePart:
            nonlocal uploaded_bytes
            writer = self._writer(CheckpointWriter, self._storage, snapshot, uid, name, copies=self._copies)
            part = state.write(writer)
            uploaded_bytes += writer.written_bytes
            return part

        if snapshot.is_stateless:
            inlines = [(uid, frozen.inline) for uid, frozen in snapshot.frozen.items()]
            return tuple(OperatorPart(uid, held) for uid, held in inlines if isinstance(held, Position)), 0
        return _parts(snapshot, write), uploaded_bytes

    def _writer(
        self,
        kind: type[CheckpointWriter],
        storage: Storage,
        snapshot: Snapshot,
        uid: Uid,
        state: str,
        *,
        copies: Copies,
    ) -> CheckpointWriter:
        return kind(
            storage,
            snapshot.checkpoint,
            self._attempt,
            uid=uid,
            subtask=self._subtask,
            state=state,
            breathe=self._background.breathe,
            copies=copies,
        )

    def _written(self, snapshot: Snapshot, result: _Written | BaseException) -> None:
        self._busy = False
        for frozen in snapshot.frozen.values():
            for state in frozen.states.values():
                state.released()
        if isinstance(result, BaseException):
            raise result
        parts = result.parts
        if result.refusal is None:
            self._unconfirmed[snapshot.checkpoint] = [
                (snapshot.frozen[part.uid].states[name], state) for part in parts for name, state in part.states.items()
            ]
        if self._sink is not None:
            self._sink.prepared(snapshot.checkpoint, result.committable)
            uid = self._sink.uid
            states = {name: state for part in parts if part.uid == uid for name, state in part.states.items()}
            parts = (*(part for part in parts if part.uid != uid), OperatorPart(uid, self._sink.inline, states))
        if result.refusal is None:
            duration_ms = round(self._clock.now_ms() - snapshot.started_ms)
            self._control.send(
                SnapshotTaken(
                    self._attempt,
                    snapshot.checkpoint,
                    self._subtask,
                    parts,
                    duration_ms,
                    result.exported,
                    result.export_refused,
                    result.uploaded_bytes,
                    self._clock.wall_ms(),
                    **vars(snapshot.said),
                )
            )
        else:
            self.decline(snapshot.checkpoint, result.refusal, result.code)
        self._next()


def _parts(snapshot: Snapshot, write: Callable[[FrozenState, Uid, str], StatePart]) -> tuple[OperatorPart, ...]:
    return tuple(
        OperatorPart(uid, frozen.inline, {name: write(state, uid, name) for name, state in frozen.states.items()})
        for uid, frozen in snapshot.frozen.items()
    )
