"""Async calls: no row lost or doubled in what comes out, whatever fails; patience that ends."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.states import table_of
from tests.unit.operators.functions.test_keyed_timers import crashes, environment, rows_of
from tests.unit.operators.running import context
from weir import connectors as io
from weir.errors import PlanError, UserCodeError
from weir.operators.calls import CallPolicy
from weir.operators.functions.async_map import MapAsync
from weir.runtime.task.calls import ThreadedCalls
from weir.testing import collect_local, run_local


async def doubled(row: Any) -> Any:
    # A delay that differs from row to row: later rows are often through first.
    await asyncio.sleep(row.n * 7_919 % 5 / 10_000)
    return row.n, row.n * 2


def numbers(env: weir.Environment, count: int = 200) -> weir.Stream:
    return env.from_collection([(n,) for n in range(count)], "n long", uid="numbers")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", seeds(6))
def test_each_row_has_one_result_whatever_fails(seed: int, ordered: bool) -> None:
    env = environment(seed)
    called = numbers(env).map_async(
        doubled, "n long, twice long", ordered=ordered, capacity=random.Random(seed).choice([1, 5, 50]), uid="calls"
    )
    called.write(io.Discard(), uid="out")
    found = run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)
    assert sorted(pl.DataFrame(found["out"]).rows()) == [(n, n * 2) for n in range(200)]


def test_ordered_results_come_in_the_order_of_the_rows_and_others_as_they_come_back() -> None:
    async def slow_first(row: Any) -> Any:
        await asyncio.sleep(0.2 if row.n == 0 else 0)
        return row.n

    def out(*, ordered: bool) -> list[int]:
        env = weir.Environment(parallelism=1)
        return collect_local(numbers(env, 20).map_async(slow_first, "n long", ordered=ordered))["n"].to_pylist()

    assert out(ordered=True) == list(range(20))
    assert out(ordered=False) == [*range(1, 20), 0]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", seeds(4))
def test_watermarks_stay_behind_the_rows_that_they_followed(seed: int, ordered: bool) -> None:
    async def late(row: Any) -> Any:
        await asyncio.sleep(row.value % 3 / 2_000)
        return row

    data = rows_of(seed)
    env = environment(seed)
    rows = env.from_collection(data, watermark=weir.bounded_disorder("ts", "3s"), uid="rows")
    called = rows.map_async(late, rows.schema, ordered=ordered, capacity=8, uid="calls")
    assert called.time_column == "ts"
    result = called.key_by("key").window(weir.tumbling("10s")).agg(total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    found = run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)
    expected = (
        data.group_by("key", window_start=pl.col("ts").dt.truncate("10s"))
        .agg(total=pl.col("value").sum())
        .sort("window_start", "key")
    )
    out = pl.DataFrame(found["out"]).select("key", "window_start", "total").sort("window_start", "key")
    assert out.equals(expected)
    assert [operator["rows_late"] for operator in found.operators if operator["uid"] == "window"] == [0]


def test_no_more_rows_are_under_way_than_the_capacity() -> None:
    most: list[int] = []

    class Counting:
        under_way = 0

        async def __call__(self, row: Any) -> Any:
            Counting.under_way += 1
            most.append(Counting.under_way)
            await asyncio.sleep(0.001)
            Counting.under_way -= 1
            return row

        def __reduce__(self) -> Any:
            return (_the_same, (id(self),))

    function = Counting()
    _KEPT[id(function)] = function
    env = weir.Environment(parallelism=1)
    assert collect_local(numbers(env, 60).map_async(function, "n long", capacity=7)).num_rows == 60
    assert max(most) == 7


_KEPT: dict[int, Any] = {}


def _the_same(number: int) -> Any:
    """A function that is not copied on its way to the task."""
    return _KEPT[number]


def test_rows_in_flight_are_in_the_snapshot() -> None:
    async def never(row: Any) -> Any:
        await asyncio.sleep(3_600)

    batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    spec = MapAsync(never, "n long", policy=CallPolicy(10_000), capacity=3)
    spec.schema([batch.schema])
    operator: Any = spec.make()
    operator.open(dataclasses.replace(context(), calls=ThreadedCalls), None)
    try:
        operator.process(batch.slice(0, 4), lambda _: None)
        assert operator.watermark(5, lambda _: None) is None
        operator.process(batch.slice(4), lambda _: None)
        assert operator.is_full
        assert operator.is_waiting
        assert table_of(operator.freeze().states["in_flight"])["n"].to_pylist() == list(range(10))
    finally:
        operator.close()


def run(function: Any, **options: Any) -> tuple[list[int], list[int]]:
    env = weir.Environment(parallelism=1)
    result = numbers(env, 10).map_async(function, "n long", uid="calls", **options)
    result.write(io.Discard(), uid="out")
    if "failed" in options:
        result.side(options["failed"]).write(io.Discard(), uid="failed")
    found = run_local(env)
    failed = found["failed"]["n"].to_pylist() if "failed" in options else []
    return found["out"]["n"].to_pylist(), failed


def test_an_error_shows_the_users_lines_and_the_row() -> None:
    async def failing(row: Any) -> Any:
        if row.n == 3:
            raise ValueError("no good")
        return row

    with pytest.raises(UserCodeError) as raised:
        run(failing)
    text = str(raised.value)
    assert "ValueError: no good" in text
    assert "row: Row(n=3)" in text
    assert 'raise ValueError("no good")' in text
    assert "asyncio" not in text
    assert "calls.py" not in text
    assert run(failing, failed="bad") == ([0, 1, 2, 4, 5, 6, 7, 8, 9], [3])


def test_a_call_that_never_returns_is_an_error_or_a_side_output() -> None:
    async def hanging(row: Any) -> Any:
        if row.n == 3:
            await asyncio.sleep(3_600)
        return row

    with pytest.raises(UserCodeError, match=r"has not returned within 0.05 s.*retry=(.|\n)*row: Row\(n=3\)"):
        run(hanging, timeout="50ms")
    assert run(hanging, timeout="50ms", failed="bad") == ([0, 1, 2, 4, 5, 6, 7, 8, 9], [3])


def test_a_call_that_blocks_the_event_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.runtime.task.calls.BLOCKED_GRACE_S", 0.05)

    async def blocking(row: Any) -> Any:
        threading.Event().wait(1)
        return row

    with pytest.raises(UserCodeError, match="blocks the event loop"):
        run(blocking, timeout="50ms")


class Flaky:
    """Fails the first two times for each row."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.tries: dict[int, int] = {}

    async def __call__(self, row: Any) -> Any:
        self.tries[row.n] = self.tries.get(row.n, 0) + 1
        if self.tries[row.n] < 3:
            raise self.error("again")
        return row


