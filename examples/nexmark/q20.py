"""Nexmark q20, bids with their auctions: every bid in category 10, with all that is known about its auction.

    python examples/nexmark/q20.py [EVENTS]

In SQL this is a join without any limit of time. Here an auction is kept for four seconds and a bid for one, which is
all that can matter: a bid is for an auction that began at most four seconds before it, or begins within a second (with
at least 1,000 events in a second of event time).
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    time = weir.bounded_disorder("date_time", "4s")
    bids = env.read(io.Nexmark(events, "bid", **options), watermark=time, uid="bids")
    auctions = env.read(io.Nexmark(events, "auction", **options), watermark=time, uid="auctions")
    items = auctions.filter(pl.col("category") == 10, uid="items")
    pairs = bids.key_by("auction").interval_join(
        items.key_by("id"), lower="-4s", upper="1s", suffix="_of_auction", uid="pairs"
    )
    return pairs.select(pl.exclude("id", "join_time"), uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()).sort("date_time"))
