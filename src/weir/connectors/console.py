"""Sinks that keep nothing: rows to where tasks print, and rows to nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa

from weir.connectors.formats.encode import check_encodable, encode_jsonl
from weir.ids import CheckpointId
from weir.operators.base import OperatorContext
from weir.operators.sink import Sink, SinkGuarantee, SinkWriter
from weir.snapshot.parts import Json


class Stdout(Sink):
    """Print every row as one line of JSON at once; a row may be printed again after a failure.

    Spark sends what Python workers print to standard error: the driver's with an embedded Spark, on a cluster that of
    the executors.

    limit:  the most rows that each subtask prints; None: all
    prefix: "auto" puts the subtask's number before each line when there are several
    """

    def __init__(self, limit: int | None = None, *, prefix: Literal["auto", "always", "never"] = "auto") -> None:
        self.limit = limit
        self.prefix = prefix

    def __repr__(self) -> str:
        return "Stdout()" if self.limit is None else f"Stdout(limit={self.limit})"

    @property
    def guarantee(self) -> SinkGuarantee:
        return "at_least_once"

    def check(self, schema: pa.Schema, name: str) -> None:
        check_encodable(schema, format="jsonl", name=name)

    def writer(self) -> SinkWriter:
        return _StdoutWriter(self)


class Discard(Sink):
    """Drop every row: for measuring, and for jobs that are run for their state."""

    def __repr__(self) -> str:
        return "Discard()"

    def writer(self) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter(SinkWriter):
    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        """Nothing is held."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Nothing is kept."""

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        return _nothing_to_commit


class _StdoutWriter(_DiscardWriter):
    def __init__(self, sink: Stdout) -> None:
        self._sink = sink
        self._left = sink.limit

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        shown = self._sink.prefix == "always" or (self._sink.prefix == "auto" and context.parallelism > 1)
        self._prefix = f"{context.index}> " if shown else ""

    def write(self, batch: pa.RecordBatch) -> None:
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows == 0:
            return
        lines = encode_jsonl(pa.Table.from_batches([batch])).to_pybytes().decode()
        if self._prefix:
            lines = self._prefix + lines[:-1].replace("\n", f"\n{self._prefix}") + "\n"
        # One call, so that the lines of several tasks do not mix within a line.
        sys.stdout.write(lines)
        sys.stdout.flush()


def _nothing_to_commit() -> Json:
    return None
