"""A directory of part files that appear exactly once.

Committed parts lie directly in the directory; pending ones, and the file that
says whose directory it is, lie below `_weir/`, which table readers skip. Comes
in: names and encoded parts. Never looks into the rows.
"""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import CheckpointError, OwnershipError, StorageUnavailable
from weir.operators.base import OperatorContext
from weir.runtime.ports import Storage

OWNER = "_weir/owner.json"
PENDING = "_weir/pending"
FINISH_TRIES_MAX = 3
_NAME = re.compile(r"part-(?P<uid>.+)-(?P<subtask>\d+)-(?P<attempt>\d+)-(?P<epoch>\d+)-(?P<number>\d+)\.(?P<kind>\w+)")


@dataclass(frozen=True)
class PartName:
    """Who wrote a part, and when. The attempt is in it, so no attempt can overwrite another's file."""

    uid: str
    subtask: int
    attempt: int
    epoch: int
    number: int
    kind: str

    def __str__(self) -> str:
        return f"part-{self.uid}-{self.subtask:05}-{self.attempt}-{self.epoch}-{self.number}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> PartName | None:
        """None for a file that no sink wrote."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        uid, subtask, attempt, epoch, number, kind = match.groups()
        return cls(uid, int(subtask), int(attempt), int(epoch), int(number), kind)


def name_of_uid(uid: str) -> str:
    """A uid as part of a file name; two uids never become the same.

    >>> name_of_uid("out"), name_of_uid("my out/1")
    ('out', 'my_out_1~0729b224')
    """
    plain = re.sub(r"[^\w.-]", "_", uid, flags=re.ASCII)
    return plain if plain == uid else f"{plain}~{zlib.crc32(uid.encode()):08x}"


class PartDirectory:
    """The parts at one location."""

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location

    # --- On the driver ---

    def claim(self, *, job: str, sink: str, format: str, resume: bool, overwrite: bool) -> None:
        """Make the directory this job's own, or raise OwnershipError."""
        owner = self._owner()
        where = f"sink {sink!r}: the directory {self._location}"
        if owner is None:
            if self._visible():
                raise OwnershipError(f"{where} holds files that Weir did not write; give an empty or a new directory")
        elif owner.get("job") != job:
            raise OwnershipError(
                f"{where} belongs to job {owner.get('job')!r}, and this is job {job!r}; "
                f"give another directory, or remove this one if its content is not needed"
            )
        elif not resume and overwrite:
            self._clear()
        elif not resume and self._visible():
            raise OwnershipError(
                f"{where} holds output of an earlier run of job {job!r}; go on from its last checkpoint with "
                f"resume=True, replace the output with overwrite=True in the sink, or give another directory"
            )
        elif owner.get("format") != format:
            if self._visible():
                raise OwnershipError(
                    f"{where} holds {owner.get('format')} files, and this sink writes {format}; give another directory"
                )
            self._storage.delete(OWNER)
        if not resume:
            # Left by a run that committed nothing: its attempts may have had the same numbers as ours will have.
            self._storage.delete(PENDING)
        self._take(job=job, sink=sink, format=format)

    def _take(self, *, job: str, sink: str, format: str) -> None:
        mine = {"job": job, "format": format, "version": 1}
        if self._storage.create(OWNER, json.dumps(mine).encode()):
            return
        owner = self._owner()
        if owner is None or owner.get("job") != job:
            raise OwnershipError(
                f"sink {sink!r}: another job took the directory {self._location} just now: {owner}; give another one"
            )

    def _owner(self) -> dict[str, object] | None:
        try:
            content = self._storage.read(OWNER).to_pybytes()
        except FileNotFoundError:
            return None
        try:
            owner = json.loads(content)
        except ValueError:
            owner = None
        if not isinstance(owner, dict):
            raise OwnershipError(
                f"the directory {self._location} has an unreadable {OWNER}: {content[:80]!r}; "
                f"give another directory, or remove this one if its content is not needed"
            )
        return owner

    def _clear(self) -> None:
        """Remove what a sink wrote, and nothing else."""
        for name in self._visible():
            if PartName.parse(name) is None:
                raise OwnershipError(
                    f"overwrite: {self._location}/{name} was not written by a sink; move it elsewhere, or remove it"
                )
        for name in self._visible():
            self._storage.delete(name)
        self._storage.delete(OWNER)

    def _visible(self) -> list[str]:
        return [name for name in self._storage.list("") if not name.startswith(("_", "."))]

    def finish(self) -> None:
        """Every epoch is committed: what is still pending is void."""
        for remaining in reversed(range(FINISH_TRIES_MAX)):
            try:
                self._storage.delete(PENDING)
                return
            except StorageUnavailable as error:
                if not remaining:
                    # The output is complete and readers skip what is left: no reason to fail a job that succeeded.
                    warnings.warn(f"void parts are left in {self._location}/{PENDING}: {error}", stacklevel=2)

    def committed(self) -> list[str]:
        """The names of the committed parts, in the order in which they were written."""
        parts = [part for part in map(PartName.parse, self._storage.list("")) if part is not None]
        parts.sort(key=lambda part: (part.attempt, part.epoch, part.uid, part.subtask, part.number))
        return [str(part) for part in parts]

    def read(self, name: str) -> pa.Buffer:
        """The content of a committed part."""
        return self._storage.read(name)

    def remove_all(self) -> None:
        """Remove everything, the owner's file last."""
        for name in [*self._visible(), "_weir"]:
            self._storage.delete(name)

    # --- In the tasks ---

    def write_pending(self, name: PartName, data: pa.Buffer) -> None:
        self._storage.write(f"{PENDING}/{name}", data)

    def commit(self, names: Sequence[str], sink: str) -> None:
        """Move parts into place. Parts that are there already stay as they are."""
        already: set[str] | None = None
        for name in names:
            try:
                self._storage.move(f"{PENDING}/{name}", name)
            except FileNotFoundError:
                # The move may have happened before, and only its reply, or the task that asked, was lost.
                already = already if already is not None else set(self._storage.list(""))
                if name not in already:
                    raise CheckpointError(
                        f"sink {sink!r}: the part {name} of the checkpoint is neither in {self._location} nor in its "
                        f"{PENDING}: its rows would be lost. Was it moved or deleted? Put it back and resume, or start "
                        f"anew in another directory"
                    ) from None

    def remove_void(self, context: OperatorContext, keep: Iterable[str]) -> None:
        """Remove what the attempt before left pending and no checkpoint will commit: this subtask's share of it.

        Only the attempt before: a part that is older and still pending was handed on from checkpoint to checkpoint,
        perhaps at another parallelism, so that its name no longer tells which subtask has it in `keep`.
        """
        kept = set(keep)
        uid = name_of_uid(context.uid)
        try:
            for text in self._storage.list(PENDING):
                part = PartName.parse(text)
                if part is None or part.uid != uid or text in kept or part.attempt != context.attempt - 1:
                    continue
                if part.subtask % context.parallelism == context.index:
                    self._storage.delete(f"{PENDING}/{text}")
        except StorageUnavailable:
            # Readers skip pending parts; the next attempt, or the end of the job, removes these.
            return
