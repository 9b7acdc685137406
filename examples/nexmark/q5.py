"""Nexmark q5, hot items: the auctions with most bids in the last ten seconds, every two seconds.

    python examples/nexmark/q5.py [EVENTS]

Two windows in a row: bids are counted by auction in sliding windows, which share panes of two seconds. The counts of
one such window all have the same event time, the last instant of the window, so that a tumbling window of two seconds
over all auctions has exactly them; its best, with ties, are the hot items.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(
        io.Nexmark(events, "bid", columns=["auction", "date_time"], **options),
        watermark=weir.bounded_disorder("date_time", "4s"),
        uid="bids",
    )
    counts = bids.key_by("auction").window(weir.sliding("10s", "2s")).agg(bids=weir.count(), uid="counts")
    counts = counts.select("auction", "bids", "window_end", ends=pl.col("window_end"), uid="ends")
    hottest = weir.top(1, by="bids", columns=["auction", "bids", "ends"], ties=True)
    hot = counts.window(weir.tumbling("2s")).agg(hot=hottest, uid="hottest")
    return hot.select(pl.col("hot").explode(), uid="one-by-one").select(pl.col("hot").struct.unnest(), uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    query_with_few_events = query(weir.Environment(parallelism=2), events, events_per_second=10_000)
    print(pl.DataFrame(query_with_few_events.collect()).sort("ends"))
