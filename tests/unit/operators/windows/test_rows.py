"""Functions over whole windows, count and global windows, triggers: against a plain computation over the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.states import as_restored, table_of
from tests.unit.operators import running
from tests.unit.operators.windows import test_aggregate as of_windows
from tests.unit.operators.windows.sessions import test_aggregate as of_sessions
from weir import connectors as io
from weir.errors import PlanError, UserCodeError
from weir.operators.base import Restored, RestoredInline
from weir.operators.windows import buffer, counts, pieces
from weir.operators.windows import rows as rows_module
from weir.operators.windows.rows import WindowRows
from weir.state.columns.segments import store
from weir.state.place import StatePlace
from weir.testing import LocalResult, run_local

BEGIN = datetime(2026, 1, 1)
SCHEMA = "key long, window_start timestamp_ntz, window_end timestamp_ntz, n long, total long"


def summed(rows: pl.DataFrame, window: weir.Window) -> Any:
    assert window.watermark is None or window.end is None or window.watermark >= window.end
    assert set(rows["key"].to_list()) == {window.key}
    return window.key, window.start, window.end, len(rows), rows["value"].sum()


def run(
    rows: pl.DataFrame,
    windows: Any,
    then: Callable[[Any], weir.Stream],
    *,
    seed: int,
    crashes: int = 0,
    backend: Any = "heap",
    **more: Any,
) -> LocalResult:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings, backend=backend)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "6s"), uid="rows")
    then(stream.key_by("key").window(windows, **more)).write(io.Discard(), uid="out")
    crash_at = tuple(rng.sample(range(5, 120), crashes))
    return run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=9)


def by_process(windows: Any) -> weir.Stream:
    return windows.process(summed, SCHEMA, uid="window")  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize(("size_s", "slide_s", "offset_s"), [(10, 10, 3), (10, 4, 1)])
def test_a_process_function_sees_every_row_of_every_window(seed: int, size_s: int, slide_s: int, offset_s: int) -> None:
    rows = of_windows.rows_of(seed, 300)
    windows = weir.sliding(size_s, slide_s, offset=offset_s)
    found = run(rows, windows, by_process, seed=seed, crashes=seed % 3)
    expected = of_windows.batch_answer(rows, size_s, slide_s, offset_s)
    assert pl.DataFrame(found["out"]).sort("window_start", "key").equals(expected)


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("gap_s", [2, 5])
def test_a_process_function_sees_every_row_of_every_session(seed: int, gap_s: int) -> None:
    rows = of_sessions.rows_of(seed, 300).with_columns(pl.col("key").cast(pl.Int64))
    found = run(rows, weir.session(gap_s), by_process, seed=seed, crashes=seed % 3)
    expected = of_sessions.batch_answer(rows, gap_s).drop("low")
    assert pl.DataFrame(found["out"]).sort("window_start", "key").equals(expected)


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("windows", ["tumbling", "sliding", "session"])
def test_windows_are_the_same_however_rows_lie(windows: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "HEAD_ROWS_MAX", 5)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 7)
    monkeypatch.setattr(rows_module, "FIRED_ROWS_MAX", 5)
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 20)
    if seed % 2:  # all keys have one hash
        monkeypatch.setattr(buffer, "places", lambda hashes, max_parallelism: np.zeros(len(hashes), np.uint64))
    backend = weir.RocksDb(memory_max="32KB") if seed % 3 else "heap"
    rows = of_windows.rows_of(seed, 300)
    if windows == "session":
        rows = of_sessions.rows_of(seed, 300).with_columns(pl.col("key").cast(pl.Int64))
        found = run(rows, weir.session(2), by_process, seed=seed, crashes=2, backend=backend)
        expected = of_sessions.batch_answer(rows, 2).drop("low")
    else:
        slide_s = 10 if windows == "tumbling" else 4
        found = run(rows, weir.sliding(10, slide_s), by_process, seed=seed, crashes=2, backend=backend)
        expected = of_windows.batch_answer(rows, 10, slide_s)
    assert pl.DataFrame(found["out"]).sort("window_start", "key").equals(expected)


@pytest.mark.parametrize("seed", seeds(4))
def test_reduce_folds_the_rows_of_a_window(seed: int) -> None:
    rows = of_windows.rows_of(seed, 300)

    def larger(one: Any, other: Any) -> Any:
        return max(one, other, key=lambda row: (row.value, row.ts))

    found = run(rows, weir.tumbling("10s"), lambda w: w.reduce(larger, uid="w"), seed=seed, crashes=2)
    start = pl.col("ts").dt.truncate("10s").alias("window_start")
    expected = rows.sort("value", "ts").group_by("key", start).agg(pl.col("value", "ts").last())
    columns = ["key", "window_start", "value", "ts"]
    out = pl.DataFrame(found["out"])
    assert (out["window_end"] - out["window_start"] == timedelta(seconds=10)).all()
    assert out.select(columns).sort(columns).equals(expected.select(columns).sort(columns))


def count_answer(values: list[int], size: int, every: int) -> list[tuple[int, int]]:
    return [
        (len(part := values[max(0, stop - size) : stop]), sum(part)) for stop in range(every, len(values) + 1, every)
    ]


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize(("size", "every"), [(5, 5), (7, 3), (1, 1), (4, 1)])
def test_count_windows_are_the_last_rows_of_a_key(
    seed: int, size: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(buffer, "HEAD_ROWS_MAX", 5)
        monkeypatch.setattr(pieces, "PIECE_ROWS", 7)
        monkeypatch.setattr(counts, "FIRED_ROWS_MAX", 5)
    if seed % 3 == 1:  # all keys have one hash
        monkeypatch.setattr(buffer, "places", lambda hashes, max_parallelism: np.zeros(len(hashes), np.uint64))
    rows = [(rng.choice(["a", "b", None, "d"]), i) for i in range(200)]
    settings, backend = weir.Settings(batch_rows_max=rng.choice([1, 7, 64])), weir.RocksDb(memory_max="32KB")
    env = weir.Environment(parallelism=2, settings=settings, backend=backend if seed % 2 else "heap")
    # One reader, so that rows of a key come in their order.
    stream = env.from_collection(rows, "key string, value long", uid="rows", parallelism=1)
    windows = stream.key_by("key").window(weir.count_window(size, every=every))
    windows.agg(n=weir.count(), total=weir.sum("value"), uid="agg").write(io.Discard(), uid="out")
    found = pl.DataFrame(run_local(env, seed=seed, crash_at=(20, 37), checkpoint_every=7)["out"])
    for key in ("a", "b", None, "d"):
        expected = count_answer([value for k, value in rows if k == key], size, every)
        assert found.filter(pl.col("key").eq_missing(key)).select("n", "total").rows() == expected


def test_a_global_window_comes_out_at_each_nth_row_and_keeps_its_rows_unless_it_purges() -> None:
    def totals(trigger: weir.Trigger) -> list[int]:
        env = weir.Environment(parallelism=1)
        stream = env.from_collection([(1, 1 << i) for i in range(7)], "key long, value long", uid="rows")
        windows = stream.key_by("key").window(weir.global_window(), trigger=trigger)
        windows.agg(total=weir.sum("value"), uid="w").write(io.Discard(), uid="out")
        return pl.DataFrame(run_local(env)["out"])["total"].to_list()

    assert totals(weir.on_count(3)) == [7, 63]
    assert totals(weir.on_count(3).purging()) == [7, 56]
    assert totals(weir.on_watermark()) == [127]  # the end of input


def one_by_one(seconds: list[float], windows: Any, **more: Any) -> LocalResult:
    rows = pl.DataFrame(
        {
            "key": [1] * len(seconds),
            "value": [1 << i for i in range(len(seconds))],
            "ts": [BEGIN + timedelta(seconds=s) for s in seconds],
        }
    )
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    stream = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="rows")
    result = stream.key_by("key").window(windows, **more).agg(total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    if "late" in more:
        result.side(more["late"]).write(io.Discard(), uid="late")
    return run_local(env)


def totals(found: LocalResult) -> list[int]:
    return pl.DataFrame(found["out"])["total"].to_list()


def test_early_results_are_refined_and_the_last_one_is_the_true_one() -> None:
    seconds = [1.0, 2, 3, 4, 5, 12]
    assert totals(one_by_one(seconds, weir.tumbling("10s"), trigger=weir.on_count(2))) == [3, 15, 31, 32]
    assert totals(one_by_one(seconds, weir.tumbling("10s"), trigger=weir.on_count(2).purging())) == [3, 12, 16, 32]
    assert totals(one_by_one(seconds, weir.session("5s"), trigger=weir.on_count(2))) == [3, 15, 31, 32]
    # When event time has come to 2 s, all of it before that is there, and the row at 2 s, too.
    assert totals(one_by_one(seconds, weir.tumbling("10s"), trigger=weir.continuous("2s"))) == [3, 15, 31, 32, 32]
    found = one_by_one([1.0, 2, 3, 4, 5, 12], weir.sliding("10s", "5s"), trigger=weir.continuous("2s"))
    out = pl.DataFrame(found["out"]).group_by("window_start").agg(pl.col("total").last()).sort("window_start")
    assert out["total"].to_list() == [15, 31, 48, 32]


class OnLargeGrowth(weir.Trigger):
    asks_watermark = False

    def fires(self, window: weir.WindowState) -> bool:
        return window.cause == "rows" and window.new_rows * 2 >= window.rows


def test_a_trigger_of_the_users_own() -> None:
    found = one_by_one([1.0, 2, 3, 4, 5, 12], weir.tumbling("10s"), trigger=OnLargeGrowth())
    assert totals(found) == [1, 3, 15, 32, 31, 32]


def test_an_error_of_a_trigger_names_the_operator() -> None:
    with pytest.raises(UserCodeError, match=r"(?s)window.*NotImplementedError"):
        one_by_one([1.0], weir.tumbling("10s"), trigger=weir.Trigger())


def test_late_rows_of_a_window_without_keys_are_as_they_came() -> None:
    rows = of_windows.late_rows()
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    stream = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="rows")
    result = stream.window(weir.tumbling("10s"), late="late").agg(total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    result.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    late = pl.DataFrame(found["late"])
    assert late.columns == rows.columns
    assert late["value"].to_list() == [8, 32]
    assert totals(found) == [3, 4, 16]


def test_triggers_by_the_wall_clock_let_out_what_is_new() -> None:
    found = one_by_one([1.0, 2, 3, 4, 5, 12], weir.tumbling("10s"), trigger=weir.on_processing_time("1ms"))
    assert totals(found)[-2:] == [31, 32]
    assert len(totals(found)) > 2


@pytest.mark.parametrize("seed", seeds(4))
def test_triggers_do_not_change_what_comes_out_last(seed: int) -> None:
    rows = of_windows.rows_of(seed, 300)
    triggers = [weir.on_count(3), weir.continuous("1s"), weir.on_processing_time("5ms"), OnLargeGrowth()]
    found = run(
        rows,
        weir.tumbling("10s"),
        lambda w: w.agg(n=weir.count(), total=weir.sum("value"), uid="w"),
        seed=seed,
        crashes=2,
        trigger=triggers[seed],
    )
    out = pl.DataFrame(found["out"])
    expected = of_windows.batch_answer(rows, 10, 10)
    assert len(out) > len(expected)
    last = out.group_by("key", "window_start", "window_end", maintain_order=True).agg(pl.col("n", "total").last())
    assert last.sort("window_start", "key").equals(expected)


def test_late_rows_and_refinements_are_those_of_aggregates() -> None:
    def process(seconds: list[float], **more: Any) -> LocalResult:
        return one_by_one(seconds, weir.tumbling("10s"), trigger=weir.on_count(100), **more)

    found = process([1, 2, 30, 3, 50, 4])
    assert totals(found) == [3, 4, 16]
    assert [operator["rows_late"] for operator in found.operators if operator["uid"] == "window"] == [2]
    found = process([1, 2, 30, 3, 50, 4], late="late")
    assert pl.DataFrame(found["late"])["value"].to_list() == [8, 32]
    assert totals(process([1, 2, 30, 3, 50, 4], lateness="25s")) == [3, 11, 4, 16]


@pytest.mark.parametrize("windows", [weir.tumbling("10s"), weir.session("2s"), weir.sliding("10s", "5s")])
def test_windows_without_keys_are_those_of_one_key(windows: Any) -> None:
    rows = of_windows.rows_of(3, 300)
    env = weir.Environment(parallelism=3, settings=weir.Settings(batch_rows_max=16, watermark_interval="1ms"))
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid="rows")
    stream.window(windows).agg(n=weir.count(), uid="plain").write(io.Discard(), uid="plain-out")
    stream.window(windows).process(
        lambda rows, w: (w.key, w.start, len(rows)), "k array<long>, s timestamp_ntz, n long", uid="p"
    ).write(io.Discard(), uid="processed")
    one = stream.with_columns(one=pl.lit(1)).key_by("one").window(windows)
    one.agg(n=weir.count(), uid="keyed").write(io.Discard(), uid="keyed-out")
    found = run_local(env, seed=1, crash_at=(30,), checkpoint_every=9)
    plain, keyed = (pl.DataFrame(found[uid]).sort("window_start") for uid in ("plain-out", "keyed-out"))
    assert plain.columns == ["window_start", "window_end", "n"]
    assert plain.equals(keyed.drop("one"))
    processed = pl.DataFrame(found["processed"]).sort("s")
    assert processed["n"].to_list() == plain["n"].to_list()


def test_what_does_not_fit_together_is_refused() -> None:
    stream = weir.Environment().from_collection([], "key long, ts timestamp").with_watermarks(weir.monotonic("ts"))
    keyed = stream.key_by("key")

    def refused(match: str, windows: Any, **more: Any) -> None:
        with pytest.raises(PlanError, match=match):
            keyed.window(windows, **more).agg(n=weir.count())

    refused("fire together", weir.sliding("10s", "5s"), trigger=weir.on_count(3))
    refused("purging trigger needs", weir.session("10s"), trigger=weir.on_count(3).purging())
    refused("is no trigger", weir.tumbling("10s"), trigger="often")
    refused("take weir.global_window", weir.count_window(3), trigger=weir.on_count(3))
    refused("has no late rows", weir.count_window(3), late="late")
    with pytest.raises(PlanError, match="must be a whole number"):
        weir.count_window(0)
    with pytest.raises(PlanError, match="would leave rows out"):
        weir.count_window(2, every=3)
    with pytest.raises(PlanError, match="interval above zero"):
        weir.continuous("0s")


def test_an_error_of_the_users_function_names_the_operator_and_the_window() -> None:
    env = weir.Environment(parallelism=1)
    stream = env.from_collection([(7, 1), (7, 2)], "key long, value long", uid="rows")

    def broken(rows: pl.DataFrame, window: weir.Window) -> None:
        raise ValueError("no good")

    stream.key_by("key").window(weir.count_window(2)).process(broken, "n long", uid="mine").write(io.Discard(), uid="o")
    with pytest.raises(UserCodeError, match=r"(?s)mine.*key=7.*no good|mine.*no good"):
        run_local(env)


def test_what_is_due_by_the_wall_clock_stays_due_over_a_restart() -> None:
    now_ms = [1_000]
    place = replace(running.context(), place=StatePlace(now_ms=lambda: now_ms[0]))
    env = weir.Environment(parallelism=1)
    stream = env.from_collection([], "key long, ts timestamp_ntz", watermark=weir.monotonic("ts"))
    windows = stream.key_by("key").window(weir.tumbling("10s"), trigger=weir.on_processing_time("5s"))
    windows.agg(n=weir.count(), uid="window").print()
    operators = [operator for vertex in env.plan().vertices for operator in vertex.operators]
    (spec,) = [operator.spec for operator in operators if operator.uid == "window"]
    assert isinstance(spec, WindowRows)

    first, out = spec.make(), []
    first.open(place, None)
    first.process(pa.record_batch({"key": [1], "ts": pa.array([BEGIN])}), out.append)
    now_ms[0] = 4_000
    frozen = first.freeze()
    second = spec.make()
    tables = {name: [table_of(state)] for name, state in frozen.states.items()}
    second.open(place, Restored([RestoredInline(0, 1, frozen.inline)], as_restored(tables)))
    assert second.wake_ms == first.wake_ms == 6_000  # and not 9,000
    second.tick(6_000, out.append)
    assert [batch.to_pylist()[0]["n"] for batch in out] == [1]


@pytest.mark.parametrize("windows", [weir.tumbling("10ms"), weir.sliding("20ms", "10ms"), weir.session("10ms")])
def test_rows_of_windows_that_are_over_are_in_no_snapshot(windows: Any) -> None:
    env = weir.Environment(parallelism=1)
    stream = env.from_collection([], "key long, ts timestamp_ntz", watermark=weir.monotonic("ts"))
    by_process(stream.with_columns(value=pl.lit(1)).key_by("key").window(windows)).print()
    operators = [operator for vertex in env.plan().vertices for operator in vertex.operators]
    (spec,) = [operator.spec for operator in operators if isinstance(operator.spec, WindowRows)]
    window, out = spec.make(), []
    window.open(running.context(), None)
    times = [BEGIN + timedelta(milliseconds=15 * i) for i in range(10)]
    schema = spec.function.input_schema
    batch = pa.record_batch({"key": [1] * 10, "ts": pa.array(times), "value": pa.array([1] * 10, pa.int32())})
    window.process(batch.select(schema.names).cast(schema), out.append)
    for count in (4, 7):  # the row in the middle has come out, or is in a window that has not ended
        begin_us = int(BEGIN.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000
        window.watermark(begin_us + count * 15_000, out.append)
        kept = table_of(window.freeze().states["rows"]).column("ts").to_pylist()
        assert sorted(kept)[-(10 - count) :] == times[count:] and len(kept) <= 10 - count + 1
