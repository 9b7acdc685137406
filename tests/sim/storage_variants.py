"""Deletion, claims and names, broken on purpose: each variant is a way to lose what was safe in storage."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.sim import drivers
from tests.sim.patching import all_of, patched
from tests.sim.storage import SimDirectory
from weir.errors import CheckpointError, OwnershipError, StorageFull, StorageUnavailable
from weir.ids import CheckpointId
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.retirement_desk import RetirementDesk
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.storage import checkpoints as checkpoint_store
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import Attempts
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.retirement import Retirement
from weir.snapshot.checkpoints import Listing
from weir.snapshot.manifest import encode
from weir.state.columns.segments.snapshot import FrozenSegments

# --- Retirement -------------------------------------------------------------------------------------------


def retirements_overlap_and_look_once() -> AbstractContextManager[None]:
    """Each retirement runs as soon as it is asked for, and believes what it saw when it began."""

    def retire(self: RetirementDesk, oldest_kept: CheckpointId) -> None:
        self._background.run(lambda: self._store.retire(oldest_kept), lambda result: None)

    def fenced(self: Retirement) -> None:
        self._attempts.check_newest()
        _retire_by_one_look(self)

    return all_of(patched(RetirementDesk, "retire", retire), patched(Retirement, "retire_again", fenced))


def thawed_driver_goes_on_retiring() -> AbstractContextManager[None]:
    """A retirement believes what it saw when it began, and nobody asks whether another has taken over since."""
    return patched(Retirement, "retire_again", _retire_by_one_look)


def _retire_by_one_look(self: Retirement) -> None:
    kept = []
    for name in self._storage.list(""):
        checkpoint = layout.checkpoint_of(name)
        if checkpoint is not None and checkpoint < self._oldest_kept:
            self._storage.delete(layout.manifest_path(checkpoint))
            self._storage.delete(name)
        elif checkpoint is not None:
            kept.append(checkpoint)
    used: set[str] = set()
    for checkpoint in kept:
        if layout.MANIFEST in self._storage.list(layout.checkpoint_directory(checkpoint)):
            used.update(self._shared_files(checkpoint))
    for name in self._storage.list(layout.SHARED):
        since = layout.shared_since(name)
        if since is not None and since < self._oldest_kept and f"{layout.SHARED}/{name}" not in used:
            self._storage.delete(f"{layout.SHARED}/{name}")


def retired_by_a_driver_that_was_overtaken() -> AbstractContextManager[None]:
    """A driver goes on publishing and retiring until it learns of its successor by itself."""
    publish = CheckpointStore.publish

    def unfenced(self: CheckpointStore, manifest: Any) -> None:
        try:
            publish(self, manifest)
        except OwnershipError:
            self._retirement.retire(manifest.checkpoint)
            raise

    return all_of(
        patched(CheckpointStore, "publish", unfenced),
        patched(Retirement, "retire_again", _retire_by_one_look),
    )


def fresh_start_clears_before_it_claims() -> AbstractContextManager[None]:
    """Whoever starts without resume deletes what is there as soon as it has found nothing to resume."""
    adopt, listing = CheckpointStore.adopt, CheckpointStore.check_free

    def clear(self: CheckpointStore, run: str, resume: bool) -> None:
        listing(self, resume)
        if not resume:
            for name in self._directory.list(""):
                if layout.is_lineage(name):
                    self._directory.delete(name)
        adopt(self, run, resume)

    return patched(CheckpointStore, "adopt", clear)


# --- Checkpoints ------------------------------------------------------------------------------------------


def overlapping_checkpoints_keep_the_first_path() -> AbstractContextManager[None]:
    """A segment is named where the first checkpoint has put it, although newer ones have copies."""

    def confirmed(self: FrozenSegments, part: Any) -> None:
        for frozen in self._each():
            frozen.segment.file = frozen.segment.file or part.files.get(frozen.segment.name)

    return patched(FrozenSegments, "confirmed", confirmed)


def missing_manifest_is_not_missed() -> AbstractContextManager[None]:
    """With the newest manifest gone, the job goes on from the one before, in silence."""
    return patched(Listing, "missing", property(lambda self: None))


def ids_are_counted_from_what_is_there() -> AbstractContextManager[None]:
    """Ids that were given out, and of which storage shows nothing any more, are given out again."""

    def above(self: Listing, own: Any = None) -> CheckpointId:
        return CheckpointId(max([0, *(entry.checkpoint for entry in self.published)]) + 1)

    return patched(Listing, "next_checkpoint", above)


def completion_is_noted_before_it_is_so() -> AbstractContextManager[None]:
    """It is noted that a checkpoint is complete, and then its manifest is written."""
    original = CheckpointStore.publish

    def publish(self: CheckpointStore, manifest: Any) -> None:
        self._attempts.note(manifest.attempt, "completed", {"checkpoint": manifest.checkpoint})
        original(self, manifest)

    return patched(CheckpointStore, "publish", publish)


def going_back_shares_the_old_files() -> AbstractContextManager[None]:
    """The first checkpoint after going back names the files of the one that was gone back to."""

    def same_files(storage: Any, manifest: Any, copy: CheckpointId, attempt: Any) -> Any:
        return replace(manifest, checkpoint=copy, attempt=attempt)

    return patched(checkpoint_store, "copied", same_files)


def going_back_counts_from_there() -> AbstractContextManager[None]:
    """Going back deletes what is newer, and uses its ids again."""

    def copied(self: CheckpointStore, listing: Listing, back_to: CheckpointId, attempt: Any, given_out: Any) -> Any:
        for entry in listing.published:
            if entry.checkpoint > back_to:
                self._storage.delete(layout.checkpoint_directory(entry.checkpoint))
        manifest = replace(self.read(back_to), checkpoint=CheckpointId(back_to + 1), attempt=attempt)
        if not self._storage.create(layout.manifest_path(manifest.checkpoint), encode(manifest)):
            raise CheckpointError(f"checkpoint {manifest.checkpoint} is there already; try once more")
        return manifest

    return patched(CheckpointStore, "_copied", copied)


def no_room_is_believed() -> AbstractContextManager[None]:
    """A manifest that found no room is not there, whatever was lost on the way."""
    original = CheckpointStore.publish

    def publish(self: CheckpointStore, manifest: Any) -> None:
        create = self._storage.create

        def believed(path: str, data: bytes) -> bool:
            try:
                return create(path, data)
            except StorageFull as error:
                raise FileExistsError(str(error)) from error

        self._storage.create = believed  # type: ignore[method-assign]
        try:
            original(self, manifest)
        finally:
            del self._storage.create

    return patched(CheckpointStore, "publish", publish)


def late_publication_is_noted() -> AbstractContextManager[None]:
    """A driver takes a manifest for complete although its next attempt has begun meanwhile."""
    original = CheckpointStore.publish

    def publish(self: CheckpointStore, manifest: Any) -> None:
        try:
            original(self, manifest)
        except StorageUnavailable as error:
            if "has begun meanwhile" not in str(error):
                raise
            self._attempts.note(manifest.attempt, "completed", {"checkpoint": manifest.checkpoint})

    def missing(self: Listing) -> CheckpointId | None:
        known = max((entry.checkpoint for entry in self.completed), default=None)
        return known if known is not None and (self.newest is None or self.newest < known) else None

    return all_of(patched(CheckpointStore, "publish", publish), patched(Listing, "missing", property(missing)))


def attempts_that_never_started_count() -> AbstractContextManager[None]:
    """A copy that somebody wanted to go back to counts, although that start broke off."""
    original = Listing._descent

    def descent(self: Listing) -> Any:
        line = list(original(self))
        started = {start.attempt for start in self.starts}
        newest = max(started, default=0)
        yield from ((entry.attempt, math.inf) for entry in self.published if entry.attempt > newest)
        yield from line

    return patched(Listing, "_descent", descent)


# --- Claims -----------------------------------------------------------------------------------------------


def create_looks_and_then_writes() -> AbstractContextManager[None]:
    """Two who create the same file at once both believe that it is theirs, and nobody looks at it again."""

    def create(self: SimDirectory, path: str, data: bytes) -> bool:
        if path.rpartition("/")[2] in self.list(path.rpartition("/")[0]):
            return False
        self.publish(path, data)
        return True

    return all_of(patched(SimDirectory, "create", create), fenced_by_numbers_only())


def fenced_by_numbers_only() -> AbstractContextManager[None]:
    """A driver whose directory was deleted goes on, as long as nobody has a newer attempt."""
    return patched(Attempts, "_check_there", lambda self, names: None)


def own_claim_is_taken_for_a_strangers() -> AbstractContextManager[None]:
    """A claim whose reply was lost is somebody else's, and ends the job."""
    return patched(Attempts, "_is_of", lambda self, attempt, runs: False)


