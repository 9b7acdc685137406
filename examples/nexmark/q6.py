"""Nexmark q6, average selling price by seller: the mean of the winning bids of each seller's last ten auctions.

    python examples/nexmark/q6.py [EVENTS]

Winning bids are found as in q4. Which ten auctions are a seller's last is a matter of when they ended, in event time,
not of when they arrive here: an aggregate keeps the ten that ended last.
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
        io.Nexmark(events, "auction", columns=["id", "seller", "date_time", "expires"], **options),
        watermark=time,
        uid="auctions",
    )
    bids = env.read(
        io.Nexmark(events, "bid", columns=["auction", "price", "date_time"], **options), watermark=time, uid="bids"
    )
    pairs = auctions.key_by("id").interval_join(bids.key_by("auction"), lower=0, upper=OPEN_MAX, uid="pairs")
    valid = pairs.filter(pl.col("date_time_right") <= pl.col("expires"), uid="valid")
    of_auction = valid.key_by("id", "seller").window(weir.session(OPEN_MAX))
    finals = of_auction.agg(final=weir.max("price"), expires=weir.max("expires"), uid="finals")
    last = weir.top(10, by=["expires", "id"], columns=["final"])
    sellers = finals.key_by("seller").agg(last=last, uid="last-ten")
    average = pl.col("last").list.eval(pl.element().struct.field("final")).list.mean()
    return sellers.select("seller", average=average, uid="average")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events).collect())
    print(changes.group_by("seller", maintain_order=True).last().sort("seller"))
