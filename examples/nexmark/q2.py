"""Nexmark q2, selection: the bids for certain auctions, here every 123rd.

python examples/nexmark/q2.py [EVENTS]
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    bids = env.read(io.Nexmark(events, "bid", columns=["auction", "price"], **options), uid="bids")
    return bids.filter(pl.col("auction") % 123 == 0, uid="chosen")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()))
