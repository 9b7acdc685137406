"""Calls to the outside world: an async function of one row, many rows at a time.

Comes in: batches and watermarks. Goes out: one row for each, in their order or as they
come back; a watermark stays behind the rows that it followed. Rows whose results are not
out yet are the state: after a restore they are called again. Knows no thread: operators/calls.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import PlanError, ProtocolViolation, UserCodeError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored, WaitingOperator
from weir.operators.calls import AsyncFunction, CallPolicy, Calls, CallTimedOut
from weir.operators.functions.async_state import CallAtKey, CallState, CallStates, check_call_state
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.call_turns import NO_KEY, CallTurns
from weir.operators.functions.declared import states_of
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.row_codec import RowReader, RowWriter, emit
from weir.operators.functions.rows_in_flight import FrozenRowsByKey, HeldBatch, rows_schema
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import parse_schema
from weir.state.backend import Backend
from weir.state.backends import make_backend
from weir.state.declared.base import StateDescriptor
from weir.state.declared.cursor import Key
from weir.state.declared.kinds import OperatorState
from weir.state.frozen import FrozenState, RestoredState
from weir.state.keys.codec import KeyCodec
from weir.state.keys.hashing import take_rows
from weir.state.values.conversion import shown
from weir.state.values.evolution import SAME
from weir.state.waiting import FrozenWaiting

STATE = "in_flight"
"""Rows whose results are not out yet."""

POLL_MS = 20.0
"""How often to look for results although nobody has said that there are some."""


class MapAsync(OperatorSpec):
    """One row out for each row in, by calls that may take a while.

    capacity: rows whose calls are under way, or whose results wait for their turn, at most
    failed:   the tag of a side output for rows whose calls have failed for good; without it they fail the job
    keys:     of a keyed stream, so that the function may have state by key
    """

    def __init__(
        self,
        function: AsyncFunction,
        schema: str | pa.Schema,
        *,
        policy: CallPolicy,
        ordered: bool = True,
        capacity: int = 100,
        failed: str | None = None,
        keys: Sequence[str] = (),
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        if not iscoroutinefunction(function) and not iscoroutinefunction(type(function).__call__):
            raise PlanError(f"map_async: expected an async function of one row (async def …), found {function!r}")
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise PlanError(f"map_async: capacity={capacity!r}; it must be a whole number of at least 1")
        if policy.timeout_ms <= 0:
            raise PlanError("map_async: timeout must be above zero")
        self.function = function
        self.output = parse_schema(schema)
        self.policy = policy
        self.ordered = ordered
        self.capacity = capacity
        self.failed = failed
        self.keys = tuple(keys)
        self.declared = states_of(function, "map_async", state, keyed=bool(keys), reserved=(STATE,))
        for descriptor in self.declared.declared.values():
            check_call_state(descriptor)
        self.input: pa.Schema | None = None
        """Known once `schema` has seen it."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.input = inputs[0]
        if self.keys:
            key_schema_of(self.keys, inputs[0])
        return self.output

    @property
    def is_by_key(self) -> bool:
        """Whether there may be state by key, so that the rows of a key are called for one after the other."""
        return bool(self.keys) and bool(self.declared.declared or self.declared.opens)

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {} if self.failed is None else {self.failed: inputs[0]}

    def make(self) -> Operator:
        if self.input is None:
            raise PlanError("map_async: its input schema is not known; call schema() before make()")
        return _MapAsync(self, self.input)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE, *self.declared.names)

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if self.input is None:
            raise PlanError("map_async: its input schema is not known; call schema() before verdict()")
        if state == STATE:
            now = rows_schema(self.input, by_key=self.is_by_key)
            if (stored.names, stored.types) == (now.names, now.types):
                return SAME
            return (
                "rows were in flight with other columns than now; drain the job before it is changed (stop(drain=True))"
            )
        keys = KeyCodec(key_schema_of(self.keys, self.input)).schema if self.keys else None
        return self.declared.verdict(state, stored, keys)


@dataclass(eq=False)
class _Flight:
    """One row on its way. Its Arrow form is row `index` of `batch`."""

    row: Any
    batch: HeldBatch
    index: int
    key: Key = NO_KEY
    held: CallState | None = None
    """What its call has made of the state of its key."""
    is_done: bool = False
    has_failed: bool = False
    result: Any = None


