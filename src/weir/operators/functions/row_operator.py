"""What all operators with a function of rows share: a reader for their input, and errors.

Comes in: batches. Goes out: batches, piece by piece. What a piece becomes is up to rows.py,
process.py and reduce.py.
"""

from __future__ import annotations

import pyarrow as pa

from weir.errors import UserCodeError
from weir.operators.base import Emit, Operator, OperatorContext, Restored
from weir.operators.functions.row_codec import RowReader, Rows, emit
from weir.operators.user_code import user_code_error

PIECE_ROWS = 2_048
"""Rows that become Python objects at once, and go on before the next do: some 5 ms of work."""


class RowOperator(Operator):
    """Takes batches apart into rows."""

    context: OperatorContext
    piece_rows = PIECE_ROWS
    _reader: RowReader | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self.context = context

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        for start in range(0, batch.num_rows, self.piece_rows):
            made = self.convert(batch.slice(start, self.piece_rows))
            # What a piece gave goes on at once: whoever comes next need not wait for the rest of a large batch.
            if made is not None:
                emit(made, out)

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        """What a piece of a batch becomes; None: nothing."""
        raise NotImplementedError

    def read(self, batch: pa.RecordBatch) -> Rows:
        if self._reader is None:
            self._reader = RowReader(batch.schema)
        return self._reader.read(batch, self.context)

    def failure(self, error: Exception, rows: Rows) -> UserCodeError:
        return user_code_error(error, self.context, row=rows.current)
