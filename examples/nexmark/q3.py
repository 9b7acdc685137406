"""Nexmark q3, local items: who sells in category 10, of persons in Oregon, Idaho and California?

    python examples/nexmark/q3.py [EVENTS]

A join without any limit of time: a person may sell for ever, and an auction may come before its seller has registered.
Both filters come first, so that few rows are left; a function of both streams keeps what it needs by seller.
"""

import sys
from collections.abc import Iterator
from typing import Any

import polars as pl

import weir
from weir import connectors as io


class Sellers(weir.CoProcessFunction):
    """Persons from the left, auctions from the right."""

    person = weir.ValueState("struct<name:string,city:string,state:string>")
    waiting = weir.ListState("long")

    def process_left(self, person: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        self.person.value = {"name": person.name, "city": person.city, "state": person.state}
        for auction in self.waiting.get():
            yield person.name, person.city, person.state, auction
        self.waiting.clear()

    def process_right(self, auction: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        person = self.person.value
        if person is None:
            self.waiting.add(auction.id)
        else:
            yield person["name"], person["city"], person["state"], auction.id


def query(env: weir.Environment, events: int, **options: Any) -> weir.Stream:
    persons = env.read(io.Nexmark(events, "person", columns=["id", "name", "city", "state"], **options), uid="persons")
    auctions = env.read(io.Nexmark(events, "auction", columns=["id", "seller", "category"], **options), uid="auctions")
    local = persons.filter(pl.col("state").is_in(["OR", "ID", "CA"]), uid="local")
    items = auctions.filter(pl.col("category") == 10, uid="items")
    both = local.connect(items).key_by("id", "seller")
    return both.process(Sellers(), "name string, city string, state string, id long", uid="sellers")


if __name__ == "__main__":
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(pl.DataFrame(query(weir.Environment(parallelism=2), events).collect()).sort("id"))
