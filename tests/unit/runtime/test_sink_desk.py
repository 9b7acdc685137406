"""A job's sinks on its driver: what an attempt is refused for, and by whom."""

from __future__ import annotations

import pytest

import weir
from tests.unit.runtime.fakes import FaultyStorage
from tests.unit.runtime.stores import LIFE, store_of
from weir.config import JobConfig
from weir.errors import CheckpointError, OwnershipError
from weir.graph.plan import Plan
from weir.ids import CheckpointId
from weir.operators.sink import Sink, SinkOwner, SinkWriter
from weir.runtime.sink_desk import SinkDesk


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
