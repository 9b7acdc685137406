"""Interval joins against a batch computation of the same question: no batch, disorder or crash changes the answer."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import ConfigError, PlanError, SchemaError
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)


def rows_of(seed: int, count: int = 160, *, column: str = "value", keys: Any = (1, 2, 3, 4, None)) -> pl.DataFrame:
    """Rows whose times grow on the whole, but are out of order by up to three seconds; some times are equal."""
    rng = random.Random(seed)
    times = [BEGIN + timedelta(milliseconds=i * 250 - rng.randrange(0, 3_000, 125)) for i in range(count)]
    return pl.DataFrame(
        {"key": [rng.choice(keys) for _ in range(count)], column: range(count), "ts": times},
        schema_overrides={"ts": pl.Datetime("us")},
    )


def batch_answer(left: pl.DataFrame, right: pl.DataFrame, lower_s: float, upper_s: float, how: str) -> pl.DataFrame:
    """Every row with every row of the same key, then those that are close."""
    renamed = right.rename({"key": "key_right", "ts": "ts_right"})
    ahead = (pl.col("ts_right") - pl.col("ts")).dt.total_microseconds()
    pairs = (
        left.join(renamed, how="cross")
        .filter(pl.col("key") == pl.col("key_right"), ahead >= lower_s * 1e6, ahead <= upper_s * 1e6)
        .with_columns(join_time=pl.max_horizontal("ts", "ts_right"))
    )
    parts = [pairs]
    if how in ("left", "full"):
        alone = left.join(pairs.select("value"), on="value", how="anti").with_columns(join_time=pl.col("ts"))
        parts.append(alone)
    if how in ("right", "full"):
        alone = renamed.join(pairs.select("price"), on="price", how="anti").with_columns(join_time=pl.col("ts_right"))
        parts.append(alone)
    return pl.concat(parts, how="diagonal").select(pairs.columns).sort("value", "price")


def joined(
    left: pl.DataFrame, right: pl.DataFrame, *, seed: int = 0, crash_at: tuple[int, ...] = (), **more: Any
) -> pl.DataFrame:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    sides = [
        env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid=uid).key_by("key")
        for rows, uid in ((left, "left"), (right, "right"))
    ]
    result = sides[0].interval_join(sides[1], uid="join", **more)
    result.write(io.Discard(), uid="out")
    found = run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=9)
    (operator,) = [operator for operator in found.operators if operator["uid"] == "join"]
    assert operator["rows_late"] == 0
    return pl.DataFrame(found["out"]).sort("value", "price")


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(("lower_s", "upper_s"), [(-5, 10), (0, 0), (2, 5), (-7, -2), (-0.5, 0.25)])
@pytest.mark.parametrize("seed", seeds(2))
def test_the_join_is_what_a_batch_query_says(seed: int, lower_s: float, upper_s: float, how: str) -> None:
    left, right = rows_of(seed), rows_of(seed + 100, column="price")
    crashes = tuple(random.Random(seed).sample(range(5, 80), 3)) if seed else ()
    found = joined(left, right, seed=seed, crash_at=crashes, lower=lower_s, upper=upper_s, how=how)
    expected = batch_answer(left, right, lower_s, upper_s, how)
    assert found.equals(expected)
    assert len(found) > 10


@pytest.mark.parametrize("seed", seeds(4))
def test_what_comes_out_is_never_late_for_a_window_behind(seed: int) -> None:
    left, right = rows_of(seed), rows_of(seed + 100, column="price")
    env = weir.Environment(parallelism=2, settings=weir.Settings(batch_rows_max=8, watermark_interval="1ms"))
    one, two = (
        env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid=uid).key_by("key")
        for rows, uid in ((left, "left"), (right, "right"))
    )
    pairs = one.interval_join(two, lower="-2s", upper="4s", how="full", uid="join")
    pairs.key_by("key").window(weir.tumbling("5s")).agg(n=weir.count(), uid="window").write(io.Discard(), uid="out")
    found = run_local(env, seed=seed, crash_at=(30,), checkpoint_every=9)
    expected = (
        batch_answer(left, right, -2, 4, "full")
        .group_by("key", window_start=pl.col("join_time").dt.truncate("5s"))
        .agg(n=pl.len().cast(pl.Int64))
        .sort("window_start", "key")
    )
    assert pl.DataFrame(found["out"]).select("key", "window_start", "n").sort("window_start", "key").equals(expected)


def test_keys_of_strings_and_of_several_columns_are_compared_and_not_only_their_hashes() -> None:
    left = rows_of(1, keys=("a", "b", "c", None)).with_columns(part=pl.Series([1.5, float("nan")] * 80))
    right = rows_of(2, column="price", keys=("a", "b", "d", None)).with_columns(
        part_of=pl.Series([float("nan"), -0.0, 1.5, 0.0, 1.5] * 32)
    )
    env = weir.Environment(parallelism=2)
    one = env.from_collection(left, watermark=weir.bounded_disorder("ts", "3s"))
    two = env.from_collection(right, watermark=weir.bounded_disorder("ts", "3s"))
    result = one.key_by("key", "part").interval_join(two.key_by("key", "part_of"), lower="-5s", upper="5s")
    result.write(io.Discard(), uid="out")
    found = pl.DataFrame(run_local(env, seed=3)["out"]).sort("value", "price")
    expected = batch_answer(left, right, -5, 5, "inner").filter(pl.col("part").eq_missing(pl.col("part_of")))
    assert found.select("value", "price").equals(expected.select("value", "price"))
    assert len(found) > 10


def test_a_hot_key_comes_out_in_batches_of_bounded_size() -> None:
    count = 600
    rows = pl.DataFrame({"key": [1] * count, "ts": [BEGIN] * count})
    env = weir.Environment(parallelism=1)
    one, two = (env.from_collection(rows, watermark=weir.monotonic("ts")).key_by("key") for _ in range(2))
    one.interval_join(two, lower=0, upper=0).write(io.Discard(), uid="out")
    table = run_local(env)["out"]
    assert table.num_rows == count * count
    assert max(len(batch) for batch in table.to_batches()) <= 65_536


def test_late_rows_are_counted_and_go_to_the_side_outputs_where_those_are_named() -> None:
    # Which rows are late rests on the order of turns: the row of second 3 is late only if second 30 has come on both
    # inputs before it. Any fair order would do for the operator; the numbers below belong to the one that there is.
    seconds = [1.0, 30.0, 3.0, 31.0]
    rows = pl.DataFrame({"key": [1] * 4, "value": range(4), "ts": [BEGIN + timedelta(seconds=s) for s in seconds]})
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    left = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="left")
    right = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="right")
    result = left.key_by("key").interval_join(
        right.key_by("key"), lower=0, upper=0, late_left="too_late", late_right="late_right", uid="join"
    )
    result.write(io.Discard(), uid="out")
    result.side("too_late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert sorted(pl.DataFrame(found["out"])["value"].to_list()) == [0, 1, 3]
    assert pl.DataFrame(found["late"])["value"].to_list() == [2]
    (join,) = [operator for operator in found.operators if operator["uid"] == "join"]
    assert join["rows_late"] == 2


def stream(schema: str, *, env: weir.Environment | None = None) -> weir.Stream:
    env = env or weir.Environment()
    return env.from_collection([], schema).with_watermarks(weir.monotonic("ts"))


def test_keys_of_different_types_are_refused_by_name() -> None:
    env = weir.Environment()
    left, right = stream("a long, ts timestamp", env=env), stream("b string, ts timestamp", env=env)
    with pytest.raises(SchemaError, match="key 'a' is of type int64, the right side's 'b' of type string"):
        left.key_by("a").interval_join(right.key_by("b"), lower=0, upper=1)
    with pytest.raises(SchemaError, match="both need the same number of key columns"):
        left.key_by("a").interval_join(right.key_by("b", "ts"), lower=0, upper=1)


def test_bounds_names_and_streams_that_make_no_sense_are_refused() -> None:
    env = weir.Environment()
    left, right = stream("a long, join_time long, ts timestamp", env=env), stream("a long, ts timestamp", env=env)
    keyed = right.key_by("a")
    with pytest.raises(PlanError, match="so that nothing would be joined"):
        keyed.interval_join(keyed, lower="5s", upper="-5s")
    with pytest.raises(ConfigError, match="is not a duration"):
        keyed.interval_join(keyed, lower="five", upper="5s")
    with pytest.raises(PlanError, match="how='outer': a join is one of 'inner', 'left', 'right', 'full'"):
        keyed.interval_join(keyed, lower=0, upper=1, how="outer")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="a column 'join_time' of its own"):
        left.key_by("a").interval_join(keyed, lower=0, upper=1)
    with pytest.raises(SchemaError, match="would be called 'a', which is taken; give another suffix"):
        keyed.interval_join(keyed, lower=0, upper=1, suffix="")
    with pytest.raises(PlanError, match="is no keyed stream"):
        keyed.interval_join(right, lower=0, upper=1)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="of another Environment"):
        keyed.interval_join(stream("a long, ts timestamp").key_by("a"), lower=0, upper=1)
    plain = env.from_collection([], "a long, ts timestamp")
    with pytest.raises(PlanError, match="rows of the right side have no event time"):
        keyed.interval_join(plain.key_by("a"), lower=0, upper=1)


def test_schemas_keep_the_zone_of_event_time_and_outer_sides_may_be_null() -> None:
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), ("ts", pa.timestamp("us", "UTC"))])
    keyed = weir.Environment().from_collection([], schema).with_watermarks(weir.monotonic("ts")).key_by("key")
    result = keyed.interval_join(keyed, lower=0, upper=1, how="left")
    assert result.schema.field("join_time").type == pa.timestamp("us", "UTC")
    assert result.time_column == "join_time"
    assert [result.schema.field(name).nullable for name in ("key", "key_right")] == [False, True]
