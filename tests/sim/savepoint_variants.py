"""Savepoints, stops, drains and other parallelisms, broken on purpose: each variant must be caught."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

from tests.sim.externals import SimReader
from tests.sim.patching import all_of, patched, patched_here
from weir.runtime.driver.checkpoint_desk import CheckpointDesk
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.loop import Driver
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.savepoints import SavepointDesk
from weir.runtime.task.snapshots import Snapshot, Snapshotter
from weir.runtime.task.source_subtask import SourceSubtask
from weir.snapshot.checkpoints import Listing
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.coordinator.orders import PublishManifest, PublishSavepoint
from weir.snapshot.coordinator.requests import Requests
from weir.snapshot.messages import CheckpointCompleted
from weir.snapshot.parts import OperatorPart


def savepoint_published_before_sinks_commit() -> AbstractContextManager[None]:
    """A request is answered as soon as its checkpoint is complete."""
    original = Requests.committed
    return patched(Requests, "committed", lambda self, lowest: original(self, math.inf))


def savepoint_names_the_files_of_its_checkpoint() -> AbstractContextManager[None]:
    """The savepoint's states are those of the job's own checkpoint, which is retired one day."""

    def export(self: Snapshotter, snapshot: Snapshot, savepoint: str) -> Any:
        return self._write_parts(snapshot)[0]

    return patched(Snapshotter, "_export", export)


def savepoint_names_pending_epochs() -> AbstractContextManager[None]:
    """The savepoint holds all that the checkpoint holds, also what was to be committed then."""
    original = CheckpointDesk._perform

    def perform(self: CheckpointDesk, effect: Any) -> None:
        if isinstance(effect, PublishSavepoint):
            held = self._store.read(effect.checkpoint).operators
            pending = {uid: {part.index: part.inline for part in operator.parts} for uid, operator in held.items()}
            of_vertex = {vertex.id: vertex.operators[-1].uid for vertex in self._attempts.plan.vertices}
            parts = {
                subtask: (*parts, OperatorPart(uid, pending[uid][subtask.index]))
                if subtask in self._attempts.plan.committers and (uid := of_vertex[subtask.vertex])
                else parts
                for subtask, parts in effect.parts.items()
            }
            effect = replace(effect, parts=parts)
        original(self, effect)

    return patched(CheckpointDesk, "_perform", perform)


def sources_go_on_behind_a_stop() -> AbstractContextManager[None]:
    """The barrier of a stop does not pause the sources."""
    original = SourceSubtask.trigger
    return patched(SourceSubtask, "trigger", lambda self, barrier, *, pause=False: original(self, barrier))


def drain_drops_what_was_read() -> AbstractContextManager[None]:
    """A drained source ends with rows in its hands, which its position already counts."""
    original = SourceSubtask._work

    def work(self: SourceSubtask) -> bool:
        if self._draining and not self.finished and not self._triggers:
            self.reader.poll(self._turn.rows_max)
        return original(self)

    return patched(SourceSubtask, "_work", work)


def drained_source_counts_as_read() -> AbstractContextManager[None]:
    """A drained source says that it has read everything, and not how far it came."""
    original = SimReader.position

    def position(self: SimReader) -> Any:
        return dict.fromkeys(original(self), self._source.per_split) if self.is_drained else original(self)

    drain = SourceSubtask.drain

    def drained(self: SourceSubtask) -> None:
        self.reader.is_drained = True  # type: ignore[attr-defined]
        drain(self)

    return all_of(patched(SimReader, "position", position), patched(SourceSubtask, "drain", drained))


def failed_savepoint_is_left_half_written() -> AbstractContextManager[None]:
    """Nobody removes what was written of a savepoint that failed."""
    return patched(SavepointDesk, "discard", lambda self, place, following: None)


def every_attempt_starts_from_the_savepoint() -> AbstractContextManager[None]:
    """A run that started from a savepoint goes back to it, although it has checkpoints of its own."""
    original = CheckpointStore.claim

    def claim_and_check(self: ClaimDesk, plan: Any, region: Any) -> Any:
        def claim(*given: Any) -> Any:
            claimed = original(self._store, *given)
            return claimed if self._origin is None else replace(claimed, restore=None, completed=())

        with patched_here(self._store, "claim", claim):
            return check(self, plan, region)

    check = ClaimDesk._claim_and_check
    return patched(ClaimDesk, "_claim_and_check", claim_and_check)


def rescaled_before_the_checkpoint_is_complete() -> AbstractContextManager[None]:
    """The new parallelism takes over what the old attempt has in flight: its sinks commit what was not complete."""
    original = CheckpointDesk._perform

    def perform(self: CheckpointDesk, effect: Any) -> None:
        driver = cast(Driver, self._attempts)
        rescaling = driver._rescale.current
        if rescaling is None or rescaling.previous is not None or not isinstance(effect, PublishManifest):
            original(self, effect)
        else:
            driver.tell(lambda attempt: CheckpointCompleted(attempt, effect.checkpoint))
            driver.leave_for(CheckpointRequested(None, Then.STOP, rescaling.name))

    return patched(CheckpointDesk, "_perform", perform)


def resume_forgets_the_savepoint() -> AbstractContextManager[None]:
    """A run that was started from a savepoint, and is resumed before its first checkpoint, begins from nothing."""
    return patched(Listing, "origin", property(lambda self: None))


SAVEPOINT_VARIANTS = (
    resume_forgets_the_savepoint,
    savepoint_published_before_sinks_commit,
    savepoint_names_the_files_of_its_checkpoint,
    savepoint_names_pending_epochs,
    sources_go_on_behind_a_stop,
    drain_drops_what_was_read,
    drained_source_counts_as_read,
    failed_savepoint_is_left_half_written,
    every_attempt_starts_from_the_savepoint,
    rescaled_before_the_checkpoint_is_complete,
)
