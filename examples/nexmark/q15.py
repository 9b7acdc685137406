"""Nexmark q15, bidding statistics: by day, how many bids, bidders and auctions there are, in all and by rank of price.

    python examples/nexmark/q15.py [EVENTS]

To count distinct bidders of a day, no subtask need know them all: by day and bidder, a function lets a bidder pass the
first time in each rank. What passes is added up, and so are the bids themselves: one sum by day has all twelve counts.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io

KINDS = ("bids", "bidders", "auctions")
RANKS = ("total", "rank1", "rank2", "rank3")
"""Of all prices, and of those below 10,000, below 1,000,000 and above."""
RANK_SCHEMA = ", ".join(f"{rank} long" for rank in RANKS)


def first_times(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A row for each key that is seen in a rank for the first time: 1 in each such rank."""
    seen = rows.group_by("key_row").agg(pl.col(rank).max() for rank in RANKS).sort("key_row").select(RANKS)
    known = state.select(RANKS)
    new = pl.DataFrame([(seen[rank] > known[rank]).cast(pl.Int64) for rank in RANKS])
    passed = state.select("day").hstack(new).filter(pl.max_horizontal(RANKS) > 0)
    return passed, known + new


def counted(stream: weir.Stream, kind: str) -> weir.Stream:
    """Twelve columns, of which four are of this kind, and the others are nothing."""
    columns = [
        (pl.col(rank) if mine == kind else pl.lit(0, pl.Int64)).alias(f"{rank}_{mine}")
        for mine in KINDS
        for rank in RANKS
    ]
    return stream.select("day", *columns, uid=f"{kind}-columns")


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    columns = ["auction", "bidder", "price", "date_time"]
    bids = env.read(io.Nexmark(events, "bid", columns=columns, **options), uid="bids")
    price = pl.col("price")
    ranked = bids.select(
        pl.col("date_time").dt.date().alias("day"),
        "bidder",
        "auction",
        pl.lit(1, pl.Int64).alias("total"),
        (price < 10_000).cast(pl.Int64).alias("rank1"),
        price.is_between(10_000, 1_000_000, closed="left").cast(pl.Int64).alias("rank2"),
        (price >= 1_000_000).cast(pl.Int64).alias("rank3"),
        uid="ranked",
    )
    state = {rank: weir.ValueState("long", default=0) for rank in RANKS}
    distinct = [
        ranked.key_by("day", column).process_batches(first_times, f"day date, {RANK_SCHEMA}", state=state, uid=kind)
        for kind, column in (("bidders", "bidder"), ("auctions", "auction"))
    ]
    all_counts = counted(ranked, "bids").union(*map(counted, distinct, KINDS[1:]))
    return all_counts.key_by("day").sum(*(f"{rank}_{kind}" for kind in KINDS for rank in RANKS), uid="statistics")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    changes = pl.DataFrame(query(weir.Environment(parallelism=2), events, events_per_second=1).collect())
    print(changes.group_by("day", maintain_order=True).last().sort("day"))
