"""The job's checkpoint directory: who owns it, which attempt runs, which checkpoints exist.

Comes in: the storage port and the pure decisions of snapshot/. Goes out: claims,
manifests, deletions. An attempt is claimed in two steps (claim, look, record where it
starts from), and a driver looks for newer claims after each publication, so of two
drivers at most one goes on (docs/adr/0005).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from weir.errors import CheckpointError, CorruptCheckpoint, OwnershipError, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId
from weir.runtime import layout
from weir.runtime.ports import Storage
from weir.snapshot.checkpoints import AttemptStart, Listing, PublishedCheckpoint
from weir.snapshot.manifest import Manifest, decode, encode

MANIFESTS_REMEMBERED_MAX = 64
"""Checkpoints whose shared files a driver remembers, so as not to read their manifests again."""


@dataclass(frozen=True)
class Claim:
    """An attempt that is ours, and where it starts from."""

    attempt: AttemptId
    restore: Manifest | None
    next_checkpoint: CheckpointId
    completed: tuple[CheckpointId, ...]


class CheckpointStore:
    """One job's checkpoint directory, as its driver sees it."""

    def __init__(self, storage: Storage, job: str, *, retries_max: int) -> None:
        self._storage = storage
        self._job = job
        self._retries_max = retries_max
        self._oldest_kept = CheckpointId(0)
        self._run: str | None = None
        self._attempt: AttemptId | None = None
        self._named: dict[CheckpointId, frozenset[str]] = {}

    @property
    def storage(self) -> Storage:
        """Where the files lie that manifests name."""
        return self._storage

    def check_free(self, run: str, resume: bool) -> None:
        """Refuse a directory that another job, or a run that could still be resumed, has filled. Changes nothing."""
        owner = self._owner()
        if owner is None or owner["run"] == run:
            return
        if owner["job"] != self._job:
            raise OwnershipError(
                f"the checkpoint directory belongs to job {owner['job']!r}, not {self._job!r}; choose another location"
            )
        finished = layout.FINISHED_FILE in self._storage.list("")
        if not resume and not finished and self.listing().newest is not None:
            raise OwnershipError(
                f"job {self._job!r} has checkpoints of an earlier run here; pass resume=True (weir run --resume) to go "
                "on from the last of them, or use another name or location, or delete the directory"
            )

    def adopt(self, run: str, resume: bool) -> bool:
        """Take the directory over for this run, or refuse. True when an earlier run is being resumed."""
        self._run = run
        body = json.dumps({"job": self._job, "run": run}).encode()
        if self._storage.create(layout.JOB_FILE, body):
            return False
        self.check_free(run, resume)
        owner = self._owner()
        if owner is not None and owner["run"] == run:
            return False
        if resume:
            self._storage.delete(layout.FINISHED_FILE)
            return True
        # A finished run is of no use any more, and one without a checkpoint has committed nothing.
        if layout.FINISHED_FILE not in self._storage.list(""):
            # It may be alive: with a newer claim it cannot complete a checkpoint any more; then look once more.
            self._take_attempt()
            self.check_free(run, resume)
        self._clear()
        self._storage.publish(layout.JOB_FILE, body)
        return False

    def claim(self) -> Claim:
        """Take the next attempt, then look which checkpoint it starts from, and record that before it runs."""
        attempt = self._take_attempt()
        listing = self.listing()
        newest = listing.newest
        manifest = None if newest is None else self.read(newest)
        start = {"restored_from": newest, "writer": None if manifest is None else manifest.attempt}
        self._storage.publish(layout.start_path(attempt), json.dumps(start).encode())
        # Tasks commit what they restore: a driver that was overtaken since its claim must not let them start.
        self._check_newest(attempt)
        return Claim(attempt, manifest, listing.next_checkpoint, listing.valid)

    def publish(self, manifest: Manifest) -> None:
        """Make a checkpoint exist. StorageFull, FileExistsError: it certainly does not; StorageUnavailable: nobody
        knows; OwnershipError: another driver has taken over, so this one must not let anything be committed."""
        path = layout.manifest_path(manifest.checkpoint)
        data = encode(manifest)
        for _ in range(self._retries_max):
            try:
                if not self._storage.create(path, data) and not self._is_there(path, data):
                    self._check_newest(manifest.attempt)
                    raise FileExistsError(f"{path} is there already, written late by an attempt that is over")
            except StorageFull:
                raise
            except StorageUnavailable:
                # The write may have happened: look, and only write again when it certainly has not.
                if not self._is_there(path, data):
                    continue
            self._check_newest(manifest.attempt)
            return
        raise StorageUnavailable(
            f"checkpoint {manifest.checkpoint}: its manifest could not be written in {self._retries_max} tries"
        )

    def read(self, checkpoint: CheckpointId) -> Manifest:
        """The manifest of a checkpoint that is listed; anything wrong with it is an error that says so."""
        path = layout.manifest_path(checkpoint)
        try:
            manifest = decode(self._storage.read(path).to_pybytes())
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(
                f"{path}: {error}. Sinks may have committed past any older checkpoint, so Weir does not fall back by "
                "itself; to start from an older one all the same, delete this directory"
            ) from error
        if manifest.job != self._job:
            raise CheckpointError(f"{path} belongs to job {manifest.job!r}, not {self._job!r}")
        return manifest

    def discard(self, checkpoint: CheckpointId, attempt: AttemptId) -> None:
        """Free what the attempt has written for an aborted checkpoint, and nothing of another attempt's. A mark stays
        until it is retired: its id is never used again."""
        directory = layout.checkpoint_directory(checkpoint)
        if checkpoint >= self._oldest_kept:
            self._storage.publish(f"{directory}/{layout.ABORTED}", b"{}")
        for name in self._storage.list(directory):
            if name.startswith(layout.state_prefix(attempt)):
                self._storage.delete(f"{directory}/{name}")
        for name in self._storage.list(layout.SHARED):
            # Nobody refers to these: only what a completed checkpoint holds is ever shared.
            if name.startswith(layout.shared_prefix(checkpoint, attempt)):
                self._storage.delete(f"{layout.SHARED}/{name}")

    def retire(self, oldest_kept: CheckpointId) -> None:
        """Delete every checkpoint before this one, complete or not. The manifest goes first: a half-deleted
        checkpoint is not one. Shared files that were written for them go when no manifest that is left names them."""
        self._oldest_kept = max(self._oldest_kept, oldest_kept)
        kept: list[CheckpointId] = []
        for name in self._storage.list(""):
            checkpoint = layout.checkpoint_of(name)
            if checkpoint is not None and checkpoint < oldest_kept:
                self._storage.delete(layout.manifest_path(checkpoint))
                self._storage.delete(name)
            elif checkpoint is not None:
                kept.append(checkpoint)
        self._sweep_shared(kept, oldest_kept)

    def _sweep_shared(self, kept: list[CheckpointId], oldest_kept: CheckpointId) -> None:
        """A file that was written for a checkpoint before `oldest_kept` can only be wanted by a manifest that is
        there: what is under way refers to completed checkpoints from `oldest_kept` on, or to its own files."""
        names = self._storage.list(layout.SHARED)
        old = [name for name in names if (since := layout.shared_since(name)) is None or since < oldest_kept]
        if not old:
            return
        used: set[str] = set()
        for checkpoint in kept:
            if layout.MANIFEST in self._storage.list(layout.checkpoint_directory(checkpoint)):
                used.update(self._shared_files(checkpoint))
        for name in old:
            if f"{layout.SHARED}/{name}" not in used:
                self._storage.delete(f"{layout.SHARED}/{name}")

    def _shared_files(self, checkpoint: CheckpointId) -> frozenset[str]:
        """The shared files that a manifest names. Manifests do not change, so the newest ones are remembered."""
        if checkpoint not in self._named:
            files = frozenset(f.path for f in self.read(checkpoint).files if f.path.startswith(f"{layout.SHARED}/"))
            self._named = {known: self._named[known] for known in sorted(self._named)[-MANIFESTS_REMEMBERED_MAX:]}
            self._named[checkpoint] = files
        return self._named[checkpoint]

    def finish(self) -> None:
        """Note that the run has ended and committed everything; sweep up what late uploads have left. A driver that was
        overtaken since says nothing: the run that goes on is not finished."""
        if self._attempt is not None:
            self._check_newest(self._attempt)
        self._storage.publish(layout.FINISHED_FILE, b"{}")
        self.retire(self._oldest_kept)

    def listing(self) -> Listing:
        """What is in the directory now."""
        directories: list[CheckpointId] = []
        published: list[PublishedCheckpoint] = []
        for name in self._storage.list(""):
            checkpoint = layout.checkpoint_of(name)
            if checkpoint is None:
                continue
            directories.append(checkpoint)
            if layout.MANIFEST in self._storage.list(name):
                published.append(PublishedCheckpoint(checkpoint, self.read(checkpoint).attempt))
        names = self._storage.list(layout.ATTEMPTS)
        claimed = [attempt for name in names if (attempt := layout.claimed_attempt(name)) is not None]
        starts = [self._start(attempt) for name in names if (attempt := layout.started_attempt(name)) is not None]
        return Listing(tuple(directories), tuple(published), tuple(claimed), tuple(starts))

    def _take_attempt(self) -> AttemptId:
        while True:
            listing = self.listing()
            # The first claim of a run takes the job over; a restart does not take it back from a newer driver.
            newer = [a for a in listing.claimed if self._attempt is not None and a > self._attempt]
            if newer and not all(self._is_ours(attempt) for attempt in newer):
                raise self._overtaken(max(newer), self._attempt)
            attempt = listing.next_attempt
            if self._storage.create(layout.claim_path(attempt), json.dumps({"run": self._run}).encode()):
                self._attempt = attempt
                return attempt

    def _is_ours(self, attempt: AttemptId) -> bool:
        """Whether this run made a claim: one of its own may have been made although the reply was lost."""
        claim = json.loads(self._storage.read(layout.claim_path(attempt)).to_pybytes())
        return self._run is not None and claim.get("run") == self._run

    def _owner(self) -> dict[str, Any] | None:
        try:
            owner: dict[str, Any] = json.loads(self._storage.read(layout.JOB_FILE).to_pybytes())
        except FileNotFoundError:
            return None
        return owner

    def _start(self, attempt: AttemptId) -> AttemptStart:
        body = json.loads(self._storage.read(layout.start_path(attempt)).to_pybytes())
        return AttemptStart(attempt, body["restored_from"], body["writer"])

    def _is_there(self, path: str, data: bytes) -> bool:
        try:
            return bool(self._storage.read(path).to_pybytes() == data)
        except FileNotFoundError:
            return False

    def _check_newest(self, attempt: AttemptId) -> None:
        newer = [a for name in self._storage.list(layout.ATTEMPTS) if (a := layout.claimed_attempt(name)) is not None]
        if newer and max(newer) > attempt:
            raise self._overtaken(max(newer), attempt)

    def _overtaken(self, newer: AttemptId, own: AttemptId | None) -> OwnershipError:
        return OwnershipError(
            f"another driver has taken over job {self._job!r} with attempt {newer}; this one (attempt {own}) stops and "
            "commits nothing more"
        )

    def _clear(self) -> None:
        # Claims stay: a driver or task of the old run that still lives must find that it was overtaken.
        for name in self._storage.list(""):
            if name not in (layout.JOB_FILE, layout.ATTEMPTS, layout.SAVEPOINTS):
                self._storage.delete(name)
        for name in self._storage.list(layout.ATTEMPTS):
            if layout.started_attempt(name) is not None:
                self._storage.delete(f"{layout.ATTEMPTS}/{name}")
