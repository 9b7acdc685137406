"""Window joins and co-groups against a batch computation of the same question: nothing else changes the answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.windows.event_time import AlignedWindows
from weir.testing import LocalResult, run_local

BEGIN = datetime(2026, 1, 1)
SECOND_US = 1_000_000


def rows_of(seed: int, count: int = 160, *, column: str = "value", keys: Any = range(25)) -> pl.DataFrame:
    rng = random.Random(seed)
    times = [BEGIN + timedelta(milliseconds=i * 250 - rng.randrange(0, 3_000, 125)) for i in range(count)]
    return pl.DataFrame(
        {"key": [rng.choice([*keys, None]) for _ in range(count)], column: range(count), "ts": times},
        schema_overrides={"ts": pl.Datetime("us"), "key": pl.Int64},
    )


def in_windows(rows: pl.DataFrame, windows: AlignedWindows) -> pl.DataFrame:
    """One row for each window that a row is in."""
    slide, size = windows.slide_us, windows.size_us
    time = pl.col("ts").dt.epoch("us")
    copies = [
        rows.with_columns(window_start=time - time % slide - i * slide).filter(time < pl.col("window_start") + size)
        for i in range(-(-size // slide))
    ]
    return pl.concat(copies)


def batch_answer(left: pl.DataFrame, right: pl.DataFrame, windows: AlignedWindows, how: Any) -> pl.DataFrame:
    renamed = in_windows(right, windows).rename({"key": "key_right", "ts": "ts_right"})
    pairs = in_windows(left, windows).join(
        renamed.with_columns(key_of=pl.col("key_right"), start_of=pl.col("window_start")),
        left_on=["key", "window_start"],
        right_on=["key_of", "start_of"],
        how=how,
        suffix="_of_right",
        coalesce=False,
    )
    start = pl.coalesce("window_start", "window_start_of_right")
    return pairs.with_columns(
        window_start=start.cast(pl.Datetime("us")), window_end=(start + windows.size_us).cast(pl.Datetime("us"))
    ).select(*left.columns, "key_right", "price", "ts_right", "window_start", "window_end")


def run(
    left: pl.DataFrame,
    right: pl.DataFrame,
    apply: Callable[[weir.KeyedStream, weir.KeyedStream], weir.Stream],
    *,
    seed: int,
    crash_at: tuple[int, ...] = (),
) -> LocalResult:
    rng = random.Random(seed)
    settings = weir.Settings(batch_rows_max=rng.choice([1, 7, 64]), watermark_interval="1ms")
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    one, two = (
        env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid=uid).key_by("key")
        for rows, uid in ((left, "left"), (right, "right"))
    )
    apply(one, two).write(io.Discard(), uid="out")
    return run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=9)


ORDER = ["window_start", "value", "price"]


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize("windows", [weir.tumbling("10s"), weir.sliding("6s", "4s")], ids=["tumbling", "sliding"])
@pytest.mark.parametrize("seed", seeds(3))
def test_the_join_is_what_a_batch_query_says(seed: int, windows: AlignedWindows, how: Any) -> None:
    left, right = rows_of(seed), rows_of(seed + 100, column="price")
    crashes = tuple(random.Random(seed).sample(range(5, 80), 3)) if seed else ()
    found = run(left, right, lambda one, two: one.join(two, windows, how=how, uid="j"), seed=seed, crash_at=crashes)
    expected = batch_answer(left, right, windows, how)
    assert pl.DataFrame(found["out"]).sort(ORDER).equals(expected.sort(ORDER))
    assert len(expected) > 20


def sizes(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    key = (left if len(left) else right)["key"][0]
    ordered = left["ts"].is_sorted() and right["ts"].is_sorted()
    return pl.DataFrame(
        {"key": [key], "n": [len(left)], "total": [right["price"].sum()], "ordered": [ordered]},
        schema_overrides={"key": pl.Int64},
    )


@pytest.mark.parametrize("seed", seeds(3))
def test_a_co_group_sees_each_key_of_a_window_once_with_the_rows_of_both_sides(seed: int) -> None:
    left, right = rows_of(seed), rows_of(seed + 100, column="price")
    windows = weir.tumbling("10s")
    crashes = (20, 45) if seed else ()
    found = run(
        left,
        right,
        lambda one, two: one.co_group(two, windows).apply(
            sizes, "key long, n long, total long, ordered boolean", uid="group"
        ),
        seed=seed,
        crash_at=crashes,
    )
    groups = [
        in_windows(rows, windows).group_by("key", "window_start").agg(pl.len().alias(f"{name}_n"), *more)
        for name, rows, more in (("left", left, ()), ("right", right, (pl.col("price").sum().alias("total"),)))
    ]
    expected = groups[0].join(groups[1], on=["key", "window_start"], how="full", coalesce=True, nulls_equal=True)
    expected = expected.select(
        "key",
        pl.col("left_n").fill_null(0).cast(pl.Int64).alias("n"),
        pl.col("total").fill_null(0),
        pl.lit(True).alias("ordered"),
        pl.col("window_start").cast(pl.Datetime("us")),
        (pl.col("window_start") + 10 * SECOND_US).cast(pl.Datetime("us")).alias("window_end"),
    )
    order = ["window_start", "key"]
    assert pl.DataFrame(found["out"]).sort(order).equals(expected.sort(order))


def test_a_function_may_return_several_frames_or_none_and_its_errors_name_the_key() -> None:
    rows = rows_of(1, 20, keys=[7])
    price = rows.rename({"value": "price"})

    def twice(left: pl.DataFrame, right: pl.DataFrame) -> Any:
        return [left.select("value"), left.select("value")] if left["key"][0] == 7 else None

    found = run(
        rows, price, lambda one, two: one.co_group(two, weir.tumbling("10s")).apply(twice, "value long"), seed=1
    )
    expected = sorted(2 * rows.filter(pl.col("key") == 7)["value"].to_list())
    assert sorted(pl.DataFrame(found["out"])["value"].to_list()) == expected

    def broken(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        raise ValueError("no such thing")

    only = rows.with_columns(key=pl.lit(7, pl.Int64))
    priced = only.rename({"value": "price"})
    with pytest.raises(UserCodeError, match=r"ValueError: no such thing\n  key: \(7,\)"):
        run(only, priced, lambda one, two: one.co_group(two, weir.tumbling("10s")).apply(broken, "value long"), seed=1)


def test_late_rows_are_counted_and_go_to_the_side_output() -> None:
    # Which rows are late rests on the order of turns: the row of second 3 is late only if second 30 has come on both
    # inputs before it. Any fair order would do for the operator; the numbers below belong to the one that there is.
    seconds = [1.0, 30.0, 3.0, 25.0, 31.0]
    rows = pl.DataFrame({"key": [1] * 5, "value": range(5), "ts": [BEGIN + timedelta(seconds=s) for s in seconds]})
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    one = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="left").key_by("key")
    two = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="right").key_by("key")
    result = one.join(two, weir.tumbling("30s"), late_left="late", uid="join")
    result.write(io.Discard(), uid="out")
    result.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert sorted(pl.DataFrame(found["late"])["value"].to_list()) == [2, 3]
    (join,) = [operator for operator in found.operators if operator["uid"] == "join"]
    assert join["rows_late"] == 4
    assert pl.DataFrame(found["out"])["value"].sort().to_list() == [0, 1, 1, 4, 4]


def test_what_makes_no_sense_is_refused() -> None:
    stream = weir.Environment().from_collection([], "key long, ts timestamp").with_watermarks(weir.monotonic("ts"))
    keyed = stream.key_by("key")
    with pytest.raises(PlanError, match="joins take tumbling or sliding windows"):
        keyed.join(keyed, "10s")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="joins take tumbling or sliding windows"):
        keyed.co_group(keyed, "10s")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="expected a function of two frames"):
        keyed.co_group(keyed, weir.tumbling(1)).apply(3, "n long")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="a window has a column 'window_end' of its own"):
        keyed.co_group(keyed, weir.tumbling(1)).apply(sizes, "window_end long")
    assert keyed.join(keyed, weir.tumbling(1)).time_column == "window_end"
