"""A region's attempts, as a machine: every event in every phase."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from weir.errors import ProtocolViolation
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver import region_machine as machine
from weir.runtime.driver.region_machine import EVENTS, IGNORED, PHASES, TRANSITIONS, RegionSettings, step
from weir.runtime.driver.verdicts import Cancelled, Finished, Restarted
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot.messages import TaskRunning

ATTEMPT, ONE, TWO = AttemptId(3), TaskIndex(0), TaskIndex(1)
CLAIM = Claim(ATTEMPT, None, CheckpointId(1), (), CheckpointId(65))
SETTINGS = RegionSettings(
    (ONE, TWO), launch_timeout_ms=100.0, restore_timeout_ms=700.0, heartbeat_timeout_ms=50.0, stop_timeout_ms=20.0
)
AGAIN = Restarted("why", 7.0)
SAID = TaskRunning(ATTEMPT, ONE)

VALUES: dict[type[Any], list[Any]] = {
    phases.Created: [phases.Created()],
    phases.Claiming: [phases.Claiming()],
    phases.Launching: [phases.Launching(CLAIM, {}, 100.0), phases.Launching(CLAIM, {TWO: "there"}, 100.0)],
    phases.Deploying: [
        phases.Deploying(CLAIM, frozenset(), (), 100.0),
        phases.Deploying(CLAIM, frozenset({TWO}), (SAID,), 100.0),
    ],
    phases.Running: [phases.Running(CLAIM, {ONE: 0.0, TWO: 0.0})],
    phases.Stopping: [
        phases.Stopping(ATTEMPT, AGAIN, 10.0, 30.0),
        phases.Stopping(ATTEMPT, AGAIN, 10.0, 30.0, killed=True),
        phases.Stopping(ATTEMPT, AGAIN, 10.0, 30.0, killed=True, ended=True),
    ],
    phases.Waiting: [phases.Waiting(10.0)],
}
HAPPENS: dict[type[Any], list[machine.RegionEvent]] = {
    machine.Begins: [machine.Begins()],
    machine.Claimed: [machine.Claimed(CLAIM)],
    machine.Registered: [machine.Registered(ONE, "here")],
    machine.Runs: [machine.Runs(ONE)],
    machine.Heard: [machine.Heard(ONE)],
    machine.Told: [machine.Told(SAID)],
    machine.IsLeft: [machine.IsLeft(AGAIN, True), machine.IsLeft(Finished(), True), machine.IsLeft(Cancelled(), False)],
    machine.StageOver: [machine.StageOver()],
    machine.BeginsAgain: [machine.BeginsAgain(9.0)],
    machine.ClockMoved: [machine.ClockMoved()],
}


def test_the_tables_name_every_phase_and_event_and_none_twice() -> None:
    assert set(VALUES) == set(PHASES) and set(HAPPENS) == set(EVENTS)
    assert not IGNORED & set(TRANSITIONS)
    assert {*IGNORED, *TRANSITIONS} <= set(product(PHASES, EVENTS))


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_in_every_phase_is_ignored_leads_where_the_table_says_or_is_a_violation(
    phase: type[Any], event: type[Any]
) -> None:
    reached = set()
    for before, happens, now_ms in product(VALUES[phase], HAPPENS[event], (0.0, 1_000.0)):
        if (phase, event) in IGNORED:
            assert step(before, happens, SETTINGS, now_ms) == (before, [])
        elif (phase, event) not in TRANSITIONS or (
            event is machine.BeginsAgain and isinstance(before, phases.Stopping) and not before.ended
        ):
            with pytest.raises(ProtocolViolation, match="region: "):
                step(before, happens, SETTINGS, now_ms)
        else:
            reached.add(type(step(before, happens, SETTINGS, now_ms)[0]))
    assert reached == (set(TRANSITIONS[phase, event].to) if (phase, event) in TRANSITIONS else set())


def test_a_phase_that_the_table_does_not_name_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = phases.Created, machine.Begins
    monkeypatch.setitem(TRANSITIONS, pair, machine.Transition(TRANSITIONS[pair].act, ()))  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation, match="does not lead to"):
        step(phases.Created(), machine.Begins(), SETTINGS, 0.0)


def test_an_attempt_from_its_claim_to_its_end() -> None:
    phase: phases.Phase = phases.Claiming()
    done: list[machine.RegionEffect] = []
    for event, now_ms in [
        (machine.Claimed(CLAIM), 0.0),
        (machine.Registered(TWO, "there"), 1.0),
        (machine.Registered(ONE, "here"), 2.0),
        (machine.Runs(ONE), 3.0),
        (machine.Told(SAID), 3.5),
        (machine.Runs(TWO), 4.0),
        (machine.Told(SAID), 5.0),
        (machine.ClockMoved(), 54.5),
        (machine.IsLeft(AGAIN, True), 60.0),
        (machine.ClockMoved(), 80.0),
        (machine.ClockMoved(), 99.0),
        (machine.ClockMoved(), 100.0),
    ]:
        phase, effects = step(phase, event, SETTINGS, now_ms)
        done += effects
    assert done == [
        machine.LaunchTasks(CLAIM),
        machine.DeployTasks(CLAIM, ("here", "there")),
        machine.AllRun(CLAIM, (SAID,)),
        machine.Coordinate(SAID),
        machine.Overdue(machine.SILENT.format(task=0, silent_ms=50)),
        machine.StopTasks(ATTEMPT, cancelled=True),
        machine.KillTasks(ATTEMPT),
    ]
    assert isinstance(phase, phases.Stopping) and phase.ended
    assert step(phase, machine.BeginsAgain(120.0), SETTINGS, 100.0) == (phases.Waiting(120.0), [])


@pytest.mark.parametrize(("restores", "wait_ms"), [(False, 100.0), (True, 700.0)])
def test_tasks_have_the_time_of_a_restore_when_they_have_something_to_restore(restores: bool, wait_ms: float) -> None:
    manifest: Any = object()
    claim = replace(CLAIM, restore=manifest) if restores else CLAIM
    phase: phases.Phase = phases.Launching(claim, {ONE: "here"}, 100.0)
    phase, _ = step(phase, machine.Registered(TWO, "there"), SETTINGS, 10.0)
    assert step(phase, machine.ClockMoved(), SETTINGS, 9.0 + wait_ms)[1] == []
    (overdue,) = step(phase, machine.ClockMoved(), SETTINGS, 10.0 + wait_ms)[1]
    assert isinstance(overdue, machine.Overdue)
    assert ("Settings.restore_timeout" in overdue.reason) is restores
