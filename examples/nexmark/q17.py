"""Nexmark q17, auction statistics: by auction and day, how many bids in each rank of price, and what they come to.

python examples/nexmark/q17.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    columns = ["auction", "price", "date_time"]
    bids = env.read(io.Nexmark(events, "bid", columns=columns, **options), uid="bids")
    price = pl.col("price")
    ranked = bids.select(
        "auction",
        "price",
        pl.col("date_time").dt.date().alias("day"),
        (price < 10_000).alias("rank1"),
        price.is_between(10_000, 1_000_000, closed="left").alias("rank2"),
        (price >= 1_000_000).alias("rank3"),
        uid="ranked",
    )
    return ranked.key_by("auction", "day").agg(
        total_bids=weir.count(),
        rank1_bids=weir.sum("rank1"),
        rank2_bids=weir.sum("rank2"),
        rank3_bids=weir.sum("rank3"),
        min_price=weir.min("price"),
        max_price=weir.max("price"),
        avg_price=weir.avg("price"),
        sum_price=weir.sum("price"),
        uid="statistics",
    )


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events).collect())
    print(changes.group_by("auction", "day", maintain_order=True).last().sort("auction", "day"))