def late_start_takes_the_job_over() -> AbstractContextManager[None]:
    """Whoever claims first is the newest, however long ago it was started, and whether it has ended since."""

    def begin(self: Attempts, run: str) -> None:
        self._run = run

    def check(self: Attempts, claimed: Any) -> None:
        newer = [attempt for attempt in claimed if self.own is not None and attempt > self.own]
        if not all(self._is_of(attempt, {self._run}) for attempt in newer):
            raise self._overtaken(max(newer))

    return all_of(
        patched(Attempts, "begin", begin),
        patched(Attempts, "_check_first", check),
        patched(Attempts, "_check_open", lambda self: None),
    )


def resume_begins_a_new_lineage() -> AbstractContextManager[None]:
    """Nobody looks which lineage is there to be resumed."""
    return patched(drivers, "current_lineage", lambda storage: None)


def overtaken_driver_reports_finished() -> AbstractContextManager[None]:
    """That another has taken over is no reason not to say that the job is finished, and to tidy up."""

    def finish(self: ClaimDesk, plan: Any, done: Any, *, drained: bool) -> None:
        def tidy_up() -> None:
            try:
                self._store.finish(drained=drained)
            except OwnershipError:
                pass
            SinkDesk(self._config, self._store.lineage, lambda: None).finish(plan)

        self._background.run(tidy_up, done)

    return patched(ClaimDesk, "finish", finish)


STORAGE_VARIANTS = (
    retirements_overlap_and_look_once,
    thawed_driver_goes_on_retiring,
    retired_by_a_driver_that_was_overtaken,
    fresh_start_clears_before_it_claims,
    overlapping_checkpoints_keep_the_first_path,
    missing_manifest_is_not_missed,
    ids_are_counted_from_what_is_there,
    completion_is_noted_before_it_is_so,
    going_back_shares_the_old_files,
    going_back_counts_from_there,
    no_room_is_believed,
    late_publication_is_noted,
    attempts_that_never_started_count,
    create_looks_and_then_writes,
    fenced_by_numbers_only,
    own_claim_is_taken_for_a_strangers,
    late_start_takes_the_job_over,
    resume_begins_a_new_lineage,
    overtaken_driver_reports_finished,
)
