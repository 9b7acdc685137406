"""What users do with care, broken on purpose: repairs beside the job, and going on from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tests.sim.patching import patched
from weir.ids import AttemptId, CheckpointId
from weir.runtime import fsck, layout
from weir.runtime.attempts import Attempts
from weir.runtime.ports import Storage
from weir.runtime.sink_desk import SinkDesk


def fsck_takes_what_is_under_way() -> AbstractContextManager[None]:
    """Whatever no manifest names is left over, though a checkpoint may be about to."""

    def orphans(below: Storage, named: dict[CheckpointId, set[str]]) -> Iterator[str]:
        used = set().union(*named.values())
        for name in below.list(layout.SHARED):
            if (path := f"{layout.SHARED}/{name}") not in used:
                yield path

    return patched(fsck, "_orphans", orphans)


def attempts_of_a_backup_come_twice() -> AbstractContextManager[None]:
    """Where checkpoints were brought back from a backup, attempts are counted from what it knows of."""
    return patched(SinkDesk, "traces", lambda self, plan: (CheckpointId(0), AttemptId(0)))


def own_claim_is_not_looked_at() -> AbstractContextManager[None]:
    """As long as there is a claim with its number, a driver takes it for its own."""
    return patched(Attempts, "_is_anothers", lambda self, attempt, names: False)


def attempt_that_may_have_started_is_withdrawn() -> AbstractContextManager[None]:
    """An attempt counts as started when the reply to its note has come."""
    unstarted = Attempts._unstarted

    def hasty(self: Attempts, below: AttemptId) -> list[AttemptId]:
        self._tried = self._started or AttemptId(0)
        return unstarted(self, below)

    return patched(Attempts, "_unstarted", hasty)


CARE_VARIANTS = (
    attempt_that_may_have_started_is_withdrawn,
    own_claim_is_not_looked_at,
    fsck_takes_what_is_under_way,
    attempts_of_a_backup_come_twice,
)
