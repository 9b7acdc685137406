"""The engine, broken on purpose: each variant undoes one thing that exactly-once rests on.

The simulation must catch every one of them, or it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.sim.at_most_once import AT_MOST_ONCE_VARIANTS
from tests.sim.care_variants import CARE_VARIANTS
from tests.sim.loops import LOOP_VARIANTS
from tests.sim.patching import all_of, patched, patched_here
from tests.sim.region_variants import REGION_VARIANTS
from tests.sim.savepoint_variants import SAVEPOINT_VARIANTS
from tests.sim.sink_variants import SINK_VARIANTS
from tests.sim.state_variants import STATE_VARIANTS
from tests.sim.storage_variants import STORAGE_VARIANTS, ids_are_counted_from_what_is_there
from tests.sim.time_variants import TIME_VARIANTS
from weir.connectors.files.parts import PartDirectory, pending_directory
from weir.connectors.files.sink import FileSinkWriter
from weir.errors import StorageFull, StorageUnavailable
from weir.ids import CheckpointId
from weir.runtime.driver import phases
from weir.runtime.driver.checkpoint_desk import CheckpointDesk
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.loop import Driver
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import Attempts
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.task import worker as worker_module
from weir.runtime.task.sink_end import SinkEnd
from weir.runtime.task.snapshots import Snapshot, Snapshotter
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.subtask import Subtask
from weir.runtime.task.worker import _Builder
from weir.snapshot.alignment import AtLeastOnceAlignment
from weir.snapshot.checkpoints import Listing
from weir.snapshot.coordinator.events import AttemptStarted
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.coordinator.orders import FinishJob, PublishManifest
from weir.snapshot.elements import Barrier
from weir.snapshot.manifest import encode
from weir.snapshot.messages import CheckpointCompleted, SnapshotDeclined, SnapshotTaken, SubtaskFinished
from weir.snapshot.parts import PendingEpochs

# --- Barriers and checkpoints -----------------------------------------------------------------------------


def no_alignment() -> AbstractContextManager[None]:
    """Operators go on reading a channel behind its barrier."""
    return patched(worker_module, "ExactlyOnceAlignment", AtLeastOnceAlignment)


def commit_before_publication() -> AbstractContextManager[None]:
    """Sinks are told to commit when all have acknowledged, before the manifest is there."""
    original = CheckpointDesk._perform

    def perform(self: CheckpointDesk, effect: Any) -> None:
        if isinstance(effect, PublishManifest):
            self._attempts.tell(lambda attempt: CheckpointCompleted(attempt, effect.checkpoint))
        original(self, effect)

    return patched(CheckpointDesk, "_perform", perform)


def old_attempt_is_heard() -> AbstractContextManager[None]:
    """What tasks of an older attempt acknowledge counts for the current one, which gives the same ids out again."""
    hear, claimed, started = Driver.hear, ClaimDesk._claimed, Coordinator._attempt_started

    def hear_anyone(self: Driver, message: Any) -> None:
        current = {subtask: r.attempt for r in self.regions if r.attempt is not None for subtask in r.plan.subtasks}
        if isinstance(message, SnapshotTaken) and message.subtask in current:
            message = replace(message, attempt=current[message.subtask])
        hear(self, message)

    def forget(self: ClaimDesk, result: Any, done: Any) -> None:
        self._next_checkpoint = CheckpointId(1)
        claimed(self, result, done)

    def count_anew(self: Coordinator, event: Any, now_ms: float) -> Any:
        self._next_checkpoint = event.next_checkpoint
        return started(self, event, now_ms)

    def above_manifests(self: Listing, own: Any = None) -> CheckpointId:
        return CheckpointId(max([0, *(entry.checkpoint for entry in self.published)]) + 1)

    handlers = {**Coordinator.handlers, AttemptStarted: count_anew}
    return all_of(
        patched(Driver, "hear", hear_anyone),
        patched(ClaimDesk, "_claimed", forget),
        patched(Coordinator, "handlers", handlers),
        patched(Listing, "next_checkpoint", above_manifests),
    )


def position_after_barrier() -> AbstractContextManager[None]:
    """A source records where it is after it has read on, beyond its barrier."""
    original = SourceSubtask._work

    def work(self: SourceSubtask) -> bool:
        if not self._triggers or self.finished:
            return original(self)
        batch = self.reader.poll(self._turn.rows_max)
        self._begin(self._triggers.popleft())
        if batch is not None:
            self.chain.process(batch)
        return True

    return patched(SourceSubtask, "_work", work)


def lost_final_checkpoint() -> AbstractContextManager[None]:
    """The job ends as soon as all rows have passed, without a last checkpoint."""
    original = Coordinator.handle

    def handle(self: Coordinator, event: Any, now_ms: float) -> list[Any]:
        effects = original(self, event, now_ms)
        if isinstance(event, SubtaskFinished) and effects:
            return [FinishJob()]
        return effects

    return patched(Coordinator, "handle", handle)


def held_rows_after_barrier() -> AbstractContextManager[None]:
    """What operators hold back leaves after the barrier, although the state already knows it."""

    def snapshot(self: Subtask, barrier: Barrier, source: Any = None) -> None:
        if barrier.base is not None:
            self._snapshotter.completed(barrier.base)
        frozen = dict(source or {})
        frozen.update({link.uid: link.operator.freeze() for link in self.chain.links})
        prepare = self.sink.prepare(barrier.checkpoint) if self.sink is not None else None
        self._gate.mark(barrier)
        self._snapshotter.begin(Snapshot(barrier.checkpoint, frozen, prepare, self._clock.now_ms(), barrier.savepoint))

    return patched(Subtask, "_snapshot", snapshot)


def pending_epochs_not_in_snapshot() -> AbstractContextManager[None]:
    """The manifest does not say which epochs are still to be committed."""
    return patched(SinkEnd, "inline", property(lambda self: PendingEpochs(())))


def restore_of_the_oldest() -> AbstractContextManager[None]:
    """A restart falls back to the oldest checkpoint that is there, in silence."""
    return patched(Listing, "newest", property(lambda self: self.valid[0] if self.valid else None))


def declined_counts_as_taken() -> AbstractContextManager[None]:
    """A subtask that could not write its state is counted as if it had none."""
    original = Coordinator.handle

    def handle(self: Coordinator, event: Any, now_ms: float) -> list[Any]:
        if isinstance(event, SnapshotDeclined):
            event = SnapshotTaken(event.attempt, event.checkpoint, event.subtask, ())
        return original(self, event, now_ms)

    return patched(Coordinator, "handle", handle)


def retired_before_publication() -> AbstractContextManager[None]:
    """Older checkpoints are deleted when the newer is about to be published."""
    original = CheckpointStore.publish

    def publish(self: CheckpointStore, manifest: Any) -> None:
        for name in self.storage.list(""):
            if (older := layout.checkpoint_of(name)) is not None and older < manifest.checkpoint:
                self.storage.delete(layout.manifest_path(older))
        original(self, manifest)

    return patched(CheckpointStore, "publish", publish)


def aborted_epoch_dropped() -> AbstractContextManager[None]:
    """The rows of an aborted checkpoint's epoch are forgotten rather than carried to the next."""
    original = Snapshotter._written

    def written(self: Snapshotter, snapshot: Any, result: Any) -> None:
        if not isinstance(result, BaseException) and result.refusal is not None:
            result = replace(result, committable=None)
        original(self, snapshot, result)

    return patched(Snapshotter, "_written", written)


