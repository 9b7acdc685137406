"""Windows of so many rows of a key.

Comes in: rows by key, in the order in which they come. Goes out: what the function makes
of the last rows of a key, whenever so many more have come. Rows are numbered by key; the
state is the rows that a later window needs, of which the last tells how many there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.layout import check_same_columns
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions.row_codec import emit
from weir.operators.functions.window_calls import Groups, check_window_states
from weir.operators.windows.event_time import CountWindows
from weir.operators.windows.functions import WindowFunction
from weir.operators.windows.kept import BufferLayout
from weir.operators.windows.keyed.gathering import Gathered
from weir.operators.windows.keyed.rows import KeyedRows
from weir.operators.windows.pieces import FIRED_ROWS_MAX, expanded, parts_of
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import NEVER_US
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

ROWS, COUNTS = "rows", "counts"
"""The names of the state tables. Earlier versions kept in the second how many rows each key had had; the rows tell."""


NO_WINDOW_STATES = "a count window comes out once, and has no state of its own; keep it by key"


@dataclass(frozen=True, eq=False)
class CountedRows(OperatorSpec):
    """Call a function with the last rows of a key, whenever so many more have come."""

    windows: CountWindows
    function: WindowFunction

    @cached_property
    def buffer(self) -> BufferLayout:
        return BufferLayout(self.function.keys, self.function.input_schema)

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.function.input_schema, inputs, "count_window")
        check_window_states(self.function.states, NO_WINDOW_STATES)
        return self.function.output

    def make(self) -> CountedRowsOperator:
        return CountedRowsOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (ROWS, COUNTS, *self.function.states.names)

    @property
    def declares_in_open(self) -> bool:
        return self.function.states.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state not in (ROWS, COUNTS):
            return self.function.verdict(state, stored)
        if state == COUNTS:
            return "same"
        return self.buffer.refusal(stored) or ("same" if stored.names == self.buffer.stored.names else "evolved")


class CountedRowsOperator(Operator):
    """Holds rows. The mark of a row is its number among those of its key."""

    def __init__(self, spec: CountedRows) -> None:
        self._spec = spec
        self._size, self._every = spec.windows.size, spec.windows.every
        self._watermark_us = NEVER_US
        self._was_quiet = True
        """Whether no window came out by the last batch: then none may come out by the next."""

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if self._spec.function.states.may_be_keyed:
            # They share its memory with the rows.
            context = replace(context, place=context.place.shared_by(2))
        held = {} if restored is None else {n: s for n, s in restored.states.items() if n not in (ROWS, COUNTS)}
        self._call = self._spec.function.make(context, held, NO_WINDOW_STATES)
        self._rows = KeyedRows(self._spec.buffer, ROWS, context, first_needed=self._first_needed)
        if restored is not None:
            self._rows.restore(restored)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        self._watermark_us = time_us
        return time_us

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        slots = self._rows.slots(batch)
        if self._was_quiet and self._rows.add_quietly(batch, slots, every=self._every):
            return
        rows = self._rows.add(batch, slots)
        over = rows.before // self._every
        times = rows.after // self._every - over
        due = times.nonzero()[0]
        self._was_quiet = not len(due)
        needed = rows.first
        if len(due):
            needed = needed.copy()
            needed[due] = np.maximum(needed[due], self._first_needed(rows.after[due]))
            stops = (over[due] + 1) * self._every
            for some, found in self._rows.gathered(rows, due, needed[due]):
                self._fire(found, stops[some], times[due[some]], out)
        self._rows.keep(rows, needed)

    def freeze(self) -> Frozen:
        inline = Progress(self._watermark_us, rows_numbered=self._rows.numbered)
        return Frozen(inline, {ROWS: self._rows.freeze(), **self._call.freeze()})

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.close()

    def _first_needed(self, counts: Ints) -> Ints:
        """Of keys that have had so many rows, the first that a later window may need."""
        if self._size is None:
            return np.zeros(len(counts), np.int64)
        return np.maximum((counts // self._every + 1) * self._every - self._size, 0)

    def _fire(self, found: Gathered, stops: Ints, times: Ints, out: Emit) -> None:
        """So many windows of each key, the first of which ends before the row with the number `stops`."""
        ends, begins = stops - found.first, found.starts
        if int(times.max()) > 1:
            ends = expanded(np.zeros(len(times), np.int64), times) * self._every + ends.repeat(times)
            begins = begins.repeat(times)
        starts = np.zeros(len(ends), np.int64) if self._size is None else np.maximum(ends - self._size, 0)
        sizes = ends - starts
        starts += begins
        for some in parts_of(sizes, FIRED_ROWS_MAX):
            rows = found.rows[expanded(starts[some], sizes[some])]
            bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[some])))
            for result in self._call(Groups(take_rows(found.batch, rows), bounds, None, None, self._watermark_us)):
                emit(result, out)
