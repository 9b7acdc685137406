"""A source around a source: what the demo and the benchmarks add to a generator is built on this.

Comes in: any source. Goes out: the same rows and positions. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.snapshot.parts import Json


class WrappedSource(Source):
    """`source`, as it is."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __repr__(self) -> str:
        return repr(self.source)

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        return self.source.is_read_to_end(positions)

    def validate(self, name: str) -> None:
        self.source.validate(name)

    def reader(self) -> SourceReader:
        return WrappedReader(self.source.reader())


class WrappedReader(SourceReader):
    """`inner`, as it is."""

    def __init__(self, inner: SourceReader) -> None:
        self.inner = inner

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self.context = context
        self.inner.open(context, restored)

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        return self.inner.poll(rows_max)

    @property
    def finished(self) -> bool:
        return self.inner.finished

    def position(self) -> Json:
        return self.inner.position()

    @property
    def wait_ms(self) -> float:
        return self.inner.wait_ms

    @property
    def lag(self) -> str | None:
        return self.inner.lag

    def close(self) -> None:
        self.inner.close()
