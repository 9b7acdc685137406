"""Nexmark q9, winning bids: every auction with its best bid; of equal prices the first one wins.

    python examples/nexmark/q9.py [EVENTS]

Found as in q4, with all columns of the auction and of its bid. An auction comes out once, when it is over.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

OPEN_MAX = "4s"
AUCTION = [
    "id",
    "item_name",
    "description",
    "initial_bid",
    "reserve",
    "date_time",
    "expires",
    "seller",
    "category",
    "extra",
]
BID = ["bidder", "price", "bid_date_time", "bid_extra"]


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    time = weir.bounded_disorder("date_time", "4s")
    auctions = env.read(io.Nexmark(events, "auction", columns=AUCTION, **options), watermark=time, uid="auctions")
    bids = env.read(
        io.Nexmark(events, "bid", columns=["auction", "bidder", "price", "date_time", "extra"], **options),
        watermark=time,
        uid="bids",
    )
    pairs = auctions.key_by("id").interval_join(
        bids.key_by("auction"), lower=0, upper=OPEN_MAX, suffix="_of_bid", uid="pairs"
    )
    valid = pairs.filter(pl.col("date_time_of_bid") <= pl.col("expires"), uid="valid")
    named = valid.with_columns(bid_date_time=pl.col("date_time_of_bid"), bid_extra=pl.col("extra_of_bid"), uid="named")
    best = weir.top(1, by=["price", "bid_date_time"], reverse=[False, True], columns=[*AUCTION[1:], *BID])
    winners = named.key_by("id").window(weir.session(OPEN_MAX)).agg(best=best, uid="best")
    winner = pl.col("best").list.first().struct.field
    return winners.select("id", *(winner(name) for name in [*AUCTION[1:], *BID]), uid="winners")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()).sort("id"))
