"""Nexmark q1, currency conversion: every bid, with its price in euros rather than dollars.

python examples/nexmark/q1.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

EUROS_PER_DOLLAR = 0.908


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", **options), uid="bids")
    euros = pl.col("price") * EUROS_PER_DOLLAR
    return bids.select("auction", "bidder", euros.alias("price"), "date_time", "extra", uid="euros")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()))
