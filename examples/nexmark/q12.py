"""Nexmark q12, processing time windows: how many bids each bidder makes, in every ten seconds by the wall clock.

    python examples/nexmark/q12.py [EVENTS]

Processing time is an event time like any other, once rows are stamped with it as they come in.
"""

import sys
from datetime import datetime, timezone
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def stamped(bids: pl.DataFrame) -> pl.DataFrame:
    return bids.with_columns(arrived=pl.lit(datetime.now(timezone.utc).replace(tzinfo=None), pl.Datetime("us")))


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", columns=["bidder"], **options), uid="bids")
    arrived = bids.map_batches(stamped, "bidder long, arrived timestamp_ntz", kind="polars", uid="stamped")
    # A clock may be set back a little.
    timed = arrived.with_watermarks(weir.bounded_disorder("arrived", "1s"), uid="time")
    return timed.key_by("bidder").window(weir.tumbling("10s")).agg(bids=weir.count(), uid="counts")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()).sort("bids"))
