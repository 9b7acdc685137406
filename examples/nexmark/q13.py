"""Nexmark q13, bounded side input: bids, each with a value that a file has for its auction.

    python examples/nexmark/q13.py [EVENTS]

The file is small and does not change: every task reads it once, and joins whole batches with it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

import weir
from weir import connectors as io

KEYS = 10_000


def write_side_input(path: Path) -> None:
    """Made beforehand: a value for each of 10,000 keys."""
    keys = pl.int_range(KEYS, eager=True)
    pl.DataFrame({"key": keys, "value": keys.cast(pl.String)}).write_parquet(path)


class WithSideInput:
    """Bids with the value of the side input at auction modulo 10,000."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.side_input: pl.DataFrame | None = None

    def __call__(self, bids: pl.DataFrame) -> pl.DataFrame:
        if self.side_input is None:
            self.side_input = pl.read_parquet(self.path)
        key = pl.col("auction") % KEYS
        return bids.with_columns(key=key).join(self.side_input, on="key", how="inner").drop("key")


def query(env: weir.Environment, events: int, side_input: Path, **options: Any) -> weir.Stream:
    columns = ["auction", "bidder", "price", "date_time"]
    bids = env.read(io.Nexmark(events, "bid", columns=columns, **options), uid="bids")
    schema = "auction long, bidder long, price long, date_time timestamp_ntz, value string"
    return bids.map_batches(WithSideInput(side_input), schema, kind="polars", uid="join")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "side_input.parquet"
        write_side_input(file)
        print(pl.DataFrame(query(weir.Environment(parallelism=2), events, file).collect()))
