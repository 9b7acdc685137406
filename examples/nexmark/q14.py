"""Nexmark q14, calculation: dear bids in euros, with the time of day that they were made at and a count of letters.

python examples/nexmark/q14.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

EUROS = pl.col("price") * 0.908


def time_of_day(time: pl.Expr) -> pl.Expr:
    hour = time.dt.hour()
    return (
        pl.when(hour.is_between(8, 18))
        .then(pl.lit("day"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("night"))
        .otherwise(pl.lit("other"))
    )


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", **options), uid="bids")
    dear = bids.filter((EUROS > 1_000_000) & (EUROS < 50_000_000), uid="dear")
    return dear.select(
        "auction",
        "bidder",
        EUROS.alias("price"),
        time_of_day(pl.col("date_time")).alias("time_of_day"),
        "date_time",
        "extra",
        pl.col("extra").str.count_matches("c", literal=True).alias("c_counts"),
        uid="calculation",
    )


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()))
