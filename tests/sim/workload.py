"""What a simulated job computes: random topologies over a small stream whose answer is known.

Rows are (id, key, value); ids are unique. Every sink says how its committed rows are to be
judged: `exact` (the multiset must match), or `running` (a running count per key: each count
appears at most once, the last one always).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl
import pyarrow as pa

import weir
from weir.config import Checkpoints, Settings
from weir.errors import CheckpointError, StorageUnavailable
from weir.graph.plan import Plan
from weir.ids import CheckpointId
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.sink import Sink, SinkWriter
from weir.operators.source import Source, SourceReader
from weir.snapshot.messages import Json

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
KEYS = 7


def make_rows(first: int, count: int) -> list[tuple[int, int, int]]:
    return [(i, (i * 7919) % KEYS, (i * 31) % 100) for i in range(first, first + count)]


def to_batch(rows: Sequence[tuple[int, ...]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


class SimSource(Source):
    """`splits` contiguous runs of rows, handed out in small random batches, sometimes none."""

    def __init__(self, rng: random.Random, first: int, per_split: int, splits: int) -> None:
        self.rng = rng
        self.first = first
        self.per_split = per_split
        self.splits = splits

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def bounded(self) -> bool:
        return True

    def reader(self) -> SourceReader:
        return SimReader(self)

    def rows(self) -> list[tuple[int, int, int]]:
        return make_rows(self.first, self.per_split * self.splits)


class SimReader(SourceReader):
    def __init__(self, source: SimSource) -> None:
        self._source = source
        self._next: dict[int, int] = {}

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        mine = [s for s in range(self._source.splits) if s % context.parallelism == context.index]
        positions = {int(s): n for part in restored or () for s, n in part.value.items()}
        self._next = {split: positions.get(split, 0) for split in mine}

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        rng = self._source.rng
        open_splits = [s for s, n in self._next.items() if n < self._source.per_split]
        if not open_splits or rng.random() < 0.2:
            return None
        split = rng.choice(open_splits)
        start = self._next[split]
        count = min(rng.randint(1, 6), self._source.per_split - start, rows_max)
        self._next[split] = start + count
        return to_batch(make_rows(self._source.first + split * self._source.per_split + start, count))

    @property
    def finished(self) -> bool:
        return all(n >= self._source.per_split for n in self._next.values())

    def position(self) -> Json:
        return {str(split): n for split, n in self._next.items()}

    @property
    def wait_ms(self) -> float:
        return 0.3


class External:
    """A transactional system outside the job: prepared transactions wait, committed ones are visible for good."""

    def __init__(self, rng: random.Random) -> None:
        self.prepared: dict[str, list[tuple[Any, ...]]] = {}
        self.committed: dict[str, list[tuple[Any, ...]]] = {}
        self.trouble = 0.0
        self.rng = rng

    def reply(self) -> None:
        """The reply to something that has been done may be lost."""
        if self.rng.random() < self.trouble:
            raise StorageUnavailable("simulated: the reply of the external system was lost")


class SimSink(Sink):
    def __init__(self, external: External) -> None:
        self.external = external

    def writer(self) -> SinkWriter:
        return SimWriter(self.external)


class SimWriter(SinkWriter):
    def __init__(self, external: External) -> None:
        self._external = external
        self._rows: list[tuple[Any, ...]] = []

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self._prefix = f"{context.uid}/{context.index}/{context.attempt}"
        for name in list(self._external.prepared):
            uid, index, attempt, _ = name.split("/")
            mine = uid == context.uid and int(index) % context.parallelism == context.index
            if mine and int(attempt) < context.attempt and name not in (restored or ()):
                del self._external.prepared[name]

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        rows, self._rows = self._rows, []
        name = f"{self._prefix}/{checkpoint}"

        def durable() -> Json:
            if not rows:
                return None
            self._external.prepared[name] = rows
            return name

        return durable

    def commit(self, committables: Sequence[Json]) -> None:
        for name in committables:
            if name in self._external.prepared:
                self._external.committed[name] = self._external.prepared.pop(name)
            elif name not in self._external.committed:
                raise CheckpointError(f"transaction {name} is gone: rows are lost")
            self._external.reply()


class Total(weir.ProcessFunction):
    """A running count and sum per key, row by row."""

    count = weir.ValueState("long", default=0)
    total = weir.ValueState("long", default=0)

    def process(self, row: Any, context: Any) -> Any:
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + row.value)
        return [(row.key, self.count.get(), self.total.get())]


@dataclass
class SinkExpectation:
    """How one sink's committed rows are judged."""

    uid: str
    kind: Literal["exact", "running"]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """exact: what must be there. running: (key, count, sum) at the end, for each key."""


