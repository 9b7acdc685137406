"""What is deleted of a job's checkpoints, and when that is safe.

Comes in: the storage port, and what the coordinator says is kept. Goes out: deletions,
each of a file by its full name.

Laws:
  1. What is to go is computed from manifests that are all there before and after the
     look, the oldest that is kept among them; otherwise nothing goes this time.
  2. Behind the look, and before anything goes, this driver's claim is the newest: what it
     has seen then is all that a newer driver could build on.
  3. Names are never used twice, so a delete that comes late, be it by hours, and from a
     driver that was overtaken meanwhile, meets nothing but what was to go. (Whoever puts a
     backup in the place of the directory makes old names live again: going back copies.)
  4. A directory is never deleted with what is in it: only what we know by name goes. What
     sources keep is known to them alone, and goes as a whole with a lineage that is over.
"""

from __future__ import annotations

from collections.abc import Iterator

from weir.errors import CheckpointError
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import Attempts
from weir.runtime.storage.below import Below
from weir.runtime.storage.layout import AttemptNote
from weir.snapshot.manifest import decode

DELETES_BETWEEN_LOOKS = 10
"""Files that go before the driver looks again whether its claim is still the newest."""


class Retirement:
    """Deletes what nobody needs in the directory of a job."""

    def __init__(self, directory: Storage, lineage: Lineage, attempts: Attempts) -> None:
        self._directory = directory
        self._lineage = lineage
        self._storage = Below(directory, lineage)
        self._attempts = attempts
        self._oldest_kept = self._went_back_to = CheckpointId(0)
        self._named: dict[CheckpointId, tuple[AttemptId, frozenset[str]]] = {}
        """Of the manifests that are kept: who wrote them, and the shared files that they name."""

    def discard(self, checkpoint: CheckpointId, attempt: AttemptId) -> None:
        """Free what an attempt of ours has written for an aborted checkpoint: no manifest will ever name it."""
        directory = layout.checkpoint_directory(checkpoint)
        private, shared = layout.state_prefix(attempt), layout.shared_prefix(checkpoint, attempt)
        paths = [f"{directory}/{name}" for name in self._storage.list(directory) if name.startswith(private)]
        paths += [f"{layout.SHARED}/{n}" for n in self._storage.list(layout.SHARED) if n.startswith(shared)]
        self._delete(paths)
        self._storage.prune(directory)

    def retire(self, oldest_kept: CheckpointId) -> None:
        """Delete every checkpoint before this one, complete or not. The manifest goes first: a half-deleted
        checkpoint is not one. Shared files that were written for them go when no manifest that is left names them."""
        self.keep_from(oldest_kept)
        self.retire_again()

    def keep_from(self, oldest_kept: CheckpointId) -> None:
        if oldest_kept > self._went_back_to:
            self._oldest_kept = max(self._oldest_kept, oldest_kept)

    def keep_beside(self, went_back_to: CheckpointId) -> None:
        """The job has gone back, and this is the copy that it goes on from: as long as that is kept, so is all that
        users may want to go to instead."""
        self._went_back_to = went_back_to

    def retire_again(self) -> None:
        """The same for what came late."""
        oldest_kept, found = self._oldest_kept, self._checkpoints()
        kept = {id for id, names in found.items() if id >= oldest_kept and layout.MANIFEST in names}
        shared = self._unnamed(kept, oldest_kept)
        writers = [self._named[id][0] for id in kept if id in self._named]
        attempts = self._attempts.forget(min(writers)) if len(writers) == len(kept) and kept else []
        # Older ones may be all that is left to go back to.
        retired = sorted(id for id in found if id < oldest_kept) if oldest_kept in kept else []
        for id in retired:
            directory, names = layout.checkpoint_directory(id), found[id]
            # The manifest first.
            ours = sorted((n for n in names if layout.is_of_checkpoint(n)), key=lambda name: name != layout.MANIFEST)
            self._delete([f"{directory}/{name}" for name in ours])
            self._storage.prune(directory)
        self._delete(shared)
        self._attempts.check_newest()
        for path in attempts:
            self._directory.delete(path)

    def clear_others(self, given_way: frozenset[Lineage] = frozenset()) -> None:
        """Delete what earlier lineages have left of checkpoints, and of what sources kept. Savepoints stay, and so do
        claims: whoever is left of an earlier run must find that it was overtaken. A lineage that has not noted a start
        is none: sources begin before their driver claims an attempt, which may be just about to; unless that has
        `given_way`, since this driver has claimed one meanwhile."""
        notes = [note for note in self._attempts.notes() if note.lineage != self._lineage]
        others = sorted({note.lineage for note in notes if note.note == "start"})
        left = sorted(given_way.intersection(begun_only(self._directory)))
        self._delete_of_job([path for lineage in others for path in files_of_lineage(self._directory, lineage)])
        self._delete_of_job([f"{lineage}/{layout.SOURCES}" for lineage in left])
        for lineage in (*others, *left):
            prune_all(self._directory, lineage)
        # The notes last: by them the next run finds what this one has not come to.
        self._delete_of_job([note.path for note in notes if note.lineage in others])

    def _checkpoints(self) -> dict[CheckpointId, list[str]]:
        """The checkpoints of which anything is there, with the names of their files."""
        found = {}
        for name in self._storage.list(""):
            if (checkpoint := layout.checkpoint_of(name)) is not None:
                found[checkpoint] = self._storage.list(name)
        return found

    def _unnamed(self, kept: set[CheckpointId], oldest_kept: CheckpointId) -> list[str]:
        """Shared files that are to go. One that was written for a checkpoint before `oldest_kept` can only be wanted by
        a manifest that is there: what is under way refers to completed checkpoints from `oldest_kept` on, or to its
        own files."""
        self._named = {id: named for id, named in self._named.items() if id in kept}
        if oldest_kept not in kept:
            return []  # Somebody has taken it away: nobody can say what it names.
        names = self._storage.list(layout.SHARED)
        old = [name for name in names if (since := layout.shared_since(name)) is not None and since < oldest_kept]
        try:
            used = frozenset().union(*(self._shared_files(checkpoint) for checkpoint in kept))
        except (FileNotFoundError, CheckpointError):
            return []  # Gone meanwhile, or damaged: nobody can say what it names.
        if old and kept != {id for id in self._published() if id >= oldest_kept}:
            return []  # The look took so long that others came or went: law 1.
        return [path for name in old if (path := f"{layout.SHARED}/{name}") not in used]

    def _published(self) -> set[CheckpointId]:
        return {id for id, names in self._checkpoints().items() if layout.MANIFEST in names}

    def _shared_files(self, checkpoint: CheckpointId) -> frozenset[str]:
        """The shared files that a manifest names. Manifests do not change, so the newest ones are remembered."""
        if checkpoint not in self._named:
            manifest = decode(self._storage.read(layout.manifest_path(checkpoint)).to_pybytes())
            files = frozenset(f.path for f in manifest.files if f.path.startswith(f"{layout.SHARED}/"))
            self._named[checkpoint] = manifest.attempt, files
        return self._named[checkpoint][1]

    def _delete(self, paths: list[str]) -> None:
        self._delete_of_job([f"{self._lineage}/{path}" for path in paths])

    def _delete_of_job(self, paths: list[str]) -> None:
        for start in range(0, len(paths), DELETES_BETWEEN_LOOKS):
            self._attempts.check_newest()
            for path in paths[start : start + DELETES_BETWEEN_LOOKS]:
                self._directory.delete(path)


