"""Processing time as a time of the rows: each is stamped with the wall clock as it comes in.

Comes in: batches. Goes out: the same with a column more; and watermarks that follow the
clock whether rows come or not. A clock that is set back stands still until it has caught up.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.errors import SchemaError
from weir.operators.base import Emit, OperatorSpec
from weir.operators.time.watermarks import TIME, AssigningWatermarks, WatermarkStrategy
from weir.snapshot.elements import StreamIdle, Watermark


class AssignProcessingTime(OperatorSpec):
    """Add the wall clock's time as a column. Watermarks from before end here."""

    def __init__(self, column: str) -> None:
        self._column = column

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self._column in inputs[0].names:
            raise SchemaError(f"there is a column {self._column!r} already; name another for the processing time")
        return inputs[0].append(pa.field(self._column, TIME, nullable=False))

    def make(self) -> AssigningProcessingTime:
        return AssigningProcessingTime(self._column)


class AssigningProcessingTime(AssigningWatermarks):
    """One subtask's clock."""

    def __init__(self, column: str) -> None:
        super().__init__(WatermarkStrategy(column))
        self._column = pa.field(column, TIME, nullable=False)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        now = pa.repeat(pa.scalar(self._now_us(), TIME), batch.num_rows)
        schema = batch.schema.append(self._column)
        out(pa.RecordBatch.from_arrays([*batch.columns, now], schema=schema))

    def generated(self, now_ms: float, *, is_starved: bool) -> Watermark | StreamIdle | None:
        self._passed_us = self._now_us()
        return Watermark(self._passed_us)

    def _now_us(self) -> int:
        """Never before what was told, also by an attempt on a host whose clock was ahead."""
        return max(self._context.place.now_ms() * 1_000, self._passed_us, self._repeated_us)
