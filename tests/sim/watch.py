"""What must hold after every step in which storage has changed, looked at no more than it must be.

Laws: a checkpoint that counts (published, valid by the line of descent, not retired) can be restored in full by whoever
starts now: every file that its manifest names is there, with the right length and checksum. The newest that tasks were
told of counts until a newer one does. What a sink has committed is neither replaced nor removed, but by its users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.stage import SimulationFailed
from weir.connectors.files.part_names import PartName
from weir.errors import WeirError
from weir.ids import CheckpointId
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.layout import AttemptNote
from weir.snapshot.manifest import checksum, decode
from weir.snapshot.parts import FileRef
from weir.snapshot.records import unseal

if TYPE_CHECKING:
    from tests.sim.world import World


class Watch:
    """Looks at one world's storage, change by change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._root = f"{world.place}/sim/"
        self._out = f"{world.place}/out/"
        self._named: dict[str, FileRef] = {}
        """What the checkpoints that count need."""
        self._committed: dict[str, bytes] = {}
        self._store: CheckpointStore | None = None
        self._manifests: dict[str, tuple[bytes, dict[str, FileRef]]] = {}
        """What was read of them, with the very bytes that it was read from."""
        self._sums: dict[str, tuple[bytes, str]] = {}
        """Checksums that were computed, each with the very bytes that it is of."""

    @property
    def has_committed(self) -> bool:
        """Whether there is output that nobody has removed."""
        return bool(self._committed)

    def look(self) -> None:
        """Something has changed: raise SimulationFailed when that was wrong."""
        storage = self._world.storage
        changed, storage.changed = storage.changed, {}
        self._world.hands.latecomers.written(changed)
        if any(self._goes_back(name) for name in changed):
            self._world.hands.gone_back()
        if any(name.startswith(self._root) and _decides(name) for name in changed):
            self._look_at_manifests()
        for name, work in changed.items():
            # A delete on its way may meet what was brought back, until it is copied; then users bring it back again.
            is_brought = self._world.hands.back_to is not None and name not in storage.files
            if (file := self._named.get(name)) is not None and not is_brought:
                self._check_file(name, file)
            if name.startswith(self._out) and "/_weir/" not in name:
                is_users = work is not None and work.owner is self._world.hands.program
                self._check_committed(name, is_users=is_users)

    def forget(self) -> None:
        """Users have taken away what they may not; that is not the job's fault."""
        self._named, self._store = {}, None
        self._world.storage.changed = {}

    def start_anew(self) -> None:
        """Users have deleted everything."""
        self.forget()
        self._committed = {}

    def _look_at_manifests(self) -> None:
        named: dict[str, FileRef] = {}
        with self._world.storage.quiet():
            lineage = current_lineage(self._world.job_storage)
            if lineage is not None and self._has_begun(lineage):
                if self._store is None or self._store.lineage != lineage:
                    self._store = CheckpointStore(self._world.job_storage, "sim", lineage=lineage)
                valid = self._valid(self._store)
                self._check_newest(valid)
                for checkpoint in valid:
                    named.update(self._files_of(f"{self._root}{lineage}/", checkpoint))
        if self._world.hands.back_to is not None:
            # What somebody publishes who does not know that the directory was replaced is gone back behind.
            named = {name: file for name, file in named.items() if name in self._world.storage.files}
        for name, file in named.items():
            if self._named.get(name) != file:
                self._check_file(name, file)
        self._named = named

    def _valid(self, store: CheckpointStore) -> tuple[CheckpointId, ...]:
        try:
            listing = store.listing()
        except WeirError as error:
            raise SimulationFailed(f"a reader that starts now is refused: {error}") from error
        if listing.missing is not None and not self._world.hands.has_removed and self._world.hands.back_to is None:
            raise SimulationFailed(f"a reader that starts now is refused: checkpoint {listing.missing} is missed")
        return listing.valid

    def _files_of(self, root: str, checkpoint: CheckpointId) -> dict[str, FileRef]:
        path = f"{root}{layout.manifest_path(checkpoint)}"
        data, known = self._world.storage.files[path], self._manifests.get(path)
        if known is None or known[0] is not data:
            known = self._manifests[path] = data, {f"{root}{file.path}": file for file in decode(data).files}
        return known[1]

    def _has_begun(self, lineage: str) -> bool:
        """Whether it is more than late notes of somebody who was forgotten."""
        names = {name.removeprefix(self._root) for name in self._world.storage.files if name.startswith(self._root)}
        notes = [note for name in names if (note := AttemptNote.parse(name.rpartition("/")[2])) is not None]
        starts = [note for note in notes if note.lineage == lineage and note.note == "start"]
        return any(layout.claim_path(note.attempt) in names for note in starts)

    def _goes_back(self, name: str) -> bool:
        """Whether this is the start of an attempt that was asked to go back."""
        note, data = AttemptNote.parse(name.rpartition("/")[2]), self._world.storage.files.get(name)
        is_start = name.startswith(self._root) and note is not None and note.note == "start"
        return is_start and data is not None and note is not None and unseal(data, name)["writer"] == note.attempt

    def _check_newest(self, valid: tuple[CheckpointId, ...]) -> None:
        told = self._world.newest_completed
        if told is not None and not self._world.hands.has_removed and (not valid or valid[-1] < told):
            raise SimulationFailed(f"checkpoint {told} was complete, and does not count any more; {valid} do")

    def _check_file(self, name: str, file: FileRef) -> None:
        data = self._world.storage.files.get(name)
        if data is None:
            raise SimulationFailed(f"{name} is gone, although a checkpoint names it that counts")
        if len(data) != file.length_bytes or self._checksum(name, data) != file.checksum:
            raise SimulationFailed(f"{name} was altered, although a checkpoint names it that counts")

    def _checksum(self, name: str, data: bytes) -> str:
        known = self._sums.get(name)
        if known is None or known[0] is not data:
            known = self._sums[name] = data, checksum(data)
        return known[1]

    def _check_committed(self, name: str, *, is_users: bool) -> None:
        if PartName.parse(name.rpartition("/")[2]) is None:
            return
        data, before = self._world.storage.files.get(name), self._committed.get(name)
        if not is_users and before is not None and data != before:
            raise SimulationFailed(f"the committed {name} was {'removed' if data is None else 'replaced'}")
        if data is None:
            self._committed.pop(name, None)
        else:
            self._committed[name] = data


def _decides(name: str) -> bool:
    """Whether a change of it may change which checkpoints count."""
    return name.endswith((f"/{layout.MANIFEST}", ".start", ".completed"))
