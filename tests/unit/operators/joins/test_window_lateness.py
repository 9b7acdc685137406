"""Allowed lateness of window joins and co-groups: what late rows add, and nothing twice."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from tests.unit.operators.joins.test_window import batch_answer, in_windows, rows_of, sizes
from weir import connectors as io
from weir.operators.windows.event_time import AlignedWindows
from weir.testing import LocalResult, run_local

ORDER = ["window_start", "value", "price"]
TUMBLING, SLIDING = AlignedWindows(5_000_000, 5_000_000), AlignedWindows(6_000_000, 4_000_000)


def run(left: pl.DataFrame, right: pl.DataFrame, apply: Any, *, seed: int) -> LocalResult:
    """Rows are up to three seconds out of order, and the watermark does not wait for any of them."""
    rng = random.Random(seed)
    settings = weir.Settings(batch_rows_max=rng.choice([1, 7]), watermark_interval="1ms")
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    one, two = (
        env.from_collection(rows, watermark=weir.bounded_disorder("ts", "100ms"), uid=uid).key_by("key")
        for rows, uid in ((left, "left"), (right, "right"))
    )
    apply(one, two).write(io.Discard(), uid="out")
    crashes = rng.sample(range(5, 60), 2) if seed else []
    return run_local(env, seed=seed, crash_at=crashes, checkpoint_every=9)


@pytest.mark.parametrize("windows", [TUMBLING, SLIDING], ids=["tumbling", "sliding"])
@pytest.mark.parametrize("seed", seeds(3))
def test_with_enough_lateness_a_join_has_each_pair_once(seed: int, windows: AlignedWindows) -> None:
    left, right = rows_of(seed, keys=range(5)), rows_of(seed + 100, column="price", keys=range(5))
    found = run(left, right, lambda one, two: one.join(two, windows, lateness="1h", uid="j"), seed=seed)
    assert pl.DataFrame(found["out"]).sort(ORDER).equals(batch_answer(left, right, windows, "inner").sort(ORDER))
    without = run(left, right, lambda one, two: one.join(two, windows, uid="j"), seed=seed)
    assert without["out"].num_rows < found["out"].num_rows  # there are late rows, and lateness is why they are in


@pytest.mark.parametrize("seed", seeds(2))
def test_an_outer_join_has_every_pair_and_every_row_that_stays_alone(seed: int) -> None:
    left, right = rows_of(seed), rows_of(seed + 100, column="price")
    found = run(left, right, lambda one, two: one.join(two, TUMBLING, how="full", lateness="1h", uid="j"), seed=seed)
    rows = pl.DataFrame(found["out"])
    expected = batch_answer(left, right, TUMBLING, "full")
    is_pair = pl.col("value").is_not_null() & pl.col("price").is_not_null()
    assert rows.filter(is_pair).sort(ORDER).equals(expected.filter(is_pair).sort(ORDER))
    alone, true = set(rows.filter(~is_pair).rows()), set(expected.filter(~is_pair).rows())
    assert true <= alone and len(alone) == len(rows.filter(~is_pair))
    paired = {row[1] for row in expected.filter(is_pair).rows()} | {row[4] for row in expected.filter(is_pair).rows()}
    assert all((row[1] in paired) or (row[4] in paired) for row in alone - true)  # alone first, with a partner later


@pytest.mark.parametrize("seed", seeds(3))
def test_the_last_call_of_a_co_group_has_all_rows_of_the_key(seed: int) -> None:
    left, right = rows_of(seed, keys=range(5)), rows_of(seed + 100, column="price", keys=range(5))
    schema = "key long, n long, total long, ordered boolean"
    found = run(
        left,
        right,
        lambda one, two: one.co_group(two, TUMBLING, lateness="1h").apply(sizes, schema, uid="g"),
        seed=seed,
    )
    calls = pl.DataFrame(found["out"])
    last = calls.unique(["key", "window_start"], keep="last")
    assert len(calls) > len(last)
    counts = in_windows(left, TUMBLING).group_by("key", "window_start").len()
    true = {(key, start): n for key, start, n in counts.rows()}
    starts = last.select("key", pl.col("window_start").dt.epoch("us"), "n").rows()
    assert {(key, start): n for key, start, n in starts if n} == true


def test_what_comes_behind_the_lateness_is_late() -> None:
    times = [1, 30, 3, 70, 5]
    rows = pl.DataFrame({"key": [1] * 5, "value": range(5), "ts": [1_000_000 * second for second in times]})
    rows = rows.with_columns(pl.col("ts").cast(pl.Datetime("us")))
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    one, two = (env.from_collection(rows, watermark=weir.monotonic("ts"), uid=uid).key_by("key") for uid in "lr")
    joined = one.join(two, weir.tumbling("10s"), lateness="25s", late_left="late", uid="join")
    joined.write(io.Discard(), uid="out")
    joined.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert pl.DataFrame(found["late"])["value"].to_list() == [4]
