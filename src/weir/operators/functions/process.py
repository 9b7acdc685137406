"""Process functions as the plan describes them: of one keyed stream, of two, and of one with broadcast rules.

Comes in: the function, the keys and the schemas. Goes out: what comes out of it, its
states, and the operator that runs it (keyed.py). Mistakes are told here, when
the job is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.operators.base import Operator, OperatorSpec
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.interfaces import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedFunction,
    ProcessFunction,
    declared_states,
    has_timers,
)
from weir.operators.functions.keyed import FunctionOperator, FunctionPlan, InputOf
from weir.schema import format_type, parse_schema
from weir.state.declared.base import StateDescriptor
from weir.state.keys.codec import KeyCodec
from weir.state.timers.tables import TIMERS, timer_verdict

EventTime = tuple[str, int]
"""The column with a stream's event times, and what is to be added, in microseconds."""


class FunctionSpec(OperatorSpec):
    """A function with state by key."""

    kind: ClassVar[type[KeyedFunction]]
    methods: ClassVar[tuple[str, ...]]
    """By input: what is called with each row."""

    def __init__(
        self,
        keys: Sequence[Sequence[str] | None],
        function: Any,
        schema: str | pa.Schema,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        sides: Mapping[str, str | pa.Schema] | None = None,
        times: Sequence[EventTime | None] = (),
    ) -> None:
        """`keys`, `times`: by input; no keys where it is broadcast."""
        self.inputs_keys = tuple(None if some is None else tuple(some) for some in keys)
        self.function = function
        self.output = parse_schema(schema)
        self.declared = declared_states(function, state, self.kind)
        self.side_schemas = _side_schemas(sides or {}, function)
        self.times = tuple(times) or (None,) * len(self.inputs_keys)
        self.has_timers = has_timers(function)
        self.key_schema: pa.Schema | None = None
        """Known once `schema` has seen the inputs."""
        self.inputs: tuple[pa.Schema, ...] = ()

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.inputs = tuple(inputs)
        found = [key_schema_of(keys, schema) for keys, schema in zip(self.inputs_keys, inputs) if keys is not None]
        self.key_schema = found[0]
        for other in found[1:]:
            check_same_keys(found[0], other)
        return self.output

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return self.side_schemas

    def make(self) -> Operator:
        if self.key_schema is None:
            raise PlanError("process: its input schema is not known; call schema() before make()")
        inputs = tuple(
            InputOf(method, schema, keys, *(time or ()))
            for method, schema, keys, time in zip(self.methods, self.inputs, self.inputs_keys, self.times)
        )
        return FunctionOperator(
            FunctionPlan(
                self.function,
                inputs,
                self.key_schema,
                self.output,
                declared=self.declared,
                sides=self.side_schemas,
                has_timers=self.has_timers,
            )
        )

    @property
    def states(self) -> tuple[str, ...]:
        return (*self.declared.names, TIMERS) if self.has_timers else self.declared.names

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if self.key_schema is None:
            raise PlanError("process: its input schema is not known; call schema() before verdict()")
        if self.has_timers and state == TIMERS:
            return timer_verdict(self.key_schema, stored)
        return self.declared.verdict(state, stored, KeyCodec(self.key_schema).schema)


class ProcessRows(FunctionSpec):
    """Call a ProcessFunction, or a plain function of (row, state), with each row at its key."""

    kind = ProcessFunction
    methods = ("process",)

    def __init__(
        self,
        keys: Sequence[str],
        function: ProcessFunction | Callable[[Any, Any], Any],
        schema: str | pa.Schema,
        state: Mapping[str, StateDescriptor] | None = None,
        *,
        sides: Mapping[str, str | pa.Schema] | None = None,
        time: EventTime | None = None,
    ) -> None:
        super().__init__([keys], function, schema, state=state, sides=sides, times=[time])


class CoProcessRows(FunctionSpec):
    """Call a CoProcessFunction with each row of two streams at its key."""

    kind = CoProcessFunction
    methods = ("process_left", "process_right")


class BroadcastProcessRows(FunctionSpec):
    """Call a BroadcastProcessFunction with each row of a keyed stream, and of one that every subtask gets."""

    kind = BroadcastProcessFunction
    methods = ("process", "process_broadcast")


def check_same_keys(left: pa.Schema, right: pa.Schema) -> None:
    """Refuse keys of two streams that can never be equal, or that would live in different places."""
    if len(left) != len(right):
        raise SchemaError(
            f"the streams have different numbers of keys: {', '.join(left.names)} and {', '.join(right.names)}"
        )
    for one, other in zip(KeyCodec(left).schema, KeyCodec(right).schema):
        if one.type != other.type:
            raise SchemaError(
                f"key {one.name!r} is {format_type(one.type)} and key {other.name!r} of the other stream is "
                f"{format_type(other.type)}; equal keys need one type: cast one of them with with_columns(…)"
            )


def _side_schemas(sides: Mapping[str, str | pa.Schema], function: Any) -> dict[str, pa.Schema]:
    if sides and not isinstance(function, KeyedFunction):
        raise PlanError("process: a plain function has no context.side(…); write a ProcessFunction to use sides=")
    for tag in sides:
        if not isinstance(tag, str) or not tag:
            raise PlanError(f"process: the tag of a side output is a name, found {tag!r}")
    return {tag: parse_schema(schema) for tag, schema in sides.items()}
