"""The coordinator: triggers, time-outs, publication in order, the end of a bounded job.

The test owns the clock; test_machine_attempts.py has the rest.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.snapshot.coordinator.coordinated import (
    BOTH,
    SETTINGS,
    SINK,
    SOURCE,
    Job,
    completed,
    kinds,
    publish,
    retire,
    subsumed,
    trigger,
)
from weir.config import Checkpoints
from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.snapshot.coordinator.events import AttemptStarted, CheckpointRequested
from weir.snapshot.coordinator.orders import (
    AbortReason,
    FailAttempt,
    FinishJob,
    PublishManifest,
    SendAbort,
    SendTrigger,
)
from weir.snapshot.coordinator.phases import CoordinatorPhase
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import SubtaskFinished

# --- Triggers -----------------------------------------------------------------------------------------


def test_the_settings_are_those_of_the_user() -> None:
    config = Checkpoints(every="2s", timeout="3s", min_pause="1s", max_concurrent=4, tolerable_failures=5, retain=6)
    assert CoordinatorSettings.from_config(config) == CoordinatorSettings(2_000, 3_000, 1_000, 4, 5, 6)
    assert CoordinatorSettings.from_config(Checkpoints(mode="none")).interval_ms is None
    assert CoordinatorSettings.from_config(None).interval_ms is None


def test_periods_are_counted_from_the_start_of_the_attempt_and_missed_ones_are_left_out() -> None:
    job = Job()
    assert job.coordinator.next_due_ms() == 100
    assert job.at(99) == []
    assert job.at(103) == [trigger(1)]
    job.complete(1)
    assert job.coordinator.next_due_ms() == 200
    assert job.at(350) == [trigger(2, base=1)]
    job.complete(2)
    assert job.at(399) == []
    assert job.at(400) == [trigger(3, base=2)]


def test_no_more_than_max_concurrent_are_under_way_and_the_next_follows_at_once() -> None:
    job = Job(replace(SETTINGS, max_concurrent=2))
    assert job.at(100) + job.at(200) == [trigger(1), trigger(2)]
    assert job.at(300) == []
    assert job.coordinator.next_due_ms() == 100 + 1_000, "only a time-out can be due"
    assert job.all_taken(1) == [publish(1)]
    assert job.at(310) == [], "one that is being published is still under way"
    assert job.published(1) == [completed(1), retire(1), trigger(3, base=1)]


def test_the_pause_is_counted_from_the_end_of_the_last_one() -> None:
    job = Job(replace(SETTINGS, min_pause_ms=250))
    job.at(100)
    job.now_ms = 180
    job.complete(1)
    assert job.coordinator.next_due_ms() == 430
    assert job.at(429) == []
    assert job.at(430) == [trigger(2, base=1)]


def test_a_request_triggers_at_once_and_many_requests_are_one() -> None:
    job = Job(replace(SETTINGS, interval_ms=None))
    assert job.coordinator.next_due_ms() is None
    assert job.tell(CheckpointRequested()) == [trigger(1)]
    assert job.tell(CheckpointRequested()) + job.tell(CheckpointRequested()) == []
    assert job.complete(1) == [completed(1), retire(1), trigger(2, base=1)]
    assert job.complete(2) == [completed(2), retire(1)]


def test_a_request_waits_for_the_pause_and_is_answered_by_a_periodic_one() -> None:
    job = Job(replace(SETTINGS, min_pause_ms=30))
    job.at(100)
    job.complete(1)
    job.now_ms = 110
    assert job.tell(CheckpointRequested()) == []
    assert job.coordinator.next_due_ms() == 130
    assert job.at(200) == [trigger(2, base=1)]
    job.complete(2)
    assert job.at(299) == []


def test_a_request_between_two_attempts_is_answered_by_the_next() -> None:
    job = Job()
    job.end()
    assert job.tell(CheckpointRequested()) == []
    assert job.start() == [trigger(1)]


# --- Acknowledgements and time-outs -------------------------------------------------------------------


def test_only_acknowledgements_of_every_subtask_of_this_attempt_publish() -> None:
    job = Job()
    job.at(100)
    stranger = SubtaskId(VertexId(9), 0)
    assert job.taken(1, SOURCE) + job.taken(1, SOURCE) == []
    assert job.taken(1, SINK, attempt=0) + job.taken(1, stranger) + job.taken(7, SINK) == []
    assert job.taken(1, SINK) == [publish(1)]
    assert job.taken(1, SINK) == []


def test_a_checkpoint_that_takes_too_long_is_aborted_and_its_late_acknowledgements_are_ignored() -> None:
    job = Job(replace(SETTINGS, interval_ms=2_000))
    job.at(2_000)
    job.taken(1, SOURCE)
    assert job.coordinator.next_due_ms() == 3_000
    [abort] = job.at(3_000)
    assert isinstance(abort, SendAbort)
    assert (abort.checkpoint, abort.reason) == (1, AbortReason.TIMED_OUT)
    assert "1 of 2 subtasks" in abort.detail
    assert str(SINK) in abort.detail
    assert job.taken(1, SINK) == []


def test_an_acknowledgement_that_comes_with_the_deadline_still_counts() -> None:
    job = Job(replace(SETTINGS, interval_ms=2_000))
    job.at(2_000)
    job.taken(1, SOURCE)
    job.now_ms = 3_000
    assert job.taken(1, SINK) == [publish(1)]


def test_a_checkpoint_that_is_being_published_never_times_out_and_is_never_declined() -> None:
    job = Job(replace(SETTINGS, interval_ms=None, max_concurrent=2))
    job.tell(CheckpointRequested())
    job.tell(CheckpointRequested())
    job.all_taken(1)
    job.all_taken(2)
    assert job.at(1_000_000) + job.declined(1) + job.declined(2) == []
    assert job.published(1) == [completed(1), retire(1), publish(2)]


def test_failures_in_a_row_beyond_the_tolerable_fail_the_attempt_once() -> None:
    job = Job()
    job.at(100)
    assert kinds(job.declined(1)) == [SendAbort]
    job.at(200)
    job.complete(2)
    job.at(300)
    assert kinds(job.declined(3)) == [SendAbort], "a completion starts the count again"
    job.at(400)
    job.all_taken(4)
    effects = job.refused(4)
    assert kinds(effects) == [SendAbort, FailAttempt]
    assert "2 checkpoints in a row failed, 1 are tolerated" in effects[1].reason  # type: ignore[union-attr]
    assert "no room" in effects[1].reason  # type: ignore[union-attr]
    assert job.at(10_000) == [], "a failing attempt starts nothing"
    job.end()
    job.start()
    job.at(10_100)
    assert kinds(job.declined(5)) == [SendAbort], "the count starts again with the attempt"


# --- Publication --------------------------------------------------------------------------------------


def three_under_way() -> Job:
    job = Job(replace(SETTINGS, max_concurrent=3))
    assert job.at(100) + job.at(200) + job.at(300) == [trigger(1), trigger(2), trigger(3)]
    return job


def test_manifests_are_published_one_at_a_time_in_order() -> None:
    job = three_under_way()
    assert job.all_taken(1) == [publish(1)]
    assert job.all_taken(2) == []
    assert job.published(1) == [completed(1), retire(1), publish(2)]
    assert job.published(2) == [completed(2), retire(1)]


def test_a_completion_aborts_what_is_older_and_not_what_is_newer() -> None:
    job = three_under_way()
    assert job.all_taken(2) == [publish(2)]
    assert job.taken(1, SOURCE) == []
    assert job.published(2) == [completed(2), subsumed(1), retire(2)]
    assert job.taken(1, SINK) == []
    assert job.all_taken(3) == [publish(3)]


def test_a_checkpoint_that_a_newer_one_overtook_is_no_failure() -> None:
    job = Job(replace(SETTINGS, max_concurrent=2, tolerable_failures=0))
    job.at(100)
    job.at(200)
    assert job.complete(2) == [completed(2), subsumed(1), retire(2)]


def test_an_older_one_that_is_ready_waits_for_the_newer_ones_outcome() -> None:
    job = three_under_way()
    job.all_taken(2)
    assert job.all_taken(1) == [], "two manifests at once could end in either order"
    effects = job.refused(2)
    assert kinds(effects) == [SendAbort, PublishManifest]
    assert effects[1] == publish(1)

    other = three_under_way()
    other.all_taken(2)
    other.all_taken(1)
    assert other.published(2) == [completed(2), subsumed(1), retire(2)]


def test_as_many_checkpoints_are_retained_as_set_with_those_of_earlier_attempts() -> None:
    job = Job(start=False)
    job.start(next_checkpoint=10, completed=(7, 8))
    job.at(100)
    assert job.complete(10) == [completed(10), retire(8)]
    job.at(200)
    assert job.complete(11) == [completed(11), retire(10)]


def test_what_a_checkpoint_under_way_builds_on_is_kept_until_that_one_has_ended() -> None:
    job = Job(replace(SETTINGS, retain=1, max_concurrent=3))
    job.at(100)
    job.complete(1)
    for now_ms in (200, 300, 400):
        job.at(now_ms)
    assert job.complete(2) == [completed(2), retire(1)]
    assert job.complete(3) == [completed(3), retire(1)]
    assert job.complete(4) == [completed(4), retire(4)]


def test_one_that_began_before_any_was_complete_may_build_on_whichever_its_subtasks_have_heard_of() -> None:
    job = Job(replace(SETTINGS, retain=1, max_concurrent=3))
    for now_ms in (100, 200, 300):
        job.at(now_ms)
    assert job.complete(1)[1] == retire(1)
    assert job.complete(2)[1] == retire(1), "3 may have been built on 1"
    assert job.complete(3)[1] == retire(3)


def test_a_manifest_of_a_checkpoint_that_is_still_collecting_is_a_violation() -> None:
    job = Job()
    job.at(100)
    with pytest.raises(ProtocolViolation, match=r"checkpoint 1 was published while it waits[\s\S]*TimePassed"):
        job.published(1)


# --- The end of a bounded job -------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [None, 100])
def test_the_final_checkpoint_comes_when_every_subtask_has_finished_and_the_job_ends_when_it_is_committed(
    interval_ms: float | None,
) -> None:
    job = Job(replace(SETTINGS, interval_ms=interval_ms, min_pause_ms=1_000_000))
    assert job.tell(SubtaskFinished(AttemptId(1), SOURCE)) == []
    assert job.tell(SubtaskFinished(AttemptId(1), SOURCE)) == []
    assert job.tell(SubtaskFinished(AttemptId(0), SINK)) == []
    assert job.tell(SubtaskFinished(AttemptId(1), SINK)) == [trigger(1)]
    assert job.at(500) == [], "the final one is the last"
    assert job.complete(1) == [completed(1), retire(1)]
    assert job.committed(1, SOURCE) == [], "not a sink"
    assert job.committed(1) == [FinishJob()]
    assert job.committed(1) + job.at(5_000) == []
    assert job.coordinator.phase is CoordinatorPhase.FINISHED


def test_a_checkpoint_that_began_before_the_last_subtask_finished_is_not_the_final_one() -> None:
    job = Job()
    job.at(100)
    assert job.finish() == [trigger(2)], "in spite of max_concurrent"
    job.complete(1)
    assert job.committed(1) == []
    assert job.complete(2) == [completed(2), retire(1)]
    assert job.committed(2) == [FinishJob()]


def test_a_final_checkpoint_that_fails_is_tried_again_until_it_is_too_often() -> None:
    job = Job()
    job.finish()
    assert kinds(job.declined(1)) == [SendAbort, SendTrigger]
    assert kinds(job.at(1_000)) == [SendAbort, FailAttempt]
    assert job.committed(2) == []


def test_the_second_try_of_a_final_checkpoint_ends_the_job() -> None:
    job = Job()
    job.finish()
    assert job.declined(1)[1] == trigger(2)
    assert job.complete(2) == [completed(2), retire(2)]
    assert job.committed(2) == [FinishJob()]


def test_a_job_without_sinks_ends_with_the_manifest() -> None:
    job = Job(start=False)
    job.attempt = 1
    job.tell(AttemptStarted(AttemptId(1), BOTH, frozenset(), CheckpointId(1), ()))
    job.finish()
    assert job.complete(1) == [completed(1), retire(1), FinishJob()]


def test_a_failure_before_the_last_commit_begins_the_end_anew_in_the_next_attempt() -> None:
    job = Job()
    job.finish()
    job.complete(1)
    job.end()
    assert job.committed(1) == []
    assert job.start(next_checkpoint=2, completed=(1,)) == []
    assert job.committed(1) == []
    assert job.finish() == [trigger(2, base=1)]
    assert job.committed(1) == [], "an older commit is not that of the final one"
    job.complete(2)
    assert job.committed(2) == [FinishJob()]
