"""The job's checkpoint directory: who owns it, which attempt runs, and how a checkpoint comes to exist.

Comes in: the storage port and the pure decisions of snapshot/. Goes out: claims and
manifests. An attempt is claimed in two steps (claim, look, note where it starts from),
and a driver looks for newer claims after each publication, so of two drivers at most one
goes on (docs/adr/0005). What is there published.py tells; what is deleted is
retirement.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.errors import CheckpointError, OwnershipError, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import Attempts, current_lineage, read_record
from weir.runtime.storage.below import Below
from weir.runtime.storage.going_back import copied
from weir.runtime.storage.lost_notes import checkpoints_of, lost_lineages, unnoted
from weir.runtime.storage.published import PublishedCheckpoints
from weir.runtime.storage.retirement import Retirement, begun_only
from weir.snapshot.checkpoints import NONE_GIVEN_OUT, Listing
from weir.snapshot.manifest import Manifest, encode
from weir.snapshot.parts import NONE_RESERVED, Reserved, ReservedSources
from weir.snapshot.records import seal

NO_ATTEMPT = AttemptId(0)

IDS_LEASED = 64
"""Checkpoint ids that a driver takes at once, before it gives them out."""

NOWHERE = CheckpointId(0)
"""What a job went back to that never did."""


@dataclass(frozen=True)
class Claim:
    """An attempt that is ours, and where it starts from."""

    attempt: AttemptId
    restore: Manifest | None
    next_checkpoint: CheckpointId
    completed: tuple[CheckpointId, ...]
    ids_below: CheckpointId
    """Ids from `next_checkpoint` up to here may be given out."""
    reserved: ReservedSources = NONE_RESERVED
    """How far sources had come for good, as it was noted before the claim."""
    went_back_to: CheckpointId = NOWHERE
    """The copy that the job went back to last: as long as that is kept, so is what there was beside it."""


class CheckpointStore:
    """One job's checkpoint directory, as a driver of one lineage sees it."""

    def __init__(
        self, storage: Storage, job: str, *, lineage: Lineage, is_found: bool = False, beside: Lineage | None = None
    ) -> None:
        """`is_found`: somebody has begun this lineage before, and it is gone on with. `beside`: the one that the notes
        tell of, when the user has named a checkpoint of a lineage whose notes are gone."""
        self.lineage = lineage
        self._is_found = is_found
        self._beside = beside
        self._is_checked = False
        """Behind the first claim the directory was found to be as before it."""
        self._given_way: frozenset[Lineage] | None = None
        """Starts that had begun, and had not claimed anything, before this driver first tried to: they find its claim,
        and end."""
        self._directory = storage
        self._storage = Below(storage, lineage)
        self._job = job
        self._attempts = Attempts(storage, job, lineage)
        self._retirement = Retirement(storage, lineage, self._attempts)
        self._resume = False
        self._published = PublishedCheckpoints(self._storage, job, lineage, self._attempts)

    @property
    def storage(self) -> Storage:
        """Where the files lie that manifests name."""
        return self._storage

    # --- Whose it is ------------------------------------------------------------------------------------

    def check_free(self, resume: bool) -> None:
        """Refuse a directory that another job, or a run that could still be resumed, has filled. Changes nothing."""
        names = self._directory.list("")
        if layout.JOB_FILE in names:
            owner = read_record(self._directory, layout.JOB_FILE)
            if owner["job"] != self._job:
                raise OwnershipError(
                    f"the checkpoint directory belongs to job {owner['job']!r}, not {self._job!r}; choose another "
                    "location"
                )
        current = current_lineage(self._directory)
        if current is None and any(map(layout.is_lineage, names)):
            self._check_noted()
        if resume or current in (None, self.lineage) or self._attempts.is_finished():
            return
        left = CheckpointStore(self._directory, self._job, lineage=current).listing()
        if left.newest is not None or left.missing is not None:
            raise OwnershipError(
                f"job {self._job!r} has checkpoints of an earlier run here; pass resume=True (weir run --resume) to go "
                "on from the last of them, or use another name or location, or delete the directory"
            )

    def _check_noted(self) -> None:
        """Where nobody has noted anything there are no checkpoints, unless the notes were taken away. If it is one of
        this lineage's that the user has named, that is where the job goes on."""
        lost = lost_lineages(self._directory)
        if lost and self.lineage not in lost:
            last = {lineage: id for lineage in lost for id in checkpoints_of(self._directory, lineage)}
            newest = " or ".join(f"{lineage}/{layout.checkpoint_directory(id)}" for lineage, id in last.items())
            raise CheckpointError(
                f"job {self._job!r} has checkpoints here, such as {newest}, but what was noted about its attempts, in "
                f"{layout.ATTEMPTS}/, is gone: nobody can tell which of them counts. Put it back; or go on from the "
                f"newest that is whole (weir run --resume --at {newest}; weir fsck says which are); or delete the "
                "directory to begin anew"
            )

    def adopt(self, run: str, resume: bool) -> None:
        """Begin a run in this directory, or refuse."""
        self._attempts.begin(run)
        self._resume = resume
        self._directory.create(layout.JOB_FILE, seal({"job": self._job, "run": run}))
        # Also when it is this run's own: an earlier try may have made it, and another driver begun since.
        self.check_free(resume)

    def restorable(self, back_to: CheckpointId | None) -> Manifest | None:
        """What a claim would restore, or refuse to, before anything has started. Changes nothing."""
        self._attempts.bears_damage = back_to is not None
        listing = self.listing()
        if back_to is not None:
            self._published.check_there(listing, back_to)
            return self._published.read_listed(back_to)
        try:
            return self._restorable(listing)
        except CheckpointError:
            # What seems to be gone, a driver that runs may have retired during the look; or noted what it has written.
            again = self.listing()
            if (again.newest, again.missing) == (listing.newest, listing.missing):
                raise
            return self._restorable(again)

    def _restorable(self, listing: Listing) -> Manifest | None:
        if wrong := unnoted(listing, self.lineage):
            raise CheckpointError(f"job {self._job!r}: {wrong}")
        return self._published.restored(listing)

    def claim(
        self,
        back_to: CheckpointId | None = None,
        given_out: CheckpointId = NONE_GIVEN_OUT,
        *,
        origin: str | None = None,
        above: AttemptId = NO_ATTEMPT,
    ) -> Claim:
        """Take the next attempt, then look which checkpoint it starts from, and note that before it runs.

        back_to:   the user wants to go on from this one, whatever is newer
        given_out: ids below were given out by this driver, whether storage shows it or not
        origin:    where the savepoint is that it starts from as long as there is no checkpoint here
        above:     sinks know of attempts up to this one, be they noted here or not
        """
        if self._given_way is None:
            self._given_way = frozenset(begun_only(self._directory)) - {self.lineage}
        if back_to is not None:
            # Where checkpoints come from a backup, somebody who knows of later attempts may still write.
            above = self._attempts.above_a_backup(max(above, self._published.newest_writer))
        attempt = self._attempts.take(above)
        try:
            listing, restore = self._looked(attempt, back_to, given_out)
        except (OwnershipError, CheckpointError):
            self._attempts.withdraw(attempt)  # Whoever is there goes on.
            raise
        own = frozenset(self._attempts.claims)
        following = max(given_out, listing.next_checkpoint(own), 0 if restore is None else restore.checkpoint + 1)
        ids_below = CheckpointId(following + IDS_LEASED)
        start = {
            "restored_from": None if restore is None else restore.checkpoint,
            "writer": None if restore is None else restore.attempt,
            "ids_below": ids_below,
            "origin": origin if restore is None else None,
        }
        try:
            self._attempts.note(attempt, "start", start)
        except OwnershipError:
            self._attempts.withdraw(attempt)  # This driver has ended, and has noted nothing.
            raise
        # Tasks commit what they restore: a driver that was overtaken since its claim must not let them start.
        self._attempts.check_newest()
        valid = listing.valid if back_to is None or restore is None else (restore.checkpoint,)
        copies = [start.restored_from or 0 for start in listing.starts if start.goes_back]
        went_back_to = CheckpointId(max([0, *copies, *(valid if back_to is not None else ())]))
        self._retirement.keep_beside(went_back_to)
        return Claim(attempt, restore, CheckpointId(following), valid, ids_below, self._reserved(), went_back_to)

    def _reserved(self) -> ReservedSources:
        """What was noted last. Behind the claim, drivers before this one let nothing go on that is not in there."""
        found = self._attempts.last_reserved()
        if found is None:
            return NONE_RESERVED
        attempt, body = found
        sources = {Uid(uid): Reserved(tuple(positions)) for uid, positions in body["sources"].items()}
        return ReservedSources(attempt, sources, CheckpointId(body["read_behind"]))

    def _looked(
        self, attempt: AttemptId, back_to: CheckpointId | None, given_out: CheckpointId
    ) -> tuple[Listing, Manifest | None]:
        """What is there behind the claim, and what the attempt restores of it."""
        if not self._is_checked:
            self._check_lineage()
            self._is_checked = True
        self._attempts.bears_damage = back_to is not None
        listing = self.listing()
        try:
            if back_to is None:
                return listing, self._published.restored(listing)
            return listing, self._copied(listing, back_to, attempt, given_out)
        except CheckpointError:
            self._attempts.check_newest()  # What seems to be gone, a newer driver may have retired during the look.
            raise

    def lease(self, attempt: AttemptId, ids_below: CheckpointId) -> None:
        """Take ids up to this one, before any of them is given out. Whoever has claimed since does not know of them."""
        self._attempts.note(attempt, "ids", {"below": ids_below})
        self._attempts.check_newest()

    def reserve(self, note: ReservedSources) -> None:
        """Note how far sources have come for good, before any row behind what was noted last goes on. Whoever has
        claimed since may not know of it: then nothing may go on."""
        positions = {uid: list(reserved.positions) for uid, reserved in note.sources.items()}
        self._attempts.note(note.attempt, "reserved", {"sources": positions, "read_behind": note.read_behind})
        self._attempts.check_newest(but_own=True)

    def check_newest(self) -> None:
        """OwnershipError when another driver has taken the job over, or this one has ended."""
        self._attempts.check_newest()

    def close(self) -> None:
        """The driver has ended: nothing of it that still hangs in storage has any effect when it goes on."""
        self._attempts.close()

    def give_up(self) -> None:
        """Behind the close: what the driver may have claimed and never started, though no reply came, stops nobody."""
        self._attempts.give_up()

    # --- Checkpoints ------------------------------------------------------------------------------------

    def publish(self, manifest: Manifest) -> None:
        """Make a checkpoint exist. StorageFull, FileExistsError: it certainly does not; StorageUnavailable: nobody
        knows; OwnershipError: another driver has taken over, so this one must not let anything be committed."""
        path, data = layout.manifest_path(manifest.checkpoint), encode(manifest)
        self._check_files(manifest)
        try:
            is_there = self._storage.create(path, data) or self._is_there(path, data)
        except StorageUnavailable:
            # The write may have happened: look, and if it has not, it may still.
            if not self._is_there(path, data):
                raise
            is_there = True
        self._attempts.check_newest()
        if not is_there:
            raise FileExistsError(f"{path} is there already, with another content")
        if manifest.attempt != self._attempts.own:
            # The write hung meanwhile. Whether it counts, the newer attempt has decided when it looked.
            raise StorageUnavailable(f"{path} took so long that attempt {self._attempts.own} has begun meanwhile")
        try:
            # Before anybody is told: what sinks commit from here on must not be restored from behind it.
            self._attempts.note(manifest.attempt, "completed", {"checkpoint": manifest.checkpoint})
        except StorageFull as error:
            raise StorageUnavailable(f"checkpoint {manifest.checkpoint} could not be noted: {error}") from error

    def _check_files(self, manifest: Manifest) -> None:
        """OwnershipError when files of the checkpoint are gone, its own or those of earlier ones that it builds on:
        then somebody has put an older state of the directory, or nothing, in its place."""
        there = {
            f"{directory}/{name}"
            for directory in sorted({file.path.rpartition("/")[0] for file in manifest.files})
            for name in self._storage.list(directory)
        }
        missing = [file for file in manifest.files if file.path not in there]
        if not missing:
            return
        smallest = min(missing, key=lambda file: file.length_bytes)
        try:
            self._storage.read(smallest.path)  # Not every list is as new as what it lists.
        except FileNotFoundError:
            self._attempts.check_newest()
            raise OwnershipError(
                f"job {self._job!r}: {self.lineage}/{smallest.path}, which checkpoint {manifest.checkpoint} needs, is "
                "gone: its checkpoint directory was replaced, or files in it were deleted. This driver stops and "
                "commits nothing more; start it again"
            ) from None

    def read(self, checkpoint: CheckpointId) -> Manifest:
        """The manifest of a checkpoint that is listed; anything wrong with it is an error that says so."""
        return self._published.read(checkpoint)

    def manifests(self) -> list[Manifest] | None:
        """Those of all checkpoints that are there, whether they count or not; None: some cannot be read."""
        return self._published.manifests()

    def lives(self) -> frozenset[Lineage]:
        """The lineages of which anything is known here."""
        noted = [note.lineage for note in self._attempts.notes()]
        return frozenset([*noted, *(Lineage(name) for name in self._directory.list("") if layout.is_lineage(name))])

    def listing(self) -> Listing:
        """What is in the directory now."""
        return self._published.listing()

    # --- The end ----------------------------------------------------------------------------------------

    def discard(self, checkpoint: CheckpointId, attempt: AttemptId) -> None:
        """Free what the attempt has written for an aborted checkpoint, and nothing of another attempt's."""
        self._retirement.discard(checkpoint, attempt)

    def keep_from(self, oldest_kept: CheckpointId) -> None:
        """From the next sweep on every checkpoint before this one goes. Touches nothing yet."""
        self._retirement.keep_from(oldest_kept)

    def retire(self, oldest_kept: CheckpointId) -> None:
        """Delete every checkpoint before this one, complete or not, and what nobody refers to any more."""
        self._retirement.retire(oldest_kept)

    def clear_others(self) -> None:
        """Delete what earlier lineages have left, savepoints apart, and what starts have that gave way to this one."""
        self._retirement.clear_others(self._given_way or frozenset())

    def has_ended(self) -> bool:
        """Whether the newest run, of this lineage, has read its input to the end and committed everything. False: it
        has not, was drained, or nobody can say."""
        return self._attempts.has_ended()

    def finish(self, *, drained: bool = False) -> None:
        """Note that the run has ended and committed everything; sweep up what late uploads have left. A driver that was
        overtaken since says nothing: the run that goes on is not finished."""
        self._attempts.check_newest()
        if self._attempts.own is not None:
            self._attempts.note(self._attempts.own, "finished", {"drained": drained})
        self._retirement.retire_again()

    # --- Looking ----------------------------------------------------------------------------------------

    def _check_lineage(self) -> None:
        """Behind the first claim nobody else completes anything any more: what was found before must still hold."""
        current = current_lineage(self._directory)
        is_others = self._resume and current not in (None, self.lineage, self._beside) and self._is_overruled(current)
        if is_others or (self._is_found and current != self.lineage):
            raise OwnershipError(
                f"job {self._job!r} was started anew or deleted by somebody else just now; start again to go on with "
                "what is there"
            )
        self.check_free(self._resume)

    def _is_overruled(self, other: Lineage) -> bool:
        """Whether a lineage that somebody has begun before this run did, and after it looked which one is there, is the
        one to go on with: not, as long as it has completed nothing."""
        left = CheckpointStore(self._directory, self._job, lineage=other).listing()
        return self._attempts.is_finished() or left.newest is not None or left.missing is not None

    def _copied(self, listing: Listing, back_to: CheckpointId, attempt: AttemptId, given_out: CheckpointId) -> Manifest:
        self._published.check_there(listing, back_to)
        # Above what a damaged note may have leased, and what sinks have committed, too.
        copy = CheckpointId(max(listing.next_checkpoint() + IDS_LEASED, given_out))
        manifest = copied(self._storage, self._published.read_listed(back_to), copy, attempt)
        self._attempts.check_newest()  # Copies take their time: who was overtaken, or has ended, publishes nothing.
        if not self._storage.create(layout.manifest_path(manifest.checkpoint), encode(manifest)):
            raise CheckpointError(f"checkpoint {manifest.checkpoint} is there already; try once more")
        return manifest

    def _is_there(self, path: str, data: bytes) -> bool:
        try:
            return bool(self._storage.read(path).to_pybytes() == data)
        except FileNotFoundError:
            return False
