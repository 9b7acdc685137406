"""Savepoints, and checkpoints after which a job stops or drains: when they begin, what they wait for, how they fail."""

from __future__ import annotations

import pytest

from tests.unit.snapshot.coordinator.coordinated import SETTINGS, SINK, SOURCE, Job, completed, kinds, publish, trigger
from weir.ids import AttemptId, CheckpointId, Uid
from weir.snapshot.coordinator.events import CheckpointRequested, SavepointPublished, SavepointRefused, Then
from weir.snapshot.coordinator.orders import (
    CoordinatorEffect,
    FailRequest,
    FinishJob,
    LeaveAttempt,
    PublishManifest,
    PublishSavepoint,
    RetireCheckpoints,
    SendAbort,
    SendCompleted,
    SendDrain,
    SendResume,
)
from weir.snapshot.coordinator.requests import DRAINED_WITHOUT, REQUESTS_WAITING_MAX
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import SubtaskFinished
from weir.snapshot.parts import OperatorPart, Position

URI = "s3://bucket/savepoint-1"
EXPORTED = (OperatorPart(Uid("op"), Position("exported")),)
QUIET = CoordinatorSettings(timeout_ms=1_000, tolerable_failures=1)
SAVE = CheckpointRequested(URI, Then.GO_ON, "save")
STOP = CheckpointRequested(URI, Then.STOP, "stop")
LEAVE = CheckpointRequested(None, Then.STOP, "leave")
DRAIN = CheckpointRequested(URI, Then.DRAIN, "drain")


def exported(job: Job, checkpoint: int) -> list[CoordinatorEffect]:
    return job.taken(checkpoint, SOURCE, exported=EXPORTED) + job.taken(checkpoint, SINK, exported=())


def publish_savepoint(checkpoint: int, request: CheckpointRequested) -> PublishSavepoint:
    return PublishSavepoint(CheckpointId(checkpoint), request, {SOURCE: EXPORTED, SINK: ()})


def saved(job: Job, checkpoint: int) -> list[CoordinatorEffect]:
    return job.tell(SavepointPublished(CheckpointId(checkpoint)))


def test_a_savepoint_is_published_once_its_checkpoint_is_complete_and_committed() -> None:
    job = Job(QUIET)
    assert job.tell(SAVE) == [trigger(1, URI)]
    assert kinds(exported(job, 1)) == [PublishManifest]
    assert kinds(job.published(1)) == [SendCompleted, RetireCheckpoints]
    assert job.committed(1) == [publish_savepoint(1, SAVE)]
    assert saved(job, 1) == []
    assert job.coordinator.history[-1].savepoint == URI


def test_an_ordinary_checkpoint_exports_nothing_and_publishes_no_savepoint() -> None:
    job = Job(QUIET)
    assert job.tell(CheckpointRequested()) == [trigger(1)]
    job.complete(1)
    assert job.committed(1) == []


def test_nothing_newer_begins_while_the_checkpoint_of_a_savepoint_is_taken_and_so_none_can_subsume_it() -> None:
    job = Job(CoordinatorSettings(interval_ms=100, timeout_ms=10_000, max_concurrent=3))
    job.tell(SAVE)
    assert job.at(100) + job.at(500) == []
    exported(job, 1)
    assert trigger(2, base=1) in job.published(1), "what was due meanwhile begins when it is complete"


def test_requests_are_answered_one_after_the_other_each_by_a_checkpoint_of_its_own() -> None:
    job = Job(QUIET)
    other = CheckpointRequested("s3://bucket/savepoint-2", Then.GO_ON, "other")
    assert job.tell(SAVE) == [trigger(1, URI)]
    assert job.tell(other) == []
    exported(job, 1)
    job.published(1)
    assert job.committed(1) == [publish_savepoint(1, SAVE)]
    assert saved(job, 1) == [trigger(2, other.savepoint, base=1)]


