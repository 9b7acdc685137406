"""Runs a function with state by key: its rows, from one or two inputs, its timers and its side outputs.

Comes in: batches of rows that belong to this subtask's key groups, watermarks and ticks.
Goes out: batches of what the function gave, in the order of rows and timers. The loops
below are the hot path of every row-wise job: they look nothing up and catch nothing per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import isgeneratorfunction
from typing import Any

import pyarrow as pa

from weir.errors import UserCodeError
from weir.operators.base import Course, Emit, Frozen, OperatorContext, PiecewiseOperator, Restored, run_through
from weir.operators.functions.at_key import KeyedRowOperator
from weir.operators.functions.context import NO_KEY, Moment, ProcessContext, Timers
from weir.operators.functions.declared import FunctionStates
from weir.operators.functions.interfaces import KeyedFunction
from weir.operators.functions.row_codec import RowReader, Rows, RowWriter, emit, spread
from weir.operators.functions.stateful import StatefulFunction, States
from weir.operators.user_code import operator_label, user_code_error
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US
from weir.state.declared.container_handles import GuardedMap
from weir.state.declared.cursor import Key
from weir.state.timers.keyed import KeyedTimers
from weir.state.timers.queue import TimerQueue
from weir.state.timers.tables import EVENT, PROCESSING, TIMERS, TimeDomain

FIRED_AT_ONCE = 4_096
"""Timers whose keys' states are read together, and whose results go on together."""

TIMERS_AT_END_MAX = 1_000_000
TIMERS_AT_END_TIMES_MAX = 100
"""How many more timers may be set by timers when the input has ended, in all and per timer that was set before, until
they count as a chain without end."""


@dataclass(frozen=True)
class InputOf:
    """One input of a function. keys: None where it is broadcast. zone: of the times in the column `time`."""

    method: str
    schema: pa.Schema
    keys: tuple[str, ...] | None
    time: str | None = None
    time_offset_us: int = 0

    @property
    def zone(self) -> str | None:
        return None if self.time is None else self.schema.field(self.time).type.tz


@dataclass(frozen=True)
class FunctionPlan:
    """What an operator must know of its function."""

    function: Any
    inputs: tuple[InputOf, ...]
    key_schema: pa.Schema
    output: pa.Schema
    declared: FunctionStates
    sides: Mapping[str, pa.Schema]
    has_timers: bool


READ_ONLY = "can be changed in process_broadcast only, so that it is the same in all subtasks"


class _Input:
    """One input, ready to be read."""

    def __init__(self, of: InputOf, call: Callable[[Any, Any], Any]) -> None:
        self.of = of
        self.reader = RowReader(of.schema)
        self.call = call
        self.yields = isgeneratorfunction(call)
        self.time_column = None if of.time is None else of.schema.names.index(of.time)
        self.time_offset = timedelta(microseconds=of.time_offset_us) if of.time_offset_us else None


