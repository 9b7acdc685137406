"""Specs without behaviour and a terse way to write graphs, for tests of the planner."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.graph.logical import Input, LogicalGraph, Node, NodeId, Place
from weir.graph.plan import Exchange, Forward, HashByKey, Plan
from weir.graph.planner import plan
from weir.ids import Uid
from weir.operators.base import Operator, OperatorSpec
from weir.operators.sink import Sink, SinkWriter
from weir.operators.source import Source, SourceReader

BIDS = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
KEY = HashByKey(("auction",))


class Numbers(Source):
    def __init__(self, schema: pa.Schema = BIDS, bounded: bool = True) -> None:
        self._schema = schema
        self._bounded = bounded

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> bool:
        return self._bounded

    def reader(self) -> SourceReader:
        raise NotImplementedError


class Same(OperatorSpec):
    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def make(self) -> Operator:
        raise NotImplementedError


class Combine(OperatorSpec):
    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0].append(pa.field("partial", pa.int64()))

    def make(self) -> Operator:
        raise NotImplementedError


class Drain(Sink):
    def writer(self) -> SinkWriter:
        raise NotImplementedError


class Sketch:
    """A logical graph in the making."""

    def __init__(self) -> None:
        self.graph = LogicalGraph()

    def source(self, uid: str | None = None, *, parallelism: int | None = None, bounded: bool = True) -> NodeId:
        return self._add("source", Numbers(bounded=bounded), (), uid=uid, parallelism=parallelism)

    def step(
        self,
        *inputs: NodeId | tuple[NodeId, Exchange],
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        combine: OperatorSpec | None = None,
    ) -> NodeId:
        return self._add("map", Same(), inputs, uid=uid, name=name, parallelism=parallelism, combine=combine)

    def sink(
        self, *inputs: NodeId | tuple[NodeId, Exchange], uid: str | None = None, parallelism: int | None = None
    ) -> NodeId:
        return self._add("sink", Drain(), inputs, uid=uid, parallelism=parallelism)

    def plan(self, parallelism: int = 2, ends: Sequence[NodeId] | None = None) -> Plan:
        return plan(self.graph, parallelism=parallelism, max_parallelism=128, ends=ends)

    def _add(
        self,
        kind: str,
        spec: Source | OperatorSpec | Sink,
        inputs: Sequence[NodeId | tuple[NodeId, Exchange]],
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        combine: OperatorSpec | None = None,
    ) -> NodeId:
        node = Node(
            id=self.graph.next_id,
            kind=kind,
            spec=spec,
            inputs=tuple(Input(*i) if isinstance(i, tuple) else Input(i, Forward()) for i in inputs),
            schema=BIDS,
            uid=Uid(uid) if uid is not None else None,
            name=name,
            parallelism=parallelism,
            combine=combine,
            place=Place("job.py", len(self.graph) + 1),
        )
        return self.graph.add(node).id


def shape(made: Plan) -> list[list[str]]:
    """The uids of every vertex's chain."""
    return [[operator.uid for operator in vertex.operators] for vertex in made.vertices]


def arrows(made: Plan) -> list[tuple[int, int, Exchange]]:
    return [(edge.source, edge.target, edge.exchange) for edge in made.edges]
