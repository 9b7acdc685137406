"""The numbers of rows, for aggregates that ask which row came first.

Both halves of an aggregate number what comes to them. Numbers of the first half only say how the rows
of one batch, or of two of the same sender, followed each other; the second half raises those of each
batch above all that it has given before. It must not be given rows of one key and one flush in two
batches: `of_whole_keys` cuts so.

Comes in: rows, or accumulators. Goes out: the same with numbers. Where no aggregate asks, nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.chosen import ARRIVAL, as_accumulators, numbers_in
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import BATCH_ROWS_MAX
from weir.operators.base import Restored
from weir.snapshot.parts import Progress
from weir.state.columns.segments.grouping import stretches
from weir.state.keys.xxhash64 import Ints, Words


class RowNumbers:
    """How far numbers have come."""

    def __init__(self, layout: AggregateLayout, restored: Restored | None = None) -> None:
        self._names = layout.arrivals
        parts = [] if restored is None else restored.all_inline(Progress)
        # Of all subtasks before: keys of any of them may be here now.
        self.numbered = max((known.rows_numbered for known in parts), default=0)

    @property
    def are_asked_for(self) -> bool:
        return bool(self._names)

    def of_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the user with a column of numbers."""
        if not self._names:
            return batch
        first, self.numbered = self.numbered, self.numbered + batch.num_rows
        return batch.append_column(ARRIVAL, pa.array(np.arange(first, self.numbered)))

    def of_accumulators(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the first half has numbered, above what came before."""
        if not self._names or not batch.num_rows:
            return batch
        places = [batch.schema.get_field_index(name) for name in self._names]
        found = [numbers_in(batch.column(at)) for at in places]
        added = self.numbered - min(int(numbers.min()) for numbers, _ in found)
        self.numbered = added + 1 + max(int(numbers.max()) for numbers, _ in found)
        for at, (numbers, lengths) in zip(places, found, strict=True):
            batch = batch.set_column(at, batch.schema.field(at), as_accumulators(numbers + added, lengths))
        return batch


def of_whole_keys(hashes: Words) -> Iterator[Ints]:
    """Pieces of about BATCH_ROWS_MAX rows, given by the hashes of their keys: no key is in two of them."""
    if len(hashes) <= BATCH_ROWS_MAX:
        yield np.arange(len(hashes))
        return
    order = np.argsort(hashes)
    for start, stop in stretches(hashes[order], BATCH_ROWS_MAX):
        yield order[start:stop]
