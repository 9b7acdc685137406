"""How far sources have come is noted before their rows go on, and the next attempt begins there, whoever starts it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.driving import TASKS, Stage
from tests.unit.runtime.fakes import FaultyStorage, run_all
from weir.errors import StorageUnavailable
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, Uid, VertexId
from weir.runtime.driver import phases
from weir.runtime.driver.notices import AttemptFailed
from weir.runtime.driver.verdicts import Failed
from weir.snapshot.messages import DeployTask, PositionReached, PositionReserved, TriggerCheckpoint
from weir.snapshot.parts import Reserved

SOURCE = Uid("source")


def tell(stage: Stage, task: int, number: int, position: Any, *, behind: int = 0, attempt: int | None = None) -> None:
    subtask = SubtaskId(VertexId(0), task)
    whose = stage.at(attempt), TaskIndex(task), subtask, SOURCE
    stage.hear(PositionReached(*whose, number, position, CheckpointId(behind)))


def told(stage: Stage) -> list[tuple[int, int, int]]:
    """Attempt, task and number of the answers."""
    answers = [(task, message) for task, message in stage.cluster.sent if isinstance(message, PositionReserved)]
    return [(message.attempt, task, message.number) for task, message in answers]


def at_most_once(**settings: Any) -> Stage:
    return Stage(mode="none", **settings).begin().register()


def began(stage: Stage) -> Stage:
    """Both readers have told where they begin."""
    for task in range(TASKS):
        tell(stage, task, 1, 0)
    run_all(stage.background)
    return stage


def deployed(stage: Stage) -> DeployTask:
    """What the tasks of the newest attempt were told."""
    order: DeployTask = stage.cluster.told(DeployTask)[-1]
    return order


def test_nothing_is_noted_of_a_source_before_all_its_readers_have_told_where_they_begin() -> None:
    stage = at_most_once()
    assert deployed(stage).reserves
    tell(stage, 0, 1, 0)
    run_all(stage.background)
    assert told(stage) == []
    tell(stage, 1, 1, 0)
    assert told(stage) == [], "the note is not durable yet"
    run_all(stage.background)
    assert told(stage) == [(1, 0, 1), (1, 1, 1)]


def test_the_next_attempt_begins_behind_what_was_noted_with_no_state() -> None:
    stage = began(at_most_once()).run()
    tell(stage, 0, 2, 17)
    run_all(stage.background)
    stage.fail().stage_ends()
    stage.up()
    assert deployed(stage).positions == {SOURCE: Reserved((17, 0))}
    assert deployed(stage).restore is None


def test_a_note_that_comes_when_the_attempt_is_over_lets_nothing_go_on() -> None:
    stage = began(at_most_once()).run()
    tell(stage, 0, 2, 17)
    stage.fail()
    run_all(stage.background)
    assert told(stage)[2:] == []
    stage.stage_ends().up()
    # In storage it says 17, and nobody was told: to lose those rows, too, would be allowed, and is not needed.
    assert deployed(stage).positions == {SOURCE: Reserved((0, 0))}


def test_what_readers_of_an_old_attempt_say_is_not_heard() -> None:
    stage = began(at_most_once()).run()
    stage.fail().stage_ends().up()
    tell(stage, 0, 2, 17, attempt=1)
    run_all(stage.background)
    assert told(stage)[2:] == []


def test_another_driver_goes_on_behind_what_was_noted_and_the_first_lets_nothing_go_on_any_more() -> None:
    first = began(at_most_once()).run()
    tell(first, 1, 2, 5)
    run_all(first.background)
    second = at_most_once(storage=first.storage, resume=True, run="run-2")
    assert deployed(second).positions == {SOURCE: Reserved((0, 5))}
    tell(first, 0, 2, 17)
    run_all(first.background)
    assert told(first)[3:] == []
    assert isinstance(first.phase, phases.Stopping)
    first.stage_ends()
    run_all(first.background)
    assert isinstance(first.ended.verdict, Failed)
    assert "another driver has taken over" in first.ended.verdict.error


def test_a_job_that_was_started_anew_begins_at_the_beginning() -> None:
    first = began(at_most_once()).run()
    tell(first, 1, 2, 5)
    run_all(first.background)
    second = at_most_once(storage=first.storage, run="run-2", lineage="b" * 10)
    assert deployed(second).positions == {}


def test_storage_that_is_away_ends_the_attempt_and_no_row_goes_on() -> None:
    storage = FaultyStorage()
    stage = began(at_most_once(storage=storage)).run()
    storage.fail("publish", StorageUnavailable("away"))
    tell(stage, 0, 2, 17)
    run_all(stage.background)
    assert told(stage)[2:] == []
    assert [notice.error for notice in stage.said(AttemptFailed)] == ["StorageUnavailable: away"]


def test_periodic_checkpoints_hold_no_state_and_those_of_a_stop_do() -> None:
    stage = began(at_most_once()).run().pass_ms(1_000)
    (trigger,) = stage.cluster.told(TriggerCheckpoint)
    assert trigger.is_stateless
    stage.complete(1).commit(1)
    run_all(stage.background)
    stage.driver.rescale(stage.plan, "again")
    stopped = stage.cluster.told(TriggerCheckpoint)[-1]
    assert (stopped.pause, stopped.is_stateless) == (True, False)


@pytest.mark.parametrize(("behind", "loses_state"), [(1, False), (2, True)])
def test_state_is_lost_when_rows_were_read_behind_its_checkpoint(behind: int, loses_state: bool) -> None:
    stage = began(at_most_once()).run().pass_ms(1_000)
    stage.complete(1).commit(1).pass_ms(1_000)
    stage.complete(2).commit(2)
    tell(stage, 0, 2, 17, behind=behind)
    run_all(stage.background)
    stage.fail().stage_ends()
    stage.up()
    assert deployed(stage).restore == CheckpointId(2)
    assert deployed(stage).loses_state is loses_state


def test_a_job_that_keeps_its_state_again_begins_behind_the_note_until_it_has_a_checkpoint() -> None:
    first = began(at_most_once()).run()
    tell(first, 1, 2, 5)
    run_all(first.background)
    second = Stage(storage=first.storage, resume=True, run="run-2").begin().register()
    assert deployed(second).positions == {SOURCE: Reserved((0, 5))}
    assert not deployed(second).reserves
    second.run().pass_ms(1_000)
    second.complete(second.cluster.told(TriggerCheckpoint)[-1].checkpoint)
    second.fail().stage_ends()
    second.up()
    assert deployed(second).positions == {}
    assert deployed(second).attempt > AttemptId(2)
