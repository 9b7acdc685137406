"""Rows beyond the allowed disorder: each is in a window or in the side output of late ones, once, whatever fails."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)


def rows_of(seed: int, count: int = 300) -> pl.DataFrame:
    """Times that grow on the whole; every sixth row or so lags far behind."""
    rng = random.Random(seed)
    times = [i * 0.25 - (rng.random() * 30 if rng.random() < 0.15 else rng.random()) for i in range(count)]
    return pl.DataFrame(
        {
            "id": range(count),
            "key": [rng.choice([1, 2, 3]) for _ in range(count)],
            "ts": [BEGIN + timedelta(seconds=s) for s in times],
        },
        schema={"id": pl.Int64, "key": pl.Int64, "ts": pl.Datetime("us")},
    )


def counted(rows: pl.DataFrame, window: Any) -> tuple[Any, ...]:
    return window.key, window.start, len(rows), rows["id"].sum()


def aggregated(windows: Any) -> weir.Stream:
    result: weir.Stream = windows.agg(n=weir.count(), ids=weir.sum("id"), uid="window")
    return result


def processed(windows: Any) -> weir.Stream:
    schema = "key long, window_start timestamp_ntz, n long, ids long"
    result: weir.Stream = windows.process(counted, schema, uid="window")
    return result


def run(rows: pl.DataFrame, windows: Any, then: Any, *, seed: int) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """What came out, what was late, and how often the job was restarted."""
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="0ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "1s"), uid="rows")
    result = then(stream.key_by("key").window(windows, late="late"))
    result.write(io.Discard(), uid="out")
    result.side("late").write(io.Discard(), uid="late")
    crash_at = tuple(rng.sample(range(10, 80), seed % 4))
    found = run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=rng.choice([3, 9]))
    return pl.DataFrame(found["out"]), pl.DataFrame(found["late"]), found.restarts


def check(rows: pl.DataFrame, out: pl.DataFrame, late: pl.DataFrame) -> None:
    """Rows in windows, by key, and those that were late are all rows."""
    assert late["id"].is_unique().all()
    assert late.join(rows, on=["id", "key", "ts"]).height == late.height
    inside = out.group_by("key").agg(pl.col("n", "ids").sum())
    beside = late.group_by("key").agg(n=pl.len().cast(pl.Int64), ids=pl.col("id").sum())
    together = pl.concat([inside, beside]).group_by("key").agg(pl.col("n", "ids").sum()).sort("key")
    assert together.equals(rows.group_by("key").agg(n=pl.len().cast(pl.Int64), ids=pl.col("id").sum()).sort("key"))


@pytest.mark.parametrize("then", [aggregated, processed])
@pytest.mark.parametrize("seed", seeds(5))
def test_a_window_comes_out_once_and_what_is_late_for_it_comes_out_beside_it(seed: int, then: Any) -> None:
    rows = rows_of(seed)
    out, late, _ = run(rows, weir.tumbling("5s"), then, seed=seed)
    check(rows, out, late)
    assert out.select("key", "window_start").is_unique().all()
    alone = late.group_by("key", window_start=pl.col("ts").dt.truncate("5s")).agg(
        n=pl.len().cast(pl.Int64), ids=pl.col("id").sum()
    )
    columns = ["key", "window_start", "n", "ids"]
    together = (
        pl.concat([out.select(columns), alone.select(columns)]).group_by("key", "window_start").agg(pl.all().sum())
    )
    expected = rows.group_by("key", window_start=pl.col("ts").dt.truncate("5s")).agg(
        n=pl.len().cast(pl.Int64), ids=pl.col("id").sum()
    )
    assert together.sort("key", "window_start").equals(expected.sort("key", "window_start"))


@pytest.mark.parametrize("then", [aggregated, processed])
@pytest.mark.parametrize("seed", seeds(5))
def test_a_row_is_in_a_session_or_late(seed: int, then: Any) -> None:
    rows = rows_of(seed)
    out, late, _ = run(rows, weir.session("2s"), then, seed=seed)
    check(rows, out, late)


def test_there_are_late_rows_and_restarts_in_these_tests() -> None:
    runs = [run(rows_of(seed), weir.tumbling("5s"), aggregated, seed=seed) for seed in (1, 2, 3)]
    assert sum(len(late) for _, late, _ in runs) > 15
    assert sum(restarts for _, _, restarts in runs) > 2