class FunctionOperator(PiecewiseOperator, KeyedRowOperator):
    """One subtask's own copy of a function."""

    def __init__(self, plan: FunctionPlan) -> None:
        super().__init__(plan.key_schema, StatefulFunction(plan.function, plan.declared))
        self.other_states = frozenset({TIMERS})
        self._plan = plan
        self._function = self.stateful.function
        self._moment = Moment()
        self._timers: KeyedTimers | None = None
        self._side_rows: dict[str, list[Any]] = {tag: [] for tag in plan.sides}
        self._opened = False

    # --- Getting ready ---

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        if self._plan.has_timers:
            # They share its memory with the values in equal parts.
            context = replace(context, place=context.place.shared_by(2))
        super().open(context, restored)
        self._writer = RowWriter(self._plan.output, operator_label(context))
        self._side_writers = {
            tag: RowWriter(schema, f"{operator_label(context)}, side output {tag!r}")
            for tag, schema in self._plan.sides.items()
        }
        self._moment.zone = next((i.zone for i in self._plan.inputs if i.time is not None), None)
        if self._plan.has_timers:
            self._timers = KeyedTimers(
                self.backend,
                self._key_schema,
                max_parallelism=context.max_parallelism,
                own=context.key_groups,
                place=context.place,
            )
        if restored is not None:
            self._restore(restored)
        function = self._function
        if isinstance(function, KeyedFunction):
            self._open_function(function, context)
        else:
            self._given: Any = States(self.stateful.handles)
            self._inputs = [_Input(self._plan.inputs[0], function)]

    def _restore(self, restored: Restored) -> None:
        self._moment.watermark_us = restored.watermark_us
        if self._timers is not None and TIMERS in restored.states:
            self._timers.restore(restored.states[TIMERS])

    def _open_function(self, function: KeyedFunction, context: OperatorContext) -> None:
        self._inputs = [_Input(i, getattr(function, i.method)) for i in self._plan.inputs]
        refusal = None
        if all(i.time is None for i in self._plan.inputs):
            refusal = (
                "timers.at: the rows have no event time; give the source a watermark=, such as "
                "bounded_disorder('ts', '2s'), and keep that column; or set a timer of processing time"
            )
        timers = Timers(
            self._timers, self.backend.cursor, moment=self._moment, now_ms=context.place.now_ms, refusal=refusal
        )
        self._given = ProcessContext(
            context,
            self.stateful.state,
            self.backend.cursor,
            self._shown,
            moment=self._moment,
            timers=timers,
            sides=self._side_rows,
        )
        self._call_timer = function.on_timer
        if any(i.keys is None for i in self._plan.inputs):
            self._guarded = [handle for handle in self.stateful.handles.values() if isinstance(handle, GuardedMap)]
            for guarded in self._guarded:
                guarded.refusal = READ_ONLY
        self.stateful.open(self._given)
        self._opened = True

    def open_function(self) -> None:
        """Once all is ready that it is given."""

    def _shown(self, key: Key) -> Any:
        return None if key is NO_KEY else self.backend.shown(key)

    # --- Rows ---

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self.process_from(0, batch, out)

    def process_from(self, input_number: int, batch: pa.RecordBatch, out: Emit) -> None:
        given = self._inputs[input_number]
        for start in range(0, batch.num_rows, self.piece_rows):
            self._take(given, batch.slice(start, self.piece_rows), out)
        if self._timers is not None and given.of.keys is not None:
            self._timers.settle(batch.num_rows)
            next_us = self._timers.event.next_us
            if next_us is not None and next_us <= self._moment.watermark_us:
                # Set for a time that event time has passed already.
                run_through(self._firing(EVENT, self._moment.watermark_us, out))

    def _take(self, given: _Input, piece: pa.RecordBatch, out: Emit) -> None:
        rows = given.reader.read(piece, self.context)
        moment = self._moment
        moment.rows, moment.time_column, moment.time_offset = rows, given.time_column, given.time_offset
        results: list[Any] = []
        if given.of.keys is None:
            self._run_broadcast(given, rows, results)
        else:
            keys = self.backend.keys([piece.column(name) for name in given.of.keys])
            self.backend.begin(keys)
            run = self._run_generator if given.yields else self._run_function
            try:
                run(given.call, keys, rows, results)
            except Exception as error:
                raise self.failure(error, rows) from None
            self.backend.end()
        self._emit(results, out)

    def _run_generator(self, call: Any, keys: list[Key], rows: Rows, results: list[Any]) -> None:
        given, cursor, append = self._given, self.backend.cursor, results.append
        for row, cursor.key in zip(rows, keys):
            for result in call(row, given):
                append(result)

    def _run_function(self, call: Any, keys: list[Key], rows: Rows, results: list[Any]) -> None:
        given, cursor, append = self._given, self.backend.cursor, results.append
        extend = results.extend
        for row, cursor.key in zip(rows, keys):
            result = call(row, given)
            kind = type(result)
            if kind is tuple:
                append(result)
            elif kind is list:
                extend(result)
            else:
                extend(spread(result))

    def _run_broadcast(self, given: _Input, rows: Rows, results: list[Any]) -> None:
        self.backend.cursor.key = NO_KEY
        for handle in self._guarded:
            handle.refusal = None
        try:
            for row in rows:
                results.extend(spread(given.call(row, self._given)))
        except Exception as error:
            raise user_code_error(error, self.context, row=rows.current) from None
        finally:
            for handle in self._guarded:
                handle.refusal = READ_ONLY

    def _emit(self, results: list[Any], out: Emit) -> None:
        for tag, rows in self._side_rows.items():
            if rows:
                side = self.sides.get(tag)
                # Checked also when nobody reads it, so that a mistake shows at once.
                batch = self._side_writers[tag].write(rows)
                rows.clear()
                if side is not None:
                    emit(batch, side)
        if results:
            emit(self._writer.write(results), out)

    # --- Timers ---

    def advance(self, time_us: int, out: Emit) -> Course:
        self._moment.watermark_us = max(self._moment.watermark_us, time_us)
        if self._timers is not None:
            self._moment.at_end = time_us == END_US
            yield from self._firing(EVENT, self._moment.watermark_us, out)
            self._moment.at_end = False
        return time_us

    @property
    def wake_ms(self) -> float | None:
        if self._timers is None:
            return None
        next_us = self._timers.processing.next_us
        return None if next_us is None else -(-next_us // 1_000)

    def ticking(self, now_ms: float, out: Emit) -> Course:
        return self._firing(PROCESSING, int(now_ms * 1_000), out)

    def ending(self, out: Emit) -> Course:
        if self._timers is not None:
            # Nobody will wait for the clock any more; a timer that is lost would be worse than one that is early.
            self._moment.at_end = True
            yield from self._firing(PROCESSING, END_US, out)
            yield from self._firing(EVENT, END_US, out)
        return None

    def _firing(self, domain: TimeDomain, until_us: int, out: Emit) -> Course:
        """Call on_timer for what is due: in the order of times, and with what is set meanwhile and due, too."""
        if self._timers is None:
            return None
        queue, moment = self._timers.of(domain), self._moment
        moment.domain = domain
        left = self._timers.count_max * (1 + TIMERS_AT_END_TIMES_MAX) + TIMERS_AT_END_MAX if moment.at_end else 0
        while times := queue.due(until_us, FIRED_AT_ONCE):
            keys = [key for time_us in times for key in queue.keys(time_us)]
            if len(keys) > FIRED_AT_ONCE:
                yield from self._fire_one_time(queue, times[0], out)
            else:
                self._fire_together(queue, times, keys, out)
            self._timers.settle(len(keys))
            left -= len(keys)
            if moment.at_end and left < 0:
                raise UserCodeError(
                    f"{operator_label(self.context)}: on_timer sets timers without end. The input has ended, and with "
                    "it event time: set no more timers when context.at_end is true"
                )
            yield
        moment.domain = moment.timer_us = None
        return None

    def _fire_together(self, queue: TimerQueue, times: list[int], keys: list[Key], out: Emit) -> None:
        """The timers of several times. A timer that one of them sets belongs to one of these keys, too."""
        results: list[Any] = []
        self.backend.begin(keys)
        for time_us in times:
            while (early_us := queue.head_us) < time_us:
                self._call_timers(early_us, queue.pop(early_us), results)
            self._call_timers(time_us, queue.pop(time_us), results)
        self.backend.end()
        self._emit(results, out)

    def _fire_one_time(self, queue: TimerQueue, time_us: int, out: Emit) -> Course:
        """More timers of one time than are to be called at once."""
        keys = queue.pop(time_us)
        for start in range(0, len(keys), FIRED_AT_ONCE):
            some = keys[start : start + FIRED_AT_ONCE]
            results: list[Any] = []
            self.backend.begin(some)
            self._call_timers(time_us, some, results)
            self.backend.end()
            self._emit(results, out)
            yield
        return None

    def _call_timers(self, time_us: int, keys: list[Key], results: list[Any]) -> None:
        if not keys:
            return
        moment, cursor, given, call = self._moment, self.backend.cursor, self._given, self._call_timer
        moment.timer_us = time_us
        time = moment.shown(time_us, moment.domain or EVENT)
        try:
            for cursor.key in keys:
                results.extend(spread(call(time, given)))
        except Exception as error:
            key = self.backend.shown(cursor.key)
            raise user_code_error(error, self.context, key=key, doing=f"on_timer({time})") from None

    # --- The end ---

    def freeze(self) -> Frozen:
        frozen = super().freeze()
        inline = Progress(self._moment.watermark_us) if self._opened else None
        if self._timers is None:
            return replace(frozen, inline=inline)
        return Frozen(inline, {**frozen.states, TIMERS: self._timers.freeze()})
