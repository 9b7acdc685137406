"""State that checkpoints share, broken on purpose: files that go too early, or are wrongly built on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace as with_files
from typing import Any

from tests.sim.patching import patched
from weir.ids import CheckpointId
from weir.operators.functions.async_map import _MapAsync
from weir.operators.functions.hooks import HookedFunction
from weir.runtime.storage.retirement import Retirement
from weir.snapshot.coordinator.under_way import LiveAttempts
from weir.state.columns.segments.segment import Run, Segment
from weir.state.columns.segments.store import SegmentStore
from weir.state.columns.slots import FrozenSlots, SlotChanges
from weir.state.frozen import RestoredParts
from weir.state.rocks.converting import FrozenConverting
from weir.state.rocks.snapshot import OLD_PREFIX


def shared_files_go_with_their_checkpoint() -> AbstractContextManager[None]:
    """Files that were written for a retired checkpoint are deleted, whoever else names them."""
    return patched(Retirement, "_shared_files", lambda self, checkpoint: frozenset())


def built_on_before_it_is_complete() -> AbstractContextManager[None]:
    """A snapshot refers to files of one that was written, but may never become a checkpoint."""
    original = FrozenSlots.write

    def write(self: FrozenSlots, out: Any) -> Any:
        part = original(self, out)
        self.confirmed(part)
        return part

    return patched(FrozenSlots, "write", write)


def bases_are_not_kept() -> AbstractContextManager[None]:
    """What a checkpoint under way builds on is retired as if nobody needed it."""

    def retain(self: LiveAttempts, count: int) -> CheckpointId:
        self.completed = self.completed[-count:]
        return CheckpointId(self.completed[0])

    return patched(LiveAttempts, "retain", retain)


def files_of_other_key_groups_are_built_on() -> AbstractContextManager[None]:
    """After a rescale a subtask takes the files of an old one for its own."""
    return patched(RestoredParts, "whole", property(lambda self: self.parts[0] if self.parts else None))


def frozen_state_sees_later_rows() -> AbstractContextManager[None]:
    """Nobody saves what a frozen state stands for before it changes."""
    return patched(FrozenSlots, "save", lambda self, slots: None)


def changes_of_an_aborted_checkpoint_are_forgotten() -> AbstractContextManager[None]:
    """A snapshot holds what changed since the last one that was taken, not since the last that is complete."""
    original = SlotChanges._since_base

    def since_base(self: SlotChanges, count: int) -> Any:
        self._unconfirmed = self._unconfirmed[-1:]
        return original(self, count)

    return patched(SlotChanges, "_since_base", since_base)


def old_segment_is_named_after_compaction() -> AbstractContextManager[None]:
    """What segments were merged into is not written: a checkpoint names the file of the oldest of them instead."""
    original = SegmentStore._replace

    def replace(self: SegmentStore, bucket_us: int, runs: Sequence[Run], by: Sequence[Segment]) -> None:
        original(self, bucket_us, runs, by)
        for segment in by:
            segment.file = runs[0].segments[0].file

    return patched(SegmentStore, "_replace", replace)


def restore_forgets_what_is_not_converted() -> AbstractContextManager[None]:
    """Of a restored state whose type has changed, a checkpoint holds only what was converted by then."""
    original = FrozenConverting.write

    def write(self: FrozenConverting, out: Any) -> Any:
        part = original(self, out)
        return with_files(part, files={n: file for n, file in part.files.items() if not n.startswith(OLD_PREFIX)})

    return patched(FrozenConverting, "write", write)


def hooks_are_not_restored() -> AbstractContextManager[None]:
    """What function objects have said of themselves is in the checkpoint, and nobody tells them."""
    return patched(HookedFunction, "restore", lambda self, restored: None)


def async_state_is_kept_of_calls_that_did_not_come_out() -> AbstractContextManager[None]:
    """What a call has made of the state is kept when it has come back, though its row is in flight still."""
    original = _MapAsync._came_back

    def came_back(self: _MapAsync, flight: Any, succeeded: bool, result: Any) -> None:
        original(self, flight, succeeded, result)
        backend = self._backend
        if backend is not None and flight.held is not None:
            backend.begin([flight.key])
            self._at_key.write(flight.held)
            backend.end()
            flight.held = None

    return patched(_MapAsync, "_came_back", came_back)


STATE_VARIANTS = (
    hooks_are_not_restored,
    async_state_is_kept_of_calls_that_did_not_come_out,
    restore_forgets_what_is_not_converted,
    shared_files_go_with_their_checkpoint,
    built_on_before_it_is_complete,
    bases_are_not_kept,
    files_of_other_key_groups_are_built_on,
    frozen_state_sees_later_rows,
    changes_of_an_aborted_checkpoint_are_forgotten,
    old_segment_is_named_after_compaction,
)
