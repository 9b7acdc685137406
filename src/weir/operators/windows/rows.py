"""Windows that keep their rows: for functions over whole windows, and for triggers.

Comes in: rows by key. Goes out: what the function makes of each window, at its end and
whenever its trigger fires. The state is the rows that some window still needs; which
windows there are follows from them, so that sessions need no merging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import CheckpointError, PlanError
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions.row_codec import emit
from weir.operators.time.watermarks import check_time_column
from weir.operators.user_code import operator_label, user_code_error
from weir.operators.windows.buffer import BufferLayout, RowBuffer
from weir.operators.windows.definition import event_times, shown
from weir.operators.windows.event_time import GlobalWindows, SessionWindows, TimeWindows
from weir.operators.windows.functions import Groups, WindowFunction
from weir.operators.windows.triggers import Cause, Continuous, OnWatermark, Trigger, WindowColumns
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.keys.xxhash64 import Ints

STATE = "rows"
"""The name of the state table."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class WindowRows(OperatorSpec):
    """Call a function with the rows of each window. `time` is None for global windows of rows without event time."""

    windows: TimeWindows | SessionWindows | GlobalWindows
    function: WindowFunction
    time: str | None
    time_offset_us: int = 0
    lateness_us: int = 0
    late: str | None = None
    trigger: Trigger = field(default_factory=OnWatermark)

    @cached_property
    def buffer(self) -> BufferLayout:
        return BufferLayout(self.function.keys, self.function.input_schema)

    @property
    def slides(self) -> bool:
        return isinstance(self.windows, TimeWindows) and self.windows.overlaps

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.function.input_schema, inputs, "window")
        if self.time is not None:
            check_time_column(self.time, self.function.input_schema)
        trigger = self.trigger
        if self.slides and not isinstance(trigger, OnWatermark | Continuous):
            raise PlanError(
                "a row of a sliding window is in several windows, so that they fire together or not at all: the "
                "trigger must be on_watermark, continuous or on_processing_time"
            )
        if trigger.purges and (self.slides or isinstance(self.windows, SessionWindows)):
            raise PlanError(
                "a purging trigger needs tumbling, count or global windows: others share or merge their rows"
            )
        return self.function.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: shown(self.function.input_schema)}

    def make(self) -> WindowRowsOperator:
        return WindowRowsOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return self.buffer.refusal(stored) or ("same" if stored.names == self.buffer.stored.names else "evolved")


@dataclass(frozen=True)
class _Assigned:
    """Rows by window: those of window i are rows[bounds[i]:bounds[i + 1]]."""

    rows: Ints
    bounds: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, rows: Ints, changes: Mask, starts: Ints, ends: Ints) -> _Assigned:
        """`changes`: whether a row is of another window than the one before; starts and ends are by row."""
        heads = np.flatnonzero(np.concatenate(([True], changes))) if len(rows) else np.empty(0, np.int64)
        return cls(rows, np.append(heads, len(rows)), starts[heads], ends[heads])

    def counted(self, mask: Mask) -> Ints:
        """By window: how many of its rows are in a mask over all rows."""
        sums: Ints = np.concatenate(([0], np.cumsum(mask[self.rows])))
        return sums[self.bounds[1:]] - sums[self.bounds[:-1]]

    def only(self, chosen: Mask, among: Mask | None = None) -> _Assigned:
        """These windows; `among`: with these rows only."""
        of_row = np.repeat(np.arange(len(chosen)), np.diff(self.bounds))
        kept = chosen[of_row] if among is None else chosen[of_row] & among[self.rows]
        counts = np.bincount(of_row[kept], minlength=len(chosen))[chosen]
        bounds = np.concatenate(([0], np.cumsum(counts)))
        return _Assigned(self.rows[kept], bounds, self.starts[chosen], self.ends[chosen])


