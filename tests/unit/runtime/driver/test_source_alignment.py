"""Fast and slow sources of one group: how far one is ahead of the other, in whole jobs without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import weir
from tests.sim.ports import SimClock
from weir.config import Settings
from weir.errors import PlanError
from weir.ids import AttemptId, SubtaskId, TaskIndex, VertexId
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.runtime.driver.source_alignment import SourceAlignment
from weir.snapshot.messages import AlignSources, SourceReached, SourcesReached, ToTask
from weir.snapshot.parts import Json
from weir.snapshot.watermarks import NEVER_US
from weir.testing import LocalResult, run_local

SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("n", pa.int64())])
SECOND_US = 1_000_000


@dataclass
class Track:
    """How far the sources of a run came, by name; and how far the fast one was ahead, after each of its batches."""

    at_us: dict[str, int] = field(default_factory=dict)
    leads_us: list[int] = field(default_factory=list)
    polls: dict[str, int] = field(default_factory=dict)


TRACK = Track()
"""The plan is copied for each task, and this is not: all of them run in this process."""


@dataclass(frozen=True)
class Steps(Source):
    """One row a poll, each so much later than the one before."""

    name: str
    step_us: int
    count: int
    bounded = True  # type: ignore[assignment]
    schema = SCHEMA  # type: ignore[assignment]
    silent_polls: int = 0
    """So often there is nothing at first."""

    def reader(self) -> SourceReader:
        return StepsReader(self)


class StepsReader(SourceReader):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._next = 0
        self._silent = steps.silent_polls

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self._next = 0 if context.index == 0 else self._steps.count
        if restored is not None and context.index == 0:
            self._next = restored[0].value["next"]

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        name, step_us = self._steps.name, self._steps.step_us
        TRACK.polls[name] = TRACK.polls.get(name, 0) + 1
        if self._silent:
            self._silent -= 1
            return None
        if self.finished:
            return None
        at_us = self._next * step_us
        self._next += 1
        TRACK.at_us[name] = at_us
        if name == "fast":
            TRACK.leads_us.append(at_us - TRACK.at_us.get("slow", 0))
        return pa.record_batch([pa.array([at_us], pa.timestamp("us")), pa.array([self._next])], schema=SCHEMA)

    @property
    def finished(self) -> bool:
        return self._next >= self._steps.count and not self._silent

    @property
    def wait_ms(self) -> float:
        return 1.0

    def position(self) -> Json:
        return {"next": self._next}


FAST, SLOW = Steps("fast", SECOND_US, 100), Steps("slow", SECOND_US // 10, 1_000)
DRIFT_US = 8 * SECOND_US


def run(strategy: weir.WatermarkStrategy, *sources: Steps, **options: object) -> LocalResult:
    TRACK.at_us.clear()
    TRACK.leads_us.clear()
    TRACK.polls.clear()
    env = weir.Environment(parallelism=2, settings=Settings(watermark_interval="2ms"))
    streams = [env.read(source, watermark=strategy, uid=source.name) for source in sources]
    streams[0].union(*streams[1:]).print(uid="out")
    return run_local(env, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_an_aligned_source_is_never_further_ahead_than_the_drift_and_one_batch(seed: int | None) -> None:
    result = run(weir.monotonic("ts").aligned("all", drift="8s"), FAST, SLOW, seed=seed)
    assert result["out"].num_rows == FAST.count + SLOW.count
    assert max(TRACK.leads_us) <= DRIFT_US + FAST.step_us
    assert max(TRACK.leads_us) >= DRIFT_US / 2  # it is not held back for nothing


def test_without_alignment_the_fast_source_runs_away() -> None:
    run(weir.monotonic("ts"), FAST, SLOW)
    assert max(TRACK.leads_us) > 5 * DRIFT_US


def test_aligned_sources_come_back_from_crashes_in_step_and_to_the_end() -> None:
    strategy = weir.monotonic("ts").aligned("all", drift="8s")
    result = run(strategy, FAST, SLOW, crash_at=[150, 400, 700], checkpoint_every=40)
    assert result.restarts == 3
    assert result["out"].num_rows == FAST.count + SLOW.count
    assert max(TRACK.leads_us[len(TRACK.leads_us) // 2 :]) <= DRIFT_US + FAST.step_us


def test_one_that_waits_is_not_taken_for_idle() -> None:
    """If it were, the slow source would be the only one that counts, and the watermark behind both would jump."""
    strategy = weir.monotonic("ts", idle_after="5ms").aligned("all", drift="8s")
    run(strategy, FAST, SLOW)
    assert max(TRACK.leads_us) <= DRIFT_US + FAST.step_us


def test_a_source_without_rows_yet_is_waited_for_and_an_idle_one_is_not() -> None:
    late = Steps("slow", SECOND_US // 10, 50, silent_polls=200)
    run(weir.monotonic("ts").aligned("all", drift="8s"), FAST, late)
    assert TRACK.leads_us[0] == 0
    assert TRACK.polls["slow"] >= 200
    first_lead_us = max(TRACK.leads_us[:2])
    assert first_lead_us <= FAST.step_us
    assert run(weir.monotonic("ts", idle_after="5ms").aligned("all", drift="8s"), FAST, late)["out"].num_rows == 150
    assert max(TRACK.leads_us) > DRIFT_US + FAST.step_us  # the idle source was behind, and held nobody back


def test_an_ended_source_holds_nobody_back() -> None:
    short = Steps("slow", SECOND_US // 10, 5)
    result = run(weir.monotonic("ts").aligned("all", drift="1s"), FAST, short)
    assert result["out"].num_rows == FAST.count + short.count


def test_groups_do_not_wait_for_each_other() -> None:
    TRACK.leads_us.clear()
    TRACK.at_us.clear()
    env = weir.Environment(parallelism=1, settings=Settings(watermark_interval="2ms"))
    one = env.read(FAST, watermark=weir.monotonic("ts").aligned("one", drift="8s"), uid="fast")
    two = env.read(SLOW, watermark=weir.monotonic("ts").aligned("two", drift="8s"), uid="slow")
    one.union(two).print(uid="out")
    run_local(env)
    assert max(TRACK.leads_us) > 5 * DRIFT_US


def test_watermarks_that_are_not_made_beside_a_source_cannot_be_aligned() -> None:
    env = weir.Environment(parallelism=2)
    stream = env.read(FAST).rebalance().with_watermarks(weir.monotonic("ts").aligned("all", drift="8s"), uid="marks")
    stream.print()
    with pytest.raises(PlanError, match=r"marks.*must be made beside their source"):
        env.plan()


@pytest.mark.parametrize("group", ["", None, 5])
def test_a_group_has_a_name(group: object) -> None:
    with pytest.raises(PlanError, match="is not the name of a group"):
        weir.monotonic("ts").aligned(group, drift="1s")  # type: ignore[arg-type]


# --- What the driver tells --------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        env = weir.Environment(parallelism=2)
        env.read(FAST, watermark=weir.monotonic("ts").aligned("all", drift="8s")).print()
        self.plan = env.plan()
        self.clock = SimClock()
        self.messages: list[ToTask] = []
        self.alignment = SourceAlignment(
            self.plan,
            clock=self.clock,
            interval_ms=100,
            tell=lambda message: self.messages.append(message(AttemptId(1))),
        )

    def heard(self, index: int, time_us: int | None) -> None:
        source = SourceReached(SubtaskId(VertexId(0), index), time_us)
        self.alignment.heard(SourcesReached(AttemptId(1), TaskIndex(index), (source,)))


def test_the_driver_tells_the_slowest_once_in_an_interval() -> None:
    told = Told()
    told.heard(0, 5)
    assert told.messages == [] and told.alignment.due_ms is None
    told.heard(1, 9)
    assert told.messages == [AlignSources(AttemptId(1), {"all": 5})]
    told.heard(0, 7)
    told.heard(0, 8)
    assert len(told.messages) == 1
    assert told.alignment.due_ms == told.clock.now_ms() + 100
    told.clock.time_ms += 100
    told.alignment.tick()
    assert told.messages[1:] == [AlignSources(AttemptId(1), {"all": 8})]
    told.heard(1, 20)
    assert told.alignment.due_ms is None  # the slowest is still where it was


def test_a_region_that_begins_again_is_told_when_all_have_said_where_they_are() -> None:
    told = Told()
    told.heard(0, 500)
    told.heard(1, 900)
    told.messages.clear()
    told.alignment.launched(told.plan)
    told.alignment.runs()
    assert told.messages == []
    told.heard(0, NEVER_US)
    told.heard(1, 30)
    told.clock.time_ms += 100
    told.alignment.tick()
    assert told.messages[-1] == AlignSources(AttemptId(1), {"all": NEVER_US})
