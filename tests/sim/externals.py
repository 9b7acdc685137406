"""What simulated jobs read from and write to: a source of small random batches, and a transactional system."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from weir.config import Settings
from weir.connectors.files.sink import FileFormat, FileSink
from weir.errors import CheckpointError, StorageUnavailable
from weir.ids import CheckpointId
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.sink import Sink, SinkWriter
from weir.operators.source import Source, SourceReader
from weir.runtime.ports import Opener
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import Json

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
KEYS = 7

Row = tuple[int, int, int]


def make_rows(first: int, count: int) -> list[Row]:
    return [(i, (i * 7919) % KEYS, (i * 31) % 100) for i in range(first, first + count)]


def to_batch(rows: Sequence[tuple[int, ...]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns: list[Sequence[int]] = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


class SimSource(Source):
    """`splits` contiguous runs of rows, handed out in small random batches, sometimes none."""

    def __init__(
        self,
        rng: random.Random,
        first: int,
        per_split: int,
        splits: int,
        *,
        stride: int | None = None,
        pace: float = 1.0,
    ) -> None:
        self.rng = rng
        self.pace = pace
        """How often there is something to read, at most 0.8 of the times."""
        self.first = first
        self.per_split = per_split
        self.splits = splits
        self.stride = stride or per_split
        """How far apart the first rows of two splits are."""
        self.reached: dict[tuple[str, int, int], int] = {}
        """How far the readers of an attempt have come, by lineage, attempt and split."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def bounded(self) -> bool:
        return True

    def reader(self) -> SourceReader:
        return SimReader(self)


class SimReader(SourceReader):
    def __init__(self, source: SimSource) -> None:
        self._source = source
        self._next: dict[int, int] = {}
        self._split = ""
        self.is_drained = False

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        mine = [s for s in range(self._source.splits) if s % context.parallelism == context.index]
        positions = {int(s): n for part in restored or () for s, n in part.value.items()}
        self._next = {split: positions.get(split, 0) for split in mine}
        self._attempt = context.lineage, context.attempt

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        rng = self._source.rng
        open_splits = [s for s, n in self._next.items() if n < self._source.per_split]
        if not open_splits or rng.random() >= 0.8 * self._source.pace:
            return None
        split = rng.choice(open_splits)
        self._split = str(split)
        start = self._next[split]
        count = min(rng.randint(1, 6 if self._source.pace == 1.0 else 2), self._source.per_split - start, rows_max)
        self._next[split] = self._source.reached[(*self._attempt, split)] = start + count
        return to_batch(make_rows(self._source.first + split * self._source.stride + start, count))

    @property
    def split(self) -> str:
        return self._split

    @property
    def open_splits(self) -> frozenset[str] | None:
        return frozenset(str(s) for s, n in self._next.items() if n < self._source.per_split) | {self._split}

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

    def __init__(self, rng: random.Random, opener: Opener) -> None:
        self.opener = opener
        """Of directories that sinks write to."""
        self.prepared: dict[str, list[tuple[Any, ...]]] = {}
        self.committed: dict[str, list[tuple[Any, ...]]] = {}
        self.trouble = 0.0
        self.rng = rng

    def reply(self) -> None:
        """The reply to something that has been done may be lost."""
        if self.rng.random() < self.trouble:
            raise StorageUnavailable("simulated: the reply of the external system was lost")

    def clear(self) -> None:
        """Somebody deletes all that it holds."""
        self.prepared.clear()
        self.committed.clear()

    def rows_of(self, uid: str) -> list[tuple[Any, ...]]:
        """What readers of one sink's output see."""
        return [row for name, rows in self.committed.items() if name.startswith(f"{uid}/") for row in rows]


class SimFileSink(FileSink):
    """The production sink into files, in the simulated storage."""

    def __init__(self, external: External, path: str, format: FileFormat, *, roll_rows: int) -> None:
        super().__init__(path, format, roll_rows=roll_rows)
        self._external = external

    def opener(self, settings: Settings) -> Opener:
        return self._external.opener


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
        self._prefix = f"{context.uid}/{context.index}/{context.lineage}/{context.attempt}"
        for name in list(self._external.prepared):
            uid, index, lineage, attempt, _ = name.split("/")
            mine = (
                uid == context.uid and lineage == context.lineage and int(index) % context.parallelism == context.index
            )
            # Older ones were handed on, perhaps at another parallelism: their names do not tell whose they are now.
            if mine and int(attempt) == context.attempt - 1 and name not in (restored or ()):
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

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        for name in committables:
            if name in self._external.prepared:
                self._external.committed[name] = self._external.prepared.pop(name)
            elif name not in self._external.committed:
                raise CheckpointError(f"transaction {name} is gone: rows are lost")
            self._external.reply()
