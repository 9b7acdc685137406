"""What a task begins from: a checkpoint, and how far its sources had come since.

Comes in: what the driver's order says. Goes out: what each operator restores, and where each reader begins. Reads the
files that the manifest names only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weir.ids import CheckpointId, Uid
from weir.operators.base import InlinePart, OperatorContext, Restored
from weir.runtime.ports import Copies, Storage
from weir.runtime.storage.state_files import restored_part
from weir.snapshot.manifest import Manifest
from weir.snapshot.parts import Reserved


@dataclass(frozen=True)
class Beginning:
    """Of one attempt, for all its tasks."""

    manifest: Manifest | None = None
    origin: Storage | None = None
    """Where the checkpoint lies, when it is not among the job's own."""
    positions: Mapping[Uid, Reserved] = field(default_factory=dict)
    """Sources that go on from further than the checkpoint says."""
    loses_state: bool = False
    """What state is in the checkpoint is left out."""
    reserves: bool = False
    """Rows wait in their sources until it is noted that they were read."""
    was_read: Callable[[int], None] = lambda length_bytes: None
    """Told of each state file, how long it is."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """What the attempt begins with; None: it begins anew."""
        return None if self.manifest is None else self.manifest.checkpoint

    def restored(self, context: OperatorContext, storage: Storage, copies: Copies) -> Restored | None:
        """What an operator of the checkpoint finds; None: nothing is known of it."""
        found = self._found(context, storage, copies)
        # Readers begin behind what their own states know of, too: those are lost like any other.
        return replace(found, states={}) if found is not None and self.loses_state else found

    def _found(self, context: OperatorContext, storage: Storage, copies: Copies) -> Restored | None:
        if self.manifest is None:
            return None
        if self.origin is not None:
            return restored_part(self.manifest, context, self.origin, is_own=False, was_read=self.was_read)
        # Where checkpoints without state follow, what has some must not refer to files of older ones.
        is_own = not self.reserves
        return restored_part(self.manifest, context, storage, copies=copies, is_own=is_own, was_read=self.was_read)

    def positions_of(self, uid: Uid, restored: Restored | None) -> Sequence[InlinePart] | None:
        """Where the readers of a source had come; None: it is read from the beginning."""
        reserved = self.positions.get(uid)
        if reserved is None:
            return None if restored is None else restored.positions
        readers = len(reserved.positions)
        return [InlinePart(index, readers, position) for index, position in enumerate(reserved.positions)]
