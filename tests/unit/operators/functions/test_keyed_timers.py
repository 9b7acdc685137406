"""Timers and side outputs of process functions: once each, in order, whatever fails."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.states import as_restored, table_of
from tests.unit.operators.running import context, rows
from weir import connectors as io
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.base import Operator, Restored, RestoredInline
from weir.operators.functions.keyed import FIRED_AT_ONCE
from weir.operators.functions.process import ProcessRows
from weir.snapshot.watermarks import END_US
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)
BACKENDS = ["heap", "rocksdb"]


def rows_of(seed: int, count: int = 300, *, disorder_s: float = 3.0) -> pl.DataFrame:
    rng = random.Random(seed)
    return pl.DataFrame(
        {
            "key": [rng.choice([1, 2, 3, None]) for _ in range(count)],
            "value": [rng.randint(0, 50) for _ in range(count)],
            "ts": [BEGIN + timedelta(seconds=i * 0.25 - rng.random() * disorder_s) for i in range(count)],
        },
        schema={"key": pl.Int64, "value": pl.Int64, "ts": pl.Datetime("us")},
    )


def environment(seed: int, backend: str = "heap") -> weir.Environment:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    return weir.Environment(parallelism=rng.randint(1, 3), settings=settings, backend=backend)  # type: ignore[arg-type]


def crashes(seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).sample(range(5, 120), 3)) if seed % 2 else ()


class TumblingSums(weir.ProcessFunction):
    """Sums of ten seconds, each emitted by a timer; timers are set again and again, and some are deleted again."""

    sums = weir.MapState("timestamp_ntz", "long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        assert context.timestamp == row.ts
        assert context.watermark is None or context.watermark <= row.ts
        second = row.ts.second // 10 * 10
        end = row.ts.replace(second=second, microsecond=0) + timedelta(seconds=10)
        self.sums[end] = self.sums[end] + row.value
        context.timers.at(end)
        context.timers.register_event_time_timer(end + timedelta(seconds=1))
        context.timers.delete_event_time_timer(end + timedelta(seconds=1))
        context.side("seen", (row.value,))

    def on_timer(self, time: datetime, context: Any) -> Any:
        assert context.timestamp == time
        assert context.watermark >= time
        assert context.time_domain == "event"
        total = self.sums[time]
        del self.sums[time]
        context.side("fired", {"at": time, "key": context.key})
        yield context.key, time, total


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(8))
def test_each_timer_fires_once_with_the_state_of_its_key(seed: int, backend: str) -> None:
    data = rows_of(seed)
    env = environment(seed, backend)
    stream = env.from_collection(data, watermark=weir.bounded_disorder("ts", "3s"), uid="rows")
    result = stream.key_by("key").process(
        TumblingSums(),
        "key long, end timestamp_ntz, total long",
        sides={"seen": "value long", "fired": "key long, at timestamp_ntz"},
        uid="sums",
    )
    result.write(io.Discard(), uid="out")
    result.side("fired").write(io.Discard(), uid="fired")
    result.side("seen").filter(pl.col("value") > 25).write(io.Discard(), uid="seen")
    found = run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)
    expected = (
        data.group_by("key", end=pl.col("ts").dt.truncate("10s").dt.offset_by("10s"))
        .agg(total=pl.col("value").sum())
        .sort("end", "key")
    )
    assert pl.DataFrame(found["out"]).sort("end", "key").equals(expected)
    fired = pl.DataFrame(found["fired"]).sort("at", "key")
    assert fired.equals(expected.select("key", pl.col("end").alias("at")))
    assert sorted(pl.DataFrame(found["seen"])["value"]) == sorted(data.filter(pl.col("value") > 25)["value"])


class Collecting(weir.ProcessFunction):
    """What comes within 4 ms goes out together."""

    rows = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        if not self.rows.value:
            assert context.timers.after("4ms") == context.now + timedelta(milliseconds=4)
        self.rows.value += 1

    def on_timer(self, time: datetime, context: Any) -> Any:
        assert context.time_domain == "processing"
        assert context.at_end or context.now >= time
        count = self.rows.value
        self.rows.clear()
        return context.key, count


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(6))
def test_timers_of_processing_time_lose_nothing_and_fire_once(seed: int, backend: str) -> None:
    data = rows_of(seed)
    env = environment(seed, backend)
    result = env.from_collection(data, uid="rows").key_by("key").process(Collecting(), "key long, n long", uid="buffer")
    result.write(io.Discard(), uid="out")
    found = pl.DataFrame(run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)["out"])
    assert found["n"].min() > 0  # type: ignore[operator]
    assert (
        found.group_by("key")
        .agg(pl.col("n").sum())
        .sort("key")
        .equals(data.group_by("key").agg(n=pl.len().cast(pl.Int64)).sort("key"))
    )


# --- By hand -------------------------------------------------------------------------------------------


INPUT = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us"))])
OUTPUT = "key long, time timestamp_ntz, watermark timestamp_ntz"


def batch(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in pairs], pa.int64()), pa.array([us for _, us in pairs], pa.timestamp("us"))],
        schema=INPUT,
    )


class By:
    """One instance of a function, driven by hand."""

    def __init__(self, function: Any, output: str = OUTPUT, restored: Restored | None = None) -> None:
        self.spec = ProcessRows(["key"], function, output, time=("ts", 0))
        self.spec.schema([INPUT])
        self.operator: Operator = self.spec.make()
        self.operator.open(context(), restored)

    def process(self, *pairs: tuple[int, int]) -> list[Any]:
        out: list[pa.RecordBatch] = []
        self.operator.process(batch(*pairs), out.append)
        return [(row[0], row[1].microsecond) for row in rows(out)]

    def watermark(self, time_us: int) -> list[Any]:
        out: list[pa.RecordBatch] = []
        assert self.operator.watermark(time_us, out.append) == time_us
        return [(row[0], row[1].microsecond) for row in rows(out)]

    def moved(self) -> Restored:
        frozen = self.operator.freeze()
        tables = {name: [table_of(state)] for name, state in frozen.states.items()}
        return Restored([RestoredInline(0, 1, frozen.inline)], as_restored(tables))


class Echo(weir.ProcessFunction):
    """Sets a timer for each row's time."""

    def process(self, row: Any, context: Any) -> Any:
        context.timers.at(row.ts)

    def on_timer(self, time: datetime, context: Any) -> Any:
        return context.key, time, context.watermark


