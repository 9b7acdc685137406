"""What the coordinator is about, and what may follow what.

Plain data. Every event is handled in every phase (machine.py); which phase follows is decided
behind it, and here is all that can.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class CoordinatorPhase(Enum):
    """What the coordinator is about."""

    WAITING = "no attempt runs, or not every region's does"
    RUNNING = "checkpoints are taken as set"
    FINISHING = "every subtask has finished; the final checkpoint is under way"
    FAILING = "the attempt was told to fail"
    FINISHED = "the job is done"


_STARTED = "every region's attempt has started"
_ENDED = "an attempt has ended"
_FAILED = "too many checkpoints in a row have failed"

TRANSITIONS: Mapping[tuple[CoordinatorPhase, CoordinatorPhase], str] = {
    (CoordinatorPhase.WAITING, CoordinatorPhase.RUNNING): _STARTED,
    (CoordinatorPhase.WAITING, CoordinatorPhase.FAILING): _FAILED,
    (CoordinatorPhase.RUNNING, CoordinatorPhase.WAITING): _ENDED,
    (CoordinatorPhase.RUNNING, CoordinatorPhase.FINISHING): "every subtask has finished",
    (CoordinatorPhase.RUNNING, CoordinatorPhase.FAILING): _FAILED,
    (CoordinatorPhase.FINISHING, CoordinatorPhase.WAITING): _ENDED,
    (CoordinatorPhase.FINISHING, CoordinatorPhase.RUNNING): _STARTED,
    (CoordinatorPhase.FINISHING, CoordinatorPhase.FAILING): _FAILED,
    (CoordinatorPhase.FINISHING, CoordinatorPhase.FINISHED): "everything is committed",
    (CoordinatorPhase.FAILING, CoordinatorPhase.WAITING): _ENDED,
    (CoordinatorPhase.FAILING, CoordinatorPhase.RUNNING): _STARTED,
}
"""From which to which, and why. Any phase may last."""
