"""Global windows that are forgotten once they have come out.

Comes in: rows by key, in the order in which they came. Goes out: what the function makes of all rows
of a key since those that came out before, when the trigger says so, and at the end. The state is the
rows that have not come out yet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from weir.operators.base import Course, Emit, Frozen, OperatorContext, PiecewiseOperator, Restored
from weir.operators.functions.row_codec import emit
from weir.operators.functions.window_calls import Groups
from weir.operators.user_code import user_code_error
from weir.operators.windows.functions import WindowFunction
from weir.operators.windows.kept import BufferLayout
from weir.operators.windows.keyed.gathering import Gathered
from weir.operators.windows.keyed.rows import KeyedRows
from weir.operators.windows.pieces import FIRED_ROWS_MAX, expanded, parts_of
from weir.operators.windows.triggers import Cause, Trigger, WindowColumns, has_passed
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints


class PurgedWindowsOperator(PiecewiseOperator):
    """Holds rows, none of which was in a window that came out."""

    def __init__(
        self, function: WindowFunction, trigger: Trigger, layout: BufferLayout, *, state: str, refusal: str | None
    ) -> None:
        """`state`: the name of the table. `refusal`: why the function can have no states of windows."""
        self._function = function
        self._trigger = trigger
        self._layout = layout
        self._state = state
        self._refusal = refusal
        self._watermark_us = NEVER_US
        self._wake_ms: float | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if self._function.states.may_be_keyed:
            # They share its memory with the rows.
            context = replace(context, place=context.place.shared_by(2))
        held = {} if restored is None else {n: state for n, state in restored.states.items() if n != self._state}
        self._call = self._function.make(context, held, self._refusal)
        self._rows = KeyedRows(self._layout, self._state, context, first_needed=None)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        self._rows.restore(restored)
        # What was due by the wall clock stays due when it was.
        due_ms = [known.wake_ms for known in restored.all_inline(Progress) if known.wake_ms is not None]
        if self._trigger.every_ms is not None and self._rows:
            self._wake_ms = min(due_ms, default=None)
        self._plan_tick()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        slots = self._rows.slots(batch)
        rows = self._rows.add(batch, slots)
        needed = rows.first
        chosen = self._chosen(rows.after - needed, "rows") if self._trigger.asks_rows else rows.slots[:0]
        if len(chosen):
            needed = needed.copy()
            needed[chosen] = rows.after[chosen]
            for some, found in self._rows.gathered(rows, chosen, needed[chosen]):
                self._fire(found, needed[chosen[some]] - rows.first[chosen[some]], out)
        self._rows.keep(rows, needed)
        self._plan_tick()

    def advance(self, time_us: int, out: Emit) -> Course:
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        if self._rows and self._watermark_us > before_us:
            if self._watermark_us == END_US:
                yield from self._ask(None, out)
            elif self._trigger.asks_watermark and has_passed(self._trigger, before_us, self._watermark_us):
                yield from self._ask("watermark", out)
        return time_us

    @property
    def wake_ms(self) -> float | None:
        return self._wake_ms

    def ticking(self, now_ms: float, out: Emit) -> Course:
        self._wake_ms = None
        yield from self._ask("clock", out)
        self._plan_tick()
        return None

    def freeze(self) -> Frozen:
        inline = Progress(self._watermark_us, 0, self._wake_ms, self._rows.numbered)
        return Frozen(inline, {self._state: self._rows.freeze(), **self._call.freeze()})

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.close()

    def _ask(self, cause: Cause | None, out: Emit) -> Course:
        """Ask for all keys that have rows; without a cause, all of them come out."""
        for some in self._rows.waiting():
            chosen = np.arange(len(some.counts)) if cause is None else self._chosen(some.counts, cause)
            if len(chosen):
                self._fire(some.taken(chosen), some.counts[chosen], out)
                yield
        return None

    def _chosen(self, counts: Ints, cause: Cause) -> Ints:
        """Which keys the trigger lets out."""
        if self._watermark_us == END_US:
            return np.empty(0, np.int64)
        columns = WindowColumns(counts, counts, None, None)
        try:
            return np.flatnonzero(self._trigger.chosen(columns, cause=cause, watermark_us=self._watermark_us))
        except Exception as error:
            raise user_code_error(error, self._context, doing="its trigger") from None

    def _fire(self, found: Gathered, counts: Ints, out: Emit) -> None:
        for some in parts_of(counts, FIRED_ROWS_MAX):
            rows = found.rows[expanded(found.starts[some], counts[some])]
            bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[some])))
            for batch in self._call(Groups(take_rows(found.batch, rows), bounds, None, None, self._watermark_us)):
                emit(batch, out)

    def _plan_tick(self) -> None:
        if self._trigger.every_ms is not None and self._wake_ms is None and self._rows:
            self._wake_ms = self._context.place.now_ms() + self._trigger.every_ms
