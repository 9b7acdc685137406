"""Small stand-ins for the runtime's tests: operators that record their calls, a source and a sink that are told what
to do, and storage that fails when a test says so. The ports are those of the simulation (tests/sim/ports.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.sim.ports import SimChannel
from weir.graph.plan import Edge, Exchange, Plan, PlannedOperator, Vertex
from weir.ids import AttemptId, ChannelId, CheckpointId, EdgeId, Uid, VertexId
from weir.operators.base import (
    Emit,
    Frozen,
    InlinePart,
    Operator,
    OperatorContext,
    OperatorSpec,
    Restored,
    RestoredInline,
)
from weir.operators.sink import Sink, SinkWriter
from weir.operators.source import Source, SourceReader
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import FileRef, Inline, Json

SCHEMA = pa.schema([("n", pa.int64())])


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def numbers(element: Any) -> Any:
    """A batch as the list of its numbers; a marker as it is."""
    return element.column(0).to_pylist() if isinstance(element, pa.RecordBatch) else element


def context(uid: str = "op", *, index: int = 0, parallelism: int = 1, attempt: int = 1) -> OperatorContext:
    return OperatorContext(
        job="test",
        uid=Uid(uid),
        name=f"the {uid}",
        index=index,
        parallelism=parallelism,
        max_parallelism=8,
        attempt=AttemptId(attempt),
    )


class QueuedBackground:
    """Work that was handed over and has not run yet."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def breathe(self) -> None:
        """Time does not pass while work is done."""

    def take(self, index: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Threads may finish in any order."""
        self.waiting.rotate(-index)
        chosen = self.waiting.popleft()
        self.waiting.rotate(index)
        return chosen


def run_all(background: QueuedBackground) -> None:
    """Do all background work, and what follows from it."""
    while background.waiting:
        run_one(background)


def run_one(background: QueuedBackground) -> None:
    work, done = background.take(0)
    try:
        result = work()
    except Exception as error:
        result = error
    done(result)


class Pipes:
    """A transport whose channels are made when they are asked for; nothing is ever on the wire."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.channels: dict[ChannelId, SimChannel] = {}

    def out(self, channel: ChannelId) -> SimChannel:
        return self.channels.setdefault(channel, SimChannel(self.capacity, local=True))

    into = out

    def sent(self, edge: int, source: int, target: int) -> list[Any]:
        """What waits in one channel."""
        return [numbers(element) for element in self.out(ChannelId(EdgeId(edge), source, target)).inbox]


class Recording(Operator):
    """Passes rows on at once, or holds them until it is flushed; notes every call."""

    def __init__(self, name: str, calls: list[str], *, holds: bool = False, at_end: Sequence[int] = ()) -> None:
        self.name = name
        self.calls = calls
        self.frozen = Frozen()
        self.close_error: Exception | None = None
        self._holds = holds
        self._at_end = at_end
        self._held: list[pa.RecordBatch] = []

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self.calls.append(f"{self.name} takes {numbers(batch)}")
        if self._holds:
            self._held.append(batch)
        else:
            out(batch)

    def flush(self, out: Emit) -> None:
        held, self._held = self._held, []
        for batch in held:
            out(batch)

    def end(self, out: Emit) -> None:
        self.calls.append(f"{self.name} ends")
        if self._at_end:
            out(rows(*self._at_end))

    def freeze(self) -> Frozen:
        self.calls.append(f"{self.name} freezes")
        return self.frozen

    def close(self) -> None:
        self.calls.append(f"{self.name} closes")
        if self.close_error is not None:
            raise self.close_error


class Pass(OperatorSpec):
    """A stateless operator that passes everything on."""

    def __init__(self, states: tuple[str, ...] = ()) -> None:
        self._states = states

    @property
    def states(self) -> tuple[str, ...]:
        return self._states

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def make(self) -> Operator:
        return Recording("pass", [])


class Script(Source):
    """Hands out the given batches in turn (None: nothing just now), then it is finished. Also its own reader."""

    def __init__(self, *batches: pa.RecordBatch | None) -> None:
        self.batches = batches

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def bounded(self) -> bool:
        return True

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        return all(position >= len(self.batches) for position in positions)

    def reader(self) -> ScriptReader:
        return ScriptReader(self.batches)


class ScriptReader(SourceReader):
    def __init__(self, batches: Sequence[pa.RecordBatch | None]) -> None:
        self._batches = batches
        self._next = 0
        self.closed = False

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        for part in restored or ():
            if part.index == context.index:
                self._next = part.value

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        if self.finished:
            return None
        self._next += 1
        return self._batches[self._next - 1]

    @property
    def finished(self) -> bool:
        return self._next >= len(self._batches)

    def position(self) -> Json:
        return self._next

    def close(self) -> None:
        self.closed = True


class Shelf(Sink):
    """A sink whose writers are its own, so that tests can look into them."""

    def __init__(self) -> None:
        self.writers: list[ShelfWriter] = []

    def writer(self) -> ShelfWriter:
        self.writers.append(ShelfWriter())
        return self.writers[-1]


class ShelfWriter(SinkWriter):
    """Keeps epochs as lists of numbers. `commit_errors` and `prepare_error` are raised when their turn comes."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.prepared: list[list[int]] = []
        self.commits: list[list[Json]] = []
        self.commit_errors: deque[Exception] = deque()
        self.prepare_error: Exception | None = None
        self.restored: Sequence[Json] | str | None = "not opened"
        self.closed = False

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self.restored = restored

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += numbers(batch)

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        epoch, self.rows = self.rows, []

        def durable() -> Json:
            if self.prepare_error is not None:
                raise self.prepare_error
            self.prepared.append(epoch)
            return epoch or None

        return durable

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        self.commits.append(list(committables))
        if self.commit_errors:
            raise self.commit_errors.popleft()

    def close(self) -> None:
        self.closed = True


class KeptCopies:
    """Local copies that only remember what they were given and told."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.heard: list[CheckpointId] = []

    def find(self, file: FileRef) -> str | None:
        return None

    def keep(self, path: str, data: pa.Buffer | bytes) -> None:
        self.kept[path] = bytes(data)

    def keep_file(self, path: str, local_path: str) -> None:
        self.kept[path] = Path(local_path).read_bytes()

    def completed(self, checkpoint: CheckpointId) -> None:
        self.heard.append(checkpoint)


class FaultyStorage(MemoryStorage):
    """Memory that fails when told: `fail(call, error)` before the effect, `lose_reply(call, error)` after it."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.calls: list[tuple[str, str]] = []
        self.after: dict[str, deque[Callable[[], None]]] = {}
        """Call name to what happens right after the next such calls: another process's doing, for example."""
        self._before: dict[str, deque[Exception | None]] = {}
        self._lost: dict[str, deque[Exception | None]] = {}

    def fail(self, call: str, *errors: Exception | None) -> None:
        """The next calls of this name raise these, without effect; None: that one succeeds."""
        self._before.setdefault(call, deque()).extend(errors)

    def lose_reply(self, call: str, *errors: Exception | None) -> None:
        """The next calls of this name have their effect and then raise these."""
        self._lost.setdefault(call, deque()).extend(errors)

    def then(self, call: str, act: Callable[[], None]) -> None:
        """Do this right after the next such call."""
        self.after.setdefault(call, deque()).append(act)

    def calm(self) -> None:
        """Forget what was planned and has not happened."""
        for planned in (self._before, self._lost, self.after):
            planned.clear()

    def _do(self, call: str, path: str, act: Callable[[], Any]) -> Any:
        self.calls.append((call, path))
        self._raise_next(self._before, call)
        result = act()
        if self.after.get(call):
            self.after[call].popleft()()
        self._raise_next(self._lost, call)
        return result

    def _raise_next(self, planned: dict[str, deque[Exception | None]], call: str) -> None:
        if planned.get(call) and (error := planned[call].popleft()) is not None:
            raise error

    def write(self, path: str, data: Any) -> None:
        self._do("write", path, lambda: super(FaultyStorage, self).write(path, data))

    def publish(self, path: str, data: bytes) -> None:  # type: ignore[override]
        self._do("publish", path, lambda: super(FaultyStorage, self).write(path, data))

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._do("create", path, lambda: super(FaultyStorage, self).create(path, data)))

    def read(self, path: str) -> pa.Buffer:
        return self._do("read", path, lambda: super(FaultyStorage, self).read(path))

    def list(self, path: str) -> list[str]:
        return list(self._do("list", path, lambda: super(FaultyStorage, self).list(path)))

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: super(FaultyStorage, self).delete(path))


def operator(uid: str, spec: Source | OperatorSpec | Sink) -> PlannedOperator:
    return PlannedOperator(Uid(uid), f"the {uid}", spec, SCHEMA)


def plan_of(*chains: tuple[int, Sequence[PlannedOperator]], edges: Sequence[tuple[int, int, Exchange]] = ()) -> Plan:
    """Vertices as (parallelism, operators), edges as (source, target, exchange)."""
    vertices = tuple(Vertex(VertexId(i), tuple(ops), parallelism) for i, (parallelism, ops) in enumerate(chains))
    exchanges = tuple(
        Edge(EdgeId(i), VertexId(source), VertexId(target), exchange, SCHEMA)
        for i, (source, target, exchange) in enumerate(edges)
    )
    return Plan(vertices, exchanges, max_parallelism=8)


def restored(*parts: Inline | None, parallelism: int | None = None) -> Restored:
    """Inline parts, one for each old subtask."""
    count = parallelism or len(parts)
    return Restored([RestoredInline(index, count, value) for index, value in enumerate(parts)])
