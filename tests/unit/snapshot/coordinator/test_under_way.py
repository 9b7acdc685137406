"""What is kept of checkpoints under way: one is published at a time, and what one builds on is not retired."""

from __future__ import annotations

from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.snapshot.coordinator.under_way import CheckpointPhase, CoordinatorSettings, LiveAttempts
from weir.snapshot.messages import SnapshotTaken

ONE, TWO = SubtaskId(VertexId(0), 0), SubtaskId(VertexId(0), 1)
SETTINGS = CoordinatorSettings(interval_ms=100, timeout_ms=50)


def live(*completed: int, begun: tuple[int, ...] = ()) -> LiveAttempts:
    attempts = LiveAttempts(frozenset({ONE, TWO}), [CheckpointId(id) for id in completed], 0.0, 100.0)
    for id in begun:
        attempts.begin(CheckpointId(id), 10.0, SETTINGS)
    return attempts


def taken(checkpoint: int, subtask: SubtaskId) -> SnapshotTaken:
    return SnapshotTaken(AttemptId(1), CheckpointId(checkpoint), subtask, ())


def test_a_checkpoint_is_ready_when_every_subtask_has_acknowledged_it_once() -> None:
    attempts = live(begun=(1,))
    assert attempts.take(taken(1, ONE)) and not attempts.take(taken(1, ONE)) and not attempts.take(taken(7, TWO))
    assert attempts.next_to_publish() is None
    assert attempts.missing_from(attempts.pending[CheckpointId(1)]) == (
        "1 of 2 subtasks did not answer, the first is 0.1"
    )
    assert attempts.take(taken(1, TWO)) and attempts.pending[CheckpointId(1)].phase is CheckpointPhase.READY


def test_of_those_that_are_ready_the_oldest_is_published_and_no_other_meanwhile() -> None:
    attempts = live(begun=(1, 2))
    for checkpoint in (2, 1):
        for subtask in (ONE, TWO):
            attempts.take(taken(checkpoint, subtask))
    first = attempts.next_to_publish()
    assert first is not None and first.checkpoint == 1 and attempts.next_to_publish() is None
    attempts.complete(CheckpointId(1), 0.0)
    second = attempts.next_to_publish()
    assert second is not None and second.checkpoint == 2


def test_what_a_checkpoint_under_way_may_build_on_is_kept() -> None:
    assert live(1, 2, 3).retain(1) == 3
    attempts = live(1, 2, 3, begun=(4,))
    attempts.complete(CheckpointId(4), 0.0)
    attempts.begin(CheckpointId(5), 20.0, SETTINGS)
    attempts.completed.append(CheckpointId(6))
    assert attempts.retain(1) == 4 and attempts.completed == [4, 6]


def test_a_period_that_was_missed_is_left_out() -> None:
    attempts = live()
    attempts.begin(CheckpointId(1), 250.0, SETTINGS)
    assert attempts.periodic_ms == 300 and attempts.triggers_ms(is_asked=False) == [300]


def test_a_final_checkpoint_that_will_not_exist_is_followed_by_another() -> None:
    attempts = live(begun=(1,))
    attempts.final = CheckpointId(1)
    attempts.drop(CheckpointId(1), 30.0)
    assert attempts.final is None and attempts.triggers_ms(is_asked=True) == [30, 100]


def test_too_many_failures_in_a_row_fail_the_attempt_and_the_first_to_tell_is_the_cause() -> None:
    attempts = live()
    for number in (1, 2, 3):
        attempts.count_failure(f"the last was {number}", "CODE", tolerable=1)
    assert attempts.failure is not None
    assert attempts.failure.reason == "2 checkpoints in a row failed, 1 are tolerated; the last was 2"