def test_a_stop_pauses_the_sources_and_leaves_when_the_savepoint_is_there() -> None:
    job = Job(SETTINGS)
    assert job.tell(STOP) == [trigger(1, URI, pause=True)]
    exported(job, 1)
    job.published(1)
    assert job.at(5_000) == [], "behind paused sources no periodic checkpoint begins"
    assert job.committed(1) == [publish_savepoint(1, STOP)]
    assert saved(job, 1) == [LeaveAttempt(STOP)]
    assert job.at(9_000) == [], "nothing begins any more"


def test_a_stop_without_a_savepoint_leaves_when_its_checkpoint_is_committed() -> None:
    job = Job(QUIET)
    assert job.tell(LEAVE) == [trigger(1, pause=True)]
    job.complete(1)
    assert job.committed(1) == [LeaveAttempt(LEAVE)]
    assert job.end() == []
    job.start(next_checkpoint=2, completed=(1,))
    assert job.tell(SAVE) == [trigger(2, URI, base=1)], "the next attempt may be asked again"


def test_while_a_job_is_being_stopped_nothing_else_can_be_asked_of_it() -> None:
    job = Job(QUIET)
    job.tell(STOP)
    (failed,) = job.tell(LEAVE)
    assert isinstance(failed, FailRequest) and "already being stopped" in failed.reason


def test_a_drain_ends_the_sources_and_the_final_checkpoint_is_the_savepoint() -> None:
    job = Job(QUIET)
    assert job.tell(DRAIN) == [SendDrain()]
    assert job.finish() == [trigger(1, URI)], "not paused: the sources have ended"
    exported(job, 1)
    job.published(1)
    assert job.committed(1) == [publish_savepoint(1, DRAIN)], "the job is not done before its savepoint is"
    assert saved(job, 1) == [FinishJob()]


def test_a_drain_whose_final_checkpoint_is_declined_takes_the_next_one_as_the_savepoint() -> None:
    job = Job(QUIET)
    job.tell(DRAIN)
    job.finish()
    assert kinds(job.declined(1)) == [SendAbort, type(trigger(2))]
    exported(job, 2)
    job.published(2)
    assert job.committed(2) == [publish_savepoint(2, DRAIN)]


def test_a_savepoint_asked_for_before_the_last_subtask_finished_is_the_final_checkpoint() -> None:
    job = Job(CoordinatorSettings(timeout_ms=1_000, min_pause_ms=500))
    job.tell(CheckpointRequested())
    job.complete(1)
    assert job.tell(SAVE) == [], "it waits for the pause"
    other = CheckpointRequested("s3://bucket/2", Then.GO_ON, "other")
    job.tell(other)
    began, failed = job.finish()
    assert began == trigger(2, URI, base=1)
    assert isinstance(failed, FailRequest) and failed.request == other


def test_a_savepoint_that_comes_too_late_for_the_final_checkpoint_is_refused() -> None:
    job = Job(QUIET)
    job.finish()
    (failed,) = job.tell(SAVE)
    assert isinstance(failed, FailRequest) and "final checkpoint is under way" in failed.reason


@pytest.mark.parametrize("request_", [SAVE, STOP], ids=["save", "stop"])
def test_an_aborted_checkpoint_fails_its_request_and_no_other_checkpoint_takes_its_place(
    request_: CheckpointRequested,
) -> None:
    job = Job(QUIET)
    job.tell(request_)
    aborted, failed = job.declined(1)
    assert isinstance(aborted, SendAbort), "which also lets paused sources go on"
    assert isinstance(failed, FailRequest) and failed.request == request_ and "disk full" in failed.reason
    assert job.at(500) == []


def test_an_export_that_fails_fails_the_request_at_once_and_leaves_the_checkpoint_alone() -> None:
    job = Job(QUIET)
    job.tell(STOP)
    failed, resumed = job.taken(1, SOURCE, export_refused="no such bucket")
    assert isinstance(failed, FailRequest) and "no such bucket" in failed.reason
    assert resumed == SendResume()
    assert job.taken(1, SINK) == [publish(1)]
    assert job.published(1)[0] == completed(1)
    assert job.committed(1) == [], "neither published nor left"


