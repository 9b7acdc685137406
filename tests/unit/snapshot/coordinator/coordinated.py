"""A coordinator under a clock that the test owns, with short names for what is told to it and what it orders."""

from __future__ import annotations

from typing import Any

from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.snapshot.coordinator.events import (
    AttemptEnded,
    AttemptStarted,
    CoordinatorEvent,
    ManifestPublished,
    ManifestRefused,
    TimePassed,
)
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.coordinator.orders import (
    AbortReason,
    CoordinatorEffect,
    PublishManifest,
    RetireCheckpoints,
    SendAbort,
    SendCompleted,
    SendTrigger,
)
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import EpochsCommitted, SnapshotDeclined, SnapshotTaken, SubtaskFinished
from weir.snapshot.parts import FileRef, OperatorPart, StatePart

SOURCE = SubtaskId(VertexId(0), 0)
SINK = SubtaskId(VertexId(1), 0)
BOTH = frozenset({SOURCE, SINK})
SETTINGS = CoordinatorSettings(interval_ms=100, timeout_ms=1_000, tolerable_failures=1, retain=2)
PARTS = (OperatorPart(Uid("op"), None, {"state": StatePart("arrow", {"0": FileRef("f", 10, "c")})}),)


class Job:
    """A coordinator, its clock, and short names for what is told to it."""

    def __init__(self, settings: CoordinatorSettings = SETTINGS, start: bool = True) -> None:
        self.coordinator = Coordinator(settings)
        self.now_ms = 0.0
        self.attempt = 0
        if start:
            assert self.start() == []

    def tell(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        return self.coordinator.handle(event, self.now_ms)

    def start(self, next_checkpoint: int = 1, completed: tuple[int, ...] = ()) -> list[CoordinatorEffect]:
        self.attempt += 1
        ids = tuple(CheckpointId(n) for n in completed)
        return self.tell(
            AttemptStarted(AttemptId(self.attempt), BOTH, frozenset({SINK}), CheckpointId(next_checkpoint), ids)
        )

    def end(self) -> list[CoordinatorEffect]:
        return self.tell(AttemptEnded(AttemptId(self.attempt)))

    def at(self, now_ms: float) -> list[CoordinatorEffect]:
        self.now_ms = now_ms
        return self.tell(TimePassed())

    def taken(
        self, checkpoint: int, subtask: SubtaskId, attempt: int | None = None, **export: Any
    ) -> list[CoordinatorEffect]:
        of = AttemptId(self.attempt if attempt is None else attempt)
        return self.tell(SnapshotTaken(of, CheckpointId(checkpoint), subtask, PARTS, uploaded_bytes=3, **export))

    def all_taken(self, checkpoint: int) -> list[CoordinatorEffect]:
        return self.taken(checkpoint, SOURCE) + self.taken(checkpoint, SINK)

    def declined(self, checkpoint: int) -> list[CoordinatorEffect]:
        return self.tell(SnapshotDeclined(AttemptId(self.attempt), CheckpointId(checkpoint), SINK, "disk full"))

    def published(self, checkpoint: int) -> list[CoordinatorEffect]:
        return self.tell(ManifestPublished(CheckpointId(checkpoint)))

    def refused(self, checkpoint: int) -> list[CoordinatorEffect]:
        return self.tell(ManifestRefused(CheckpointId(checkpoint), "no room"))

    def finish(self) -> list[CoordinatorEffect]:
        effects = [self.tell(SubtaskFinished(AttemptId(self.attempt), subtask)) for subtask in (SOURCE, SINK)]
        return effects[0] + effects[1]

    def committed(self, checkpoint: int, subtask: SubtaskId = SINK) -> list[CoordinatorEffect]:
        return self.tell(EpochsCommitted(AttemptId(self.attempt), CheckpointId(checkpoint), subtask))

    def complete(self, checkpoint: int) -> list[CoordinatorEffect]:
        self.all_taken(checkpoint)
        return self.published(checkpoint)


def trigger(
    checkpoint: int, savepoint: str | None = None, *, pause: bool = False, base: int | None = None
) -> SendTrigger:
    return SendTrigger(CheckpointId(checkpoint), savepoint, pause, None if base is None else CheckpointId(base))


def publish(checkpoint: int) -> PublishManifest:
    return PublishManifest(CheckpointId(checkpoint), {SOURCE: PARTS, SINK: PARTS})


def completed(checkpoint: int) -> SendCompleted:
    return SendCompleted(CheckpointId(checkpoint))


def retire(oldest_kept: int) -> RetireCheckpoints:
    return RetireCheckpoints(CheckpointId(oldest_kept))


def subsumed(checkpoint: int) -> SendAbort:
    return SendAbort(CheckpointId(checkpoint), AbortReason.SUBSUMED)


def kinds(effects: list[CoordinatorEffect]) -> list[type]:
    return [type(effect) for effect in effects]
