"""A directory of part files that appear exactly once.

    part-LINEAGE-UID-00003-2-17-0.parquet           a committed part: its reader may compact, move or delete it
    _weir/owner.json                                whose directory this is
    _weir/LINEAGE/owner.json                        … and that this lineage of the job writes to it, in which format
    _weir/LINEAGE/pending/part-…                    a part that no reader sees
    _weir/LINEAGE/commits/UID-0000000012-2-00003    subtask 3 of attempt 2 commits what checkpoint 12 holds

The move of a part into place commits it. Before the first move of a commit a note says which
parts it is about, all of which are there then: a part with a note that is not pending any more
was committed, wherever its reader has put it since. Table readers skip `_weir/`. Comes in: names
and encoded parts. Never looks into the rows.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.connectors.files.part_names import CommitNote, PartName
from weir.errors import CheckpointError, CorruptCheckpoint, OwnershipError, StorageUnavailable
from weir.ids import AttemptId, CheckpointId
from weir.operators.sink import Fence, SinkOwner
from weir.runtime.ports import Storage
from weir.runtime.storage.layout import is_lineage
from weir.snapshot.manifest import checksum

META = "_weir"
OWNER = f"{META}/owner.json"
FINISH_TRIES_MAX = 3


def owner_path(lineage: str) -> str:
    return f"{META}/{lineage}/owner.json"


def pending_directory(lineage: str) -> str:
    return f"{META}/{lineage}/pending"


def notes_directory(lineage: str) -> str:
    return f"{META}/{lineage}/commits"


@dataclass(frozen=True)
class Seal:
    """What a part must be, byte by byte."""

    length_bytes: int
    checksum: str


class PartDirectory:
    """The parts at one location."""

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location

    # --- On the driver ---

    def check(self, owner: SinkOwner, *, format: str, overwrite: bool) -> None:
        """Raise OwnershipError unless the directory is this job's, or may become so. Changes nothing."""
        found, where = self._owner(OWNER), f"sink {owner.name!r}: the directory {self._location}"
        visible = self._visible()
        if found is None:
            if any(PartName.parse(name) is not None for name in visible):
                raise OwnershipError(
                    f"{where} holds parts that a sink wrote, and not its {OWNER}: the directory was moved or emptied "
                    "under the job that writes here. Put its _weir back, with what else is missing, or give another "
                    "directory"
                )
            if visible:
                raise OwnershipError(f"{where} holds files that Weir did not write; give an empty or a new directory")
            return
        if found.get("job") != owner.job:
            raise OwnershipError(
                f"{where} belongs to job {found.get('job')!r}, and this is job {owner.job!r}; "
                f"give another directory, or remove this one if its content is not needed"
            )
        if owner.resume:
            self._check_resumable(owner, where, format=format, visible=visible)
        elif overwrite:
            self._check_ours(visible)
        elif waiting := [life for life in self._strangers(owner) if self._storage.list(pending_directory(life))]:
            raise OwnershipError(
                f"{where} holds rows that another run of job {owner.job!r} has still to commit (_weir/{waiting[0]}), "
                "and whose checkpoints are elsewhere. Resume that run where its checkpoints are, or give another "
                "directory; overwrite=True in the sink deletes all that is here"
            )
        elif visible:
            raise self._filled(owner)

    def adopt(self, owner: SinkOwner, fence: Fence, *, format: str, overwrite: bool) -> None:
        """Make the directory this lineage's own."""
        # Every run of the job creates the same, so the answer may be True for what another has created. It is never
        # replaced: a driver that was overtaken, and does not know, would do so, too.
        self._storage.create(OWNER, json.dumps({"job": owner.job, "version": 3}).encode())
        self.check(owner, format=format, overwrite=overwrite)
        if not owner.resume:
            self._clear_others(owner, fence, overwrite=overwrite)
        fence()
        mine = {"job": owner.job, "format": format, "durable": owner.is_durable}
        self._storage.publish(owner_path(owner.lineage), json.dumps(mine).encode())

    def recover(self, owner: SinkOwner, uid: str, attempt: AttemptId, keep: Iterable[str], fence: Fence) -> None:
        """Remove the parts that attempts before this one have left pending and no checkpoint will commit."""
        kept = set(keep)
        doomed = []
        for text in self._storage.list(pending_directory(owner.lineage)):
            part = PartName.parse(text)
            if part is not None and part.uid == uid and part.attempt < attempt and text not in kept:
                doomed.append(f"{pending_directory(owner.lineage)}/{text}")
        self._delete(doomed, fence)

    def forget(self, owner: SinkOwner, uid: str, oldest: CheckpointId, keep: Iterable[str], fence: Fence) -> None:
        """Remove the notes of attempts that were over when the oldest checkpoint was taken that the job may go back to.
        What that and later ones name, an attempt that ran then has written, or has inherited and noted, unless it is
        still to be committed: that is in `keep`."""
        notes = self._notes(owner.lineage, uid)
        running = max((note.attempt for note in notes if note.checkpoint < oldest), default=0)
        named = [part.attempt for part in map(PartName.parse, keep) if part is not None]
        spent = [note for note in notes if note.attempt < min([running, *named])]
        self._delete([f"{notes_directory(owner.lineage)}/{note}" for note in spent], fence)

    def newest_committed(self, owner: SinkOwner, uid: str) -> CheckpointId | None:
        """The newest checkpoint of which a subtask has begun to commit its share."""
        return max((note.checkpoint for note in self._notes(owner.lineage, uid)), default=None)

    def newest_attempt(self, owner: SinkOwner, uid: str) -> AttemptId | None:
        """The newest attempt that has left a note or a part here, pending or in place."""
        texts = [*self._storage.list(pending_directory(owner.lineage)), *self._storage.list("")]
        parts = [part for part in map(PartName.parse, texts) if part is not None and part.lineage == owner.lineage]
        attempts = [part.attempt for part in parts if part.uid == uid]
        attempts += [note.attempt for note in self._notes(owner.lineage, uid)]
        return AttemptId(max(attempts)) if attempts else None

    def finish(self, owner: SinkOwner, fence: Fence) -> None:
        """Every epoch is committed: what is still pending is void."""
        for remaining in reversed(range(FINISH_TRIES_MAX)):
            try:
                names = self._storage.list(pending_directory(owner.lineage))
                self._delete([f"{pending_directory(owner.lineage)}/{name}" for name in names], fence)
                self._storage.prune(pending_directory(owner.lineage))
                return
            except StorageUnavailable as error:
                if not remaining:
                    # The output is complete and readers skip what is left: no reason to fail a job that succeeded.
                    warnings.warn(f"void parts are left in {self._location}/{META}: {error}", stacklevel=2)

    def committed(self) -> list[str]:
        """The names of the committed parts, in the order in which they were written."""
        parts = [part for part in map(PartName.parse, self._storage.list("")) if part is not None]
        parts.sort(key=lambda part: (part.lineage, part.attempt, part.epoch, part.uid, part.subtask, part.number))
        return [str(part) for part in parts]

    def read(self, name: str) -> pa.Buffer:
        """The content of a committed part."""
        return self._storage.read(name)

    def remove_all(self) -> None:
        """Remove everything, the owner's file last."""
        for name in [*self._visible(), META]:
            self._storage.delete(name)

    # --- In the tasks ---

    def write_pending(self, name: PartName, data: pa.Buffer) -> Seal:
        self._storage.write(f"{pending_directory(name.lineage)}/{name}", data)
        return Seal(data.size, checksum(data))

    def check_whole(self, seals: Mapping[PartName, Seal], sink: str) -> None:
        """CorruptCheckpoint when a pending part is not what its checkpoint names. Those that are committed are not
        looked at: they are their readers'."""
        for name, expected in seals.items():
            path = f"{pending_directory(name.lineage)}/{name}"
            try:
                data = self._storage.read(path)
            except FileNotFoundError:
                continue
            if Seal(data.size, checksum(data)) != expected:
                raise CorruptCheckpoint(
                    f"sink {sink!r}: the part {self._location}/{path} is damaged: it has {data.size} bytes, and the "
                    f"checkpoint names one of {expected.length_bytes} bytes with another checksum. Bring it back from "
                    "a copy and resume; weir run --resume --at goes back to a checkpoint that does not need it"
                )

    def commit(self, names: Sequence[PartName], note: CommitNote, *, before: CommitNote | None, sink: str) -> None:
        """Move parts into place. Nothing is ever replaced. `before`: what the same writer noted last."""
        self._check_there(names, note.lineage, note.uid, sink)
        self._storage.publish(f"{notes_directory(note.lineage)}/{note}", note.body)
        for name in names:
            try:
                self._storage.move(f"{pending_directory(name.lineage)}/{name}", str(name))
            except FileNotFoundError:
                continue  # It was committed before; only the reply, or the task that asked, was lost.
            except FileExistsError:
                raise CheckpointError(
                    f"sink {sink!r}: {self._location} has a file {name} that is not the part of that name; move it "
                    "elsewhere and resume"
                ) from None
        if before is not None and str(before) != str(note):
            self._storage.delete(f"{notes_directory(note.lineage)}/{before}")

    def _check_there(self, names: Sequence[PartName], lineage: str, uid: str, sink: str) -> None:
        """CheckpointError when a part is neither pending, nor committed, nor known to have been."""
        pending = set(self._storage.list(pending_directory(lineage)))
        missing = [name for name in names if str(name) not in pending]
        if missing:
            visible = set(self._storage.list(""))
            missing = [name for name in missing if str(name) not in visible]
        if missing:
            missing = self._not_told_of(missing, lineage, uid, sink)
        if missing:
            raise CheckpointError(
                f"sink {sink!r}: the part {missing[0]} of the checkpoint is neither in {self._location} nor in its "
                f"{pending_directory(lineage)}, and was never committed: its rows would be lost. Was the directory "
                "moved or emptied? Put it back and resume, or start anew in another directory"
            )

    def _not_told_of(self, missing: list[PartName], lineage: str, uid: str, sink: str) -> list[PartName]:
        """Those that no note tells of. A damaged note matters only where no other does."""
        damage: CorruptCheckpoint | None = None
        for note in reversed(self._notes(lineage, uid)):
            if not missing:
                break
            try:
                read = self._read_note(lineage, note, sink)
            except CorruptCheckpoint as error:
                damage = error
                continue
            missing = [name for name in missing if not read.tells_of(name)]
        if missing and damage is not None:
            raise damage
        return missing

    # --- Looking ---

    def _owner(self, path: str) -> dict[str, object] | None:
        """What the owner's file of the directory, or of a lineage, says; None when there is none."""
        try:
            content = self._storage.read(path).to_pybytes()
        except FileNotFoundError:
            return None
        try:
            owner = json.loads(content)
        except ValueError:
            owner = None
        if not isinstance(owner, dict):
            raise OwnershipError(
                f"the directory {self._location} has an unreadable {path}: {content[:80]!r}; "
                f"give another directory, or remove this one if its content is not needed"
            )
        return owner

    def _strangers(self, owner: SinkOwner) -> list[str]:
        """Lineages whose checkpoints are somewhere else: what they have here, their own runs may go on with."""
        others = [name for name in self._storage.list(META) if is_lineage(name) and name not in owner.lives]
        return [name for name in others if name != owner.lineage and self._is_durable(name)]

    def _is_durable(self, lineage: str) -> bool:
        """Whether a run may go on with it. Without its file none can: then it is what was written late, where all was
        deleted."""
        owner = self._owner(owner_path(lineage))
        return owner is not None and bool(owner.get("durable", True))

    def _has_committed(self) -> bool:
        """Whether any lineage has, wherever its reader has put the parts since."""
        return any(self._storage.list(notes_directory(name)) for name in self._storage.list(META) if is_lineage(name))

    def _notes(self, lineage: str, uid: str) -> list[CommitNote]:
        names = self._storage.list(notes_directory(lineage))
        notes = [CommitNote.parse(lineage, name) for name in names]
        return [note for note in notes if note is not None and note.uid == uid]

    def _read_note(self, lineage: str, note: CommitNote, sink: str) -> CommitNote:
        path = f"{notes_directory(lineage)}/{note}"
        try:
            return note.read(self._storage.read(path).to_pybytes(), f"{self._location}/{path}")
        except FileNotFoundError:
            return note  # Replaced just now by one that its writer will have made before: it tells of nothing less.
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"sink {sink!r}: {error}, or start anew in another directory") from error

    def _visible(self) -> list[str]:
        return [name for name in self._storage.list("") if not name.startswith(("_", "."))]

    def _check_resumable(self, owner: SinkOwner, where: str, *, format: str, visible: Sequence[str]) -> None:
        mine = self._owner(owner_path(owner.lineage))
        if mine is None and (visible or self._has_committed()):
            what = "holds" if visible else "has held, as its notes of commits say,"
            raise OwnershipError(
                f"{where} {what} output of job {owner.job!r} whose checkpoints are not where the job looks for them, "
                "so that resuming would write all of it again. Name the directory or URI that has them in "
                "Checkpoints.to; or, to begin anew, start without resume, with overwrite=True in the sink or another "
                "directory"
            )
        if mine is not None and visible and mine.get("format") != format:
            raise OwnershipError(
                f"{where} holds {mine.get('format')} files, and this sink writes {format}; give another directory"
            )

    def _check_ours(self, visible: Sequence[str]) -> None:
        for name in visible:
            if PartName.parse(name) is None:
                raise OwnershipError(
                    f"overwrite: {self._location}/{name} was not written by a sink; move it elsewhere, or remove it"
                )

    def _clear_others(self, owner: SinkOwner, fence: Fence, *, overwrite: bool) -> None:
        """Remove what other lineages wrote: parts that wait for a commit that will never come; with `overwrite`, the
        committed ones, too."""
        spared = {owner.lineage} if overwrite else {owner.lineage, *self._strangers(owner)}
        others = [name for name in self._storage.list(META) if is_lineage(name) and name not in spared]
        # Before the look at what is visible: a task that was left behind may be in its commit, and what it can still
        # move after the look would stay among the rows of this run.
        self._delete(self._within(map(pending_directory, others)), fence)
        visible = [name for name in self._visible() if not name.startswith(f"part-{owner.lineage}-")]
        if overwrite:
            self._check_ours(visible)
            self._delete(visible, fence)
        elif visible:
            raise self._filled(owner)
        self._delete([*self._within(map(notes_directory, others)), *map(owner_path, others)], fence)

    def _within(self, directories: Iterable[str]) -> list[str]:
        return [f"{directory}/{name}" for directory in directories for name in self._storage.list(directory)]

    def _filled(self, owner: SinkOwner) -> OwnershipError:
        return OwnershipError(
            f"sink {owner.name!r}: the directory {self._location} holds output of an earlier run of job "
            f"{owner.job!r}; go on from its last checkpoint with resume=True, replace the output with overwrite=True "
            "in the sink, or give another directory"
        )

    def _delete(self, paths: list[str], fence: Callable[[], None]) -> None:
        if paths:
            fence()
        for path in paths:
            self._storage.delete(path)
