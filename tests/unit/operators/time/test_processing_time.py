"""Processing time: stamps and watermarks that follow the wall clock, and never go back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.unit.runtime.fakes import context
from weir.errors import PlanError, SchemaError
from weir.operators.base import Restored, RestoredInline
from weir.operators.time.processing_time import AssigningProcessingTime, AssignProcessingTime
from weir.snapshot.elements import Watermark
from weir.state.place import StatePlace
from weir.testing import collect_local, run_local

ROWS = pa.record_batch({"n": [1, 2]})


class Wall:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = 1_000

    def opened(self, restored: Restored | None = None) -> AssigningProcessingTime:
        operator = AssignProcessingTime("seen").make()
        operator.open(replace(context("clock"), place=StatePlace(now_ms=lambda: self.ms)), restored)
        return operator


def stamps(operator: AssigningProcessingTime) -> list[int]:
    out: list[pa.RecordBatch] = []
    operator.process(ROWS, out.append)
    found: list[int] = out[0].column("seen").cast(pa.int64()).to_pylist()
    return found


def generated(operator: AssigningProcessingTime) -> Any:
    return operator.generated(0, is_starved=True)


def test_rows_get_the_time_and_watermarks_follow_it_without_rows() -> None:
    wall = Wall()
    operator = wall.opened()
    assert stamps(operator) == [1_000_000] * 2
    for ms in (1_100, 1_200):
        wall.ms = ms
        assert generated(operator) == Watermark(ms * 1_000)


def test_a_clock_that_is_set_back_stands_still_also_over_a_restart() -> None:
    wall = Wall()
    first = wall.opened()
    generated(first)
    wall.ms = 400
    assert stamps(first) == [1_000_000] * 2
    assert generated(first) == Watermark(1_000_000)
    again = wall.opened(Restored([RestoredInline(0, 1, first.freeze().inline)]))
    assert stamps(again) == [1_000_000] * 2
    assert generated(again) == Watermark(1_000_000)


@pytest.mark.parametrize("seed", seeds(4))
def test_every_row_is_in_one_window_whatever_crashes(seed: int) -> None:
    env = weir.Environment(parallelism=2, settings=weir.Settings(batch_rows_max=3))
    rows = env.from_collection([(n % 3,) for n in range(90)], "key long", uid="rows")
    windows = rows.with_processing_time(uid="clock").key_by("key").window(weir.tumbling("1ms"))
    windows.agg(n=weir.count(), uid="counts").print(uid="out")
    result = run_local(env, seed=seed, crash_at=[20 + seed, 40], checkpoint_every=5)
    counts = pl.DataFrame(result["out"]).group_by("key").agg(pl.sum("n")).sort("key")
    assert counts.rows() == [(0, 30), (1, 30), (2, 30)]
    assert result.restarts >= 1


def test_what_is_wrong_is_said_at_once() -> None:
    env = weir.Environment()
    rows = env.from_collection([(1,)], "key long", uid="rows")
    with pytest.raises(SchemaError, match="a column 'key' already"):
        rows.with_processing_time("key")
    with pytest.raises(PlanError, match="'' is not the name of a column"):
        rows.with_processing_time("")
    timed = rows.with_processing_time()
    assert timed.time_column == "processing_time"
    assert collect_local(timed).num_rows == 1
