"""The head of a loop, as an operator: rows pass as they are.

Comes in: rows from outside, and those that were fed back. Goes out: the same. What was on
its way round at a barrier is its state, the log: runtime/task/loop_head.py keeps it, and takes
what a checkpoint held of it from here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.operators.base import Emit, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.user_code import operator_label

LOG = "log"
"""Rows on their way round."""


class LoopHead(OperatorSpec):
    """Where a loop begins, and where what is fed back comes in again."""

    def __init__(self, rows: pa.Schema) -> None:
        self.rows = rows

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.rows

    def make(self) -> LoopHeadOperator:
        return LoopHeadOperator(self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        return (LOG,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if (stored.names, stored.types) == (self.rows.names, self.rows.types):
            return "same"
        return (
            "rows were in the loop with other columns than now; drain the job before it is changed (stop(drain=True))"
        )


class LoopHeadOperator(Operator):
    """One subtask of a head."""

    def __init__(self, rows: pa.Schema) -> None:
        self.rows = rows
        self.label = ""
        self.replayed: list[pa.RecordBatch] = []
        """What the checkpoint's log gives to this subtask: it comes before anything else."""

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self.label = operator_label(context)
        if restored is not None:
            for table in restored.tables(LOG):
                self.replayed += [batch for batch in table.cast(self.rows).to_batches() if batch.num_rows]

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        out(batch)
