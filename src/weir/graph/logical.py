"""Logical nodes: what the user wrote, one node for each operator, before anything is laid out.

Comes in: specs, inputs and names from the api. Goes out: immutable nodes whose
inputs point backwards only, so that the order of ids is a topological one; only what
is fed back into the head of a loop points forwards.
Pure: no clock, no file, no Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NewType, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.graph.plan import Exchange
from weir.ids import Uid
from weir.operators.base import OperatorSpec
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.state.keys.columns import check_key_type

NodeId = NewType("NodeId", int)
"""One logical node; its position in the graph."""

Spec: TypeAlias = "Source | OperatorSpec | Sink"

UID_BYTES_MAX = 150
"""A uid becomes part of file names, percent-encoded."""


@dataclass(frozen=True)
class Place:
    """Where in the user's file an operator was written."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Input:
    """One upstream node, and how its rows are to travel. A node reads the union of its inputs of the same number."""

    node: NodeId
    exchange: Exchange
    input_number: int = 0
    side: str | None = None
    """The tag of a side output of the node; None: its stream."""


@dataclass(frozen=True)
class TimeColumn:
    """Where a stream's rows have their event time."""

    name: str
    offset_us: int = 0
    """To be added: the time of a window's result is the last instant of the window, just before its end."""


@dataclass(frozen=True)
class Node:
    """One operator as it was written.

    combine: runs at the end of every upstream chain, before the exchange, to send fewer rows.
    parallelism: None takes the job's default.
    schema: of what comes out; for a sink, of what goes in.
    """

    id: NodeId
    kind: str
    spec: Spec
    inputs: tuple[Input, ...]
    schema: pa.Schema
    uid: Uid | None = None
    name: str | None = None
    parallelism: int | None = None
    combine: OperatorSpec | None = None
    place: Place | None = None
    time: TimeColumn | None = None
    """Of what comes out; None: it has no event time."""
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The schemas of its side outputs, by tag."""
    back: tuple[Input, ...] = ()
    """For the head of a loop: what is fed back into it, from nodes that come later."""

    @property
    def is_sink(self) -> bool:
        return isinstance(self.spec, Sink)

    def __str__(self) -> str:
        label = self.kind if self.uid is None else f"{self.kind} '{self.uid}'"
        return label if self.place is None else f"{label} ({self.place})"


class LogicalGraph:
    """The nodes of one environment, in the order in which they were written."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self._nodes = list(nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._nodes))

    def __getitem__(self, node: NodeId) -> Node:
        return self._nodes[node]

    @property
    def next_id(self) -> NodeId:
        return NodeId(len(self._nodes))

    def add(self, node: Node) -> Node:
        """Take one more node; its id must be `next_id` and its inputs must be here already."""
        if node.id != self.next_id:
            raise PlanError(f"{node}: its id is {node.id}, the next one is {self.next_id}")
        if any(not 0 <= i.node < node.id for i in node.inputs):
            raise PlanError(f"{node}: an input is not in this graph; all streams must come from one Environment")
        check_node(node)
        if node.uid is not None:
            for other in self._nodes:
                if other.uid == node.uid:
                    raise PlanError(duplicate_uid(node.uid, other, node))
        self._nodes.append(node)
        return node

    def close_loop(self, head: NodeId, back: Sequence[Input]) -> None:
        """Feed these back into a node that is here already."""
        if not all(head in self._ancestors(i.node) for i in back):
            raise PlanError(
                "what is fed back does not come from the loop: step(rows) must make it out of the rows it is given"
            )
        self._nodes[head] = replace(self._nodes[head], back=tuple(back))

    def _ancestors(self, node: NodeId) -> set[NodeId]:
        """The node, and all that lead to it."""
        found: set[NodeId] = set()
        ahead = [node]
        while ahead:
            current = ahead.pop()
            if current not in found:
                found.add(current)
                ahead += [i.node for i in (*self._nodes[current].inputs, *self._nodes[current].back)]
        return found


def check_node(node: Node) -> None:
    """What must hold of any node, wherever it stands."""
    if isinstance(node.spec, Source) != (not node.inputs):
        raise PlanError(f"{node}: a source has no input and every other operator has at least one")
    if node.parallelism is not None and node.parallelism < 1:
        raise PlanError(f"{node}: parallelism is {node.parallelism}; it must be at least 1")
    if node.uid is not None and not node.uid.strip():
        raise PlanError(f"{node}: uid is empty; leave it out or give a name")
    if node.uid is not None and not node.uid.strip("."):
        raise PlanError(f"{node}: uid is nothing but dots; it goes into file names, where those mean directories")
    if node.uid is not None and len(quote(node.uid, safe="")) > UID_BYTES_MAX:
        raise PlanError(f"{node}: uid is too long; it goes into file names, where {UID_BYTES_MAX} bytes are the limit")


def duplicate_uid(uid: Uid, first: object, second: object) -> str:
    return (
        f"uid '{uid}' is used twice: by {first} and by {second}; state is matched by uid, so give one of them another"
    )


def missing_columns(names: Sequence[str], schema: pa.Schema) -> str | None:
    """What to tell a user who named columns that are not there, or None when all are.

    >>> missing_columns(["pricee"], pa.schema([("auction", pa.int64()), ("price", pa.int64())]))
    "no column 'pricee'; did you mean 'price'? The columns are: auction, price"
    """
    missing = [name for name in names if name not in schema.names]
    if not missing:
        return None
    listed = ", ".join(repr(name) for name in missing)
    close = difflib.get_close_matches(missing[0], schema.names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"no column {listed}{hint} The columns are: {', '.join(schema.names)}"


def check_keys(keys: Sequence[str], schema: pa.Schema) -> None:
    """Raise SchemaError unless these columns exist, once each, and can be hashed."""
    if not keys:
        raise PlanError("key_by needs at least one column")
    for key in keys:
        if not isinstance(key, str):
            raise PlanError(
                f"{key!r} is not the name of a column; compute keys with with_columns(…) first, name them here"
            )
    if len(set(keys)) != len(keys):
        raise PlanError(f"key_by names a column twice: {', '.join(keys)}")
    problem = missing_columns(keys, schema)
    if problem:
        raise SchemaError(problem)
    for key in keys:
        check_key_type(schema.field(key).type, key)
