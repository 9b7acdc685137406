"""The phases' own answers: attempt, status, due time and messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver.verdicts import Cancelled, Failed, Finished, Restarted
from weir.runtime.storage.checkpoints import Claim

CLAIM = Claim(AttemptId(3), None, CheckpointId(1), (), CheckpointId(65))
STOPPING = phases.Stopping(AttemptId(3), Restarted("why", 0.0), kill_ms=10.0, leave_ms=20.0)


@pytest.mark.parametrize(
    ("phase", "status", "attempt", "due_ms"),
    [
        (phases.Created(), "created", None, None),
        (phases.Claiming(), "starting", None, None),
        (phases.Launching(CLAIM, {}, 5.0), "starting", 3, 5.0),
        (phases.Deploying(CLAIM, frozenset(), (), 5.0), "starting", 3, 5.0),
        (phases.Running(CLAIM, {}), "running", 3, None),
        (STOPPING, "stopping", 3, 10.0),
        (phases.Waiting(7.0), "restarting", None, 7.0),
        (phases.Ended(Finished()), "finished", None, None),
        (phases.Ended(Cancelled()), "cancelled", None, None),
        (phases.Ended(Failed("why")), "failed", None, None),
    ],
)
def test_each_phase_knows_its_status_attempt_and_due_time(
    phase: phases.Phase, status: str, attempt: int | None, due_ms: float | None
) -> None:
    assert (phase.status, phase.attempt, phase.due_ms) == (status, attempt, due_ms)


def test_after_the_kill_the_time_to_leave_is_due_and_nothing_once_the_stage_is_over() -> None:
    killed = phases.Stopping(AttemptId(3), STOPPING.verdict, 10.0, 20.0, killed=True)
    over = phases.Stopping(AttemptId(3), STOPPING.verdict, 10.0, 20.0, killed=True, ended=True)
    assert (killed.due_ms, over.due_ms) == (20.0, None)


def test_a_late_launch_says_how_many_slots_are_missing_and_what_can_be_done() -> None:
    message = phases.Launching(CLAIM, {TaskIndex(0): "host"}, 5.0).late_message(4)
    assert message.startswith("only 1 of 4 tasks started in time")
    for word in ("3 more are needed", "add executors", "lower the parallelism", "Settings.launch_timeout"):
        assert word in message


def test_a_late_restore_says_what_can_be_done() -> None:
    manifest: Any = object()
    claim = replace(CLAIM, restore=manifest)
    message = phases.Deploying(claim, frozenset({TaskIndex(0)}), (), 5.0).late_message(4)
    assert message.startswith("only 1 of 4 tasks restored") and "Settings.restore_timeout" in message
    message = phases.Deploying(CLAIM, frozenset({TaskIndex(0)}), (), 5.0).late_message(4)
    assert message.startswith("only 1 of 4 tasks connected") and "Settings.launch_timeout" in message
