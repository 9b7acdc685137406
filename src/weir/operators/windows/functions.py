"""What is computed over the rows of whole windows: aggregates, a reduce, or a function of the user.

Comes in: the rows of many windows, those of each side by side. Goes out: batches of
results. Knows neither time nor state.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import PlanError, SchemaError, WeirError
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import Accumulators
from weir.operators.base import OperatorContext
from weir.operators.batches.results import Results
from weir.operators.expressions.polars_bridge import to_polars
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.declared import FunctionStates, states_of
from weir.operators.functions.row_codec import RowReader, RowWriter, spread
from weir.operators.functions.window_calls import Groups, StatefulCall, WindowCall
from weir.operators.user_code import operator_label, user_code_error
from weir.operators.windows.definition import ALL, END, START
from weir.schema import format_schema, parse_schema
from weir.state.declared.base import StateDescriptor
from weir.state.frozen import RestoredState
from weir.state.keys.codec import KeyCodec

NOTHING_HELD: Mapping[str, RestoredState] = MappingProxyType({})

TABLES = ("rows", "counts")
"""What operators call the tables of rows that wait for their windows."""


@dataclass(frozen=True)
class Window:
    """Which window the rows are of: its key (a tuple where there are several key columns), and its bounds.

    `start` and `end` are None for windows that are not of time. Times have a zone where event time has one.
    """

    key: Any
    start: datetime | None
    end: datetime | None
    watermark: datetime | None
    """How far event time has come; None before the first watermark, and at the end of input."""


@dataclass(frozen=True, eq=False)
class WindowFunction(ABC):
    """A picklable description. `time`: the column of event time, None where windows are not of time."""

    keys: tuple[str, ...]
    input_schema: pa.Schema
    time: str | None

    @property
    @abstractmethod
    def output(self) -> pa.Schema:
        """The schema of what comes out."""

    @property
    def states(self) -> FunctionStates:
        """What the function of the user keeps, if it is one that may."""
        return FunctionStates()

    def verdict(self, state: str, stored: pa.Schema) -> str:
        """As OperatorSpec.verdict, for a state of the function."""
        return self.states.verdict(state, stored, KeyCodec(key_schema_of(self.keys, self.input_schema)).schema)

    @abstractmethod
    def make(
        self, context: OperatorContext, held: Mapping[str, RestoredState] = NOTHING_HELD, refusal: str | None = None
    ) -> WindowCall:
        """What one subtask calls. `held`: of the function's states. `refusal`: why these can be of no window."""

    def stateful_call(
        self, context: OperatorContext, held: Mapping[str, RestoredState], refusal: str | None
    ) -> StatefulCall:
        return StatefulCall(
            self.function,  # type: ignore[attr-defined]
            self.states,
            keys=self.keys,
            schema=self.input_schema,
            context=context,
            held=held,
            refusal=refusal,
        )

    @property
    def shown_keys(self) -> list[str]:
        return [key for key in self.keys if key != ALL]

    @property
    def bound_fields(self) -> list[pa.Field]:
        if self.time is None:
            return []
        kind = pa.timestamp("us", self.input_schema.field(self.time).type.tz)
        return [pa.field(START, kind), pa.field(END, kind)]

    def bound_arrays(self, groups: Groups) -> list[pa.Array]:
        if groups.starts_us is None or groups.ends_us is None:
            return []
        bounds = (groups.starts_us, groups.ends_us)
        return [pa.array(b).view(field.type) for field, b in zip(self.bound_fields, bounds, strict=True)]


@dataclass(frozen=True, eq=False)
class AggregateFunction(WindowFunction):
    aggregates: Mapping[str, Aggregate]

    @property
    def layout(self) -> AggregateLayout:
        layout = AggregateLayout(self.keys, dict(self.aggregates), self.input_schema)
        layout.check()
        return layout

    @property
    def output(self) -> pa.Schema:
        if self.time is not None and (taken := {START, END} & {*self.keys, *self.aggregates}):
            raise SchemaError(f"a window has a column {sorted(taken)[0]!r} of its own; rename the other")
        keys = [field for field in self.layout.key_schema if field.name != ALL]
        return pa.schema([*keys, *self.bound_fields, *list(self.layout.output)[len(self.keys) :]])

    def make(
        self, context: OperatorContext, held: Mapping[str, RestoredState] = NOTHING_HELD, refusal: str | None = None
    ) -> WindowCall:
        layout, output = self.layout, self.output

        def call(groups: Groups) -> Iterator[pa.RecordBatch]:
            accumulators, count = Accumulators(layout, context), len(groups)
            accumulators.add_rows(groups.rows, np.repeat(np.arange(count), np.diff(groups.bounds)), count=count)
            keys = [key.cast(output.field(i).type) for i, key in enumerate(groups.keys(self.shown_keys))]
            values = accumulators.values(np.arange(count))
            yield pa.RecordBatch.from_arrays([*keys, *self.bound_arrays(groups), *values], schema=output)

        return WindowCall(call)


