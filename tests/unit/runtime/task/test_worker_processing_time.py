"""A wall clock that jumps: what processing-time timers and values that expire promise all the same.

The host's clocks are the test's own; the function, its timers and its state are the real ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.sim.ports import SimClock
from tests.unit.operators.running import context, rows
from tests.unit.runtime.driving import running
from tests.unit.runtime.fakes import run_all
from tests.unit.runtime.task.test_worker import A, C, Shop, manifest_of
from weir.operators.functions.process import ProcessRows
from weir.runtime.clock import SystemClock
from weir.snapshot.messages import SnapshotTaken, TriggerCheckpoint
from weir.state.place import StatePlace

INPUT = pa.schema([("key", pa.int64())])
HOUR_S = 3_600.0
NOON_S = 1_800_000_000.0


class Host:
    """A machine whose date somebody sets."""

    def __init__(self, wall_s: float = NOON_S) -> None:
        self.wall_s = wall_s
        self.passed_s = 50.0

    def clock(self) -> SystemClock:
        return SystemClock(wall_s=lambda: self.wall_s, passed_s=lambda: self.passed_s)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds


class Remembering(weir.ProcessFunction):
    """Says whether it has seen the key within a minute, and wakes up ten seconds after each row."""

    seen = weir.ValueState("boolean", default=False, ttl=weir.Ttl("1m"))

    def process(self, row: Any, context: Any) -> Any:
        known, self.seen.value = self.seen.value, True
        context.timers.after("10s")
        return ["known" if known else "new"]

    def on_timer(self, time: Any, context: Any) -> Any:
        return ["timer"]


class Task:
    """One subtask with the clock of its host."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        spec = ProcessRows(["key"], Remembering(), "what string")
        spec.schema([INPUT])
        self._operator = spec.make()
        self._operator.open(replace(context(), place=StatePlace(now_ms=clock.wall_ms)), None)

    def row(self) -> list[str]:
        return self._said(lambda out: self._operator.process(pa.record_batch([pa.array([7])], schema=INPUT), out))

    def tick(self) -> list[str]:
        """As the loop does it."""
        wake_ms, now_ms = self._operator.wake_ms, self._clock.wall_ms()
        return [] if wake_ms is None or now_ms < wake_ms else self._said(lambda out: self._operator.tick(now_ms, out))

    def _said(self, act: Any) -> list[str]:
        out: list[pa.RecordBatch] = []
        act(out.append)
        return [row[0] for row in rows(out)]


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
def test_a_jump_of_the_wall_clock_fires_no_timer_early_or_late_and_lets_nothing_expire(jump_s: float) -> None:
    host = Host()
    task = Task(host.clock())
    assert task.row() == ["new"]
    host.passes(1)
    host.wall_s += jump_s
    assert task.tick() == []
    assert task.row() == ["known"]
    host.passes(8)
    assert task.tick() == [], "nine seconds after the first row"
    host.passes(1)
    assert task.tick() == ["timer"]
    host.passes(61)
    assert task.row() == ["new"], "what was seen has expired"


def test_the_next_attempt_looks_at_the_wall_clock_anew() -> None:
    host = Host()
    before = host.clock()
    host.wall_s += HOUR_S
    assert before.wall_ms() == NOON_S * 1_000
    assert host.clock().wall_ms() == (NOON_S + HOUR_S) * 1_000


def test_a_machine_that_slept_knows_that_time_has_passed() -> None:
    host = Host()
    clock = host.clock()
    host.passes(HOUR_S)
    assert clock.wall_ms() == (NOON_S + HOUR_S) * 1_000


def test_processing_time_never_goes_back_behind_what_a_checkpoint_knew_and_catches_up_without_standing_still() -> None:
    host = Host()
    clock = host.clock()
    known_ms = (NOON_S + HOUR_S) * 1_000
    clock.not_before(known_ms)
    assert clock.wall_ms() == known_ms
    host.passes(60)
    assert clock.wall_ms() == known_ms + 30_000, "half the pace, as long as it is ahead"
    host.passes(2 * HOUR_S - 60)
    assert clock.wall_ms() == (NOON_S + 2 * HOUR_S) * 1_000
    host.passes(60)
    assert clock.wall_ms() == (NOON_S + 2 * HOUR_S + 60) * 1_000, "and in step from then on"


def test_a_checkpoint_of_the_past_changes_nothing() -> None:
    host = Host()
    clock = host.clock()
    clock.not_before(5.0)
    host.passes(10)
    assert clock.wall_ms() == (NOON_S + 10) * 1_000


def test_a_task_that_is_restored_begins_where_processing_time_was(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(SimClock, "not_before", lambda self, wall_ms: told.append(wall_ms))
    first = Shop()
    first.worker.step()
    first.clock.time_ms = 5_000
    first.worker.handle(TriggerCheckpoint(A, C))
    first.steps()
    run_all(first.background)
    assert {taken.wall_ms for taken in first.heard(SnapshotTaken)} == {5_000}
    Shop(manifest=replace(manifest_of(first), created_ms=7_000.0))
    assert told == [7_000.0]


def test_a_manifest_is_as_late_as_the_latest_of_its_tasks_and_never_earlier_than_the_one_before() -> None:
    stage = running().pass_ms(1_000)
    parts = stage.snapshots(1)
    for taken in parts[:-1]:
        stage.hear(taken)
    stage.hear(replace(parts[-1], wall_ms=90_000))
    run_all(stage.background)
    assert stage.manifest(1).created_ms == 90_000
    stage.pass_ms(1_000).complete(2)
    assert stage.manifest(2).created_ms == 90_000, "the driver's own clock shows less"
