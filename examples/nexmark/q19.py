"""Nexmark q19, the top ten: of each auction, its ten bids with the highest prices; of equal prices the first ones.

    python examples/nexmark/q19.py [EVENTS]

The list of an auction comes out again whenever it may have changed; the newest one counts.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

FIELDS = ["bidder", "price", "channel", "url", "date_time", "extra"]


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", **options), uid="bids")
    best = weir.top(10, by=["price", "date_time"], reverse=[False, True], columns=FIELDS)
    return bids.key_by("auction").agg(best=best, uid="best")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events).collect())
    newest = changes.group_by("auction", maintain_order=True).last().sort("auction")
    print(newest.explode("best").unnest("best"))
