"""Where things lie in a job's checkpoint directory.

    job.json                              whose directory this is
    attempts/0000000003.claim             attempt 3 has been taken by a driver
    attempts/0000000003.LINEAGE.withdrawn … which gave it up before it did anything: nobody is stopped by it
    attempts/0000000003.LINEAGE.start     … and starts from this checkpoint, in this lineage
    attempts/0000000003.LINEAGE.ids       … and has given out the ids of checkpoints below this one
    attempts/0000000003.LINEAGE.completed … and has told its tasks that this checkpoint is complete
    attempts/0000000003.LINEAGE.finished  … and has ended and committed everything
    savepoints/                           where savepoints go when the user names no other place; never deleted
    LINEAGE/sources/UID/                  what a source keeps for replays
    LINEAGE/chk-0000000012/a3-UID-0-STATE-00000
    LINEAGE/shared/0000000012-a3-UID-0-STATE-00000  written for checkpoint 12, and referred to by later ones
    LINEAGE/chk-0000000012/manifest.json  only with this is it a checkpoint

A lineage is random, attempts and ids only grow in it, and every name of a state file
carries them all: no name is ever used twice, so whatever is written or deleted late
meets nothing of anybody else's. Pure functions of names.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from weir.ids import AttemptId, CheckpointId, Lineage, Uid

JOB_FILE = "job.json"
ATTEMPTS = "attempts"
MANIFEST = "manifest.json"
SOURCES = "sources"
SHARED = "shared"
SAVEPOINTS = "savepoints"

Note = Literal["start", "ids", "completed", "finished", "reserved"]

LINEAGE_PATTERN = r"[0-9a-f]{10}"
_LINEAGE = re.compile(LINEAGE_PATTERN)
_CHECKPOINT = re.compile(r"chk-(\d{10,})")
_STATE = re.compile(r"a\d+-.+")
_SHARED = re.compile(r"(\d{10,})-a\d+-.+")
_CLAIM = re.compile(r"(\d{10,})\.claim")
_WITHDRAWN = re.compile(rf"(\d{{10,}})\.{LINEAGE_PATTERN}\.withdrawn")
_NOTE = re.compile(rf"(\d{{10,}})\.({LINEAGE_PATTERN})\.(start|ids|completed|finished|reserved)")


def new_lineage() -> Lineage:
    """Never drawn before."""
    return Lineage(secrets.token_hex(5))


def is_lineage(name: str) -> bool:
    """Whether this is the directory of one."""
    return _LINEAGE.fullmatch(name) is not None


# --- Attempts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptNote:
    """Something that a driver has noted about an attempt of its own."""

    attempt: AttemptId
    lineage: Lineage
    note: Note

    @property
    def path(self) -> str:
        return f"{ATTEMPTS}/{self.attempt:010d}.{self.lineage}.{self.note}"

    @classmethod
    def parse(cls, name: str) -> AttemptNote | None:
        """None for a name that is none of a note."""
        match = _NOTE.fullmatch(name)
        if match is None:
            return None
        note: Note = match[3]  # type: ignore[assignment]
        return cls(AttemptId(int(match[1])), Lineage(match[2]), note)


def claim_path(attempt: AttemptId) -> str:
    return f"{ATTEMPTS}/{attempt:010d}.claim"


def claimed_attempt(name: str) -> AttemptId | None:
    match = _CLAIM.fullmatch(name)
    return AttemptId(int(match[1])) if match else None


def withdrawal_path(attempt: AttemptId, lineage: Lineage) -> str:
    return f"{ATTEMPTS}/{attempt:010d}.{lineage}.withdrawn"


def withdrawn_attempt(name: str) -> AttemptId | None:
    match = _WITHDRAWN.fullmatch(name)
    return AttemptId(int(match[1])) if match else None


def is_record(name: str) -> bool:
    """Whether a file about attempts is one of ours."""
    return any(known.fullmatch(name) for known in (_CLAIM, _WITHDRAWN, _NOTE))


# --- Below a lineage ------------------------------------------------------------------------------------


def checkpoint_directory(checkpoint: CheckpointId) -> str:
    return f"chk-{checkpoint:010d}"


def manifest_path(checkpoint: CheckpointId) -> str:
    return f"{checkpoint_directory(checkpoint)}/{MANIFEST}"


def state_path(checkpoint: CheckpointId, attempt: AttemptId, name: str) -> str:
    """A file that belongs to this checkpoint alone."""
    return f"{checkpoint_directory(checkpoint)}/{state_prefix(attempt)}{name}"


def shared_path(checkpoint: CheckpointId, attempt: AttemptId, name: str) -> str:
    """A file that later checkpoints may refer to, too; named after the one that it was written for."""
    return f"{SHARED}/{shared_prefix(checkpoint, attempt)}{name}"


def state_name(uid: Uid, index: int, state: str) -> str:
    """What the names of a state's files begin with. Without a dash in the last part no two states have the same."""
    return f"{quote(uid, safe='')}-{index}-{quote(state, safe='').replace('-', '%2D')}"


def shared_prefix(checkpoint: CheckpointId, attempt: AttemptId) -> str:
    """What the names of all shared files begin with that an attempt wrote for a checkpoint."""
    return f"{checkpoint:010d}-{state_prefix(attempt)}"


def shared_since(name: str) -> CheckpointId | None:
    """The checkpoint that a shared file was written for; None: it is none of ours.

    >>> shared_since("0000000012-a3-sum-0-aggregate-00000")
    12
    """
    match = _SHARED.fullmatch(name)
    return CheckpointId(int(match[1])) if match else None


def state_prefix(attempt: AttemptId) -> str:
    """What the names of all state files of an attempt begin with."""
    return f"a{attempt}-"


def is_of_checkpoint(name: str) -> bool:
    """Whether a file in a checkpoint's directory is one of ours."""
    return name == MANIFEST or _STATE.fullmatch(name) is not None


def checkpoint_of(name: str) -> CheckpointId | None:
    """The checkpoint that a directory name stands for.

    >>> checkpoint_of("chk-0000000012"), checkpoint_of("attempts")
    (12, None)
    """
    match = _CHECKPOINT.fullmatch(name)
    return CheckpointId(int(match[1])) if match else None
