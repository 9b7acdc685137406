"""From logical nodes to the physical plan: uids, chains, exchanges.

Comes in: logical nodes in topological order and the default parallelism. Goes
out: a Plan. Pure and deterministic: the same nodes always give the same plan,
so that a job that is started again finds its state under the same uids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from weir.errors import PlanError
from weir.graph.logical import Node, NodeId, check_keys, check_node, duplicate_uid
from weir.graph.plan import (
    Edge,
    Exchange,
    Forward,
    HashByKey,
    Plan,
    PlannedOperator,
    Rebalance,
    SideOutput,
    Vertex,
)
from weir.ids import EdgeId, Uid, VertexId
from weir.operators.base import OperatorSpec
from weir.operators.sink import Sink
from weir.operators.time.watermarks import AssignWatermarks, aligned_strategy
from weir.schema import read_as_one


def plan(
    nodes: Iterable[Node], *, parallelism: int, max_parallelism: int, ends: Collection[NodeId] | None = None
) -> Plan:
    """Lay out the nodes that lead to `ends`, by default to any sink.

    What leads to no end is left out: a stream that nobody writes is not computed.
    """
    nodes = tuple(nodes)
    for node in nodes:
        check_node(node)
    if not 1 <= parallelism <= max_parallelism:
        raise PlanError(f"the job's parallelism is {parallelism}; it must be from 1 to {max_parallelism}")
    if ends is None:
        ends = [node.id for node in nodes if node.is_sink]
        if not ends:
            raise PlanError("the job has no sink, so nothing would come out: call write(…) or print() on a stream")
    uids = assign_uids(nodes)
    kept = _ancestors(nodes, ends)
    steps = _Steps(parallelism, max_parallelism)
    for node in nodes:
        if node.id in kept:
            steps.add(node, uids[node.id])
    for node in nodes:
        if node.id in kept and node.back:
            steps.close_loop(node)
    _check_unique(steps.all)
    _check_places(steps.all)
    return _chain(steps.all, max_parallelism)


def assign_uids(nodes: Sequence[Node]) -> dict[NodeId, Uid]:
    """The given uids, and for the rest the kind and the position among all operators of that kind.

    Operators with a given uid take a position too: naming one of them does not move the others.
    """
    seen: Counter[str] = Counter()
    uids: dict[NodeId, Uid] = {}
    for node in nodes:
        seen[node.kind] += 1
        uids[node.id] = node.uid or Uid(f"{node.kind}-{seen[node.kind]}")
    return uids


def _ancestors(nodes: Sequence[Node], ends: Collection[NodeId]) -> frozenset[NodeId]:
    by_id = {node.id: node for node in nodes}
    kept: set[NodeId] = set()
    ahead = list(ends)
    while ahead:
        node = by_id[ahead.pop()]
        if node.id not in kept:
            kept.add(node.id)
            ahead += [i.node for i in (*node.inputs, *node.back)]
    return frozenset(kept)


@dataclass(frozen=True)
class _StepInput:
    """Where a step reads from."""

    source: int
    """The position of the step before."""
    exchange: Exchange
    input_number: int = 0
    side: str | None = None


@dataclass(frozen=True)
class _Step:
    """One operator that will run, with its inputs as positions in the list of steps."""

    operator: PlannedOperator
    parallelism: int
    inputs: tuple[_StepInput, ...]
    node: Node
    back: tuple[_StepInput, ...] = ()
    """For the head of a loop: what is fed back into it, from steps that come later."""

    def schema_of(self, side: str | None) -> pa.Schema:
        """Of what comes out, or of a side output."""
        return self.operator.schema if side is None else self.node.sides[side]


class _Steps:
    """Collects the operators that will run, combiners included, in topological order."""

    def __init__(self, parallelism: int, max_parallelism: int) -> None:
        self.all: list[_Step] = []
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._of_node: dict[NodeId, int] = {}

    def add(self, node: Node, uid: Uid) -> None:
        parallelism = node.parallelism or self._parallelism
        if parallelism > self._max_parallelism:
            raise PlanError(
                f"{node}: parallelism is {parallelism}, above max_parallelism {self._max_parallelism}; "
                "lower it, or raise Settings.max_parallelism before the job has any state"
            )
        name = node.name or uid
        inputs: list[_StepInput] = []
        for position, wanted in enumerate(node.inputs):
            source, side = self._of_node[wanted.node], wanted.side
            if isinstance(wanted.exchange, HashByKey):
                check_keys(wanted.exchange.keys, self.all[source].schema_of(side))
            if node.combine is not None:
                suffix = "combine" if len(node.inputs) == 1 else f"combine-{position + 1}"
                operator = self._combine(
                    node.combine, self.all[source].schema_of(side), uid=Uid(f"{uid}/{suffix}"), name=f"{name}/{suffix}"
                )
                step = _Step(operator, self.all[source].parallelism, (_StepInput(source, Forward(), side=side),), node)
                source, side = self._append(step), None
            exchange = self._exchange(wanted.exchange, source, parallelism)
            if node.combine is not None and isinstance(exchange, HashByKey):
                exchange = replace(exchange, hashed_as=node.combine.hashed_as(exchange.keys))
            inputs.append(_StepInput(source, exchange, wanted.input_number, side))
        operator = PlannedOperator(uid=uid, name=name, spec=node.spec, schema=node.schema)
        self._of_node[node.id] = self._append(_Step(operator, parallelism, tuple(inputs), node))

    def close_loop(self, node: Node) -> None:
        """All steps are there: also those whose rows are fed back into this one."""
        position = self._of_node[node.id]
        head = self.all[position]
        back = []
        for wanted in node.back:
            source = self._of_node[wanted.node]
            exchange = self._exchange(wanted.exchange, source, head.parallelism)
            back.append(_StepInput(source, exchange, wanted.input_number, wanted.side))
        self.all[position] = replace(head, back=tuple(back))

    def _combine(self, spec: OperatorSpec, before: pa.Schema, *, uid: Uid, name: str) -> PlannedOperator:
        schema = spec.schema([before])
        return PlannedOperator(uid=uid, name=name, spec=spec, schema=schema)

    def _exchange(self, wanted: Exchange, source: int, parallelism: int) -> Exchange:
        if isinstance(wanted, Forward) and self.all[source].parallelism != parallelism:
            return Rebalance()
        return wanted

    def _append(self, step: _Step) -> int:
        self.all.append(step)
        return len(self.all) - 1


def _check_unique(steps: Sequence[_Step]) -> None:
    owners: dict[Uid, Node] = {}
    for step in steps:
        uid = step.operator.uid
        if uid in owners:
            raise PlanError(duplicate_uid(uid, owners[uid], step.node))
        owners[uid] = step.node


def _check_places(steps: Sequence[_Step]) -> None:
    """Two sinks in one directory, or one inside of the other, would take each other's files for their own."""
    placed = [(step, spec.place) for step in steps if isinstance(spec := step.operator.spec, Sink)]
    for position, (step, place) in enumerate(placed):
        for other, taken in placed[:position]:
            if place is None or taken is None:
                continue
            inner, outer = (place, taken) if len(place) >= len(taken) else (taken, place)
            if inner[: len(outer)] == outer:
                how = "the same directory" if inner == outer else "directories of which one lies inside of the other"
                raise PlanError(
                    f"sinks '{other.operator.uid}' ({other.operator.spec!r}) and '{step.operator.uid}' "
                    f"({step.operator.spec!r}) write to {how}; give each its own, or union(…) their streams"
                )


