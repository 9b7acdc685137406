"""Nexmark q8, new users: who has registered and begun an auction, in the same ten seconds.

    python examples/nexmark/q8.py [EVENTS]

A window join of persons with sellers. A seller with several auctions counts once: auctions are brought together by
seller and window first, and the result is in the same window, since its event time is the window's last instant.
"""

import sys
from typing import Any

import polars as pl

import weir
from weir import connectors as io


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    time = weir.bounded_disorder("date_time", "4s")
    persons = env.read(
        io.Nexmark(events, "person", columns=["id", "name", "date_time"], **options), watermark=time, uid="persons"
    )
    auctions = env.read(
        io.Nexmark(events, "auction", columns=["seller", "date_time"], **options), watermark=time, uid="auctions"
    )
    window = weir.tumbling("10s")
    sellers = auctions.key_by("seller").window(window).agg(auctions=weir.count(), uid="sellers")
    sellers = sellers.select("seller", "window_end", uid="ends")
    new = persons.key_by("id").join(sellers.key_by("seller"), window, uid="new")
    return new.select("id", "name", "window_start", uid="fields")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    query_with_few_events = query(weir.Environment(parallelism=2), events, events_per_second=10_000)
    print(pl.DataFrame(query_with_few_events.collect()).sort("id"))
