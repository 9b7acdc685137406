"""Event time on a real Spark, with workers that are killed: windows, late rows, timers and a join, each row for row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

import weir
from tests.conftest import poll
from tests.spark.helpers import KEYS, committed_rows, kill, notices_of, numbers, open_gate, slow_settings
from weir import connectors as io
from weir.runtime.driver.notices import AttemptRunning, CheckpointSucceeded

ROWS = 60_000
KILLS = 2
PATIENCE_S = 120.0
WINDOW_MS = 500
STRAGGLING_MS = 4_000
NEAR_MS = 20
EPOCH = datetime(1970, 1, 1)
STRAGGLES = pl.col("n") % 50 == 49
"""Rows that are late for their window, if event time has got ahead of them by then."""


class Counted(weir.ProcessFunction):
    """Windows made of timers."""

    counts = weir.MapState("timestamp_ntz", "long", default=0)

    def process(self, row: Any, context: Any) -> None:
        since_ms = (row.ts - EPOCH) // timedelta(milliseconds=WINDOW_MS)
        end = EPOCH + (since_ms + 1) * timedelta(milliseconds=WINDOW_MS)
        self.counts[end] = self.counts[end] + 1
        context.timers.at(end)

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, int, int]]:
        yield context.key, (time - EPOCH) // timedelta(milliseconds=1), self.counts[time]
        del self.counts[time]


def times_ms(*, straggling: bool) -> pl.Expr:
    """A row's time: its number in milliseconds."""
    time = pl.col("n") - pl.when(STRAGGLES).then(STRAGGLING_MS).otherwise(0) if straggling else pl.col("n")
    return time.clip(0)


def timed(stream: Any, uid: str, *, straggling: bool = False) -> Any:
    times = pl.from_epoch(times_ms(straggling=straggling), time_unit="ms").cast(pl.Datetime("us"))
    return stream.with_columns(ts=times, uid=f"{uid}-times").with_watermarks(
        weir.monotonic("ts"), uid=f"{uid}-watermarks"
    )


def build(env: weir.Environment, directory: Path) -> None:
    rows = numbers(env, directory, ROWS)
    windows = timed(rows, "late", straggling=True).key_by("key").window(weir.tumbling(f"{WINDOW_MS}ms"), late="late")
    result = windows.agg(n=weir.count(), total=weir.sum("n"), uid="windows")
    start = pl.col("window_start").dt.epoch("ms").alias("start")
    plain = result.select("key", start, "n", "total", uid="plain-windows")
    plain.write(io.FileSink(directory / "windows", "jsonl"), uid="windows-out")
    result.side("late").select("n", "key", uid="late-rows").write(
        io.FileSink(directory / "late", "jsonl"), uid="late-out"
    )
    on_time = timed(rows, "timely")
    counted = on_time.key_by("key").process(Counted(), "key long, end long, n long", uid="timers")
    counted.write(io.FileSink(directory / "timers", "jsonl"), uid="timers-out")
    left, right = (on_time.filter(pl.col("n") % every == 0, uid=f"every-{every}").key_by("key") for every in (7, 11))
    pairs = left.interval_join(right, lower=f"-{NEAR_MS}ms", upper=f"{NEAR_MS}ms", how="left", uid="join")
    pairs.select("n", "n_right", uid="pairs").write(io.FileSink(directory / "pairs", "jsonl"), uid="pairs-out")


def table(directory: Path) -> pl.DataFrame:
    return pl.DataFrame(committed_rows(directory), infer_schema_length=None)


def check_windows(directory: Path) -> None:
    """A window comes out once, and each row is in it or late."""
    windows, late = table(directory / "windows"), table(directory / "late")
    assert windows.select("key", "start").is_unique().all()
    assert late["n"].is_unique().all() and late.select(STRAGGLES.all()).item()
    assert len(late) > 100, "hardly a row was late, which proves nothing"
    late = late.with_columns(start=times_ms(straggling=True) // WINDOW_MS * WINDOW_MS)
    alone = late.group_by("key", "start").agg(total=pl.col("n").sum(), n=pl.len().cast(pl.Int64))
    both = pl.concat([windows.select("key", "start", "n", "total"), alone.select("key", "start", "n", "total")])
    expected = (
        pl.DataFrame({"n": range(ROWS)})
        .with_columns(key=pl.col("n") % KEYS, start=times_ms(straggling=True) // WINDOW_MS * WINDOW_MS)
        .group_by("key", "start")
        .agg(total=pl.col("n").sum(), n=pl.len().cast(pl.Int64))
        .select("key", "start", "n", "total")
        .sort("key", "start")
    )
    assert both.group_by("key", "start").agg(pl.all().sum()).sort("key", "start").equals(expected)


def check_timers(directory: Path) -> None:
    expected = (
        pl.DataFrame({"n": range(ROWS)})
        .group_by(key=pl.col("n") % KEYS, end=(pl.col("n") // WINDOW_MS + 1) * WINDOW_MS)
        .agg(n=pl.len().cast(pl.Int64))
        .sort("key", "end")
    )
    assert table(directory / "timers").select("key", "end", "n").sort("key", "end").equals(expected)


def check_pairs(directory: Path) -> None:
    right = set(range(0, ROWS, 11))
    expected = []
    for n in range(0, ROWS, 7):
        near = [m for m in range(n - NEAR_MS, n + NEAR_MS + 1) if m in right and m % KEYS == n % KEYS]
        expected += [(n, m) for m in near] or [(n, None)]
    found = sorted(table(directory / "pairs").select("n", "n_right").rows(), key=str)
    assert found == sorted(expected, key=str)


def test_windows_late_rows_timers_and_joins_are_exact_although_workers_are_killed(
    embedded: Any, tmp_path: Path
) -> None:
    env = weir.Environment(
        embedded,
        parallelism=2,
        checkpoints=weir.Checkpoints(every="200ms", to=str(tmp_path / "checkpoints")),
        restart=weir.FixedDelay(50, "20ms"),
        settings=slow_settings(watermark_interval="20ms"),
    )
    build(env, tmp_path)
    job: Any = env.submit("time")
    for _ in range(KILLS):
        known = len(notices_of(job, CheckpointSucceeded))
        poll(lambda known=known: len(notices_of(job, CheckpointSucceeded)) > known + 2 or job.error, PATIENCE_S)
        poll(lambda: job.process_ids and kill(job.process_ids[0]), PATIENCE_S)
    poll(lambda: len(notices_of(job, AttemptRunning)) > KILLS, PATIENCE_S)
    open_gate(tmp_path)
    assert job.wait(PATIENCE_S) == "finished", job.error
    assert job.metrics()["restarts"] >= KILLS
    check_windows(tmp_path)
    check_timers(tmp_path)
    check_pairs(tmp_path)