# --- Fencing and storage --------------------------------------------------------------------------------


def taken_over_and_does_not_look() -> AbstractContextManager[None]:
    """A driver does not look whether another has taken the job over."""
    return patched(Attempts, "check_newest", lambda self: None)


def claim_without_a_second_look() -> AbstractContextManager[None]:
    """An attempt starts from what was there before it was claimed, not from what is there after."""
    original = CheckpointStore.claim

    def claim(self: CheckpointStore, *given: Any, **how: Any) -> Any:
        before, is_first = self.listing(), self._attempts.own is None
        attempt = self._attempts.take()
        stale = patched_here(self, "listing", lambda: before)
        if is_first:
            self._check_lineage()
        with all_of(stale, patched_here(self._attempts, "take", lambda above: attempt)):
            return original(self, *given, **how)

    return patched(CheckpointStore, "claim", claim)


def late_manifest_of_an_old_attempt_counts() -> AbstractContextManager[None]:
    """Every manifest that is there counts, whoever wrote it and when."""
    return patched(Listing, "valid_published", property(lambda self: self.published))


def manifest_replaced() -> AbstractContextManager[None]:
    """A manifest is written over one with the same id, and ids of manifests that are gone are used again."""

    def publish(self: CheckpointStore, manifest: Any) -> None:
        self._storage.publish(layout.manifest_path(manifest.checkpoint), encode(manifest))
        self._attempts.check_newest()
        self._attempts.note(manifest.attempt, "completed", {"checkpoint": manifest.checkpoint})

    return all_of(patched(CheckpointStore, "publish", publish), ids_are_counted_from_what_is_there())


