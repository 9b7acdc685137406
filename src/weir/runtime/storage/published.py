"""The checkpoints of one lineage that are there: read, listed, and the one that a start restores.

Comes in: the lineage's directory and the notes about its attempts. Goes out: manifests, listings of what counts, and
errors that say what is gone or damaged and what can be done. Writes nothing, deletes nothing, claims nothing.
"""

from __future__ import annotations

from weir.errors import CheckpointError
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import Attempts
from weir.snapshot.checkpoints import Listing, PublishedCheckpoint
from weir.snapshot.manifest import Manifest, decode

_NO_FALLBACK = (
    "Sinks may have committed past any older checkpoint, so Weir does not fall back by itself; weir fsck says which "
    "checkpoints are whole, and weir run --resume --at goes back to one that you name"
)


class PublishedCheckpoints:
    """What one lineage's directory holds, as somebody sees it who looks now."""

    def __init__(self, storage: Storage, job: str, lineage: Lineage, attempts: Attempts) -> None:
        self._storage = storage
        self._job = job
        self._lineage = lineage
        self._attempts = attempts
        self._writers: dict[CheckpointId, AttemptId] = {}
        """Of the manifests that are there, so as not to read them again: they do not change."""
        self._damaged: dict[CheckpointId, CheckpointError] = {}

    @property
    def newest_writer(self) -> AttemptId:
        """The newest attempt that has written any of those that were listed last."""
        return max(self._writers.values(), default=AttemptId(0))

    def read(self, checkpoint: CheckpointId) -> Manifest:
        """The manifest of a checkpoint that is listed; anything wrong with it is an error that says so."""
        path = layout.manifest_path(checkpoint)
        try:
            manifest = decode(self._storage.read(path).to_pybytes())
        except CheckpointError as error:
            raise type(error)(f"{self._lineage}/{path}: {error}. {_NO_FALLBACK}") from error
        if manifest.job != self._job:
            raise CheckpointError(f"{path} belongs to job {manifest.job!r}, not {self._job!r}")
        return manifest

    def manifests(self) -> list[Manifest] | None:
        """Those of all checkpoints that are there, whether they count or not; None: some cannot be read."""
        found = []
        for name in self._storage.list(""):
            if (checkpoint := layout.checkpoint_of(name)) is not None:
                try:
                    found.append(self.read(checkpoint))
                except FileNotFoundError:
                    continue  # aborted, or being retired
                except CheckpointError:
                    return None
        return found

    def listing(self) -> Listing:
        """What is in the directory now."""
        # The notes first: whatever a driver has noted was there before.
        claimed, notes = self._attempts.claimed(), self._attempts.notes()
        starts = self._attempts.starts(notes)
        completed, leases = self._attempts.completed(notes), self._attempts.leases(notes)
        names = self._storage.list("")
        directories = [id for name in names if (id := layout.checkpoint_of(name)) is not None]
        shared = self._storage.list(layout.SHARED) if layout.SHARED in names else []
        traces = {*directories, *(since for name in shared if (since := layout.shared_since(name)) is not None)}
        self._writers = {id: writer for id, writer in self._writers.items() if id in directories}
        published = [entry for id in directories if (entry := self._entry_of(id)) is not None]
        return Listing(tuple(sorted(traces)), tuple(published), claimed, starts, completed, leases)

    def restored(self, listing: Listing) -> Manifest | None:
        """What a start goes on from. CheckpointError when the newest that was completed is damaged or gone."""
        missing, newest = listing.missing, listing.newest
        if missing is None:
            return None if newest is None else self.read_listed(newest)
        if missing in self._damaged:
            raise self._damaged[missing]
        older = "there is no older one" if newest is None else f"the newest that is there is checkpoint {newest}"
        raise CheckpointError(
            f"job {self._job!r} had completed checkpoint {missing}, and "
            f"{self._lineage}/{layout.manifest_path(missing)} is gone; {older}. {_NO_FALLBACK}"
        )

    def read_listed(self, checkpoint: CheckpointId) -> Manifest:
        """Like read, of one that was there a moment ago."""
        try:
            return self.read(checkpoint)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"job {self._job!r}: checkpoint {checkpoint} was retired, or taken away, while this driver looked at "
                "it; start again to go on with what is there"
            ) from error

    def check_there(self, listing: Listing, back_to: CheckpointId) -> None:
        """Refuse to go back to one that is not there."""
        if back_to not in {entry.checkpoint for entry in listing.published}:
            there = ", ".join(layout.checkpoint_directory(entry.checkpoint) for entry in listing.published) or "none"
            raise CheckpointError(f"job {self._job!r} has no checkpoint {back_to} to go back to; there are: {there}")

    def _entry_of(self, checkpoint: CheckpointId) -> PublishedCheckpoint | None:
        """None when there is no manifest, or none that we can read: whether it is missed, the listing decides."""
        try:
            if checkpoint in self._writers:
                if layout.MANIFEST not in self._storage.list(layout.checkpoint_directory(checkpoint)):
                    return None
            else:
                self._writers[checkpoint] = self.read(checkpoint).attempt
            return PublishedCheckpoint(checkpoint, self._writers[checkpoint])
        except FileNotFoundError:
            return None  # half-written, aborted, or being retired just now
        except CheckpointError as error:
            self._damaged[checkpoint] = error
            return None
