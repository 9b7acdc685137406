"""Windows that keep their rows: for functions over whole windows, and for triggers.

Comes in: rows by key. Goes out: what the function makes of each window, at its end and
whenever its trigger fires. The state is the rows that some window still needs; which
windows there are follows from them, so that sessions need no merging.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from weir.errors import PlanError
from weir.operators.aggregates.layout import check_same_columns
from weir.operators.base import (
    Course,
    Emit,
    Frozen,
    OperatorContext,
    OperatorSpec,
    PiecewiseOperator,
    Restored,
    run_through,
)
from weir.operators.functions.row_codec import emit
from weir.operators.functions.window_calls import Groups, check_window_states
from weir.operators.time.watermarks import check_time_column
from weir.operators.user_code import user_code_error
from weir.operators.windows.assigned import Assigned, Mask
from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.definition import shown
from weir.operators.windows.event_time import GlobalWindows, SessionWindows, TimeWindows
from weir.operators.windows.functions import WindowFunction
from weir.operators.windows.kept import BufferLayout
from weir.operators.windows.pieces import FIRED_ROWS_MAX, Piece, parts_of
from weir.operators.windows.purged import PurgedWindowsOperator
from weir.operators.windows.scope import SessionScope, TimeScope, scope_of
from weir.operators.windows.triggers import Cause, Continuous, OnWatermark, Trigger, WindowColumns, has_passed
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US, NEVER_US
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints, Words

STATE = "rows"
"""The name of the state table."""


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
        windows, rows = self.windows, (self.function.keys, self.function.input_schema)
        if isinstance(windows, TimeWindows):
            return BufferLayout(*rows, self.time, self.time_offset_us, TimeScope.buckets(windows))
        if isinstance(windows, SessionWindows):
            return BufferLayout(*rows, self.time, self.time_offset_us, SessionScope.buckets(windows), by_time=True)
        return BufferLayout(*rows)

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
        check_window_states(self.function.states, self.window_states_refusal)
        return self.function.output

    @property
    def window_states_refusal(self) -> str | None:
        """Why the function can have no states of windows; None: it can."""
        if not isinstance(self.windows, TimeWindows):
            return "only tumbling, sliding and calendar windows have states of their own; keep it by key"
        if self.trigger.purges:
            return "with a trigger that is purging() nothing tells when the window is over; keep it by key"
        return None

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.late is None else {self.late: shown(self.function.input_schema)}

    def make(self) -> WindowRowsOperator | PurgedWindowsOperator:
        if isinstance(self.windows, GlobalWindows) and self.trigger.purges:
            refusal = self.window_states_refusal
            return PurgedWindowsOperator(self.function, self.trigger, self.buffer, state=STATE, refusal=refusal)
        return WindowRowsOperator(self)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE, *self.function.states.names)

    @property
    def declares_in_open(self) -> bool:
        return self.function.states.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state != STATE:
            return self.function.verdict(state, stored)
        return self.buffer.refusal(stored) or ("same" if stored.names == self.buffer.stored.names else "evolved")


class WindowRowsOperator(PiecewiseOperator):
    """Holds rows. The mark of a row is 1 once it was in a window that fired early."""

    def __init__(self, spec: WindowRows) -> None:
        self._spec = spec
        self._trigger = spec.trigger
        self._is_asked = self._trigger.asks_rows or self._trigger.asks_watermark or self._trigger.every_ms is not None
        self._watermark_us = NEVER_US
        self._forgotten_us = NEVER_US
        """The states of windows that were over by then have been forgotten; behind a restore with less lateness some
        were not."""
        self._flushed = 0
        """Rows with this number, and higher ones, have come since the last flush."""
        self._late: list[tuple[Words, Ints]] = []
        """The keys and times of rows that may have come to windows that have fired."""
        self._wake_ms: float | None = None
        self.rows_late = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        if self._spec.function.states.may_be_keyed:
            # They share its memory with the rows.
            context = replace(context, place=context.place.shared_by(2))
        held = {} if restored is None else {n: state for n, state in restored.states.items() if n != STATE}
        self._call = self._spec.function.make(context, held, self._spec.window_states_refusal)
        self._buffer = RowBuffer(self._spec.buffer, STATE, context)
        self._scope = scope_of(self._spec.windows, self._buffer)
        if restored is None:
            return
        self._watermark_us = restored.watermark_us
        self.rows_late = sum(own.rows_late for own in restored.inline_for(context.index, context.parallelism, Progress))
        self._buffer.restore(restored)
        self._flushed = self._buffer.numbered
        # What was due by the wall clock stays due when it was.
        due_ms = [known.wake_ms for known in restored.all_inline(Progress) if known.wake_ms is not None]
        if self._trigger.every_ms is not None and self._buffer:
            self._wake_ms = min(due_ms, default=None)
        self._plan_tick()

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        times = self._buffer.times(batch)
        limit_us = self._limit_us(self._watermark_us)
        over = None if limit_us == NEVER_US else self._scope.over(times, limit_us)
        if over is not None and not self._scope.forgets_rows:
            self._leave_out(take_rows(batch, over))
            rest = np.delete(np.arange(len(times)), over)
            batch, times, over = take_rows(batch, rest), times[rest], None
            if not len(rest):
                return
        first = self._buffer.numbered
        self._buffer.add(batch, times)
        if over is not None:
            self._leave_out_alone(self._buffer.orders(take_rows(batch, over)), times[over], first)
        if self._spec.lateness_us and int(times.min()) < self._watermark_us:
            late = np.flatnonzero(times < self._watermark_us)
            self._late.append((self._buffer.orders(take_rows(batch, late)), times[late]))
        self._plan_tick()
        if self._trigger.asks_rows:
            run_through(self._ask("rows", self._scope.of_rows(self._buffer.orders(batch), times), out))

    def advance(self, time_us: int, out: Emit) -> Course:
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        now_us = self._watermark_us
        if self._buffer and now_us > before_us:
            forgets = self._scope.forgets_rows and not self._spec.lateness_us
            for piece in self._scope.due(before_us, now_us):
                assigned = self._scope.assigned(piece, after_us=before_us, until_us=now_us)
                due = (assigned.ends > before_us) & (assigned.ends <= now_us)
                fired = yield from self._fire(piece, assigned, due, out)
                if forgets:
                    self._buffer.forget(piece, assigned.only(assigned.ends <= now_us).rows)
                elif self._is_asked and not self._spec.slides:  # else a row may be new to another window
                    self._note(piece, fired)
            if self._trigger.asks_watermark and has_passed(self._trigger, before_us, now_us):
                yield from self._ask("watermark", self._all(), out)
            if self._call.has_window_states:
                self._forget_window_states(self._forgotten_us, self._limit_us(now_us))
                self._forgotten_us = self._limit_us(now_us)
            if not forgets:
                self._scope.expire(self._limit_us(before_us), self._limit_us(now_us))
            self._flushed = self._buffer.numbered
        return time_us

    @property
    def wake_ms(self) -> float | None:
        return self._wake_ms

    def ticking(self, now_ms: float, out: Emit) -> Course:
        self._wake_ms = None
        yield from self._ask("clock", self._all(), out)
        self._plan_tick()
        return None

    def flush(self, out: Emit) -> None:
        """Emit again what late rows have changed."""
        if self._late:
            orders, times = (np.concatenate(column) for column in zip(*self._late, strict=True))
            self._late = []
            for piece in self._scope.of_rows(orders, times):
                assigned = self._scope.assigned(piece, until_us=self._watermark_us)
                # Of windows that are over altogether rows may be gone already.
                again = (assigned.ends <= self._watermark_us) & (assigned.ends > self._limit_us(self._watermark_us))
                again &= assigned.counted(piece.numbers >= self._flushed) > 0
                fired = run_through(self._fire(piece, assigned, again, out))
                if self._is_asked and not self._spec.slides:
                    self._note(piece, fired)
        self._flushed = self._buffer.numbered

    def freeze(self) -> Frozen:
        inline = Progress(self._watermark_us, self.rows_late, self._wake_ms, self._buffer.numbered)
        return Frozen(inline, {STATE: self._buffer.freeze(), **self._call.freeze()})

    def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.close()

    # --- Letting windows out ---

    def _all(self) -> Iterable[Piece]:
        self._buffer.settle()
        return self._buffer.all()

    def _ask(self, cause: Cause, pieces: Iterable[Piece], out: Emit) -> Course:
        for piece in pieces:
            assigned = self._scope.assigned(piece, after_us=self._watermark_us)
            chosen = self._chosen(assigned, piece.marks == 0, cause)
            if chosen is not None:
                fired = yield from self._fire(piece, assigned, chosen, out)
                self._note(piece, fired)
        return None

    def _chosen(self, assigned: Assigned, fresh: Mask, cause: Cause) -> Mask | None:
        """Which windows the trigger lets out; None: none has new rows."""
        new = assigned.counted(fresh)
        open_ones = np.flatnonzero((new > 0) & (assigned.ends > self._watermark_us))
        if not len(open_ones):
            return None
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
        return chosen

    def _fire(self, piece: Piece, assigned: Assigned, chosen: Mask, out: Emit) -> Generator[None, None, Ints]:
        """Let windows out, so many at a time; returns the rows of them."""
        among = None
        if self._trigger.purges:
            among = piece.marks == 0
            chosen = chosen & (assigned.counted(among) > 0)
        fired = assigned.only(chosen, among)
        rows = piece.rows
        for some in parts_of(np.diff(fired.bounds), FIRED_ROWS_MAX):
            self._let_out(rows, fired.between(some.start, some.stop), out)
            yield
        return fired.rows

    def _let_out(self, rows: pa.RecordBatch, fired: Assigned, out: Emit) -> None:
        timed = not isinstance(self._spec.windows, GlobalWindows)
        is_whole = len(fired.rows) == rows.num_rows and bool((fired.rows[1:] > fired.rows[:-1]).all())
        groups = Groups(
            rows if is_whole else take_rows(rows, fired.rows),
            fired.bounds,
            fired.starts if timed else None,
            fired.ends if timed else None,
            self._watermark_us,
        )
        for batch in self._call(groups):
            emit(batch, out)

    def _note(self, piece: Piece, fired: Ints) -> None:
        """These rows have come out."""
        if self._trigger.purges:
            self._buffer.forget(piece, fired)
        else:
            fresh = np.unique(fired)
            fresh = fresh[piece.marks[fresh] == 0]
            if len(fresh):
                self._buffer.mark(piece, fresh)

    def _forget_window_states(self, after_us: int, limit_us: int) -> None:
        """Those of windows that are over now; their rows are still here."""
        for piece in self._scope.due(after_us, limit_us):
            assigned = self._scope.assigned(piece, after_us=after_us, until_us=limit_us)
            over = np.flatnonzero((assigned.ends > after_us) & (assigned.ends <= limit_us))
            if len(over):
                rows = take_rows(piece.rows, assigned.rows[assigned.bounds[over]])
                self._call.over([rows.column(key) for key in self._spec.function.keys], assigned.starts[over])

    # --- Rows that come late ---

    def _limit_us(self, watermark_us: int) -> int:
        """Windows that end by then are over."""
        return watermark_us if watermark_us in (NEVER_US, END_US) else watermark_us - self._spec.lateness_us

    def _leave_out_alone(self, orders: Words, times: Ints, first: int) -> None:
        """Of the rows from number `first` on, leave out those that others have not kept in a window."""
        limit_us = self._limit_us(self._watermark_us)
        for piece in self._scope.of_rows(orders, times):
            assigned = self._scope.assigned(piece)
            late = piece.numbers >= first
            late[assigned.only(assigned.ends > limit_us).rows] = False
            rows = np.flatnonzero(late)
            if len(rows):
                self._buffer.forget(piece, rows)
                self._leave_out(take_rows(piece.rows, rows[np.argsort(piece.numbers[rows])]))

    def _leave_out(self, rows: pa.RecordBatch) -> None:
        self.rows_late += rows.num_rows
        if self._spec.late is not None and (side := self.sides.get(self._spec.late)) is not None:
            side(rows.select(shown(self._spec.function.input_schema).names))

    def _plan_tick(self) -> None:
        if self._trigger.every_ms is not None and self._wake_ms is None and self._buffer:
            self._wake_ms = self._context.place.now_ms() + self._trigger.every_ms
