"""Nexmark q18, the last bid: of each bidder, for each auction, by event time.

python examples/nexmark/q18.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

FIELDS = ["price", "channel", "url", "date_time", "extra"]


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", **options), uid="bids")
    last = bids.key_by("bidder", "auction").agg(last=weir.top(1, by="date_time", columns=FIELDS), uid="last")
    field = pl.col("last").list.first().struct.field
    return last.select("auction", "bidder", *map(field, FIELDS), uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events).collect())
    print(changes.group_by("bidder", "auction", maintain_order=True).last().sort("date_time"))
