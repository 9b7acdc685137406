"""The coordinator of a job whose regions fail and come back for themselves."""

from __future__ import annotations

import pytest

from tests.unit.snapshot.coordinator.coordinated import PARTS
from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.snapshot.coordinator.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRequested,
    ManifestPublished,
    TimePassed,
)
from weir.snapshot.coordinator.machine import Coordinator, CoordinatorPhase
from weir.snapshot.coordinator.orders import (
    AbortReason,
    CoordinatorEffect,
    FailRequest,
    FinishJob,
    PublishManifest,
    RetireCheckpoints,
    SendAbort,
    SendCompleted,
    SendTrigger,
)
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import EpochsCommitted, SnapshotTaken, SubtaskFinished

A, B = SubtaskId(VertexId(0), 0), SubtaskId(VertexId(1), 0)


class Regions:
    """Two regions of one subtask each, both of which commit."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(CoordinatorSettings(interval_ms=100, tolerable_failures=0, retain=1))
        self.now_ms = 0.0
        self.attempts: dict[SubtaskId, AttemptId] = {}

    def tell(self, event: object) -> list[CoordinatorEffect]:
        return self.coordinator.handle(event, self.now_ms)  # type: ignore[arg-type]

    def start(self, subtask: SubtaskId, attempt: int, *completed: int) -> list[CoordinatorEffect]:
        self.attempts[subtask] = AttemptId(attempt)
        others = frozenset({A, B} - {subtask})
        done = tuple(CheckpointId(n) for n in completed)
        own = frozenset({subtask})
        following = CheckpointId(max(completed, default=0) + 1)
        return self.tell(AttemptStarted(AttemptId(attempt), own, own, following, done, others))

    def end(self, subtask: SubtaskId) -> list[CoordinatorEffect]:
        return self.tell(AttemptEnded(self.attempts[subtask]))

    def trigger(self) -> list[CoordinatorEffect]:
        self.now_ms += 100
        return self.tell(TimePassed())

    def ack(self, subtask: SubtaskId, checkpoint: int, attempt: int | None = None) -> list[CoordinatorEffect]:
        who = self.attempts[subtask] if attempt is None else AttemptId(attempt)
        return self.tell(SnapshotTaken(who, CheckpointId(checkpoint), subtask, PARTS))

    def commit(self, subtask: SubtaskId, checkpoint: int) -> list[CoordinatorEffect]:
        return self.tell(EpochsCommitted(self.attempts[subtask], CheckpointId(checkpoint), subtask))

    def finish(self, subtask: SubtaskId) -> list[CoordinatorEffect]:
        return self.tell(SubtaskFinished(self.attempts[subtask], subtask))


@pytest.fixture
def job() -> Regions:
    job = Regions()
    job.start(B, 2)
    assert job.trigger() == []  # not before all regions run
    job.start(A, 1)
    return job


def kinds(effects: list[CoordinatorEffect]) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_checkpoint_needs_every_region(job: Regions) -> None:
    assert job.trigger() == [SendTrigger(CheckpointId(1))]
    assert job.ack(A, 1) == []
    assert job.ack(B, 1) == [PublishManifest(CheckpointId(1), {A: PARTS, B: PARTS})]


def test_what_a_lost_region_took_part_in_is_aborted_and_is_no_failure(job: Regions) -> None:
    job.trigger()
    job.ack(A, 1)
    assert job.end(A) == [SendAbort(CheckpointId(1), AbortReason.ATTEMPT_ENDED)]
    assert job.trigger() == []
    assert job.coordinator.phase is CoordinatorPhase.WAITING
    job.start(A, 3)
    assert job.trigger() == [SendTrigger(CheckpointId(2))]


def test_the_snapshot_of_an_attempt_that_is_over_does_not_count_for_the_next(job: Regions) -> None:
    job.end(A)
    job.start(A, 3)
    job.trigger()
    job.ack(B, 1)
    assert job.ack(A, 1, attempt=1) == []
    assert kinds(job.ack(A, 1)) == [PublishManifest]


def test_a_manifest_that_is_being_written_when_a_region_is_lost_is_waited_for(job: Regions) -> None:
    job.trigger()
    job.ack(A, 1)
    job.ack(B, 1)
    assert job.end(A) == []
    assert job.coordinator.is_publishing
    published = job.tell(ManifestPublished(CheckpointId(1)))
    assert published == [SendCompleted(CheckpointId(1)), RetireCheckpoints(CheckpointId(1))]
    assert not job.coordinator.is_publishing


def test_the_next_checkpoint_builds_on_the_last_that_was_complete(job: Regions) -> None:
    job.trigger()
    job.ack(A, 1)
    job.ack(B, 1)
    job.tell(ManifestPublished(CheckpointId(1)))
    job.end(B)
    job.start(B, 3, 1)
    assert job.trigger() == [SendTrigger(CheckpointId(2), base=CheckpointId(1))]


def test_a_savepoint_fails_with_a_region_and_is_not_made_of_what_the_others_committed(job: Regions) -> None:
    request = CheckpointRequested(savepoint="there", name="x")
    assert kinds(job.tell(request)) == [SendTrigger]
    for subtask in (A, B):
        job.ack(subtask, 1)
    job.tell(ManifestPublished(CheckpointId(1)))
    assert job.commit(B, 1) == []
    (failed,) = job.end(A)
    assert isinstance(failed, FailRequest)
    assert failed.request == request
    assert job.commit(B, 1) == []


def test_a_job_ends_only_when_the_region_that_came_back_has_finished_again(job: Regions) -> None:
    job.finish(B)
    assert job.finish(A) == [SendTrigger(CheckpointId(1))]
    job.ack(A, 1)
    job.ack(B, 1)
    job.tell(ManifestPublished(CheckpointId(1)))
    job.commit(B, 1)
    job.end(A)
    job.start(A, 3, 1)
    assert job.commit(A, 1) == []
    assert job.finish(A) == [SendTrigger(CheckpointId(2), base=CheckpointId(1))]
    job.ack(A, 2)
    job.ack(B, 2)
    job.tell(ManifestPublished(CheckpointId(2)))
    job.commit(A, 2)
    assert job.commit(B, 2) == [FinishJob()]


def test_an_attempt_of_a_region_cannot_start_twice(job: Regions) -> None:
    with pytest.raises(ProtocolViolation, match="attempt 1 started after attempt 1"):
        job.start(A, 1)
