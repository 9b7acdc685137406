"""Nexmark q7, highest bid: the bids with the highest price, in each ten seconds.

    python examples/nexmark/q7.py [EVENTS]

In SQL this is a join of all bids with the maximum of their window. Here it is one aggregate over the window: the best
bid, with ties. Each subtask keeps its own best ones, and only those travel.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(
        io.Nexmark(events, "bid", columns=COLUMNS, **options),
        watermark=weir.bounded_disorder("date_time", "4s"),
        uid="bids",
    )
    best = bids.window(weir.tumbling("10s")).agg(best=weir.top(1, by="price", columns=COLUMNS, ties=True), uid="best")
    return best.select(pl.col("best").explode(), uid="one-by-one").select(pl.col("best").struct.unnest(), uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    query_with_few_events = query(weir.Environment(parallelism=2), events, events_per_second=1_000)
    print(pl.DataFrame(query_with_few_events.collect()).sort("date_time"))