class WindowRowsOperator(Operator):
    """Holds rows. The mark of a row is 1 once it was in a window that fired."""

    def __init__(self, spec: WindowRows) -> None:
        self._spec = spec
        self._trigger = spec.trigger
        self._watermark_us = NEVER_US
        self._flushed = 0
        """Rows that were there at the last flush."""
        self._wake_ms: float | None = None
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._call = self._spec.function.make(context)
        self._buffer = RowBuffer(self._spec.buffer)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        self.rows_late = sum(own.rows_late for own in restored.inline_for(context.index, context.parallelism, Progress))
        if tables := list(restored.tables(STATE)):
            for table in tables:
                if refusal := self._spec.buffer.refusal(table.schema):
                    raise CheckpointError(f"{operator_label(context)}: the checkpoint's state does not fit: {refusal}")
            self._buffer.take_over(tables)
        self._flushed = len(self._buffer)
        # What was due by the wall clock stays due when it was.
        due_ms = [known.wake_ms for known in restored.all_inline(Progress) if known.wake_ms is not None]
        if self._trigger.every_ms is not None and len(self._buffer):
            self._wake_ms = min(due_ms, default=None)
        self._plan_tick()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        before = len(self._buffer)
        self._buffer.add(batch, np.zeros(batch.num_rows, np.int64))
        if self._watermark_us > NEVER_US and not isinstance(self._spec.windows, GlobalWindows):
            self._leave_out(before)
        self._plan_tick()
        if self._trigger.asks_rows:
            self._ask("rows", out)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        if len(self._buffer):
            assigned = self._assigned()
            due = (assigned.ends > before_us) & (assigned.ends <= self._watermark_us)
            self._fire(assigned, due, out)
            if self._trigger.asks_watermark and self._passed(before_us):
                self._ask("watermark", out)
            self._drop()
        return time_us

    @property
    def wake_ms(self) -> float | None:
        return self._wake_ms

    def tick(self, now_ms: float, out: Emit) -> None:
        self._wake_ms = None
        self._ask("clock", out)
        self._plan_tick()

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        count = len(self._buffer)
        if count > self._flushed and self._spec.lateness_us and self._watermark_us > NEVER_US:
            fresh = np.arange(count) >= self._flushed
            assigned = self._assigned()
            over = assigned.ends + self._spec.lateness_us <= self._watermark_us  # rows of it may be gone already
            again = (assigned.ends <= self._watermark_us) & ~over
            self._fire(assigned, again & (assigned.counted(fresh) > 0), out)
        self._flushed = count

    def freeze(self) -> Frozen:
        inline = Progress(self._watermark_us, self.rows_late, self._wake_ms)
        return Frozen(inline, {STATE: self._buffer.freeze(self._context)})

    # --- Which rows are of which window ---

    @property
    def _times(self) -> Ints:
        if self._spec.time is None:
            return np.zeros(len(self._buffer), np.int64)
        return event_times(self._buffer.rows, self._spec.time, self._spec.time_offset_us, self._context)

    def _assigned(self) -> _Assigned:
        """All windows of all rows; within a window rows are in the order in which they came."""
        windows, slots = self._spec.windows, self._buffer.slots
        rows: Ints = np.arange(len(slots))
        if isinstance(windows, GlobalWindows):
            order = np.argsort(slots, kind="stable")
            changes = slots[order][1:] != slots[order][:-1]
            return _Assigned.of(order, changes, np.full(len(rows), NEVER_US), np.full(len(rows), END_US))
        times = self._times
        if isinstance(windows, SessionWindows):
            return _sessions(rows, slots, times, gap_us=windows.gap_us)
        copies = [
            (rows[inside], start[inside])
            for start in windows.each_start(windows.panes(times))
            if len(inside := np.flatnonzero(times < windows.ends(start)))
        ]
        if not copies:
            return _Assigned.of(rows, np.empty(0, np.bool_), rows, rows)
        rows, starts = (np.concatenate(column) for column in zip(*copies, strict=True))
        slots = slots[rows]
        order = np.lexsort((rows, slots, starts))
        rows, slots, starts = rows[order], slots[order], starts[order]
        changes = (slots[1:] != slots[:-1]) | (starts[1:] != starts[:-1])
        return _Assigned.of(rows, changes, starts, windows.ends(starts))

    # --- Letting windows out ---

    def _ask(self, cause: Cause, out: Emit) -> None:
        if not len(self._buffer):
            return
        assigned = self._assigned()
        fresh = self._buffer.marks == 0
        new = assigned.counted(fresh)
        open_ones = np.flatnonzero((new > 0) & (assigned.ends > self._watermark_us))
        if not len(open_ones):
            return
        is_global = isinstance(self._spec.windows, GlobalWindows)
        counts = new if self._trigger.purges else np.diff(assigned.bounds)
        columns = WindowColumns(
            counts[open_ones],
            new[open_ones],
            None if is_global else assigned.starts[open_ones],
            None if is_global else assigned.ends[open_ones],
        )
        chosen = np.zeros(len(new), np.bool_)
        try:
            chosen[open_ones] = self._trigger.chosen(columns, cause=cause, watermark_us=self._watermark_us)
        except Exception as error:
            raise user_code_error(error, self._context, doing="its trigger") from None
        self._fire(assigned, chosen, out)
        if self._spec.slides:
            self._buffer.marks[assigned.only(chosen).rows] = 1
        if self._trigger.purges and is_global:
            self._buffer.keep(np.flatnonzero(self._buffer.marks == 0))

    def _passed(self, before_us: int) -> bool:
        """Whether event time has passed a multiple of the trigger's interval."""
        every_us = self._trigger.every_us
        return not every_us or NEVER_US // every_us < before_us // every_us < self._watermark_us // every_us

    def _fire(self, assigned: _Assigned, chosen: Mask, out: Emit) -> None:
        among = None
        if self._trigger.purges:
            among = self._buffer.marks == 0
            chosen = chosen & (assigned.counted(among) > 0)
        if not chosen.any():
            return
        fired = assigned.only(chosen, among)
        timed = not isinstance(self._spec.windows, GlobalWindows)
        groups = Groups(
            self._buffer.rows.take(pa.array(fired.rows)),
            fired.bounds,
            fired.starts if timed else None,
            fired.ends if timed else None,
            self._watermark_us,
        )
        for batch in self._call(groups):
            emit(batch, out)
        if not self._spec.slides:  # else a row may be new to another window
            self._buffer.marks[fired.rows] = 1

    def _drop(self) -> None:
        """Rows that no window needs any more."""
        limit_us = self._watermark_us - self._spec.lateness_us
        assigned = self._assigned()
        needed = np.zeros(len(self._buffer), np.bool_)
        needed[assigned.only(assigned.ends > limit_us).rows] = True
        if not needed.all():
            self._buffer.keep(np.flatnonzero(needed))
        self._flushed = len(self._buffer)

    def _leave_out(self, before: int) -> None:
        """Of the rows from `before` on, those that are only in windows that are over."""
        limit_us = self._watermark_us - self._spec.lateness_us
        if int(self._times[before:].min()) > self._watermark_us:
            return
        assigned = self._assigned()
        needed = np.zeros(len(self._buffer), np.bool_)
        needed[assigned.only(assigned.ends > limit_us).rows] = True
        late = np.flatnonzero(~needed)
        if not len(late):
            return
        self.rows_late += len(late)
        if self._spec.late is not None and (side := self.sides.get(self._spec.late)) is not None:
            names = shown(self._spec.function.input_schema).names
            side(self._buffer.rows.take(pa.array(late)).select(names))
        self._buffer.keep(np.flatnonzero(needed))

    def _plan_tick(self) -> None:
        if self._trigger.every_ms is not None and self._wake_ms is None and len(self._buffer):
            self._wake_ms = self._context.place.now_ms() + self._trigger.every_ms


def _sessions(rows: Ints, slots: Ints, times: Ints, *, gap_us: int) -> _Assigned:
    order = np.lexsort((times, slots))
    sorted_slots, sorted_times = slots[order], times[order]
    cuts = (sorted_slots[1:] != sorted_slots[:-1]) | (sorted_times[1:] - sorted_times[:-1] >= gap_us)
    groups = np.zeros(len(rows), np.int64)
    np.cumsum(cuts, out=groups[1:])
    heads = np.flatnonzero(np.concatenate(([True], cuts)))
    tails = np.append(heads[1:], len(rows)) - 1
    starts, ends = sorted_times[heads], sorted_times[tails] + gap_us
    again = np.lexsort((order, groups))
    groups = groups[again]
    return _Assigned.of(order[again], groups[1:] != groups[:-1], starts[groups], ends[groups])