def test_a_savepoint_that_cannot_be_published_lets_the_sources_go_on() -> None:
    job = Job(QUIET)
    job.tell(STOP)
    exported(job, 1)
    job.published(1)
    job.committed(1)
    failed, resumed = job.tell(SavepointRefused(CheckpointId(1), "no room"))
    assert isinstance(failed, FailRequest) and failed.reason == "no room"
    assert resumed == SendResume()
    assert job.tell(SAVE) == [trigger(2, URI, base=1)]


def test_a_drain_whose_export_fails_finishes_without_its_savepoint() -> None:
    job = Job(QUIET)
    job.tell(DRAIN)
    job.finish()
    (failed,) = job.taken(1, SOURCE, export_refused="no such bucket")
    assert isinstance(failed, FailRequest)
    assert failed.reason.endswith(f"no such bucket; {DRAINED_WITHOUT}"), "it is not given up, and says so"
    job.taken(1, SINK)
    job.published(1)
    assert job.committed(1) == [FinishJob()]


def test_a_job_is_being_drained_until_its_attempt_has_ended_also_when_the_savepoint_has_failed() -> None:
    job = Job(QUIET)
    job.tell(DRAIN)
    job.finish()
    job.taken(1, SOURCE, export_refused="no such bucket")
    assert job.coordinator.is_ending, "the sources have ended, whatever became of the savepoint"
    assert job.end() == [], "who asked was told before"
    assert not job.coordinator.is_ending
    job.start(next_checkpoint=2)
    assert job.tell(SAVE) == [trigger(2, URI)], "the sources read on"


def test_with_the_attempt_everything_that_was_asked_for_fails_and_the_next_one_begins_afresh() -> None:
    job = Job(QUIET)
    job.tell(SAVE)
    job.tell(CheckpointRequested("s3://bucket/2", Then.GO_ON, "other"))
    ended = job.end()
    assert [effect.request.name for effect in ended if isinstance(effect, FailRequest)] == ["save", "other"]
    job.start(next_checkpoint=2)
    assert job.at(10_000) == []
    assert saved(job, 1) == [], "an answer that comes late answers nobody"


def test_a_drain_fails_with_its_attempt_before_and_after_the_final_checkpoint_began() -> None:
    for finish in (False, True):
        job = Job(QUIET)
        job.tell(DRAIN)
        if finish:
            job.finish()
        (failed,) = job.end()
        assert isinstance(failed, FailRequest) and failed.request == DRAIN


def test_a_savepoint_that_was_under_way_when_a_drain_began_fails_with_the_attempt_too() -> None:
    job = Job(QUIET)
    job.tell(SAVE)
    job.tell(DRAIN)
    assert [effect.request for effect in job.end() if isinstance(effect, FailRequest)] == [SAVE, DRAIN]


def test_requests_that_wait_are_bounded() -> None:
    job = Job(QUIET)
    requests = [CheckpointRequested(f"s3://bucket/{n}", Then.GO_ON, str(n)) for n in range(REQUESTS_WAITING_MAX + 2)]
    effects = [job.tell(request) for request in requests]
    assert effects[0] == [trigger(1, "s3://bucket/0")]
    assert all(effect == [] for effect in effects[1:-1])
    assert kinds(effects[-1]) == [FailRequest]


def test_a_request_without_an_attempt_is_refused() -> None:
    job = Job(QUIET, start=False)
    (failed,) = job.tell(SAVE)
    assert isinstance(failed, FailRequest) and "does not run" in failed.reason


def test_a_bounded_job_waits_for_a_savepoint_that_is_being_published() -> None:
    job = Job(QUIET)
    job.tell(SAVE)
    exported(job, 1)
    job.published(1)
    job.committed(1)
    for subtask in (SOURCE, SINK):
        assert job.tell(SubtaskFinished(AttemptId(1), subtask)) == []
    assert saved(job, 1) == [trigger(2, base=1)], "then the final checkpoint"
