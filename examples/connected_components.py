"""Which nodes of a graph hang together: every node tells its neighbours of the smallest node that it knows of.

The loop is needed: news goes round until nobody learns anything new. Edges may come in any order, and the answer grows
with them. Run it as it is, or with the number of edges:

    python examples/connected_components.py 20000
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl

import weir


class Node(weir.ProcessFunction):
    """Keeps the neighbours of a node, and the smallest node that it hangs together with."""

    neighbours = weir.ListState("long")
    smallest = weir.ValueState("long")

    def process(self, row: Any, context: Any) -> Iterator[tuple[int, int | None, int | None]]:
        known = self.smallest.get()
        best = min(n for n in (context.key, known, row.smallest) if n is not None)
        if row.neighbour is not None:
            self.neighbours.add(row.neighbour)
            yield row.neighbour, None, best
        if best != known:
            self.smallest.set(best)
            for neighbour in self.neighbours.get():
                yield neighbour, None, best
            context.side("learned", (context.key, best))


def spread(news: weir.Stream) -> tuple[weir.Stream, weir.Stream]:
    """One round: what nodes tell their neighbours goes round again; what they have learned comes out."""
    told = news.key_by("node").process(
        Node(), NEWS, sides={"learned": "node long, component long"}, uid="nodes", name="nodes"
    )
    return told, told.side("learned")


NEWS = "node long, neighbour long, smallest long"


def random_edges(count: int) -> list[tuple[int, int]]:
    """Some long chains, and many small heaps."""
    rng = random.Random(7)
    chains = [(100 * i + j, 100 * i + j + 1) for i in range(3) for j in range(99)]
    heaps = [(1_000 + rng.randrange(count), 1_000 + rng.randrange(count)) for _ in range(count - len(chains))]
    edges = [*chains, *heaps]
    rng.shuffle(edges)
    return edges


def main(count: int) -> None:
    edges = random_edges(count)
    env = weir.Environment(parallelism=2)
    both_ways = [row for a, b in edges for row in ((a, b, None), (b, a, None))]
    news = env.from_collection(both_ways, NEWS, uid="edges")
    learned = pl.DataFrame(news.iterate(spread, uid="spread").collect())
    components = learned.group_by("node").agg(pl.min("component"))
    sizes = components.group_by("component").len().sort(["len", "component"], descending=[True, False])
    print(f"{components.height} nodes in {sizes.height} components")
    print(sizes.head(3))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
