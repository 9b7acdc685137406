"""What an operator reads, and by which exchange.

Comes in: the nodes behind a stream. Goes out: the same nodes merged, or with another
exchange. Union, rebalance, broadcast and key_by are no operators: they only change
how the rows of the nodes before them travel to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from weir.api.places import place_of_caller, placed
from weir.errors import PlanError, SchemaError
from weir.graph.logical import Input, Node, TimeColumn, check_keys
from weir.graph.plan import Broadcast, Exchange, Forward, HashByKey
from weir.schema import read_as_one


@dataclass(frozen=True)
class Upstream:
    """One node, or several whose rows are read as one stream; all have the same columns."""

    inputs: tuple[Input, ...]
    schema: pa.Schema
    time: TimeColumn | None = None
    """Where the rows have their event time, if they have one."""

    @classmethod
    def of(cls, node: Node) -> Upstream:
        return cls((Input(node.id, Forward()),), node.schema, node.time)

    def redirected(self, exchange: Exchange, method: str) -> Upstream:
        """By another exchange: the last one that was asked for holds, but a broadcast must not get lost."""
        if any(isinstance(i.exchange, Broadcast) for i in self.inputs) and not isinstance(exchange, Broadcast):
            raise PlanError(
                f"{method} ({place_of_caller()}): it would undo the broadcast() before it; put an operator between"
            )
        return replace(self, inputs=tuple(replace(i, exchange=exchange) for i in self.inputs))

    def keyed(self, keys: tuple[str, ...]) -> Upstream:
        """By key; the columns are checked here, where they were named."""
        with placed("key_by", self.schema):
            check_keys(keys, self.schema)
        return self.redirected(HashByKey(keys), "key_by")

    def merged(self, other: Upstream) -> Upstream:
        """The rows of both."""
        with placed("union", self.schema):
            check_same(self.schema, other.schema)
        time = self.time if self.time == other.time else None
        schema = read_as_one([self.schema, other.schema])
        return replace(self, inputs=self.inputs + other.inputs, schema=schema, time=time)


def check_same(left: pa.Schema, right: pa.Schema) -> None:
    """SchemaError unless rows of one can be taken for rows of the other."""
    if left.names != right.names:
        hint = "; use select(…) to put them in the same order" if sorted(left.names) == sorted(right.names) else ""
        raise SchemaError(f"the columns differ: {', '.join(left.names)} here, {', '.join(right.names)} there{hint}")
    for one, other in zip(left, right, strict=True):
        if one.type != other.type:
            raise SchemaError(f"column '{one.name}' is {one.type} here and {other.type} there; cast one of them")