class _Stretch:
    """The rows up to a watermark; None: it has not come yet."""

    def __init__(self) -> None:
        self.flights: deque[_Flight] = deque()
        self.watermark_us: int | None = None


class _MapAsync(WaitingOperator):
    def __init__(self, spec: MapAsync, schema: pa.Schema) -> None:
        self._spec = spec
        self._schema = schema
        self._reader = RowReader(schema)
        self._stretches = deque([_Stretch()])
        self._batches: dict[int, HeldBatch] = {}
        """Those with rows in flight, by number; the oldest first."""
        self._taken = 0
        self._files = itertools.count()
        self._turns = CallTurns[_Flight]()
        self._stateful = StatefulFunction(spec.function, spec.declared)
        self._backend: Backend | None = None
        self._started: dict[int, _Flight] = {}
        self._number = 0
        self._count = 0
        self._released_us: int | None = None
        self._has_more = False
        """Whether the rows behind a watermark that has just gone on are to be looked at."""
        self._calls: Calls | None = None

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._writer = RowWriter(self._spec.output, operator_label(context))
        if context.calls is None:
            raise ProtocolViolation(f"{operator_label(context)}: nobody makes calls here")
        function = self._open_function(context, {} if restored is None else restored.states)
        self._calls = context.calls(function, self._spec.policy)
        if restored is not None:
            for table in restored.tables(STATE):
                for batch in table.select(self._schema.names).cast(self._schema).to_batches():
                    self._take(batch)

    def _open_function(self, context: OperatorContext, states: Mapping[str, RestoredState]) -> AsyncFunction:
        held, stateful = {name: state for name, state in states.items() if name != STATE}, self._stateful
        if self._spec.is_by_key:
            self._backend = make_backend(
                key_schema_of(self._spec.keys, self._schema),
                max_parallelism=context.max_parallelism,
                key_groups=context.key_groups,
                place=context.place,
            )
            self._at_key = CallStates(self._backend, context.place.now_ms)
            stateful.attach(context, held, self._backend, by_key=self._at_key.declare)
        else:
            stateful.attach(context, held)
        stateful.open(FunctionContext(context, self._declare))
        if self._backend is None:
            return stateful.function  # type: ignore[no-any-return]
        return CallAtKey(stateful.function, stateful.states, stateful.handles)

    def _declare(self, name: str, descriptor: StateDescriptor) -> Any:
        if isinstance(descriptor, OperatorState):
            check_call_state(descriptor.named(name))
        return self._stateful.state(name, descriptor)

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        self._take(batch)

    def watermark(self, time_us: int, out: Emit) -> int | None:
        if not self._count and len(self._stretches) == 1:
            return time_us
        if not self._stretches[-1].flights and len(self._stretches) > 1:
            self._stretches[-2].watermark_us = max(time_us, self._stretches[-2].watermark_us or time_us)
        else:
            self._stretches[-1].watermark_us = time_us
            self._stretches.append(_Stretch())
        return None

    def released(self) -> int | None:
        time_us, self._released_us = self._released_us, None
        return time_us

    @property
    def is_full(self) -> bool:
        return self._count >= self._spec.capacity

    @property
    def is_waiting(self) -> bool:
        return bool(self._count) or len(self._stretches) > 1

    @property
    def wake_ms(self) -> float | None:
        if not self.is_waiting:
            return None
        if self._has_more or (self._calls is not None and self._calls.has_finished):
            return 0.0
        return self._context.place.now_ms() + POLL_MS

    def tick(self, now_ms: float, out: Emit) -> None:
        if self._calls is None:
            return
        for number, succeeded, result in self._calls.finished():
            self._came_back(self._started.pop(number), succeeded, result)
        self._start()
        self._emit(out)

    def end(self, out: Emit) -> None:
        if self.is_waiting:
            raise ProtocolViolation(f"{operator_label(self._context)}: the input has ended before the calls have")

    def freeze(self) -> Frozen:
        waiting = [batch.freeze() for batch in self._batches.values()]
        rows: FrozenState = FrozenWaiting(self._schema, waiting, self._files)
        if self._backend is None:
            return Frozen(states={STATE: rows, **self._stateful.freeze()})
        rows = FrozenRowsByKey(rows, self._spec.keys, self._context.max_parallelism)
        return Frozen(states={STATE: rows, **self._backend.freeze(), **self._stateful.freeze()})

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close()
        try:
            self._stateful.close()
        finally:
            if self._backend is not None:
                self._backend.close()

    # --- Rows ---

    def _take(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        held = HeldBatch(self._taken, batch)
        self._batches[held.number] = held
        self._taken += 1
        keys: Iterable[Key] = itertools.repeat(NO_KEY)
        if self._backend is not None:
            keys = self._backend.keys([batch.column(name) for name in self._spec.keys])
        rows = enumerate(self._reader.read(batch, self._context))
        flights = [_Flight(row, held, index, key) for (index, row), key in zip(rows, keys)]
        self._stretches[-1].flights.extend(flights)
        for flight in flights:
            self._turns.add(flight, flight.key)
        self._count += len(flights)
        self._start()

    def _start(self) -> None:
        """Call as many as there is room for. Results that wait for their turn take room, too."""
        # Those that are counted but neither wait nor fly are done and wait behind others.
        room = self._spec.capacity - (self._count - len(self._turns))
        flights: list[_Flight] = []
        while self._turns and len(flights) < room:
            flights.append(self._turns.take())
        if not flights or self._calls is None:
            return
        given: list[Any] = [flight.row for flight in flights]
        if self._backend is not None:
            self._backend.begin([flight.key for flight in flights])
            given = [(flight.row, self._at_key.read(flight.key)) for flight in flights]
            self._backend.end()
        starting = list(enumerate(given, self._number))
        self._started.update(zip(range(self._number, self._number + len(flights)), flights))
        self._number += len(flights)
        self._calls.start(starting)

    def _came_back(self, flight: _Flight, succeeded: bool, result: Any) -> None:
        flight.is_done = True
        if succeeded:
            flight.result, flight.held = (result, None) if self._backend is None else result
            return
        flight.has_failed = True
        if self._spec.failed is not None:
            return
        if isinstance(result, CallTimedOut):
            raise UserCodeError(
                f"{operator_label(self._context)}: {result}. Raise timeout=, try again with retry=, or give such rows "
                f"a side output with failed='a tag'\n  row: {shown(flight.row)}"
            )
        at = {} if self._backend is None else {"key": self._backend.shown(flight.key)}
        raise user_code_error(result, self._context, row=flight.row, **at) from None

    def _emit(self, out: Emit) -> None:
        """What is out of the first stretch, and its watermark when that is all. What follows waits for the next call:
        rows behind a watermark stay behind it."""
        first = self._stretches[0]
        leaving: list[_Flight] = []
        if self._spec.ordered:
            while first.flights and first.flights[0].is_done:
                leaving.append(first.flights.popleft())
        else:
            leaving = [flight for flight in first.flights if flight.is_done]
            if leaving:
                first.flights = deque(flight for flight in first.flights if not flight.is_done)
        self._leave(leaving)
        good = [flight for flight in leaving if not flight.has_failed]
        if good:
            emit(self._writer.write([flight.result for flight in good], lambda index: good[index].row), out)
        side = None if self._spec.failed is None else self.sides.get(self._spec.failed)
        if side is not None:
            for batch in _batches([flight for flight in leaving if flight.has_failed]):
                emit(batch, side)
        self._has_more = not first.flights and first.watermark_us is not None
        if self._has_more:
            self._released_us = first.watermark_us
            self._stretches.popleft()

    def _leave(self, leaving: Sequence[_Flight]) -> None:
        """What their calls have made of the state is kept now: a row that is out is in no snapshot any more."""
        self._count -= len(leaving)
        for flight in leaving:
            flight.batch.leave(flight.index)
            if not flight.batch.count:
                del self._batches[flight.batch.number]
        backend = self._backend
        if backend is not None and leaving:
            backend.begin([flight.key for flight in leaving])
            for flight in leaving:
                if flight.held is not None:
                    self._at_key.write(flight.held)
            backend.end()
            for flight in leaving:
                self._turns.left(flight.key)
        self._start()


def _batches(flights: Sequence[_Flight]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow again, in their order."""
    start = 0
    for stop in range(1, len(flights) + 1):
        if stop == len(flights) or flights[stop].batch is not flights[start].batch:
            rows = np.array([flight.index for flight in flights[start:stop]], np.int64)
            yield take_rows(flights[start].batch.batch(), rows)
            start = stop
