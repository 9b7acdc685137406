"""Nexmark q0, pass through: every bid, as it is. What the engine costs by itself.

python examples/nexmark/q0.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", **options), uid="bids")
    return bids.select("auction", "bidder", "price", "date_time", "extra", uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()))