@dataclass
class Job:
    """A plan with its known answer."""

    plan: Plan
    checkpoints: Checkpoints
    settings: Settings
    expectations: list[SinkExpectation]
    states: dict[str, dict[int, tuple[int, int]]]
    """uid of a keyed operator to what its state must be at the end: key to (count, sum)."""


def draw_job(rng: random.Random, external: External) -> Job:
    """A random topology: one to three sources, perhaps a union, stateless steps, one or two ends."""
    parallelism = rng.randint(1, 3)
    env = weir.Environment(parallelism=parallelism, settings=weir.Settings(max_parallelism=rng.choice([4, 16, 128])))
    sources = [SimSource(rng, 10_000 * i, rng.randint(3, 30), rng.randint(1, 4)) for i in range(rng.randint(1, 3))]
    streams = [
        env.read(source, uid=f"source-{i}", parallelism=rng.randint(1, parallelism)) for i, source in enumerate(sources)
    ]
    stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    rows = [row for source in sources for row in source.rows()]
    if rng.random() < 0.4:
        stream = stream.filter(pl.col("value") < 60, uid="filter")
        rows = [row for row in rows if row[2] < 60]
    if rng.random() < 0.3:
        stream = stream.rebalance().with_columns(value=pl.col("value") + 1, uid="more")
        rows = [(i, k, v + 1) for i, k, v in rows]
    expectations: list[SinkExpectation] = []
    states: dict[str, dict[int, tuple[int, int]]] = {}
    ends = rng.sample(["plain", "agg", "process"], rng.choice([1, 1, 2]))
    for end in ends:
        expectations.append(_END[end](stream, rows, external, states))
    settings = Settings(
        max_parallelism=env.plan().max_parallelism,
        channel_batches_max=rng.choice([1, 2, 8]),
        batch_rows_max=rng.choice([1, 4, 64]),
        buffer_timeout=rng.choice(["0ms", "3ms"]),
        heartbeat_interval="20ms",
        heartbeat_timeout="400ms",
        launch_timeout="2s",
        stop_timeout="300ms",
        commit_retries_max=3,
    )
    return Job(env.plan(), draw_checkpoints(rng), settings, expectations, states)


def draw_checkpoints(rng: random.Random) -> Checkpoints:
    # A time-out that a checkpoint cannot meet makes the job restart for ever: short ones only where many are tolerated.
    tolerable_failures = rng.choice([0, 2, 100])
    return Checkpoints(
        every=rng.choice(["5ms", "15ms", "40ms", "100ms"]),
        timeout=rng.choice(["80ms", "200ms", "1s"] if tolerable_failures == 100 else ["1s", "5s"]),
        min_pause=rng.choice(["0ms", "0ms", "10ms"]),
        max_concurrent=rng.choice([1, 1, 2, 4]),
        tolerable_failures=tolerable_failures,
        retain=rng.choice([1, 2, 3]),
        mode=rng.choice(["exactly_once"] * 6 + ["at_least_once"]),
    )


def _plain(stream: Any, rows: list[tuple[int, int, int]], external: External, states: dict[str, Any]) -> Any:
    stream.write(SimSink(external), uid="plain")
    return SinkExpectation("plain", "exact", list(rows))


def _agg(stream: Any, rows: list[tuple[int, int, int]], external: External, states: dict[str, Any]) -> Any:
    totals = stream.key_by("key").agg(n=weir.count(), total=weir.sum("value"), uid="agg")
    totals.write(SimSink(external), uid="totals")
    states["agg"] = totals_of(rows)
    return SinkExpectation("totals", "running", [(k, n, s) for k, (n, s) in totals_of(rows).items()])


def _process(stream: Any, rows: list[tuple[int, int, int]], external: External, states: dict[str, Any]) -> Any:
    out = stream.key_by("key").process(Total(), schema="key long, n long, total long", uid="process")
    out.write(SimSink(external), uid="rows")
    states["process"] = totals_of(rows)
    return SinkExpectation("rows", "running", [(k, n, s) for k, (n, s) in totals_of(rows).items()])


_END: dict[str, Callable[..., SinkExpectation]] = {"plain": _plain, "agg": _agg, "process": _process}


def totals_of(rows: Sequence[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    totals: dict[int, tuple[int, int]] = {}
    for _, key, value in rows:
        count, total = totals.get(key, (0, 0))
        totals[key] = (count + 1, total + value)
    return totals
