"""The coordinator over several attempts, what it shows to people, and every phase against every event."""

from __future__ import annotations

import pytest

from tests.unit.snapshot.coordinator.coordinated import (
    BOTH,
    SINK,
    SOURCE,
    Job,
    trigger,
)
from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId
from weir.snapshot.coordinator.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    ManifestPublished,
    ManifestRefused,
    SavepointPublished,
    SavepointRefused,
    TimePassed,
)
from weir.snapshot.coordinator.history import RECORDS_MAX, CheckpointState
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.coordinator.orders import AbortReason, SendTrigger
from weir.snapshot.coordinator.phases import TRANSITIONS, CoordinatorPhase
from weir.snapshot.messages import EpochsCommitted, SnapshotDeclined, SnapshotTaken, SubtaskFinished

# --- Attempts -----------------------------------------------------------------------------------------


def test_ids_grow_over_attempts_whatever_storage_shows() -> None:
    job = Job()
    job.at(100)
    job.end()
    job.start(next_checkpoint=1)
    assert job.at(300) == [trigger(2)]
    assert job.coordinator.next_checkpoint == 3
    job.end()
    job.start(next_checkpoint=50)
    assert job.at(500) == [trigger(50)]


def test_nothing_of_an_ended_attempt_counts() -> None:
    job = Job()
    job.at(100)
    job.taken(1, SOURCE)
    assert job.end() == []
    assert job.coordinator.next_due_ms() is None
    assert job.taken(1, SINK) + job.at(50_000) == []
    job.start(next_checkpoint=2)
    assert job.taken(1, SOURCE, attempt=1) + job.taken(1, SINK, attempt=1) == []
    assert job.tell(AttemptEnded(AttemptId(1))) == []
    assert job.at(50_100) == [trigger(2)], "an old attempt's end is not the new one's"


@pytest.mark.parametrize("restarted_before", [True, False])
def test_a_manifest_that_lands_after_its_attempt_is_not_told_to_the_next(restarted_before: bool) -> None:
    job = Job()
    job.at(100)
    job.all_taken(1)
    job.end()
    if restarted_before:
        job.start(next_checkpoint=2)
    assert job.published(1) == []
    expected = CheckpointState.ABORTED if restarted_before else CheckpointState.COMPLETED
    assert job.coordinator.history[0].state is expected


def test_the_next_attempt_finds_out_what_became_of_a_manifest() -> None:
    for found, expected in (((1,), CheckpointState.COMPLETED), ((), CheckpointState.ABORTED)):
        job = Job()
        job.at(100)
        job.all_taken(1)
        job.end()
        assert job.coordinator.history[0].state is CheckpointState.PENDING
        job.start(next_checkpoint=2, completed=found)
        assert job.coordinator.history[0].state is expected


def test_an_attempt_that_is_not_newer_or_has_no_subtasks_is_a_violation() -> None:
    job = Job()
    for attempt, subtasks, committers in ((1, BOTH, BOTH), (2, frozenset(), frozenset()), (2, {SINK}, BOTH)):
        with pytest.raises(ProtocolViolation):
            job.tell(
                AttemptStarted(AttemptId(attempt), frozenset(subtasks), frozenset(committers), CheckpointId(1), ())
            )


# --- For people ---------------------------------------------------------------------------------------


def test_the_history_shows_what_became_of_each_checkpoint() -> None:
    job = Job()
    job.at(100)
    job.now_ms = 140
    job.complete(1)
    job.at(200)
    job.now_ms = 230
    job.declined(2)
    job.at(300)
    job.taken(3, SOURCE)
    first, second, third = job.coordinator.history
    assert (first.id, first.state, first.triggered_ms, first.duration_ms) == (1, CheckpointState.COMPLETED, 100, 40)
    assert (first.size_bytes, first.uploaded_bytes, first.acknowledged) == (20, 6, 2)
    assert (second.state, second.reason, second.duration_ms) == (CheckpointState.ABORTED, AbortReason.DECLINED, 30)
    assert "disk full" in second.detail
    assert (third.state, third.acknowledged) == (CheckpointState.PENDING, 1)
    job.end()
    assert job.coordinator.history[2].reason is AbortReason.ATTEMPT_ENDED


def test_the_history_is_bounded() -> None:
    job = Job()
    for number in range(1, RECORDS_MAX + 20):
        job.at(number * 100)
        job.complete(number)
    assert [record.id for record in job.coordinator.history] == list(range(20, RECORDS_MAX + 20))


EVENTS: tuple[CoordinatorEvent, ...] = (
    AttemptStarted(AttemptId(9), BOTH, frozenset({SINK}), CheckpointId(1), ()),
    AttemptEnded(AttemptId(1)),
    CheckpointRequested(),
    TimePassed(),
    ManifestPublished(CheckpointId(99)),
    ManifestRefused(CheckpointId(99), ""),
    SavepointPublished(CheckpointId(99)),
    SavepointRefused(CheckpointId(99), ""),
    SnapshotTaken(AttemptId(1), CheckpointId(99), SINK, ()),
    SnapshotDeclined(AttemptId(1), CheckpointId(99), SINK, ""),
    EpochsCommitted(AttemptId(1), CheckpointId(0), SINK),
    SubtaskFinished(AttemptId(1), SINK),
)
REFUSED = {(CoordinatorPhase.FINISHED, AttemptStarted)}


def in_phase(phase: CoordinatorPhase) -> Job:
    job = Job(start=phase is not CoordinatorPhase.WAITING)
    if phase in (CoordinatorPhase.FINISHING, CoordinatorPhase.FINISHED):
        job.finish()
    if phase is CoordinatorPhase.FINISHED:
        job.complete(1)
        job.committed(1)
    if phase is CoordinatorPhase.FAILING:
        job.at(100)
        job.declined(1)
        job.at(200)
        job.declined(2)
    assert job.coordinator.phase is phase
    return job


@pytest.mark.parametrize("phase", CoordinatorPhase)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_phase_handles_or_refuses_every_event(phase: CoordinatorPhase, event: CoordinatorEvent) -> None:
    job = in_phase(phase)
    assert {type(event) for event in EVENTS} == set(Coordinator.handlers)
    if (phase, type(event)) in REFUSED:
        with pytest.raises(ProtocolViolation):
            job.tell(event)
    else:
        assert all(isinstance(effect, SendTrigger) for effect in job.tell(event))


@pytest.mark.parametrize("before", CoordinatorPhase)
@pytest.mark.parametrize("after", CoordinatorPhase)
def test_only_what_the_table_says_follows(before: CoordinatorPhase, after: CoordinatorPhase) -> None:
    coordinator = in_phase(before).coordinator
    assert coordinator.phase is before
    if before is after or (before, after) in TRANSITIONS:
        coordinator._enter(after)
        assert coordinator.phase is after
    else:
        with pytest.raises(ProtocolViolation, match=f"{after.name} does not follow"):
            coordinator._enter(after)