def test_calls_that_fail_are_tried_again() -> None:
    assert run(Flaky(OSError), retry=weir.Retry(attempts=3, delay="1ms"))[0] == list(range(10))
    assert run(Flaky(OSError), retry=weir.Retry(3, "1ms", on=(ConnectionError, OSError)))[0] == list(range(10))
    with pytest.raises(UserCodeError, match="OSError: again"):
        run(Flaky(OSError), retry=weir.Retry(attempts=2, delay="1ms"))
    with pytest.raises(UserCodeError, match="KeyError: 'again'"):
        run(Flaky(KeyError), retry=weir.Retry(3, "1ms", on=(OSError,)))


def test_mistakes_are_told_when_the_job_is_written() -> None:
    stream = numbers(weir.Environment())
    with pytest.raises(PlanError, match="expected an async function of one row"):
        stream.map_async(lambda row: row, "n long")  # type: ignore[arg-type,return-value]
    with pytest.raises(PlanError, match="capacity=0; it must be"):
        stream.map_async(doubled, "n long", capacity=0)
    with pytest.raises(PlanError, match="attempts=0; there must be at least one"):
        stream.map_async(doubled, "n long", retry=0)
    with pytest.raises(PlanError, match="timeout must be above zero"):
        stream.map_async(doubled, "n long", timeout=timedelta(0))


@pytest.mark.parametrize("seed", seeds(4))
def test_calls_of_what_timers_emit_at_the_end_of_the_input_are_waited_for(seed: int) -> None:
    class AtTheEnd(weir.ProcessFunction):
        total = weir.ValueState("long", default=0)

        def process(self, row: Any, context: Any) -> Any:
            self.total.value += row.n
            context.timers.at_processing_time(datetime(2100, 1, 1))

        def on_timer(self, time: datetime, context: Any) -> Any:
            yield self.total.value

    env = environment(seed)
    totals = numbers(env, 50).key_by("n").process(AtTheEnd(), "n long").map_async(doubled, "n long, twice long")
    found = collect_local(totals, seed=seed, crash_at=crashes(seed))
    assert sorted(found["twice"].to_pylist()) == [n * 2 for n in range(50)]


def test_calls_can_follow_each_other_in_one_chain() -> None:
    env = environment(3)
    called = numbers(env, 50).map_async(doubled, "n long, twice long", capacity=3).map_async(doubled, "n long, t long")
    assert sorted(collect_local(called, seed=3, crash_at=(20, 40))["t"].to_pylist()) == [n * 2 for n in range(50)]
