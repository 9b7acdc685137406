"""A job's sinks on its driver: what an attempt is refused for, and by whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import weir
from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, store_of
from weir.config import Checkpoints, JobConfig
from weir.errors import CheckpointError, OwnershipError
from weir.graph.plan import Plan
from weir.ids import CheckpointId
from weir.operators.sink import Fence, Sink, SinkOwner, SinkWriter
from weir.runtime.driver.sink_desk import SinkDesk


class Committed(Sink):
    """One that has committed more than any checkpoint holds."""

    def writer(self) -> SinkWriter:
        raise NotImplementedError

    def committed_up_to(self, owner: SinkOwner) -> CheckpointId | None:
        return CheckpointId(68)


def plan_with(sink: Sink) -> Plan:
    env = weir.Environment(parallelism=1)
    env.from_collection([(1,)], "id long", uid="in").write(sink, uid="out")
    return env.plan()


def test_rows_that_are_committed_behind_the_checkpoint_are_not_written_again() -> None:
    store = store_of(FaultyStorage())
    desk, claim = SinkDesk(JobConfig("job"), LIFE, store.check_newest), store.claim()
    with pytest.raises(CheckpointError, match="has committed rows of checkpoint 68, and there is no checkpoint"):
        desk.recover(plan_with(Committed()), claim)


def test_a_driver_that_was_overtaken_hears_that_and_not_that_its_checkpoints_are_gone() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    desk, claim = SinkDesk(JobConfig("job"), LIFE, store.check_newest), store.claim()
    store_of(storage).claim()
    with pytest.raises(OwnershipError, match="another driver has taken over"):
        desk.recover(plan_with(Committed()), claim)


class Taken(Committed):
    """One whose target is somebody else's."""

    def adopt(self, owner: SinkOwner, fence: Fence) -> None:
        raise OwnershipError("the directory holds output of another lineage")


def test_what_stands_in_the_way_of_a_driver_that_was_overtaken_is_its_successor() -> None:
    storage = FaultyStorage()
    store = store_of(storage)
    desk = SinkDesk(JobConfig("job"), LIFE, store.check_newest)
    store.claim()
    with pytest.raises(OwnershipError, match="holds output of another lineage"):
        desk.adopt(plan_with(Taken()))
    store_of(storage).claim()
    with pytest.raises(OwnershipError, match="another driver has taken over"):
        desk.adopt(plan_with(Taken()))


class Refusing(Committed):
    """One whose directory holds what somebody else has written."""

    def validate(self, owner: SinkOwner) -> None:
        raise OwnershipError("the directory holds output")


def test_output_of_a_run_that_began_during_the_look_is_not_taken_for_lost() -> None:
    lives = iter([frozenset(), frozenset(), frozenset(), frozenset([LIFE])])
    desk = SinkDesk(JobConfig("job"), LIFE, lambda: None, lives=lambda: next(lives))
    with pytest.raises(OwnershipError, match="the directory holds output"):
        desk.validate(plan_with(Refusing()))
    with pytest.raises(OwnershipError, match="was started by somebody else just now; start again"):
        desk.validate(plan_with(Refusing()))


class Recovered(Sink):
    """One that remembers how far the job may go back."""

    def __init__(self) -> None:
        self.oldest: list[CheckpointId | None] = []

    def writer(self) -> SinkWriter:
        raise NotImplementedError

    def recover(self, *given: Any, oldest: CheckpointId | None) -> None:
        self.oldest.append(oldest)


@pytest.mark.parametrize(
    ("retain", "completed", "oldest"),
    [(3, (), None), (3, (3, 4, 5), 3), (3, (69,), None), (3, (69, 70), 69), (1, (5,), 5)],
)
def test_sinks_are_told_how_far_the_job_may_go_back(
    retain: int, completed: tuple[int, ...], oldest: int | None
) -> None:
    """A single checkpoint may be the copy of one that the job has gone back to: older ones are there, too."""
    store, sink = store_of(FaultyStorage()), Recovered()
    desk = SinkDesk(JobConfig("job", checkpoints=Checkpoints(retain=retain)), LIFE, store.check_newest)
    claim = replace(store.claim(), completed=tuple(map(CheckpointId, completed)))
    desk.recover(plan_with(sink), claim)
    assert sink.oldest == [oldest]
