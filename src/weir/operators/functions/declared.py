"""What a function keeps, as the plan knows it: its states by attribute, and what becomes of stored ones.

Comes in: a function object or a plain function with its states. Goes out: descriptors with
names, and verdicts. Mistakes are told here, when the job is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir.errors import PlanError
from weir.state.declared.base import StateDescriptor, unique_names
from weir.state.declared.kinds import KeyedState, OperatorState
from weir.state.declared.tables import TableLayout, shape_of
from weir.state.operator_state import operator_layout


@dataclass(frozen=True)
class FunctionStates:
    """What one function declares. `declared`: attribute to state, each with a name of its own."""

    declared: Mapping[str, StateDescriptor] = field(default_factory=dict)
    is_held: bool = False
    """By the function object itself, as attributes; otherwise they are given to it with each row."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(state.name or "" for state in self.declared.values())

    @property
    def is_given(self) -> bool:
        """Whether the function is called with its states as a second argument."""
        return bool(self.declared) and not self.is_held

    def verdict(self, state: str, stored: pa.Schema, keys: pa.Schema | None = None) -> str:
        """As OperatorSpec.verdict; `keys`: the key columns of a state table."""
        descriptor = next(found for found in self.declared.values() if found.name == state)
        if isinstance(descriptor, OperatorState):
            return operator_layout(descriptor).plan(stored)
        return TableLayout(keys, shape_of(descriptor)).plan(stored)


def states_of(
    function: Any, operator: str, state: Mapping[str, StateDescriptor] | None = None, *, keyed: bool = False
) -> FunctionStates:
    """What a function declares: as class attributes of its object or, of a plain function, in `state`. `keyed`: whether
    there is a key, so that states may be by key."""
    if isinstance(function, type):
        if attributes_of_class(function):
            raise PlanError(f"{operator}: pass an instance, {function.__name__}(…), rather than the class")
        return FunctionStates(named_states(state or {}, operator))
    found = attributes(function)
    if found and state:
        raise PlanError(f"{operator}: {type(function).__name__} declares its states as attributes; leave out state=")
    named = named_states(found or state or {}, operator)
    for attribute, descriptor in named.items():
        if not keyed and not isinstance(descriptor, OperatorState):
            raise PlanError(
                f"{operator}: state {attribute!r} is a {type(descriptor).__name__}, which needs a key: use"
                f" key_by(…).{operator}, or declare an OperatorListState or a BroadcastState"
            )
    return FunctionStates(named, is_held=bool(found))


def named_states(found: Mapping[str, Any], operator: str) -> dict[str, StateDescriptor]:
    """The same with a name for each state, or PlanError."""
    for attribute, descriptor in found.items():
        if not isinstance(descriptor, StateDescriptor):
            raise PlanError(
                f"{operator}: state {attribute!r} must be a ValueState or another state, found {descriptor!r}"
            )
    named = {attribute: descriptor.named(attribute) for attribute, descriptor in found.items()}
    unique_names(named, operator)
    return named


def attributes(function: Any) -> dict[str, StateDescriptor]:
    """The states that a function object has as attributes."""
    found: dict[str, Any] = {}
    for scope in (*(vars(kind) for kind in reversed(type(function).__mro__)), getattr(function, "__dict__", {})):
        # A subclass may put something else in a state's place.
        found.update((n, value) for n, value in scope.items() if n in found or isinstance(value, StateDescriptor))
    return {name: value for name, value in found.items() if isinstance(value, StateDescriptor)}


def attributes_of_class(kind: type) -> bool:
    """Whether a class declares states."""
    return any(isinstance(value, StateDescriptor) for base in kind.__mro__ for value in vars(base).values())


def keyed_states(declared: Mapping[str, StateDescriptor]) -> dict[str, KeyedState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, KeyedState)}


def operator_states(declared: Mapping[str, StateDescriptor]) -> dict[str, OperatorState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, OperatorState)}
