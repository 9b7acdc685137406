"""Sessions against a batch computation of the same question: the answer depends on no batch, disorder or crash."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import PlanError
from weir.operators.base import OperatorContext
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import SessionWindows
from weir.operators.windows.sessions import aggregate
from weir.operators.windows.sessions import store as session_store
from weir.operators.windows.sessions.store import SessionStore
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)


def rows_of(seed: int, count: int = 400, *, keys: int = 12, disorder_s: float = 6.0) -> pl.DataFrame:
    rng = random.Random(seed)
    times = [i * 0.25 - rng.random() * disorder_s for i in range(count)]
    return pl.DataFrame(
        {
            "key": [rng.choice([None, *map(str, range(keys))]) for _ in range(count)],
            "value": [rng.randint(-50, 50) for _ in range(count)],
            "ts": [BEGIN + timedelta(seconds=s) for s in times],
        },
        schema={"key": pl.String, "value": pl.Int64, "ts": pl.Datetime("us")},
    )


def batch_answer(rows: pl.DataFrame, gap_s: float) -> pl.DataFrame:
    """Sort, cut where a gap is, group."""
    gap = timedelta(seconds=gap_s)
    begins = (pl.col("ts").diff() >= gap).fill_null(True).over("key")
    cut = rows.sort("key", "ts").with_columns(session=begins.cast(pl.Int64).cum_sum().over("key"))
    grouped = cut.group_by("key", "session").agg(
        window_start=pl.col("ts").min(),
        window_end=pl.col("ts").max() + gap,
        n=pl.len().cast(pl.Int64),
        total=pl.col("value").sum(),
        low=pl.col("value").min(),
    )
    return grouped.drop("session").sort("window_start", "key")


def sessions(rows: pl.DataFrame, gap_s: float, *, seed: int, crash_at: tuple[int, ...] = (), **more: Any) -> Any:
    rng = random.Random(seed)
    settings = weir.Settings(
        batch_rows_max=rng.choice([1, 7, 64]), channel_batches_max=rng.choice([1, 4]), watermark_interval="1ms"
    )
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "6s"), uid="rows")
    windows = stream.key_by("key").window(weir.session(gap_s), **more)
    result = windows.agg(n=weir.count(), total=weir.sum("value"), low=weir.min("value"), uid="window")
    result.write(io.Discard(), uid="out")
    return run_local(env, seed=seed, crash_at=crash_at, checkpoint_every=9)


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("gap_s", [0.5, 2, 5])
def test_every_session_is_what_a_batch_query_says(seed: int, gap_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_store, "COMPACTED_SLOTS_MIN", 4)
    monkeypatch.setattr(aggregate, "MOVED_SESSIONS_MAX", random.Random(seed).choice([0, 2, 100]))
    rows = rows_of(seed)
    crashes = tuple(random.Random(seed).sample(range(5, 120), 3)) if seed % 2 else ()
    found = sessions(rows, gap_s, seed=seed, crash_at=crashes, late="late" if seed % 3 == 0 else None)
    assert pl.DataFrame(found["out"]).sort("window_start", "key").equals(batch_answer(rows, gap_s))


def store_of(gap_us: int) -> SessionStore:
    schema = pl.DataFrame(schema={"key": pl.Int64, "ts": pl.Datetime("us")}).to_arrow().schema
    definition = WindowDefinition(SessionWindows(gap_us), ["key"], {"n": weir.count()}, schema, "ts")
    context = OperatorContext("job", weir.ids.Uid("w"), "w", 0, 1, 128, weir.ids.AttemptId(1))
    return SessionStore(definition.layout, context, gap_us)


@pytest.mark.parametrize("seed", seeds(30))
def test_the_order_and_the_cut_of_pieces_do_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(session_store, "COMPACTED_SLOTS_MIN", 4)
    if seed % 2:  # as if times were so far apart that few keys can be sorted at once
        monkeypatch.setattr(session_store, "_SUM_MAX", 3_000)
    times = [rng.randrange(1_000) for _ in range(300)]
    keys = [rng.randrange(9) for _ in times]
    rows = pl.DataFrame({"key": keys, "t": times})
    store, at = store_of(10), 0
    while at < len(rows):
        part = rows.slice(at, rng.choice([1, 5, 80]))
        batch = part.select("key", ts=pl.col("t").cast(pl.Datetime("us"))).to_arrow().combine_chunks().to_batches()[0]
        store.add_rows(batch, part["t"].to_numpy())
        at += len(part)
        if store.is_mostly_dead:
            store.compact()
    cut = rows.sort("key", "t").with_columns(
        session=(pl.col("t").diff() >= 10).fill_null(True).over("key").cast(pl.Int64).cum_sum().over("key")
    )
    expected = cut.group_by("key", "session").agg(a=pl.col("t").min(), b=pl.col("t").max(), n=pl.len())
    slots = store.alive
    (key,), (n,) = store.keys(slots), store.accumulators.values(slots)
    found = zip(key.to_pylist(), store.starts(slots), store.lasts(slots), n.to_pylist(), strict=True)
    assert sorted(found) == sorted(expected.select("key", "a", "b", "n").rows())
    assert len(store) == len(expected)


def one_by_one(seconds: list[float], **more: Any) -> tuple[weir.Environment, weir.Stream]:
    """Rows that are taken one by one, each with a watermark behind it; values are powers of two."""
    rows = pl.DataFrame(
        {
            "key": [1] * len(seconds),
            "value": [1 << i for i in range(len(seconds))],
            "ts": [BEGIN + timedelta(seconds=s) for s in seconds],
        }
    )
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=1, watermark_interval="0ms"))
    stream = env.from_collection(rows, watermark=weir.monotonic("ts"), uid="rows")
    result = stream.key_by("key").window(weir.session("5s"), **more).agg(total=weir.sum("value"), uid="window")
    result.write(io.Discard(), uid="out")
    return env, result


def test_late_rows_are_left_out_and_counted() -> None:
    env, _ = one_by_one([1, 2, 30, 3, 50, 4])
    found = run_local(env)
    assert sorted(pl.DataFrame(found["out"])["total"].to_list()) == [3, 4, 16]
    (window,) = [operator for operator in found.operators if operator["uid"] == "window"]
    assert window["rows_late"] == 2


def test_late_rows_go_to_the_side_output_where_one_is_named() -> None:
    env, result = one_by_one([1, 2, 30, 3, 28, 50, 4], late="late")
    result.side("late").write(io.Discard(), uid="late")
    found = run_local(env)
    assert sorted(pl.DataFrame(found["late"])["value"].to_list()) == [8, 64]
    # The row at 28 s is behind the watermark, but its session is still open.
    assert sorted(pl.DataFrame(found["out"])["total"].to_list()) == [3, 4 + 16, 32]


def test_within_the_allowed_lateness_late_rows_change_sessions_and_merge_them() -> None:
    env, _ = one_by_one([1, 7, 14, 4, 100], lateness="10s")
    out = pl.DataFrame(run_local(env)["out"])
    # [1] and [7] were both over when the row at 4 s made one session of them.
    assert out["total"].to_list() == [1, 2, 11, 4, 16]
    merged = out.row(2, named=True)
    assert (merged["window_start"], merged["window_end"]) == (
        BEGIN + timedelta(seconds=1),
        BEGIN + timedelta(seconds=12),
    )


def test_sessions_that_are_over_take_no_room_and_nor_do_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_store, "COMPACTED_SLOTS_MIN", 100)
    store = store_of(10)
    for round in range(50):
        part = pl.DataFrame({"key": np.arange(40) + 40 * round, "t": np.full(40, 100 * round)})
        batch = part.select("key", ts=pl.col("t").cast(pl.Datetime("us"))).to_arrow().combine_chunks().to_batches()[0]
        store.add_rows(batch, part["t"].to_numpy())
        store.remove(store.ended_by(100 * round - 10))
        if store.is_mostly_dead:
            store.compact()
        assert len(store) == 40
        assert store.remembered <= 160


def test_a_gap_of_no_length_is_refused() -> None:
    with pytest.raises(PlanError, match="the gap that ends a session must be above zero"):
        weir.session("0s")
