"""Nexmark q11, user sessions: how many bids each bidder makes in a session, which ends after ten seconds without one.

python examples/nexmark/q11.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(
        io.Nexmark(events, "bid", columns=["bidder", "date_time"], **options),
        watermark=weir.bounded_disorder("date_time", "4s"),
        uid="bids",
    )
    return bids.key_by("bidder").window(weir.session("10s")).agg(bids=weir.count(), uid="sessions")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    query_with_few_events = query(weir.Environment(parallelism=2), events, events_per_second=1_000)
    print(pl.DataFrame(query_with_few_events.collect()).sort("window_start"))
