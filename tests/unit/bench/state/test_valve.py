"""A source behind a valve gives exactly what it is let, and says when."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from weir import connectors
from weir.bench.state import valve as valves
from weir.bench.state.valve import Valve, rows_between
from weir.ids import AttemptId, Uid
from weir.operators.base import OperatorContext, RestoredInline
from weir.operators.source import SourceReader


def opened(valve: Valve, index: int = 0, parallelism: int = 2) -> SourceReader:
    reader = valve.reader()
    reader.open(OperatorContext("job", Uid("source"), "source", index, parallelism, 128, AttemptId(1)), None)
    return reader


def valve_at(directory: Path) -> Valve:
    valve = Valve(connectors.Generator(None, lambda n: {"n": n}, "n long"), directory)
    valve.validate("source")
    return valve


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valves, "LOOK_MS", 0.0)


def taken(reader: SourceReader) -> int:
    rows = 0
    while (batch := reader.poll(100)) is not None:
        rows += batch.num_rows
    return rows


def test_it_is_closed_at_first_and_lets_through_what_it_is_told(tmp_path: Path) -> None:
    valve = valve_at(tmp_path)
    readers = [opened(valve, index) for index in range(2)]
    assert [taken(reader) for reader in readers] == [0, 0]
    valve.let(1_001)
    assert [taken(reader) for reader in readers] == [501, 500]
    valve.let(1_501)
    assert [taken(reader) for reader in readers] == [250, 250]
    valve.let(0)
    assert [taken(reader) for reader in readers] == [0, 0], "it may be closed again"


def test_rows_of_an_earlier_attempt_count(tmp_path: Path) -> None:
    valve = valve_at(tmp_path)
    valve.let(1_000)
    first = opened(valve)
    first.poll(300)
    again = valve.reader()
    context = OperatorContext("job", Uid("source"), "source", 0, 2, 128, AttemptId(2))
    again.open(context, [RestoredInline(0, 2, first.position())])
    assert taken(again) == 200


def test_the_times_of_polls_are_there_behind_a_checkpoint(tmp_path: Path) -> None:
    valve = valve_at(tmp_path)
    valve.let(1_000)
    reader = opened(valve)
    began_s = time.monotonic()
    taken(reader)
    assert rows_between(tmp_path, began_s, np.inf) == 0, "nothing is written between checkpoints"
    reader.position()
    ended_s = time.monotonic()
    assert rows_between(tmp_path, began_s, ended_s) == 500
    assert rows_between(tmp_path, ended_s, ended_s + 5) == 0
