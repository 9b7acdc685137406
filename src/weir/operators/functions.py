"""What users write to keep state by key: process functions, and what they are given.

Comes in: a ProcessFunction, or a plain function with its states. Goes out: the states
that it declares. The operator that runs it is in process.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from weir.errors import PlanError
from weir.operators.base import OperatorContext
from weir.state.backend import Key, KeyCursor
from weir.state.descriptor_base import StateDescriptor, unique_names
from weir.state.descriptors import KeyedState, OperatorState
from weir.state.operator_state import operator_layout
from weir.state.tables import TableLayout, shape_of


class ProcessContext:
    """Where a process function stands."""

    __slots__ = ("_cursor", "_shown", "index", "name", "parallelism", "uid")

    def __init__(self, context: OperatorContext, cursor: KeyCursor, shown: Callable[[Key], Any]) -> None:
        self.uid = context.uid
        self.name = context.name
        self.index = context.index
        """Which of the `parallelism` subtasks of the operator this is, from 0."""
        self.parallelism = context.parallelism
        self._cursor = cursor
        self._shown = shown

    @property
    def key(self) -> Any:
        """The current row's key: a scalar for one key column, a tuple for several."""
        return self._shown(self._cursor.key)


class ProcessFunction:
    """A function with state. Write a subclass; declare states of any kind as class attributes.

        class RunningTotal(weir.ProcessFunction):
            total = weir.ValueState("long", default=0)

            def process(self, row, context):
                self.total.set(self.total.get() + row.value)
                yield row.key, self.total.get()

    Each subtask works on a copy of its own. What is not in a declared state does not survive a failure.
    """

    def open(self, context: ProcessContext) -> None:
        """Get ready, before the first row and after each restart. There is no key yet."""

    def process(self, row: Any, context: ProcessContext) -> Any:
        """Take one row, a named tuple. Yield rows, or return one (a tuple or a dict), a list of them, or None."""
        raise NotImplementedError(f"{type(self).__name__}.process")

    def close(self) -> None:
        """Release what `open` made."""


class States:
    """The states of a plain process function, as attributes."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self.__dict__.update(handles)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no state {name!r}; declared are: {', '.join(self.__dict__) or 'none'}")


def declared_states(function: Any, state: Mapping[str, StateDescriptor] | None) -> dict[str, StateDescriptor]:
    """Attribute name to state, of a ProcessFunction or of a plain function's `state`; each with a name of its own."""
    if isinstance(function, ProcessFunction):
        if state:
            raise PlanError("process: a ProcessFunction declares its states as class attributes; leave out state=")
        found = _attributes(function)
    elif isinstance(function, type) and issubclass(function, ProcessFunction):
        raise PlanError(f"process: pass an instance, {function.__name__}(…), rather than the class")
    elif callable(function):
        found = dict(state or {})
    else:
        raise PlanError(f"process: expected a ProcessFunction or a function of (row, state), found {function!r}")
    for attribute, descriptor in found.items():
        if not isinstance(descriptor, StateDescriptor):
            raise PlanError(f"process: state {attribute!r} must be a ValueState or another state, found {descriptor!r}")
    return _named(found, "process")


def keyed_states(declared: Mapping[str, StateDescriptor]) -> dict[str, KeyedState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, KeyedState)}


def operator_states(declared: Mapping[str, StateDescriptor]) -> dict[str, OperatorState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, OperatorState)}


def function_states(function: Any, operator: str) -> dict[str, OperatorState]:
    """The operator states that a function object declares as class attributes; none for a plain function."""
    if isinstance(function, type):
        if any(isinstance(value, StateDescriptor) for kind in function.__mro__ for value in vars(kind).values()):
            raise PlanError(f"{operator}: pass an instance, {function.__name__}(…), rather than the class")
        return {}
    found = _named(_attributes(function), operator)
    for attribute, state in found.items():
        if not isinstance(state, OperatorState):
            raise PlanError(
                f"{operator}: state {attribute!r} is a {type(state).__name__}, which needs a key: use"
                " key_by(…).process, or declare an OperatorListState or a BroadcastState"
            )
    return operator_states(found)


def _named(found: Mapping[str, StateDescriptor], operator: str) -> dict[str, StateDescriptor]:
    named = {attribute: descriptor.named(attribute) for attribute, descriptor in found.items()}
    unique_names(named, operator)
    return named


def _attributes(function: Any) -> dict[str, StateDescriptor]:
    found: dict[str, Any] = {}
    for scope in (*(vars(kind) for kind in reversed(type(function).__mro__)), getattr(function, "__dict__", {})):
        # A subclass may put something else in a state's place.
        found.update((n, value) for n, value in scope.items() if n in found or isinstance(value, StateDescriptor))
    return {name: value for name, value in found.items() if isinstance(value, StateDescriptor)}


def state_verdict(
    declared: Mapping[str, StateDescriptor], state: str, stored: pa.Schema, *, keys: pa.Schema | None = None
) -> str:
    """OperatorSpec.verdict for declared states; `keys`: the key columns of a state table."""
    descriptor = next(found for found in declared.values() if found.name == state)
    if isinstance(descriptor, OperatorState):
        return operator_layout(descriptor).plan(stored)
    return TableLayout(keys, shape_of(descriptor)).plan(stored)
