"""As-of joins against a batch computation of the same question: no batch, disorder or crash changes the answer."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.unit.operators.running import context
from weir import connectors as io
from weir.errors import PlanError
from weir.operators.joins.side import JoinSide
from weir.operators.joins.versions import Versions
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.place import StatePlace
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)


def rows_of(seed: int, count: int, *, column: str, every_ms: int, keys: str = "abcd") -> pl.DataFrame:
    """Rows of a stream; no two of a key have the same time, for then what came last would hold."""
    rng = random.Random(seed)
    times = [BEGIN + timedelta(milliseconds=i * every_ms - rng.randrange(0, 3_000, 125)) for i in range(count)]
    return pl.DataFrame(
        {"key": [rng.choice([*keys, None]) for _ in range(count)], column: range(count), "ts": times},
        schema_overrides={"ts": pl.Datetime("us")},
    ).unique(["key", "ts"], keep="first", maintain_order=True)


def batch_answer(facts: pl.DataFrame, rates: pl.DataFrame, how: str) -> pl.DataFrame:
    versions = rates.filter(pl.col("key").is_not_null()).with_columns(key_right="key", ts_right="ts").sort("ts")
    found = facts.sort("ts").join_asof(versions, on="ts", by="key", strategy="backward", check_sortedness=False)
    found = found.with_columns(pl.when(pl.col("key").is_null()).then(None).otherwise("rate").alias("rate"))
    if how == "inner":
        found = found.filter(pl.col("rate").is_not_null())
    return found.select("key", "fact", "ts", "key_right", "rate", "ts_right").sort("fact")


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("seed", seeds(6))
def test_each_row_gets_what_held_at_its_time(seed: int, how: Any) -> None:
    facts = rows_of(seed, 160, column="fact", every_ms=250, keys="abcde")
    rates = rows_of(seed + 100, 80, column="rate", every_ms=500)
    rng = random.Random(seed)
    settings = weir.Settings(batch_rows_max=rng.choice([1, 7, 64]), watermark_interval="1ms")
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    one, two = (
        env.from_collection(rows, watermark=weir.bounded_disorder("ts", "3s"), uid=uid).key_by("key")
        for rows, uid in ((facts, "facts"), (rates, "rates"))
    )
    one.as_of(two, how=how, uid="join").write(io.Discard(), uid="out")
    crashes = tuple(rng.sample(range(5, 80), 3)) if seed % 2 else ()
    found = run_local(env, seed=seed, crash_at=crashes, checkpoint_every=9)
    expected = batch_answer(facts, rates, how)
    assert pl.DataFrame(found["out"]).sort("fact").equals(expected)
    assert 20 < expected["rate"].count() < len(facts)


SIDE = JoinSide(
    "right", pa.schema([("key", pa.string()), ("rate", pa.int64()), ("ts", pa.timestamp("us"))]), ("key",), "ts"
)


def versions_of(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    keys, rates, times = zip(*rows, strict=True)
    arrays = [pa.array(keys), pa.array(rates), pa.array(times, pa.int64()).view(pa.timestamp("us"))]
    return pa.RecordBatch.from_arrays(arrays, schema=SIDE.schema)


def opened_versions() -> Versions:
    versions = Versions(SIDE)
    versions.open("right", context(), restored=None, budget=ShelfBudget(StatePlace()), watermark_us=NEVER_US)
    return versions


def found_in(versions: Versions, keys: list[str], times: list[int]) -> list[int | None]:
    asked = versions_of([(key, 0, time) for key, time in zip(keys, times, strict=True)])
    answers: list[int | None] = [None] * len(keys)
    for found in filter(None, versions.find(asked, SIDE, np.array(times))):
        for row, rate in zip(found.rows.tolist(), found.versions.column("rate").to_pylist(), strict=True):
            answers[row] = rate
    return answers


def test_behind_the_watermark_only_the_newest_version_of_a_key_is_kept() -> None:
    versions = opened_versions()
    for time in range(1_000):
        rows = [(f"key-{time % 10}", time, time), (f"key-{time % 7}", -time, time)]
        versions.add(versions_of(rows), watermark_us=time - 50)
        versions.drop_replaced(time - 50)
    assert len(versions.store) < 500
    versions.drop_replaced(1_000)
    versions.add(versions_of([("key-3", 5_000, 2_000)] * 300), watermark_us=2_001)
    assert 10 <= len(versions.store) <= 12  # what was replaced last goes with the next merge
    assert found_in(versions, ["key-3", "key-9", "other"], [2_000, 2_000, 2_000]) == [5_000, 999, None]


def test_of_equal_times_what_came_last_holds() -> None:
    versions = opened_versions()
    versions.add(versions_of([("a", n, 5) for n in range(100)]), watermark_us=0)
    versions.add(versions_of([("a", 200, 5), ("a", 300, 7)]), watermark_us=0)
    assert found_in(versions, ["a", "a", "a"], [4, 5, 6]) == [None, 200, 200]


def test_keys_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinSide, "hashes", lambda self, batch: np.zeros(batch.num_rows, np.uint64))
    versions = opened_versions()
    versions.add(versions_of([("a", 1, 1), ("b", 2, 2), ("b", 3, 3), ("c", 4, 4)]), watermark_us=0)
    assert found_in(versions, ["a", "b", "b", "c", "d"], [9, 9, 2, 9, 9]) == [1, 3, 2, 4, None]
    versions.add(versions_of([("a", 5, 5)] * 4), watermark_us=9)
    assert found_in(versions, ["a", "b", "c"], [9, 9, 9]) == [5, 3, 4]


def test_late_rows_are_counted_and_a_late_version_holds_from_then_on() -> None:
    def stream(seconds: list[float], uid: str) -> weir.Stream:
        rows = {"key": [1] * len(seconds), uid: seconds, "ts": [BEGIN + timedelta(seconds=s) for s in seconds]}
        return env.from_collection(pl.DataFrame(rows), watermark=weir.monotonic("ts"), uid=uid)

    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    facts, rates = stream([1, 30, 2, 31, 40], "fact"), stream([0, 20, 30, 25], "rate")
    result = facts.key_by("key").as_of(rates.key_by("key"), late="late", uid="join")
    result.write(io.Discard(), uid="out")
    result.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert pl.DataFrame(found["late"])["fact"].to_list() == [2]
    assert pl.DataFrame(found["out"]).sort("fact")["rate"].to_list() == [0, 30, 30, 30]
    (join,) = [operator for operator in found.operators if operator["uid"] == "join"]
    assert join["rows_late"] == 2


def test_outer_joins_of_the_table_are_refused_and_event_time_stays() -> None:
    stream = weir.Environment().from_collection([], "key long, ts timestamp").with_watermarks(weir.monotonic("ts"))
    with pytest.raises(PlanError, match="an as-of join is 'left'"):
        stream.key_by("key").as_of(stream.key_by("key"), how="full")
    assert stream.key_by("key").as_of(stream.key_by("key")).time_column == "ts"