@dataclass(frozen=True, eq=False)
class ReduceFunction(WindowFunction):
    function: Callable[..., Any]
    state: Mapping[str, StateDescriptor] | None = None

    @cached_property
    def states(self) -> FunctionStates:
        return states_of(self.function, "reduce", self.state, keyed=True, reserved=TABLES, of_windows=True)

    @property
    def output(self) -> pa.Schema:
        if not callable(self.function):
            raise PlanError(f"reduce: expected a function of (so_far, row), found {self.function!r}")
        fields = [field for field in self.input_schema if field.name != ALL]
        if self.bound_fields and (taken := {START, END} & {field.name for field in fields}):
            raise SchemaError(f"a window has a column {sorted(taken)[0]!r} of its own; rename the other")
        return pa.schema([*fields, *self.bound_fields])

    def make(
        self, context: OperatorContext, held: Mapping[str, RestoredState] = NOTHING_HELD, refusal: str | None = None
    ) -> WindowCall:
        schema = pa.schema([field for field in self.input_schema if field.name != ALL])
        reader, writer = RowReader(schema), RowWriter(schema, operator_label(context))
        row_type: Any = reader.row_type
        made = self.stateful_call(context, held, refusal)
        function = made.function

        def call(groups: Groups) -> Iterator[pa.RecordBatch]:
            rows = iter(reader.read(groups.rows.select(schema.names), context))
            results, sizes = [], np.diff(groups.bounds).tolist()
            for number in made.at_each(groups):
                size = sizes[number]
                so_far = next(rows)
                for row in itertools.islice(rows, size - 1):
                    try:
                        so_far = function(so_far, row)
                    except Exception as error:
                        raise user_code_error(error, context, doing=f"reduce of {so_far} and {row}") from None
                    if type(so_far) is not row_type:
                        so_far = row_type._make(writer.as_values(so_far))
                results.append(so_far)
            reduced = writer.write(results)
            yield pa.RecordBatch.from_arrays([*reduced.columns, *self.bound_arrays(groups)], schema=self.output)

        return made.bind(call)


@dataclass(frozen=True, eq=False)
class ProcessFunctionOfWindow(WindowFunction):
    function: Callable[..., Any]
    result: str | pa.Schema
    state: Mapping[str, StateDescriptor] | None = None

    @cached_property
    def states(self) -> FunctionStates:
        return states_of(self.function, "process", self.state, keyed=True, reserved=TABLES, of_windows=True)

    @property
    def output(self) -> pa.Schema:
        if not callable(self.function):
            raise PlanError(f"process: expected a function of (rows, window), found {self.function!r}")
        return parse_schema(self.result)

    def make(
        self, context: OperatorContext, held: Mapping[str, RestoredState] = NOTHING_HELD, refusal: str | None = None
    ) -> WindowCall:
        output, label = self.output, operator_label(context)
        checked, writer = Results(output, label=label), RowWriter(output, label)
        names = [name for name in self.input_schema.names if name != ALL]
        calling = self.stateful_call(context, held, refusal)
        function = calling.function

        def call(groups: Groups) -> Iterator[pa.RecordBatch]:
            rows = to_polars(groups.rows.select(names))
            made: list[pa.RecordBatch] = []
            for _, (window, start, stop) in zip(calling.at_each(groups), self._windows(groups)):
                part = rows.slice(start, stop - start)
                try:
                    found = function(part, window)
                except WeirError:
                    raise
                except Exception as error:
                    what = f"{window} of {len(part)} rows ({format_schema(groups.rows.schema)})"
                    raise user_code_error(error, context, doing=what) from None
                if found is None:
                    continue
                is_frame = hasattr(found, "columns") or isinstance(found, pa.Table)
                made.append(checked.checked(found) if is_frame else writer.write(list(spread(found))))
            if made:
                yield pa.concat_batches(made)

        return calling.bind(call)

    def _windows(self, groups: Groups) -> Iterator[tuple[Window, int, int]]:
        keys = [key.to_pylist() for key in groups.keys(self.shown_keys)]
        zone = None if self.time is None else self.input_schema.field(self.time).type.tz
        watermark = _time(groups.watermark_us, zone)
        bounds = groups.bounds.tolist()
        starts = [None] * len(groups) if groups.starts_us is None else groups.starts_us.tolist()
        ends = [None] * len(groups) if groups.ends_us is None else groups.ends_us.tolist()
        for i in range(len(groups)):
            key = tuple(column[i] for column in keys)
            window = Window(key[0] if len(key) == 1 else key, _time(starts[i], zone), _time(ends[i], zone), watermark)
            yield window, bounds[i], bounds[i + 1]


def _time(time_us: int | None, zone: str | None) -> datetime | None:
    """None also for times that a datetime cannot hold, such as the watermark before any and that behind all."""
    if time_us is None:
        return None
    try:
        time = datetime(1970, 1, 1, tzinfo=None if zone is None else timezone.utc) + timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return time
