"""The best rows of a key, against a plain sort; in running aggregates, windows and after crashes."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from weir import connectors as io
from weir.errors import SchemaError
from weir.testing import run_local

BEGIN = datetime(2026, 1, 1)


def bids(seed: int, count: int = 300) -> pl.DataFrame:
    rng = random.Random(seed)
    return pl.DataFrame(
        {
            "auction": [rng.choice([1, 2, 3, None]) for _ in range(count)],
            "bidder": range(count),
            "price": [rng.choice([None, *range(10)]) for _ in range(count)],
            "channel": [rng.choice(["web", "app", None]) for _ in range(count)],
            "ts": [BEGIN + timedelta(seconds=i // 3) for i in range(count)],
        },
        schema={
            "auction": pl.Int64,
            "bidder": pl.Int64,
            "price": pl.Int64,
            "channel": pl.String,
            "ts": pl.Datetime("us"),
        },
    )


def ran(rows: pl.DataFrame, seed: int, build: Any) -> pl.DataFrame:
    rng = random.Random(seed)
    settings = weir.Settings(batch_rows_max=rng.choice([1, 7, 64, 1_000]), watermark_interval="1ms")
    env = weir.Environment(parallelism=rng.randint(1, 3), settings=settings)
    build(env.from_collection(rows, watermark=weir.bounded_disorder("ts", "60s"), uid="rows")).write(
        io.Discard(), uid="out"
    )
    crashes = tuple(rng.sample(range(5, 60), 2)) if seed % 2 else ()
    return pl.DataFrame(run_local(env, seed=seed, crash_at=crashes, checkpoint_every=9)["out"])


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize(
    ("by", "reverse"),
    [(["price", "bidder"], [False, False]), (["price", "bidder"], [True, False]), (["channel", "bidder"], True)],
)
def test_the_best_rows_of_each_key_are_those_of_a_sort(seed: int, by: list[str], reverse: Any) -> None:
    rows = bids(seed)
    top = weir.top(4, by=by, reverse=reverse, columns=["bidder", "channel"])
    found = ran(rows, seed, lambda stream: stream.key_by("auction").agg(best=top, n=weir.count()))
    newest = found.sort("n").group_by("auction", maintain_order=True).last().drop("n").sort("auction")
    least = [reverse] * len(by) if isinstance(reverse, bool) else reverse
    down = [not first for first in least]
    ordered = rows.sort(by, descending=down, nulls_last=down)
    expected = ordered.group_by("auction", maintain_order=True).agg(best=pl.struct("bidder", "channel").head(4))
    assert newest.equals(expected.sort("auction"))


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("keyed", [True, False])
def test_with_ties_a_window_gives_all_rows_that_are_equal_to_the_last(seed: int, keyed: bool) -> None:
    rows = bids(seed)
    top = weir.top(2, by="price", columns=["bidder", "price"], ties=True)
    keys = ["auction"] if keyed else []

    def build(stream: weir.Stream) -> weir.Stream:
        windowed = stream.key_by(*keys) if keyed else stream
        return windowed.window(weir.tumbling("20s")).agg(best=top)

    found = ran(rows, seed, build)
    second = pl.col("price").fill_null(-1).top_k(2).min()
    start = pl.col("ts").dt.truncate("20s").alias("window_start")
    expected = (
        rows.group_by(*keys, start)
        .agg(pl.struct("bidder", "price").filter(pl.col("price").fill_null(-1) >= second).alias("best"))
        .explode("best")
    )
    exploded = found.select(*keys, "window_start", "best").explode("best")
    sorting = [*keys, "window_start", pl.col("best").struct.field("bidder")]
    assert exploded.sort(sorting).equals(expected.select(exploded.columns).sort(sorting))
    prices = found["best"].list.eval(pl.element().struct.field("price").fill_null(-1))
    assert all(values == sorted(values, reverse=True) for values in prices.to_list())


def test_all_columns_are_kept_where_none_are_named_and_of_equal_rows_those_that_came_first() -> None:
    rows = pl.DataFrame({"key": [1] * 6, "a": [5, 9, 9, 9, 1, 9], "b": range(6)})
    env = weir.Environment(parallelism=1, settings=weir.Settings(batch_rows_max=2))
    env.from_collection(rows, uid="rows").key_by("key").agg(best=weir.top(2, by="a"), uid="top").write(
        io.Discard(), uid="out"
    )
    assert run_local(env)["out"].to_pylist()[-1]["best"] == [{"key": 1, "a": 9, "b": 1}, {"key": 1, "a": 9, "b": 2}]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"count": 0, "by": "price"}, "whole number of at least 1"),
        ({"count": 1, "by": []}, "at least one"),
        ({"count": 1, "by": ["price", "ts"], "reverse": [True]}, "needs as many in reverse"),
        ({"count": 1, "by": "prize"}, "no column 'prize'"),
        ({"count": 1, "by": "price", "columns": ["prize"]}, "no column 'prize'"),
        ({"count": 1, "by": "price", "columns": ["ts", "ts"]}, "names one twice"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(wrong: dict[str, Any], says: str) -> None:
    stream = weir.Environment().from_collection(bids(0))
    with pytest.raises(SchemaError, match=says):
        stream.key_by("auction").agg(best=weir.top(wrong.pop("count"), **wrong))