def test_timers_fire_in_the_order_of_their_times_and_equal_ones_are_one() -> None:
    by = By(Echo())
    assert by.process((1, 30), (2, 10), (1, 10), (1, 30), (2, 20)) == []
    assert by.watermark(9) == []
    assert by.watermark(20) == [(2, 10), (1, 10), (2, 20)]
    assert by.watermark(29) == []
    assert by.watermark(END_US) == [(1, 30)]
    assert table_of(by.operator.freeze().states["timers"]).num_rows == 0


def test_a_timer_for_a_time_that_has_passed_fires_behind_the_batch() -> None:
    by = By(Echo())
    by.watermark(50)
    assert by.process((1, 40), (2, 60)) == [(1, 40)]


def test_after_a_restore_they_fire_as_if_nothing_had_happened() -> None:
    by = By(Echo())
    by.process((1, 30), (2, 10), (1, 20))
    by.watermark(15)
    again = By(Echo(), restored=by.moved())
    assert again.process((3, 15)) == [(3, 15)]
    assert again.watermark(40) == [(1, 20), (1, 30)]


class Chaining(Echo):
    """Each timer sets one more, until 5 are through; the second deletes that of time 100."""

    left = weir.ValueState("long", default=5)

    def on_timer(self, time: datetime, context: Any) -> Any:
        self.left.value -= 1
        if self.left.value:
            context.timers.at(time + timedelta(microseconds=3))
        if self.left.value == 3:
            context.timers.delete(datetime(1970, 1, 1, 0, 0, 0, 100))
        yield context.key, time, context.watermark


def test_what_a_timer_sets_and_deletes_counts_in_the_same_round() -> None:
    by = By(Chaining())
    by.process((1, 10), (2, 15), (1, 100))
    expected = [(1, t) for t in (10, 13, 16, 19, 22)] + [(2, t) for t in (15, 18, 21, 24, 27)]
    assert by.watermark(200) == sorted(expected, key=lambda pair: pair[1])


def test_more_timers_of_one_time_than_are_called_at_once() -> None:
    by = By(Echo())
    count = 2 * FIRED_AT_ONCE + 10
    for start in range(0, count, 1_000):
        by.process(*((key, 7) for key in range(start, min(start + 1_000, count))))
    assert sorted(by.watermark(7)) == [(key, 7) for key in range(count)]
    assert by.watermark(8) == []


class Forever(Echo):
    stops = False

    def on_timer(self, time: datetime, context: Any) -> Any:
        if not (self.stops and context.at_end):
            context.timers.at(time + timedelta(microseconds=1))


def test_timers_without_end_at_the_end_of_the_input_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.operators.functions.keyed.TIMERS_AT_END_MAX", 1_000)
    by = By(Forever())
    by.process((1, 1))
    by.watermark(500)
    with pytest.raises(UserCodeError, match=r"context.at_end"):
        by.watermark(END_US)
    stopping = Forever()
    stopping.stops = True
    stopped = By(stopping)
    stopped.process((1, 1))
    assert stopped.watermark(END_US) == []


