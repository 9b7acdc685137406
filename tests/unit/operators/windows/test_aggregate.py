"""Windows against a batch computation of the same question: the answer depends on no batch, disorder or crash."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import PlanError, SchemaError
from weir.operators.base import OperatorContext
from weir.operators.windows import aggregate as window_aggregate
from weir.operators.windows import panes as window_panes
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import AlignedWindows
from weir.testing import collect_local, run_local

BEGIN = datetime(2026, 1, 1)
SECOND_US = 1_000_000


def rows_of(seed: int, count: int = 400, *, disorder_s: float = 3.0) -> pl.DataFrame:
    """Bids whose times grow on the whole, but are out of order by up to `disorder_s`."""
    rng = random.Random(seed)
    times = [i * 0.25 - rng.random() * disorder_s for i in range(count)]
    return pl.DataFrame(
        {
            "key": [rng.choice([1, 2, 3, None]) for _ in range(count)],
            "value": [rng.randint(-50, 50) for _ in range(count)],
            "ts": [BEGIN + timedelta(seconds=s) for s in times],
        },
        schema={"key": pl.Int64, "value": pl.Int64, "ts": pl.Datetime("us")},
    )


def windowed(
    rows: pl.DataFrame,
    windows: AlignedWindows,
    *,
    seed: int = 0,
    crash_at: tuple[int, ...] = (),
    backend: Any = "heap",
    **more: Any,
) -> pl.DataFrame:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings, backend=backend)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid="rows")
    result = stream.key_by("key").window(windows, **more).agg(n=weir.count(), total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    found = run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=9)
    return pl.DataFrame(found["out"]).sort("window_start", "key")


def batch_answer(rows: pl.DataFrame, size_s: int, slide_s: int, offset_s: int = 0) -> pl.DataFrame:
    """One row for each window that a row is in, then a plain group-by."""
    slide, size, offset = slide_s * SECOND_US, size_s * SECOND_US, offset_s * SECOND_US
    time = pl.col("ts").dt.epoch("us") - offset
    last = time - time % slide
    copies = [
        rows.with_columns(window_start=last - i * slide + offset).filter(
            pl.col("ts").dt.epoch("us") < pl.col("window_start") + size
        )
        for i in range(-(-size // slide))
    ]
    grouped = (
        pl.concat(copies).group_by("key", "window_start").agg(n=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    )
    return grouped.select(
        "key",
        pl.col("window_start").cast(pl.Datetime("us")),
        (pl.col("window_start") + size).cast(pl.Datetime("us")).alias("window_end"),
        "n",
        "total",
    ).sort("window_start", "key")


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize(
    ("size_s", "slide_s", "offset_s"), [(10, 10, 0), (10, 10, 3), (12, 4, 0), (10, 4, 1), (6, 5, 0)]
)
def test_every_window_is_what_a_batch_query_says(seed: int, size_s: int, slide_s: int, offset_s: int) -> None:
    rows = rows_of(seed)
    crashes = tuple(random.Random(seed).sample(range(5, 120), 3)) if seed % 2 else ()
    windows = weir.sliding(size_s, slide_s, offset=offset_s)
    found = windowed(rows, windows, seed=seed, crash_at=crashes)
    assert found.equals(batch_answer(rows, size_s, slide_s, offset_s))


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize(("size_s", "slide_s"), [(1, 1), (10, 10), (6, 2), (5, 3)])
def test_panes_that_share_a_group_and_leave_it_hold_the_same(
    seed: int, size_s: int, slide_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(window_panes, "OWN_ROWS_MIN", rng.choice([2, 5, 1_000]))
    monkeypatch.setattr(window_panes, "SHARED_SLOTS_MAX", rng.choice([3, 20]))
    monkeypatch.setattr(window_panes, "COMPACTED_SLOTS_MIN", 4)
    monkeypatch.setattr(window_aggregate, "MERGED_SLOTS_MAX", rng.choice([10, 1_000_000]))
    rows = rows_of(seed)
    crashes = tuple(rng.sample(range(5, 120), 3)) if seed % 2 else ()
    found = windowed(rows, weir.sliding(size_s, slide_s), seed=seed, crash_at=crashes, late="x" if seed % 3 else None)
    assert found.equals(batch_answer(rows, size_s, slide_s))


@pytest.mark.parametrize("seed", seeds(6))
def test_refinements_come_to_the_same_in_the_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_panes, "OWN_ROWS_MIN", 5)
    monkeypatch.setattr(window_panes, "SHARED_SLOTS_MAX", 10)
    rows = rows_of(seed, disorder_s=20.0)  # the watermark expects 3 s only
    found = windowed(rows, weir.sliding("6s", "3s"), seed=seed, crash_at=(30, 50), lateness="30s")
    last = found.group_by("key", "window_start", "window_end").agg(pl.col("n", "total").sort_by("n").last())
    assert len(found) > len(last)
    assert last.sort("window_start", "key").equals(batch_answer(rows, 6, 3))


def test_panes_that_are_gone_take_no_room_and_nor_do_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_panes, "COMPACTED_SLOTS_MIN", 100)
    schema = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us"))])
    definition = WindowDefinition(AlignedWindows(10, 10), ["key"], {"n": weir.count()}, schema, "ts")
    context = OperatorContext("job", weir.ids.Uid("w"), "w", 0, 1, 128, weir.ids.AttemptId(1))
    store = window_panes.PaneStore(definition.layout, context, 10)
    far = 1_000_000  # one pane that stays, in the group of all the others
    for number in range(60):
        keys = [*range(40 * number, 40 * number + 40), -1]
        panes = np.array([*([10 * number] * 40), far])
        store.add_rows(
            pa.record_batch([pa.array(keys), pa.array(panes).view(pa.timestamp("us"))], schema=schema), panes
        )
        store.drop(store.panes[store.panes < 10 * number])
        assert len(store) <= 250
    assert store.panes.tolist() == [590, far]
    (group,) = store.groups
    assert group.accumulators.values(group.slots_of(np.array([far])))[0].to_pylist() == [60]


def test_a_batch_over_thousands_of_panes_takes_no_step_for_each() -> None:
    count = 30_000
    rows = pl.DataFrame(
        {
            "key": [i % 3 for i in range(count)],
            "value": [1] * count,
            "ts": [BEGIN + timedelta(seconds=i) for i in range(count)],
        }
    )
    env = weir.Environment(parallelism=1)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "1000s"), uid="rows")
    windows = stream.key_by("key").window(weir.sliding("4s", "2s"))
    windows.agg(n=weir.count(), total=weir.sum("value"), uid="window").write(io.Discard(), uid="out")
    plan = env.plan()
    began_s = time.process_time()
    found = run_local(plan)
    took_s = time.process_time() - began_s
    assert pl.DataFrame(found["out"]).sort("window_start", "key").equals(batch_answer(rows, 4, 2))
    # 15,000 panes and as many windows: with 100 µs for each it would be more than three seconds.
    assert took_s < 1.5


def test_a_window_comes_out_once_its_end_is_passed_and_not_before() -> None:
    spec = AlignedWindows(10, 10)
    assert list(spec.windows(20)) == [(20, 30)]
    assert list(AlignedWindows(30, 10).windows(20)) == [(0, 30), (10, 40), (20, 50)]
    assert list(AlignedWindows(10, 4).windows(6)) == [(0, 10), (4, 14)]
    assert AlignedWindows(30, 10).last_end(20) == 50


def late_rows() -> pl.DataFrame:
    seconds = [1.0, 2.0, 30.0, 3.0, 50.0, 4.0]
    return pl.DataFrame(
        {"key": [1] * 6, "value": [1, 2, 4, 8, 16, 32], "ts": [BEGIN + timedelta(seconds=s) for s in seconds]}
    )


def test_late_rows_are_left_out_and_counted() -> None:
    env, _ = one_by_one(late="")
    found = run_local(env)
    out = pl.DataFrame(found["out"]).sort("window_start")
    assert out["total"].to_list() == [3, 4, 16]
    (window,) = [operator for operator in found.operators if operator["uid"] == "window"]
    assert window["rows_late"] == 2


def test_late_rows_go_to_the_side_output_where_one_is_named() -> None:
    env, result = one_by_one(late="late")
    result.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert sorted(pl.DataFrame(found["late"])["value"].to_list()) == [8, 32]
    assert pl.DataFrame(found["out"]).sort("window_start")["total"].to_list() == [3, 4, 16]


def test_within_the_allowed_lateness_a_window_is_emitted_again() -> None:
    env, _ = one_by_one(late="", lateness="25s")
    out = pl.DataFrame(run_local(env)["out"])
    assert out.filter(pl.col("window_start") == BEGIN)["total"].to_list() == [3, 11]
    assert out["total"].sum() == 3 + 11 + 4 + 16


def one_by_one(*, late: str, lateness: str = "0s") -> tuple[weir.Environment, weir.Stream]:
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    stream = env.from_collection(late_rows(), watermark=weir.monotonic("ts"), uid="rows")
    windows = stream.key_by("key").window(weir.tumbling("10s"), late=late or None, lateness=lateness)
    result = windows.agg(total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    return env, result


def test_windows_of_windows_are_ordinary() -> None:
    rows = rows_of(3)
    env = weir.Environment(parallelism=2, settings=weir.Settings(batch_rows_max=16, watermark_interval="1ms"))
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid="rows")
    small = stream.key_by("key").window(weir.tumbling("5s")).agg(n=weir.count(), uid="small")
    large = small.key_by("key").window(weir.tumbling("20s")).agg(n=weir.sum("n"), uid="large")
    large.write(io.Discard(), uid="out")
    found = pl.DataFrame(run_local(env, seed=1, crash_at=(40,), checkpoint_every=9)["out"]).sort("window_start", "key")
    assert found.equals(batch_answer(rows, 20, 20).drop("total"))


def test_a_window_of_no_length_or_with_gaps_is_refused() -> None:
    with pytest.raises(PlanError, match="size must be above zero"):
        weir.tumbling("0s")
    with pytest.raises(PlanError, match="would leave rows out"):
        weir.sliding("10s", "20s")


def test_a_window_needs_event_time() -> None:
    stream = weir.Environment().from_collection([(1,)], "key long")
    with pytest.raises(PlanError, match="the rows have no event time"):
        stream.key_by("key").window(weir.tumbling("10s"))


def test_a_column_of_the_same_name_as_the_windows_own_is_refused() -> None:
    stream = weir.Environment().from_collection([], "key long, ts timestamp").with_watermarks(weir.monotonic("ts"))
    with pytest.raises(SchemaError, match="a window has a column 'window_end' of its own"):
        stream.key_by("key").window(weir.tumbling("10s")).agg(window_end=weir.count())


def test_schemas_keep_the_zone_of_event_time() -> None:
    schema = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    stream = weir.Environment().from_collection([], schema).with_watermarks(weir.monotonic("ts"))
    result = stream.key_by("key").window(weir.tumbling("10s")).agg(n=weir.count())
    assert result.schema.field("window_end").type == pa.timestamp("us", "UTC")
    assert result.time_column == "window_end"


@pytest.mark.parametrize("trigger", [None, weir.continuous("1h")], ids=["panes", "rows"])
def test_a_late_row_does_not_refine_windows_that_are_over_beside_one_that_is_not(trigger: Any) -> None:
    """Of a sliding window whose lateness is over, the first panes are gone: it would come out with too little."""
    seconds = [5, 15, 55, 74, 58]
    rows = [(1, datetime(2026, 1, 1) + timedelta(seconds=second)) for second in seconds]
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    stream = env.from_collection(rows, "key long, ts timestamp_ntz", watermark=weir.monotonic("ts"), uid="rows")
    windows = stream.key_by("key").window(weir.sliding("60s", "10s"), lateness="10s", trigger=trigger)
    found = collect_local(windows.agg(n=weir.count(), uid="window")).to_pylist()
    ends = [(row["window_end"] - datetime(2026, 1, 1)).total_seconds() for row in found]
    counts = [row["n"] for row in found]
    assert [n for end, n in zip(ends, counts, strict=True) if end == 60] == [3]
    assert [n for end, n in zip(ends, counts, strict=True) if end == 70] == [2, 3]