def begun_only(storage: Storage) -> list[Lineage]:
    """The lineages in a job's directory that have not noted a start, and of which nothing is there but what sources
    keep: under way, or given up."""
    notes = [note for name in storage.list(layout.ATTEMPTS) if (note := AttemptNote.parse(name)) is not None]
    started = {note.lineage for note in notes if note.note == "start"}
    lineages = [Lineage(name) for name in storage.list("") if layout.is_lineage(name) and name not in started]
    return [lineage for lineage in lineages if storage.list(lineage) == [layout.SOURCES]]


def files_of_lineage(storage: Storage, lineage: str) -> Iterator[str]:
    """All that a lineage has in a job's directory, as far as we know it by name."""
    for name in storage.list(lineage):
        below = f"{lineage}/{name}"
        if layout.checkpoint_of(name) is not None:
            yield from (f"{below}/{file}" for file in storage.list(below) if layout.is_of_checkpoint(file))
        elif name == layout.SHARED:
            yield from (f"{below}/{file}" for file in storage.list(below) if layout.shared_since(file) is not None)
        elif name == layout.SOURCES:
            yield below


def prune_all(storage: Storage, lineage: str) -> None:
    """Remove the directories of a lineage that are empty, and its own if it is."""
    for name in storage.list(lineage):
        storage.prune(f"{lineage}/{name}")
    storage.prune(lineage)
