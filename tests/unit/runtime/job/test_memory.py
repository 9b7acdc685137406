"""A job whose state was given too little memory is refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest

import weir
from weir.config import RocksDb, Settings
from weir.connectors import Discard
from weir.errors import ConfigError
from weir.graph.plan import Plan
from weir.runtime.job.memory import check_memory


class Both(weir.ProcessFunction):
    first = weir.ValueState("long")
    second = weir.ListState("long")

    def process(self, row: Any, context: Any) -> None:
        pass


def planned() -> Plan:
    env = weir.Environment(parallelism=2)
    rows = env.from_collection([(1, 2)], "key long, value long").key_by("key")
    rows.agg(n=weir.count(), uid="counts").write(Discard(), uid="counted")
    rows.process(Both(), "key long", uid="both").write(Discard(), uid="out")
    return env.plan()


def test_memory_that_does_not_go_round_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        ConfigError, match=r"'3MB'.* 2 operators .*'both', which keeps 2 states \(first, second"
    ) as told:
        check_memory(planned(), Settings(backend=RocksDb(memory_max="3MB")))
    enough = str(told.value).rpartition("memory_max='")[2].rstrip("'")
    check_memory(planned(), Settings(backend=RocksDb(memory_max=enough)))


def test_state_on_the_heap_needs_no_budget() -> None:
    check_memory(planned(), Settings())
