"""Where things lie in a job's checkpoint directory.

    job.json                       whose directory this is
    finished.json                  the run has ended and committed everything
    attempts/0000000003.claim      attempt 3 has been taken by a driver
    attempts/0000000003.json       … and starts from this checkpoint
    sources/UID/                   what a source keeps for replays
    savepoints/                    where savepoints go when the user names no other place; never deleted
    chk-0000000012/a3-UID-0-STATE-00000
    shared/0000000012-a3-UID-0-STATE-00000  written for checkpoint 12, and referred to by later ones
    chk-0000000012/manifest.json   only with this is it a checkpoint
    chk-0000000011/aborted         given up; kept until it is retired, so that its id is not used again

Every name of a state file carries the attempt, so an old attempt's late upload
never replaces a file of a newer one. Pure functions of names.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from weir.ids import AttemptId, CheckpointId, Uid

JOB_FILE = "job.json"
FINISHED_FILE = "finished.json"
ATTEMPTS = "attempts"
ABORTED = "aborted"
MANIFEST = "manifest.json"
SOURCES = "sources"
SHARED = "shared"
SAVEPOINTS = "savepoints"
_CHECKPOINT = re.compile(r"chk-(\d{10,})")
_SHARED = re.compile(r"(\d{10,})-a\d+-")
_CLAIM = re.compile(r"(\d{10,})\.claim")
_START = re.compile(r"(\d{10,})\.json")


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
    """The checkpoint that a shared file was written for.

    >>> shared_since("0000000012-a3-sum-0-aggregate-00000")
    12
    """
    match = _SHARED.match(name)
    return CheckpointId(int(match[1])) if match else None


def state_prefix(attempt: AttemptId) -> str:
    """What the names of all state files of an attempt begin with."""
    return f"a{attempt}-"


def claim_path(attempt: AttemptId) -> str:
    return f"{ATTEMPTS}/{attempt:010d}.claim"


def start_path(attempt: AttemptId) -> str:
    return f"{ATTEMPTS}/{attempt:010d}.json"


def checkpoint_of(name: str) -> CheckpointId | None:
    """The checkpoint that a directory name stands for.

    >>> checkpoint_of("chk-0000000012"), checkpoint_of("attempts")
    (12, None)
    """
    match = _CHECKPOINT.fullmatch(name)
    return CheckpointId(int(match[1])) if match else None


def claimed_attempt(name: str) -> AttemptId | None:
    match = _CLAIM.fullmatch(name)
    return AttemptId(int(match[1])) if match else None


def started_attempt(name: str) -> AttemptId | None:
    match = _START.fullmatch(name)
    return AttemptId(int(match[1])) if match else None
