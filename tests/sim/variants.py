"""The engine, broken on purpose: each variant undoes one thing that exactly-once rests on.

The simulation must catch every one of them, or it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from weir.ids import CheckpointId
from weir.operators.base import Frozen
from weir.runtime import worker as worker_module
from weir.runtime.checkpoint_store import CheckpointStore
from weir.runtime.driver import Driver
from weir.runtime.gate import Gate
from weir.runtime.sink_end import SinkEnd
from weir.runtime.snapshots import Snapshot, Snapshotter
from weir.runtime.subtask import SourceSubtask, Subtask
from weir.snapshot.alignment import AtLeastOnceAlignment
from weir.snapshot.checkpoints import Listing
from weir.snapshot.coordinator import Coordinator
from weir.snapshot.elements import Barrier
from weir.snapshot.messages import (
    CheckpointCompleted,
    FinishJob,
    PublishManifest,
    SnapshotDeclined,
    SnapshotTaken,
    SubtaskFinished,
)


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def no_alignment() -> AbstractContextManager[None]:
    """Operators go on reading a channel behind its barrier."""
    return patched(worker_module, "ExactlyOnceAlignment", AtLeastOnceAlignment)


def commit_before_publication() -> AbstractContextManager[None]:
    """Sinks are told to commit when all have acknowledged, before the manifest is there."""
    original = Driver._perform

    def perform(self: Driver, effect: Any) -> None:
        if isinstance(effect, PublishManifest) and self.attempt is not None:
            self._broadcast(CheckpointCompleted(self.attempt, effect.checkpoint))
        original(self, effect)

    return patched(Driver, "_perform", perform)


def old_attempt_is_heard() -> AbstractContextManager[None]:
    """What tasks of an older attempt say counts for the current one."""
    original = Driver.hear

    def hear(self: Driver, message: Any) -> None:
        if self.attempt is not None:
            message = replace(message, attempt=self.attempt)
        original(self, message)

    return patched(Driver, "hear", hear)


def position_after_barrier() -> AbstractContextManager[None]:
    """A source records where it is after it has read on, beyond its barrier."""
    original = SourceSubtask._work

    def work(self: SourceSubtask) -> bool:
        if not self._triggers or self.finished:
            return original(self)
        batch = self.reader.poll(self._rows_max)
        checkpoint = self._triggers.popleft()
        self._snapshot(checkpoint, {self.context.uid: Frozen(self.reader.position())})
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

    def snapshot(self: Subtask, checkpoint: CheckpointId, source: Any = None) -> None:
        frozen = dict(source or {})
        frozen.update({link.uid: link.operator.freeze() for link in self.chain.links})
        prepare = self.sink.prepare(checkpoint) if self.sink is not None else None
        self._gate.mark(Barrier(checkpoint))
        self._snapshotter.begin(Snapshot(checkpoint, frozen, prepare, self._clock.now_ms()))

    return patched(Subtask, "_snapshot", snapshot)


def pending_epochs_not_in_snapshot() -> AbstractContextManager[None]:
    """The manifest does not say which epochs are still to be committed."""
    return patched(SinkEnd, "inline", property(lambda self: {"pending": []}))


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
        self.retire(manifest.checkpoint)
        original(self, manifest)

    return patched(CheckpointStore, "publish", publish)


def barrier_overtakes_rows() -> AbstractContextManager[None]:
    """A barrier jumps the queue of what waits for a full channel."""

    def mark(self: Gate, marker: Any) -> None:
        for lane in self._lanes:
            if isinstance(marker, Barrier) and lane.waiting:
                lane.waiting.appendleft(marker)
            else:
                lane.push(marker)

    return patched(Gate, "mark", mark)


def aborted_epoch_dropped() -> AbstractContextManager[None]:
    """The rows of an aborted checkpoint's epoch are forgotten rather than carried to the next."""
    original = Snapshotter._written

    def written(self: Snapshotter, snapshot: Any, result: Any) -> None:
        if not isinstance(result, BaseException) and result.refusal is not None:
            result = replace(result, committable=None)
        original(self, snapshot, result)

    return patched(Snapshotter, "_written", written)


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
        barrier_overtakes_rows,
        aborted_epoch_dropped,
    )
}
