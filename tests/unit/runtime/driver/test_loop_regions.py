"""The driver of a job with two regions: each fails and recovers for itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.driving import DELAY_MS, INTERVAL_MS, Stage
from tests.unit.runtime.fakes import Script, Shelf, operator, plan_of, run_all, run_one
from weir.config import Settings
from weir.errors import JobError, StorageUnavailable
from weir.graph.plan import Forward, Plan
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, VertexId
from weir.runtime.driver import phases
from weir.runtime.driver.notices import AttemptFailed, CheckpointSucceeded, RequestFailed
from weir.runtime.driver.region import regions_of, restoring, slots_of
from weir.runtime.driver.verdicts import Cancelled, Failed, Finished
from weir.snapshot.coordinator.events import CheckpointRequested, Then
from weir.snapshot.messages import (
    CheckpointCompleted,
    DeployTask,
    EpochsCommitted,
    SnapshotTaken,
    StopTask,
    SubtaskFinished,
    TaskFailed,
    TaskRegistered,
    TaskRestoring,
    TaskRunning,
    TriggerCheckpoint,
)
from weir.snapshot.parts import OperatorPart, PendingEpochs, Position


def two_regions() -> Plan:
    return plan_of(
        (1, [operator("source-a", Script())]),
        (1, [operator("source-b", Script())]),
        (1, [operator("sink-a", Shelf())]),
        (1, [operator("sink-b", Shelf())]),
        edges=[(0, 2, Forward()), (1, 3, Forward())],
    )


class Two(Stage):
    """Region 0 begins as attempt 1, region 1 as attempt 2; each has one task."""

    def __init__(self, **more: Any) -> None:
        super().__init__(plan=two_regions(), **more)

    def begun(self) -> Two:
        self.begin()
        self.start(1)
        self.start(2)
        return self

    def start(self, attempt: int) -> None:
        self.hear(TaskRegistered(AttemptId(attempt), TaskIndex(0), "host:0", 1))
        self.hear(TaskRunning(AttemptId(attempt), TaskIndex(0)))

    def lose(self, attempt: int) -> None:
        self.driver.stage_ended(AttemptId(attempt), "killed")

    def restart(self, attempt: int) -> None:
        self.pass_ms(DELAY_MS)
        run_all(self.background)
        self.start(attempt)

    def ack(self, checkpoint: int, attempts: tuple[int, int]) -> None:
        for vertex in self.plan.vertices:
            attempt = AttemptId(attempts[vertex.id % 2])
            inline = PendingEpochs(()) if vertex.is_sink else Position(0)
            parts = (OperatorPart(vertex.operators[0].uid, inline),)
            self.hear(SnapshotTaken(attempt, CheckpointId(checkpoint), SubtaskId(vertex.id, 0), parts))

    def told_to(self, attempt: int, kind: type) -> list[Any]:
        return [m for _, m in self.cluster.sent if m.attempt == attempt and isinstance(m, kind)]


def test_every_region_has_an_attempt_of_its_own() -> None:
    stage = Two().begun()
    assert stage.cluster.launched == [1, 2]
    assert stage.driver.status == "running"
    assert [region.plan.members for region in stage.driver.regions] == [{0, 2}, {1, 3}]


def test_one_region_begins_again_and_the_other_is_told_nothing() -> None:
    stage = Two().begun()
    stage.lose(1)
    assert stage.driver.status == "restarting"
    stage.restart(3)
    assert stage.cluster.launched == [1, 2, 3]
    assert stage.told_to(2, StopTask) == []
    assert stage.driver.status == "running"
    assert stage.driver.restarts == 1
    assert stage.said(AttemptFailed) == [AttemptFailed(AttemptId(1), 0, "killed", True)]


def test_it_begins_again_from_the_last_checkpoint_and_the_next_one_holds_both_attempts() -> None:
    stage = Two().begun()
    stage.pass_ms(INTERVAL_MS)
    stage.ack(1, (1, 2))
    run_all(stage.background)
    stage.lose(1)
    stage.restart(3)
    assert stage.told_to(3, DeployTask) == [DeployTask(AttemptId(3), ("host:0",), CheckpointId(1))]
    stage.pass_ms(INTERVAL_MS)
    for attempt in (2, 3):
        assert stage.told_to(attempt, TriggerCheckpoint)[-1].checkpoint == 2
    stage.ack(2, (3, 2))
    run_all(stage.background)
    assert stage.told_to(2, CheckpointCompleted)[-1] == CheckpointCompleted(AttemptId(2), CheckpointId(2))
    assert stage.said(CheckpointSucceeded)[-1] == CheckpointSucceeded(AttemptId(3), CheckpointId(2))


def test_a_region_claims_nothing_while_a_manifest_is_being_written() -> None:
    stage = Two().begun()
    stage.pass_ms(INTERVAL_MS)
    stage.ack(1, (1, 2))
    stage.lose(1)
    stage.pass_ms(DELAY_MS)
    assert len(stage.background.waiting) == 1
    run_one(stage.background)  # the manifest is there
    run_all(stage.background)
    stage.start(3)
    assert stage.told_to(3, DeployTask)[0].restore == 1
    assert stage.said(CheckpointSucceeded) == [CheckpointSucceeded(AttemptId(2), CheckpointId(1))]


def test_a_publication_with_an_unknown_outcome_begins_everything_again() -> None:
    stage = Two().begun()
    stage.pass_ms(INTERVAL_MS)
    lost = StorageUnavailable("no reply")
    stage.storage.lose_reply("create", lost)
    stage.storage.fail("read", lost)
    stage.ack(1, (1, 2))
    run_all(stage.background)
    assert [len(stage.told_to(attempt, StopTask)) for attempt in (1, 2)] == [1, 1]


def test_a_fatal_error_in_one_region_ends_the_job() -> None:
    stage = Two().begun()
    stage.hear(TaskFailed(AttemptId(2), TaskIndex(0), "no such column", "X", True))
    assert [len(stage.told_to(attempt, StopTask)) for attempt in (1, 2)] == [1, 1]
    stage.lose(2)
    assert isinstance(stage.phase, phases.Stopping)
    stage.lose(1)
    assert stage.ended == phases.Ended(Failed("no such column"))


def test_a_region_that_is_lost_while_the_job_is_being_stopped_takes_the_others_with_it() -> None:
    stage = Two(every=None).begun()
    stage.driver.request(CheckpointRequested(None, Then.STOP, "stop"))
    stage.lose(1)
    assert stage.told_to(2, StopTask) == [StopTask(AttemptId(2), cancelled=True)]
    assert [said.request for said in stage.said(RequestFailed)] == ["stop"]
    stage.lose(2)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    assert stage.cluster.launched == [1, 2, 3, 4]


def test_a_region_that_is_lost_behind_the_failed_savepoint_of_a_drain_takes_the_others_with_it() -> None:
    """Their sources have ended: if they were left alone, the job would finish without the rest of their input."""
    stage = Two(every=None).begun()
    stage.driver.request(CheckpointRequested("memory://savepoint", Then.DRAIN, "drain"))
    for subtask in sorted(stage.plan.subtasks):
        stage.hear(SubtaskFinished(AttemptId(1 + subtask.vertex % 2), subtask))
    source = SubtaskId(VertexId(0), 0)
    stage.hear(SnapshotTaken(AttemptId(1), CheckpointId(1), source, (), export_refused="disk full"))
    assert [said.request for said in stage.said(RequestFailed)] == ["drain"]
    stage.lose(1)
    assert stage.told_to(2, StopTask) == [StopTask(AttemptId(2), cancelled=True)]
    stage.lose(2)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    assert stage.cluster.launched == [1, 2, 3, 4]


def test_no_checkpoint_can_be_asked_for_while_a_region_is_down() -> None:
    stage = Two(every=None).begun()
    stage.lose(2)
    with pytest.raises(JobError, match="is restarting, so it cannot take a checkpoint now"):
        stage.driver.request()


def test_cancelling_while_a_region_is_down_ends_the_others() -> None:
    stage = Two().begun()
    stage.lose(2)
    stage.driver.cancel()
    assert stage.told_to(1, StopTask) == [StopTask(AttemptId(1), cancelled=True)]
    stage.lose(1)
    assert isinstance(stage.ended.verdict, Cancelled)


def test_a_region_that_fails_again_while_it_starts_begins_once_more() -> None:
    stage = Two().begun()
    stage.lose(1)
    stage.pass_ms(DELAY_MS)
    run_all(stage.background)
    stage.lose(3)
    stage.restart(4)
    assert stage.driver.status == "running"
    assert stage.told_to(2, StopTask) == []


def test_a_bounded_job_finishes_when_all_its_regions_have() -> None:
    stage = Two(every=None).begun()
    for subtask in sorted(stage.plan.subtasks):
        stage.hear(SubtaskFinished(AttemptId(1 + subtask.vertex % 2), subtask))
    stage.ack(1, (1, 2))
    run_all(stage.background)
    for vertex in (2, 3):
        stage.hear(EpochsCommitted(AttemptId(1 + vertex % 2), CheckpointId(1), SubtaskId(VertexId(vertex), 0)))
    stage.lose(1)
    stage.lose(2)
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)


def test_with_shared_slots_there_is_one_region_and_fewer_tasks() -> None:
    plan = two_regions()
    assert regions_of(plan, Settings(share_slots=True)) == (plan,)
    assert slots_of(plan, Settings(share_slots=True)) == 1
    assert slots_of(plan, Settings()) == 2


def test_how_far_a_restore_is_is_what_its_tasks_have_told_until_they_run() -> None:
    bench = Two()
    bench.begin()
    attempt, task = AttemptId(1), TaskIndex(0)
    bench.hear(TaskRegistered(attempt, task, "host:0", 1))
    assert restoring(bench.driver.regions) is None
    bench.hear(TaskRestoring(attempt, task, 300, 900))
    assert restoring(bench.driver.regions) == {"read_bytes": 300, "of_bytes": 900}
    bench.hear(TaskRestoring(attempt, task, 1_000, 900))
    assert restoring(bench.driver.regions) == {"read_bytes": 900, "of_bytes": 900}
    bench.hear(TaskRunning(attempt, task))
    assert restoring(bench.driver.regions) is None