def test_processing_time_timers_ask_for_the_wall_clock_and_fire_at_the_end_at_the_latest() -> None:
    class Waiting(Echo):
        def process(self, row: Any, context: Any) -> Any:
            context.timers.at_processing_time(row.ts)
            context.timers.at_processing_time(5_000)
            context.timers.delete_processing_time(5_000)

    by = By(Waiting())
    assert by.operator.wake_ms is None
    by.process((1, 1_500), (2, 9_000))
    assert by.operator.wake_ms == 2
    out: list[pa.RecordBatch] = []
    by.operator.tick(2.0, out.append)
    assert [row[0] for row in rows(out)] == [1]
    again = By(Waiting(), restored=by.moved())
    assert again.operator.wake_ms == 9
    again.operator.end(out.append)
    assert [row[0] for row in rows(out)] == [1, 2]
    assert again.operator.wake_ms is None


def test_times_have_the_zone_of_the_stream() -> None:
    seen: list[Any] = []

    class Zoned(Echo):
        def process(self, row: Any, context: Any) -> Any:
            seen.extend([context.timestamp, context.watermark])
            context.timers.at(row.ts)

        def on_timer(self, time: datetime, context: Any) -> Any:
            seen.append(time)

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    schema = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "Europe/Paris"))])
    spec = ProcessRows(["key"], Zoned(), OUTPUT, time=("ts", -1))
    spec.schema([schema])
    operator = spec.make()
    operator.open(context(), None)
    operator.watermark(1, lambda batch: None)
    operator.process(pa.record_batch([pa.array([1]), pa.array([5], schema.types[1])], schema=schema), lambda b: None)
    operator.watermark(9, lambda batch: None)
    moments = [datetime(1970, 1, 1, 0, 0, 0, us, tzinfo=timezone.utc) for us in (4, 1, 5)]
    assert seen == moments
    assert all(time.tzinfo is not None for time in seen)


def test_mistakes_are_told() -> None:
    class NoOnTimer(weir.ProcessFunction):
        def process(self, row: Any, context: Any) -> Any:
            context.timers.at(row.ts)

    with pytest.raises(UserCodeError, match="the function has no on_timer"):
        By(NoOnTimer()).process((1, 1))

    class Wrong(Echo):
        def process(self, row: Any, context: Any) -> Any:
            context.timers.at("noon")

    with pytest.raises(UserCodeError, match=r"a timer needs a datetime.*'noon'"):
        By(Wrong()).process((1, 1))

    class Failing(Echo):
        def on_timer(self, time: datetime, context: Any) -> Any:
            raise ValueError("no good")

    by = By(Failing())
    by.process((7, 1))
    with pytest.raises(
        UserCodeError, match=r"in on_timer\(1970-01-01 00:00:00.000001\): ValueError: no good\n  key: 7"
    ):
        by.watermark(2)

    class Aside(Echo):
        def process(self, row: Any, context: Any) -> Any:
            context.side("late", row)

    with pytest.raises(UserCodeError, match="no side output 'late'; declared with sides= are: none"):
        By(Aside()).process((1, 1))

    class Named(Echo):
        timers = weir.ValueState("long")

    with pytest.raises(PlanError, match="give yours another name"):
        By(Named())


def test_event_time_timers_need_event_time() -> None:
    env = weir.Environment(parallelism=1)
    stream = env.from_collection([(1, BEGIN)], "key long, ts timestamp_ntz")
    stream.key_by("key").process(Echo(), OUTPUT).write(io.Discard(), uid="out")
    with pytest.raises(Exception, match="the rows have no event time; give the source a watermark="):
        run_local(env)


def test_side_outputs_are_checked() -> None:
    env = weir.Environment(parallelism=1)
    stream = env.from_collection([(1, BEGIN)], "key long, ts timestamp_ntz")

    class Aside(weir.ProcessFunction):
        def process(self, row: Any, context: Any) -> Any:
            context.side("words", ("one", "two"))

    result = stream.key_by("key").process(Aside(), "key long", sides={"words": "word string"})
    with pytest.raises(PlanError, match="has no side output 'other'; it has 'words'"):
        result.side("other")
    result.write(io.Discard(), uid="out")
    with pytest.raises(SchemaError, match="side output 'words': a result is not a row of"):
        run_local(env)
    with pytest.raises(PlanError, match=r"a plain function has no context\.side"):
        stream.key_by("key").process(lambda row, state: None, "key long", sides={"words": "word string"})