def unknown_outcome_is_a_failure() -> AbstractContextManager[None]:
    """A manifest whose write was not answered is taken for one that does not exist."""
    original = CheckpointDesk._published

    def published(self: CheckpointDesk, manifest: Any, result: Any) -> None:
        if isinstance(result, StorageUnavailable):
            result = StorageFull(str(result))
        original(self, manifest, result)

    return patched(CheckpointDesk, "_published", published)


def state_files_without_attempt() -> AbstractContextManager[None]:
    """State files of all attempts have the same names."""
    return patched(layout, "state_prefix", lambda attempt: "a-")


# --- Sources and sinks ----------------------------------------------------------------------------------


def restored_positions_ignored() -> AbstractContextManager[None]:
    """Sources start again from the beginning."""
    original = _Builder._source

    def source(self: Any, operator: Any, spec: Any, common: Any) -> Any:
        with patched_here(self, "_restored", lambda context: None):
            return original(self, operator, spec, common)

    return patched(_Builder, "_source", source)


def restored_epochs_not_committed() -> AbstractContextManager[None]:
    """After a restart nobody commits what the restored checkpoint says is still to be committed."""
    original = SinkEnd.open

    def open_(self: SinkEnd, restored: Any, checkpoint: Any) -> None:
        if restored is not None:
            parts = [replace(part, value=PendingEpochs(())) for part in restored.inline]
            restored = replace(restored, inline=parts)
        original(self, restored, checkpoint)

    return patched(SinkEnd, "open", open_)


def parts_without_attempt() -> AbstractContextManager[None]:
    """Part files of all attempts have the same names."""
    original = FileSinkWriter._cut

    def cut(self: FileSinkWriter) -> Any:
        name, batches = original(self)
        self._written[-1] = replace(name, attempt=0)
        return self._written[-1], batches

    return patched(FileSinkWriter, "_cut", cut)


def void_parts_committed() -> AbstractContextManager[None]:
    """At the end every pending part becomes visible, whether or not a checkpoint names it."""

    def finish(self: PartDirectory, owner: Any, fence: Any) -> None:
        pending = pending_directory(owner.lineage)
        for name in self._storage.list(pending):
            self._storage.move(f"{pending}/{name}", name)

    def keep(self: PartDirectory, owner: Any, uid: Any, attempt: Any, keep: Any, fence: Any) -> None:
        return None

    return all_of(patched(PartDirectory, "finish", finish), patched(PartDirectory, "recover", keep))


def lost_reply_loses_the_epoch() -> AbstractContextManager[None]:
    """A commit whose reply was lost is taken as done before all its epochs are."""
    original = SinkEnd._committed

    def committed(self: SinkEnd, commit: Any, result: Any) -> None:
        original(self, commit, None if isinstance(result, StorageUnavailable) else result)

    return patched(SinkEnd, "_committed", committed)


# --- Order ----------------------------------------------------------------------------------------------


def early_messages_dropped() -> AbstractContextManager[None]:
    """What a task tells before all its peers run is forgotten."""
    original = Driver.hear

    def hear(self: Driver, message: Any) -> None:
        region = self._region_of(message.attempt)
        is_early = region is not None and isinstance(region.phase, phases.Deploying)
        if is_early and isinstance(message, SubtaskFinished):
            return
        original(self, message)

    return patched(Driver, "hear", hear)


VARIANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    variant.__name__: variant
    for variant in (
        no_alignment,
        commit_before_publication,
        old_attempt_is_heard,
        position_after_barrier,
        lost_final_checkpoint,
        held_rows_after_barrier,
        pending_epochs_not_in_snapshot,
        restore_of_the_oldest,
        declined_counts_as_taken,
        retired_before_publication,
        aborted_epoch_dropped,
        taken_over_and_does_not_look,
        claim_without_a_second_look,
        late_manifest_of_an_old_attempt_counts,
        manifest_replaced,
        unknown_outcome_is_a_failure,
        state_files_without_attempt,
        restored_positions_ignored,
        restored_epochs_not_committed,
        parts_without_attempt,
        void_parts_committed,
        lost_reply_loses_the_epoch,
        early_messages_dropped,
        *STATE_VARIANTS,
        *REGION_VARIANTS,
        *SAVEPOINT_VARIANTS,
        *STORAGE_VARIANTS,
        *SINK_VARIANTS,
        *CARE_VARIANTS,
        *TIME_VARIANTS,
        *AT_MOST_ONCE_VARIANTS,
        *LOOP_VARIANTS,
    )
}
