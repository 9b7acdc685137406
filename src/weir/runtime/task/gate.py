"""The output side of a subtask: routes batches to channels and waits for room.

Comes in: batches and markers, in order. Goes out: elements on channels, in the
same order on each. What a full channel does not take yet waits here; the subtask
does not run again until nothing waits, so this holds one step's output at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.graph.plan import Broadcast, Edge, Forward, HashByKey, Plan, Rebalance, SideOutput
from weir.ids import SubtaskId, Uid
from weir.operators.base import Emit
from weir.runtime.ports import Element, OutChannel, Transport
from weir.snapshot.elements import Marker, Watermark
from weir.snapshot.watermarks import END_US
from weir.state.keys.splitting import KeySplitter

Route = Callable[[pa.RecordBatch], Sequence[tuple[int, pa.RecordBatch]]]
"""Which part of a batch goes to which target."""


class _Lane:
    """One output channel and what waits for it."""

    def __init__(self, channel: OutChannel) -> None:
        self._channel = channel
        self.waiting: deque[Element] = deque()

    def push(self, element: Element) -> None:
        if self.waiting or not self._channel.offer(element):
            self.waiting.append(element)

    def drain(self) -> bool:
        while self.waiting and self._channel.offer(self.waiting[0]):
            self.waiting.popleft()
        return not self.waiting


class Gate:
    """All outputs of one subtask."""

    def __init__(self, plan: Plan, subtask: SubtaskId, transport: Transport) -> None:
        self._outputs: dict[SideOutput | None, list[tuple[Route, list[_Lane]]]] = {None: []}
        self._lanes: list[_Lane] = []
        self._inside: set[_Lane] = set()
        """Those within a loop."""
        for edge in plan.out_edges(subtask.vertex):
            lanes = [_Lane(transport.out(channel)) for channel in plan.out_channels(edge, subtask.index)]
            if edge.target in plan.cycles[edge.source]:
                self._inside.update(lanes)
            route = partial(_labelled, edge.schema, _route(edge, subtask.index, len(lanes), plan.max_parallelism))
            self._outputs.setdefault(edge.side, []).append((route, lanes))
            self._lanes += lanes

    def emit(self, batch: pa.RecordBatch) -> None:
        """Route a batch on every edge."""
        _send(self._outputs[None], batch)

    def sides(self, uid: Uid) -> dict[str, Emit]:
        """The side outputs of an operator that somebody reads, by tag."""
        return {
            side.tag: partial(_send_some, outputs)
            for side, outputs in self._outputs.items()
            if side is not None and side.uid == uid
        }

    def mark(self, marker: Marker) -> None:
        """Send a marker behind everything that was emitted, on every channel."""
        # Event time ends in a loop before its rows do. Outside it ends with them, as the end of the input says: nothing
        # of the loop is late there.
        ends_time = isinstance(marker, Watermark) and marker.time_us == END_US
        for lane in self._lanes:
            if lane in self._inside or not ends_time:
                lane.push(marker)

    @property
    def full(self) -> bool:
        """Whether something waits for a channel to have room."""
        return any(lane.waiting for lane in self._lanes)

    def drain(self) -> bool:
        """Offer what waits once more; True when nothing waits any longer."""
        drained = True
        for lane in self._lanes:
            if lane.waiting and not lane.drain():
                drained = False
        return drained


def _send(outputs: Sequence[tuple[Route, list[_Lane]]], batch: pa.RecordBatch) -> None:
    for route, lanes in outputs:
        for target, part in route(batch):
            lanes[target].push(part)


def _send_some(outputs: Sequence[tuple[Route, list[_Lane]]], batch: pa.RecordBatch) -> None:
    if batch.num_rows:
        _send(outputs, batch)


def _labelled(schema: pa.Schema, route: Route, batch: pa.RecordBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
    """Batches of streams that are read as one say the same of their columns, so that they can be put together: in some
    of the streams a column may have no nulls."""
    found = batch.schema
    if not found.equals(schema) and (found.names, found.types) == (schema.names, schema.types):
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return route(batch)


def _route(edge: Edge, index: int, targets: int, max_parallelism: int) -> Route:
    exchange = edge.exchange
    if isinstance(exchange, Forward) or targets == 1:
        return lambda batch: ((0, batch),)
    if isinstance(exchange, HashByKey):
        return KeySplitter(exchange.keys, targets, max_parallelism, hashed_as=exchange.hashed_as).split
    if isinstance(exchange, Broadcast):
        return lambda batch: [(target, batch) for target in range(targets)]
    if isinstance(exchange, Rebalance):
        return _in_turn(index, targets)
    raise ProtocolViolation(f"edge {edge.id}: unknown exchange {exchange!r}")


def _in_turn(index: int, targets: int) -> Route:
    # Each sender starts at another target, so that few large batches still spread over all of them.
    following = index % targets

    def route(batch: pa.RecordBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
        nonlocal following
        target, following = following, (following + 1) % targets
        return ((target, batch),)

    return route
