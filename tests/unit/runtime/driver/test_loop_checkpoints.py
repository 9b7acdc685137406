"""The driver and its checkpoints: triggers, manifests, completion, aborts, restores and the end of a bounded job."""

from __future__ import annotations

import pytest

from tests.unit.runtime.driving import DELAY_MS, Stage
from tests.unit.runtime.fakes import FaultyStorage, run_all
from tests.unit.runtime.stores import LIFE, NEXT_LIFE, files_of
from weir.errors import ProtocolViolation, StorageFull, StorageUnavailable
from weir.ids import AttemptId, CheckpointId, SubtaskId, VertexId
from weir.runtime.driver import phases
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, CheckpointAborted
from weir.runtime.driver.verdicts import Failed, Finished
from weir.runtime.storage import layout
from weir.snapshot.coordinator.history import CheckpointState
from weir.snapshot.coordinator.orders import AbortReason, PublishManifest
from weir.snapshot.messages import (
    AbortCheckpoint,
    CheckpointCompleted,
    DeployTask,
    EpochsCommitted,
    SnapshotDeclined,
    TriggerCheckpoint,
)

ONE = SubtaskId(VertexId(0), 0)


def triggered(**settings: object) -> Stage:
    """Checkpoint 1 is under way."""
    stage = Stage(**settings).up().pass_ms(1_000)  # type: ignore[arg-type]
    assert stage.cluster.told(TriggerCheckpoint) == [TriggerCheckpoint(AttemptId(1), CheckpointId(1))]
    return stage


def test_tasks_are_told_of_completion_only_when_the_manifest_is_there() -> None:
    stage = triggered().acknowledge(1)
    assert stage.cluster.told(CheckpointCompleted) == []
    run_all(stage.background)
    assert stage.cluster.told(CheckpointCompleted) == [CheckpointCompleted(AttemptId(1), CheckpointId(1))]
    assert layout.MANIFEST in files_of(stage.storage).list("chk-0000000001")
    assert [record.state for record in stage.driver.history] == [CheckpointState.COMPLETED]


def test_a_checkpoint_of_which_a_part_is_missing_is_not_published() -> None:
    stage = triggered().acknowledge(1, but=ONE)
    run_all(stage.background)
    assert stage.cluster.told(CheckpointCompleted) == []


def test_a_requested_checkpoint_is_triggered_at_once() -> None:
    stage = Stage(every=None).up()
    stage.driver.request()
    assert len(stage.cluster.told(TriggerCheckpoint)) == 1


def test_a_declined_checkpoint_is_aborted_everywhere_and_its_files_are_freed() -> None:
    stage = triggered(tolerable_failures=1)
    files_of(stage.storage).write("chk-0000000001/a1-op-0-values.arrow", b"state")
    stage.hear(SnapshotDeclined(AttemptId(1), CheckpointId(1), ONE, "disk full"))
    run_all(stage.background)
    assert stage.cluster.told(AbortCheckpoint) == [AbortCheckpoint(AttemptId(1), CheckpointId(1))]
    assert files_of(stage.storage).list("chk-0000000001") == []
    assert "disk full" in stage.said(CheckpointAborted)[0].detail
    assert isinstance(stage.phase, phases.Running)


def test_too_many_aborted_checkpoints_fail_the_attempt() -> None:
    stage = triggered(tolerable_failures=0)
    stage.hear(SnapshotDeclined(AttemptId(1), CheckpointId(1), ONE, "disk full"))
    assert isinstance(stage.phase, phases.Stopping)
    assert "1 checkpoints in a row failed" in stage.said(AttemptFailed)[0].error


def test_old_checkpoints_are_retired() -> None:
    stage = triggered().complete(1)
    for checkpoint in (2, 3):
        stage.pass_ms(1_000).complete(checkpoint)
    found = [id for name in files_of(stage.storage).list("") if (id := layout.checkpoint_of(name)) is not None]
    assert found == [2, 3]


# --- Manifests whose fate is odd --------------------------------------------------------------------------


def test_no_room_for_the_manifest_aborts_the_checkpoint_and_the_job_runs() -> None:
    stage = triggered(tolerable_failures=1)
    stage.storage.fail("create", StorageFull("no room"))
    stage.complete(1)
    assert isinstance(stage.phase, phases.Running)
    assert stage.cluster.told(CheckpointCompleted) == []
    assert stage.said(CheckpointAborted)[0].reason is AbortReason.MANIFEST_REFUSED


def test_a_manifest_of_an_old_attempt_under_our_id_aborts_the_checkpoint() -> None:
    stage = triggered(tolerable_failures=1)
    other = Stage().up().pass_ms(1_000).complete(1)
    path = layout.manifest_path(CheckpointId(1))
    stage.clock.time_ms += 1  # another time of creation, so other bytes
    files_of(stage.storage).write(path, files_of(other.storage).read(path))
    stage.complete(1)
    assert stage.said(CheckpointAborted)[0].reason is AbortReason.MANIFEST_REFUSED
    assert isinstance(stage.phase, phases.Running)


