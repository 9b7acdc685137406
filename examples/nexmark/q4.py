"""Nexmark q4, average price for a category: the mean of the winning bids of its auctions, so far.

    python examples/nexmark/q4.py [EVENTS]

Bids join the auction that they are for, as long as it is open. An auction's valid bids are one session: no auction is
open for four seconds (with at least 1,000 events in a second of event time), so a gap of that length means that it is
over. Its best price then counts in the mean of its category, once.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

OPEN_MAX = "4s"


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    time = weir.bounded_disorder("date_time", "4s")
    auctions = env.read(
        io.Nexmark(events, "auction", columns=["id", "category", "date_time", "expires"], **options),
        watermark=time,
        uid="auctions",
    )
    bids = env.read(
        io.Nexmark(events, "bid", columns=["auction", "price", "date_time"], **options), watermark=time, uid="bids"
    )
    pairs = auctions.key_by("id").interval_join(bids.key_by("auction"), lower=0, upper=OPEN_MAX, uid="pairs")
    valid = pairs.filter(pl.col("date_time_right") <= pl.col("expires"), uid="valid")
    finals = valid.key_by("id", "category").window(weir.session(OPEN_MAX)).agg(final=weir.max("price"), uid="finals")
    return finals.key_by("category").agg(average=weir.avg("final"), uid="average")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events).collect())
    print(changes.group_by("category", maintain_order=True).last().sort("category"))