def _chain(steps: Sequence[_Step], max_parallelism: int) -> Plan:
    consumers = Counter(i.source for step in steps for i in (*step.inputs, *step.back) if i.side is None)
    chains: dict[int, list[int]] = {}
    chain_of: dict[int, int] = {}
    for position, step in enumerate(steps):
        head = chain_of[step.inputs[0].source] if _chains_to_input(step, steps, consumers) else position
        chain_of[position] = head
        chains.setdefault(head, []).append(position)
    # A chain's head is older than whatever reads the chain, so the order of heads is topological.
    heads = sorted(chains, key=lambda head: (bool(steps[head].inputs), head))
    vertex_of_head = {head: VertexId(i) for i, head in enumerate(heads)}
    vertices = tuple(
        Vertex(
            id=vertex_of_head[head],
            operators=tuple(steps[position].operator for position in chains[head]),
            parallelism=steps[head].parallelism,
        )
        for head in heads
    )
    for vertex in vertices:
        _check_aligned(vertex)
    edges: list[Edge] = []
    timed = _timed(steps)
    for head in heads:
        for i in (*steps[head].inputs, *steps[head].back):
            before = steps[i.source]
            edge = Edge(
                id=EdgeId(len(edges)),
                source=vertex_of_head[chain_of[i.source]],
                target=vertex_of_head[head],
                exchange=i.exchange,
                schema=_schema_into(steps, head, i.input_number),
                input_number=i.input_number,
                side=None if i.side is None else SideOutput(before.operator.uid, i.side),
                has_watermarks=timed[i.source] and i not in steps[head].back,
                is_back=i in steps[head].back,
            )
            edges.append(edge)
    return Plan(vertices=vertices, edges=tuple(edges), max_parallelism=max_parallelism)


def _schema_into(steps: Sequence[_Step], head: int, input_number: int) -> pa.Schema:
    """Of all that is read as one input, what is fed back included."""
    inputs = [i for i in (*steps[head].inputs, *steps[head].back) if i.input_number == input_number]
    return read_as_one([steps[i.source].schema_of(i.side) for i in inputs])


def _check_aligned(vertex: Vertex) -> None:
    """Only a source can wait for others, so only watermarks that are made beside one can be aligned."""
    strategy = aligned_strategy(operator.spec for operator in vertex.operators)
    if strategy is not None and not vertex.is_source:
        raise PlanError(
            f"{vertex.name}: watermarks that are aligned (group {strategy.group!r}) must be made beside their source, "
            "so that it can wait for the others: give them to read(…, watermark=…), with the source's own parallelism"
        )


def _timed(steps: Sequence[_Step]) -> list[bool]:
    """By step: whether watermarks come out of it."""
    timed: list[bool] = []
    for step in steps:
        makes = isinstance(step.operator.spec, AssignWatermarks)
        timed.append(makes or any(timed[i.source] for i in step.inputs))
    return timed


def _chains_to_input(step: _Step, steps: Sequence[_Step], consumers: Mapping[int, int]) -> bool:
    if len(step.inputs) != 1 or step.back:
        return False
    only = step.inputs[0]
    if steps[only.source].back:
        return False  # a loop's head snapshots in its own way
    alone = only.side is None and consumers[only.source] == 1
    return alone and isinstance(only.exchange, Forward) and steps[only.source].parallelism == step.parallelism