def test_a_manifest_of_which_nobody_knows_is_neither_committed_nor_aborted_but_looked_up_by_the_next_attempt() -> None:
    stage = triggered()
    lost = StorageUnavailable("no reply")
    stage.storage.lose_reply("create", lost)
    stage.storage.fail("read", lost)
    stage.complete(1)
    assert isinstance(stage.phase, phases.Stopping)
    assert stage.cluster.told(CheckpointCompleted) == []
    assert stage.cluster.told(AbortCheckpoint) == []
    stage.stage_ends().up()
    assert stage.cluster.told(DeployTask)[-1].restore == 1


def test_a_publication_that_ends_after_its_attempt_counts_for_the_next() -> None:
    stage = triggered().acknowledge(1).fail("killed").stage_ends()
    run_all(stage.background)
    assert isinstance(stage.phase, phases.Waiting)
    assert stage.cluster.told(CheckpointCompleted) == []
    stage.up()
    assert stage.cluster.told(DeployTask)[-1].restore == 1
    said = stage.said(AttemptRunning)[-1]
    assert said == AttemptRunning(AttemptId(2), None, CheckpointId(1), None, DELAY_MS)


def test_a_publication_that_ends_while_the_next_attempt_runs_is_not_told_to_it() -> None:
    stage = triggered().acknowledge(1)
    publication = stage.background.take(0)
    stage.fail("killed").stage_ends().up()
    work, done = publication
    try:
        result: object = work()
    except Exception as error:
        result = error
    done(result)
    assert isinstance(stage.phase, phases.Running)
    assert stage.cluster.told(CheckpointCompleted) == []


# --- Restores ---------------------------------------------------------------------------------------------


def test_a_restart_restores_the_newest_checkpoint_and_goes_on_with_the_next_id() -> None:
    stage = triggered().complete(1).pass_ms(1_000).complete(2)
    stage.fail("killed").stage_ends().up()
    assert stage.cluster.told(DeployTask)[-1].restore == 2
    stage.pass_ms(1_000)
    assert stage.cluster.told(TriggerCheckpoint)[-1].checkpoint == 3


def test_an_id_that_was_given_out_is_not_given_out_again_although_storage_knows_nothing_of_it() -> None:
    stage = triggered().fail("killed").stage_ends().up().pass_ms(1_000)
    assert [order.checkpoint for order in stage.cluster.told(TriggerCheckpoint)] == [1, 2]


def test_a_driver_that_is_started_again_goes_on_from_the_last_checkpoint() -> None:
    first = triggered().complete(1)
    second = Stage(storage=first.storage, resume=True, run="run-2").up()
    assert second.driver.attempt == 2
    assert second.cluster.told(DeployTask)[0].restore == 1


def test_a_driver_that_is_started_again_without_resume_is_refused() -> None:
    first = triggered().complete(1)
    second = Stage(storage=first.storage, run="run-2", lineage=NEXT_LIFE).begin()
    assert isinstance(second.ended.verdict, Failed)
    assert "resume=True" in second.ended.verdict.error


# --- The end of a bounded job -----------------------------------------------------------------------------


def test_a_bounded_job_ends_when_the_last_checkpoint_is_committed_by_every_sink() -> None:
    stage = Stage(every=None).up().finish_subtasks()
    assert [order.checkpoint for order in stage.cluster.told(TriggerCheckpoint)] == [1]
    stage.complete(1)
    (first, second) = sorted(stage.plan.committers)
    stage.hear(EpochsCommitted(AttemptId(1), CheckpointId(1), first))
    assert isinstance(stage.phase, phases.Running)
    stage.hear(EpochsCommitted(AttemptId(1), CheckpointId(1), second))
    assert isinstance(stage.phase, phases.Stopping)
    stage.stage_ends()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)
    assert f"0000000001.{LIFE}.finished" in stage.storage.list(layout.ATTEMPTS)


def test_a_failure_before_the_last_commit_is_known_restores_the_final_checkpoint() -> None:
    stage = Stage(every=None).up().finish_subtasks().complete(1)
    stage.fail("killed").stage_ends().up()
    assert stage.cluster.told(DeployTask)[-1].restore == 1
    stage.commit(1).finish_subtasks().complete(2).commit(2).stage_ends()
    run_all(stage.background)
    assert isinstance(stage.ended.verdict, Finished)


def test_an_order_of_the_coordinator_without_an_attempt_is_our_bug() -> None:
    stage = Stage(storage=FaultyStorage())
    with pytest.raises(ProtocolViolation, match="without an attempt"):
        stage.driver._checkpoints._perform(PublishManifest(CheckpointId(1), {}))
