"""The names of part files, and of the notes of what is committed. Pure functions of names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from weir.ids import CheckpointId
from weir.runtime.storage.layout import LINEAGE_PATTERN
from weir.snapshot.records import seal, unseal

_PART = re.compile(
    rf"part-(?P<lineage>{LINEAGE_PATTERN})-(?P<uid>.+)-(?P<subtask>\d+)-(?P<attempt>\d+)-(?P<epoch>\d+)-(?P<number>\d+)"
    r"\.(?P<kind>\w+)"
)
_NOTE = re.compile(r"(?P<uid>.+)-(?P<checkpoint>\d{10,})-(?P<attempt>\d+)-(?P<subtask>\d+)")


@dataclass(frozen=True)
class PartName:
    """Who wrote a part, and when. Lineage and attempt are in it, so no part ever has the name of another."""

    lineage: str
    uid: str
    subtask: int
    attempt: int
    epoch: int
    number: int
    kind: str

    def __str__(self) -> str:
        return f"part-{self.lineage}-{self.uid}-{self.subtask:05}-{self.attempt}-{self.epoch}-{self.number}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> PartName | None:
        """None for a file that no sink wrote."""
        match = _PART.fullmatch(text)
        if match is None:
            return None
        lineage, uid, subtask, attempt, epoch, number, kind = match.groups()
        return cls(lineage, uid, int(subtask), int(attempt), int(epoch), int(number), kind)


@dataclass(frozen=True)
class CommitNote:
    """A subtask of an attempt commits what a checkpoint holds: its own parts up to an epoch, and those that it has
    inherited from older attempts."""

    lineage: str
    uid: str
    checkpoint: CheckpointId
    attempt: int
    subtask: int
    epoch: int = -1
    inherited: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.uid}-{self.checkpoint:010d}-{self.attempt}-{self.subtask:05}"

    @property
    def body(self) -> bytes:
        return seal({"epoch": self.epoch, "inherited": sorted(self.inherited)})

    def read(self, body: bytes, path: str) -> CommitNote:
        """The note, with what its file holds, or CorruptCheckpoint, which names the file."""
        found = unseal(body, path)
        return replace(self, epoch=found["epoch"], inherited=frozenset(found["inherited"]))

    def tells_of(self, part: PartName) -> bool:
        """Whether this part was there, and was to be committed, when the note was written. Each writer commits its
        parts in the order of its epochs."""
        is_own = (part.uid, part.attempt, part.subtask) == (self.uid, self.attempt, self.subtask)
        return (is_own and part.epoch <= self.epoch) or str(part) in self.inherited

    @classmethod
    def parse(cls, lineage: str, text: str) -> CommitNote | None:
        """The note without what its file holds; None for another name."""
        match = _NOTE.fullmatch(text)
        if match is None:
            return None
        numbers = int(match["attempt"]), int(match["subtask"])
        return cls(lineage, match["uid"], CheckpointId(int(match["checkpoint"])), *numbers)
