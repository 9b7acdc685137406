"""The physical plan: vertices (chains of operators), edges (exchanges), channels.

Comes in: vertices and edges that the planner has laid out. Goes out: which
subtask has which channels. Pure and picklable; the same value on the driver and
in every task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from weir.ids import ChannelId, EdgeId, SubtaskId, TaskIndex, Uid, VertexId
from weir.operators.base import OperatorSpec
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.snapshot.coordinator.events import Loop


@dataclass(frozen=True)
class Forward:
    """Subtask i to subtask i; both ends have the same parallelism."""


@dataclass(frozen=True)
class HashByKey:
    """Each row to the owner of its key group."""

    keys: tuple[str, ...]
    hashed_as: str | None = None
    """The column in which the hash of these keys stands already, as the operator before says."""


@dataclass(frozen=True)
class Rebalance:
    """Whole batches in turn to every subtask."""


@dataclass(frozen=True)
class Broadcast:
    """Every batch to every subtask."""


Exchange: TypeAlias = "Forward | HashByKey | Rebalance | Broadcast"


@dataclass(frozen=True)
class PlannedOperator:
    """One operator of a chain: a Source (only first), an OperatorSpec, or a Sink (only last)."""

    uid: Uid
    name: str
    spec: Source | OperatorSpec | Sink
    schema: pa.Schema
    """Of what comes out; for a sink, of what goes in."""


@dataclass(frozen=True)
class Vertex:
    """A chain of operators that run as one."""

    id: VertexId
    operators: tuple[PlannedOperator, ...]
    parallelism: int

    @property
    def is_source(self) -> bool:
        return isinstance(self.operators[0].spec, Source)

    @property
    def is_sink(self) -> bool:
        return isinstance(self.operators[-1].spec, Sink)

    @property
    def name(self) -> str:
        return " → ".join(operator.name for operator in self.operators)


@dataclass(frozen=True)
class SideOutput:
    """Rows that an operator puts out beside its stream."""

    uid: Uid
    tag: str


@dataclass(frozen=True)
class Edge:
    """An exchange from one vertex to another."""

    id: EdgeId
    source: VertexId
    target: VertexId
    exchange: Exchange
    schema: pa.Schema
    input_number: int = 0
    """Which input of the target's first operator, where these differ in meaning."""
    side: SideOutput | None = None
    """What travels: a side output of an operator of the source; None: what comes out at the end of its chain."""
    has_watermarks: bool = True
    """Whether watermarks come this way: some operator before it makes them."""
    is_back: bool = False
    """It leads back to the head of a loop, and closes it."""


@dataclass(frozen=True)
class Plan:
    """Everything that a task must know to run its part. Vertex i has id i, edge i has id i."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    max_parallelism: int
    region: int = 0
    """With `members`: which region of the job this is."""
    members: frozenset[VertexId] | None = None
    """The vertices that run; None: all. Ids stay those of the whole plan."""

    @cached_property
    def regions(self) -> tuple[Plan, ...]:
        """The parts of the job that share no edges, each with all vertices of the plan and its own as members."""
        groups = {vertex.id: {vertex.id} for vertex in self.vertices}
        for edge in self.edges:
            joined = groups[edge.source] | groups[edge.target]
            groups.update(dict.fromkeys(joined, joined))
        members = sorted({frozenset(group) for group in groups.values()}, key=min)
        return tuple(replace(self, region=i, members=group) for i, group in enumerate(members))

    @cached_property
    def cycles(self) -> tuple[frozenset[VertexId], ...]:
        """By vertex: those that lie on a cycle with it, itself included; empty where there is no cycle."""
        following = [{edge.target for edge in self.out_edges(vertex.id)} for vertex in self.vertices]
        reached = [_reached(following, vertex.id) for vertex in self.vertices]
        return tuple(
            frozenset(other for other in ahead if vertex in reached[other]) for vertex, ahead in enumerate(reached)
        )

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The loops that run here, by their heads."""
        heads = sorted({edge.target for edge in self.edges if edge.is_back})
        return tuple(self._loop(head) for head in heads if self.members is None or head in self.members)

    def _loop(self, head: VertexId) -> Loop:
        members = self.cycles[head]
        feeders = {edge.source for edge in self.edges if edge.target in members and edge.source not in members}
        return Loop(head, self._all_of([head]), self._all_of(members), self._all_of(feeders))

    def _all_of(self, vertices: Iterable[VertexId]) -> frozenset[SubtaskId]:
        return frozenset(SubtaskId(v, i) for v in vertices for i in range(self.vertices[v].parallelism))

    @cached_property
    def running(self) -> tuple[Vertex, ...]:
        """The vertices that run here."""
        return tuple(v for v in self.vertices if self.members is None or v.id in self.members)

    @property
    def parallelism(self) -> int:
        """How many Spark tasks (slots) are needed: each hosts one subtask of every vertex."""
        return max(vertex.parallelism for vertex in self.running)

    @cached_property
    def subtasks(self) -> frozenset[SubtaskId]:
        return frozenset(SubtaskId(v.id, i) for v in self.running for i in range(v.parallelism))

    @cached_property
    def committers(self) -> frozenset[SubtaskId]:
        """The subtasks that hold a sink."""
        return frozenset(SubtaskId(v.id, i) for v in self.running if v.is_sink for i in range(v.parallelism))

    @property
    def stateful_per_task(self) -> int:
        """How many operators with state one task hosts at most."""
        specs = [operator.spec for vertex in self.running for operator in vertex.operators]
        return sum(bool(spec.states) for spec in specs if isinstance(spec, OperatorSpec))

    @property
    def bounded(self) -> bool:
        return all(s.bounded for v in self.vertices if isinstance(s := v.operators[0].spec, Source))

    def hosted_by(self, task: TaskIndex) -> list[SubtaskId]:
        """The subtasks that run in one Spark task, sources first."""
        return [SubtaskId(v.id, task) for v in self.running if task < v.parallelism]

    def out_edges(self, vertex: VertexId) -> list[Edge]:
        return [edge for edge in self.edges if edge.source == vertex]

    def in_edges(self, vertex: VertexId) -> list[Edge]:
        return [edge for edge in self.edges if edge.target == vertex]

    def out_channels(self, edge: Edge, index: int) -> list[ChannelId]:
        """Where subtask `index` of the edge's upstream sends to, by target."""
        if isinstance(edge.exchange, Forward):
            return [ChannelId(edge.id, index, index)]
        return [ChannelId(edge.id, index, t) for t in range(self.vertices[edge.target].parallelism)]

    def in_channels(self, edge: Edge, index: int) -> list[ChannelId]:
        """Where subtask `index` of the edge's downstream receives from, by source."""
        if isinstance(edge.exchange, Forward):
            return [ChannelId(edge.id, index, index)]
        return [ChannelId(edge.id, s, index) for s in range(self.vertices[edge.source].parallelism)]

    @property
    def channels(self) -> Iterator[ChannelId]:
        for edge in self.edges:
            if self.members is not None and edge.source not in self.members:
                continue
            for index in range(self.vertices[edge.source].parallelism):
                yield from self.out_channels(edge, index)


def _reached(following: Sequence[set[VertexId]], start: VertexId) -> set[VertexId]:
    """What can be reached from a vertex in one step or more."""
    reached: set[VertexId] = set()
    ahead = list(following[start])
    while ahead:
        vertex = ahead.pop()
        if vertex not in reached:
            reached.add(vertex)
            ahead += following[vertex]
    return reached
