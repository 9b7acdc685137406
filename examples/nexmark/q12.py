"""Nexmark q12, processing time windows: how many bids each bidder makes, in every ten seconds by the wall clock.

python examples/nexmark/q12.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", columns=["bidder"], **options), uid="bids")
    timed = bids.with_processing_time("arrived", uid="time")
    return timed.key_by("bidder").window(weir.tumbling("10s")).agg(bids=weir.count(), uid="counts")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()).sort("bids"))
