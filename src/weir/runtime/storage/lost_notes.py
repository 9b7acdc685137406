"""Lineages that have checkpoints, and whose notes about attempts were taken away, all of them or the newest.

Comes in: the storage of a job's directory. Goes out: which lineages those are, and which one
a user means who names a checkpoint to go back to. Changes nothing.
"""

from __future__ import annotations

from weir.errors import CheckpointError
from weir.ids import CheckpointId, Lineage
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.layout import AttemptNote
from weir.snapshot.checkpoints import Listing


def lineages_of(storage: Storage) -> list[Lineage]:
    return [Lineage(name) for name in storage.list("") if layout.is_lineage(name)]


def checkpoints_of(storage: Storage, lineage: Lineage) -> list[CheckpointId]:
    """The checkpoints of a lineage that have a manifest, oldest first."""
    found = [(name, id) for name in storage.list(lineage) if (id := layout.checkpoint_of(name)) is not None]
    return sorted(id for name, id in found if layout.MANIFEST in storage.list(f"{lineage}/{name}"))


def notes_of(storage: Storage) -> list[AttemptNote]:
    return [note for name in storage.list(layout.ATTEMPTS) if (note := AttemptNote.parse(name)) is not None]


def started(notes: list[AttemptNote]) -> set[Lineage]:
    return {note.lineage for note in notes if note.note == "start"}


def lost_lineages(storage: Storage) -> list[Lineage]:
    """Those that a resume ought to go on with, and would not find: their start is not noted, and nothing is newer."""
    # The manifests first: whoever has written one had noted its start.
    filled = [lineage for lineage in lineages_of(storage) if checkpoints_of(storage, lineage)]
    notes = notes_of(storage)
    if not notes:
        return filled
    # What nobody has claimed may be a late note of somebody whose directory was deleted, or the claims are gone, too.
    claimed = {layout.claimed_attempt(name) for name in storage.list(layout.ATTEMPTS)}
    known = [note for note in notes if note.attempt in claimed] or notes
    newest = max(known, key=lambda note: (note.attempt, note.lineage in started(notes))).lineage
    return [] if newest in started(notes) else [newest]


def unnoted(listing: Listing, lineage: Lineage) -> str | None:
    """What is wrong, if the notes do not tell of the attempt that has written the newest checkpoint."""
    found = listing.unnoted
    if found is None:
        return None
    newest = f"{lineage}/{layout.checkpoint_directory(found.checkpoint)}"
    return (
        f"{newest} was written by attempt {found.attempt}, and no note in {layout.ATTEMPTS}/ tells of that or a later "
        "one: notes are gone, or older ones were put in their place, and by what is left a resume would go on from "
        "before it. Bring the newest notes, or go on from the newest checkpoint that is whole "
        f"(weir run --resume --at {newest})"
    )


def lineage_to_go_back_in(
    storage: Storage, job: str, checkpoint: CheckpointId, named: Lineage | None, current: Lineage | None
) -> Lineage | None:
    """The lineage of the checkpoint that a user has named: the one that the notes tell of, or else one whose notes are
    gone. None: there is no such checkpoint."""
    if current is not None and named in (None, current):
        return current
    lost = [lineage for lineage in lost_lineages(storage) if checkpoint in checkpoints_of(storage, lineage)]
    if named in lost:
        return named
    if named is not None:
        raise CheckpointError(
            f"checkpoint {checkpoint} of lineage {named} is none of those that job {job!r} goes on with here (of "
            f"{current}); start from it with --from, where no other run is"
        )
    if len(lost) > 1:
        places = ", ".join(f"{lineage}/{layout.checkpoint_directory(checkpoint)}" for lineage in lost)
        raise CheckpointError(
            f"job {job!r} has several checkpoints {checkpoint}, and what was noted about its attempts is gone: name "
            f"one of them with its lineage (--at {places})"
        )
    return lost[0] if lost else None
