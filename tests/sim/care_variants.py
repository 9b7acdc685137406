"""What users do with care, and what it meets, broken on purpose: repairs beside the job, backups put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tests.sim.patching import patched
from weir.ids import CheckpointId
from weir.runtime.ports import Storage
from weir.runtime.storage import fsck, layout
from weir.runtime.storage.attempts import Attempts


def fsck_takes_what_is_under_way() -> AbstractContextManager[None]:
    """Whatever no manifest names is left over, though a checkpoint may be about to."""

    def orphans(below: Storage, named: dict[CheckpointId, set[str]]) -> Iterator[str]:
        used = set().union(*named.values())
        for name in below.list(layout.SHARED):
            if (path := f"{layout.SHARED}/{name}") not in used:
                yield path

    return patched(fsck, "_orphans", orphans)


def own_claim_is_not_looked_at() -> AbstractContextManager[None]:
    """As long as there is a claim with its number, a driver takes it for its own."""
    return patched(Attempts, "_is_anothers", lambda self, attempt, names: False)


CARE_VARIANTS = (
    own_claim_is_not_looked_at,
    fsck_takes_what_is_under_way,
)
