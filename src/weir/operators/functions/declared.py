"""What a function keeps, as the plan knows it: its states by attribute, and what becomes of stored ones.

Comes in: a function object or a plain function with its states. Goes out: descriptors with
names, and verdicts. Mistakes are told here, when the job is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir.errors import PlanError
from weir.operators.functions.hooks import STATE as HOOK_STATE
from weir.operators.functions.hooks import Hooks, hooks_of
from weir.state.declared.base import StateDescriptor, unique_names
from weir.state.declared.kinds import KeyedState, OperatorState
from weir.state.declared.per_window import stored_form
from weir.state.declared.tables import TableLayout, shape_of
from weir.state.operator_state import operator_layout
from weir.state.values.evolution import SAME


@dataclass(frozen=True)
class FunctionStates:
    """What one function keeps. `declared`: attribute to state, each with a name of its own."""

    declared: Mapping[str, StateDescriptor] = field(default_factory=dict)
    is_held: bool = False
    """By the function object itself, as attributes; otherwise they are given to it with each row."""
    opens: bool = False
    """Whether it has an open(context) of its own, where it may declare more."""
    closes: bool = False
    hooks: Hooks | None = None
    reserved: frozenset[str] = frozenset()
    """Names of states that the operator has of its own."""
    of_windows: bool = False
    """Whether it is a function of windows, whose states may be of each window."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all states that are known before `open`."""
        own = tuple(state.name or "" for state in self.declared.values())
        return own if self.hooks is None else (*own, HOOK_STATE)

    @property
    def is_given(self) -> bool:
        """Whether the function is called with its states as a second argument."""
        return bool(self.declared) and not self.is_held

    @property
    def is_own(self) -> bool:
        """Whether each subtask needs a copy of the function."""
        return self.is_held or self.opens or self.closes or self.hooks is not None

    @property
    def may_be_keyed(self) -> bool:
        """Whether it has states by key, or may declare some in `open`."""
        return self.opens or bool(keyed_states(self.declared))

    def verdict(self, state: str, stored: pa.Schema, keys: pa.Schema | None = None) -> str:
        """As OperatorSpec.verdict; `keys`: the key columns of a state table."""
        if self.hooks is not None and state == HOOK_STATE:
            return self.hooks.plan(stored)
        descriptor = next((found for found in self.declared.values() if found.name == state), None)
        if descriptor is None and self.opens:
            return SAME  # For open() to declare; whether it fits is seen there.
        assert descriptor is not None
        if isinstance(descriptor, OperatorState):
            return operator_layout(descriptor).plan(stored)
        return TableLayout(keys, shape_of(stored_form(descriptor))).plan(stored)


def states_of(
    function: Any,
    operator: str,
    state: Mapping[str, StateDescriptor] | None = None,
    *,
    keyed: bool = False,
    reserved: Collection[str] = (),
    of_windows: bool = False,
) -> FunctionStates:
    """What a function declares: as class attributes of its object or, of a plain function, in `state`. `keyed`: whether
    there is a key, so that states may be by key. `reserved`: names that the operator needs itself."""
    if isinstance(function, type):
        if attributes_of_class(function):
            raise PlanError(f"{operator}: pass an instance, {function.__name__}(…), rather than the class")
        return FunctionStates(named_states(state or {}, operator), of_windows=of_windows)
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
    return kept_by(function, named, operator, is_held=bool(found), reserved=reserved, of_windows=of_windows)


def kept_by(
    function: Any,
    named: Mapping[str, StateDescriptor],
    operator: str,
    *,
    is_held: bool,
    base: type | None = None,
    reserved: Collection[str] = (),
    of_windows: bool = False,
) -> FunctionStates:
    """All that a function keeps. `base`: the class whose `open` and `close` do nothing."""
    hooks = hooks_of(type(function), operator)
    for taken in (*reserved, *(() if hooks is None else (HOOK_STATE,))):
        if any(descriptor.name == taken for descriptor in named.values()):
            raise PlanError(
                f"{operator}: {taken!r} is what the operator calls a state of its own; give yours another name"
            )
    for name, descriptor in named.items():
        check_window(name, descriptor, of_windows=of_windows)
    return FunctionStates(
        named,
        is_held=is_held,
        opens=_has(function, "open", base),
        closes=_has(function, "close", base),
        hooks=hooks,
        reserved=frozenset({*reserved, HOOK_STATE}),
        of_windows=of_windows,
    )


def states_of_class(kind: type | None, operator: str) -> FunctionStates:
    """What readers or writers of a class keep; they belong to no key. None: nothing."""
    if kind is None:
        return FunctionStates()
    named = named_states(_of_class(kind), operator)
    for attribute, descriptor in named.items():
        if not isinstance(descriptor, OperatorState):
            raise PlanError(
                f"{operator}: state {attribute!r} of {kind.__name__} is a {type(descriptor).__name__}, which needs"
                " a key; declare an OperatorListState or a BroadcastState"
            )
    hooks = hooks_of(kind, operator)
    if hooks is not None and any(descriptor.name == HOOK_STATE for descriptor in named.values()):
        raise PlanError(f"{operator}: {HOOK_STATE!r} is what its hooks keep; give your state another name")
    return FunctionStates(named, is_held=True, hooks=hooks)


def check_window(name: str, state: StateDescriptor, *, of_windows: bool) -> None:
    """Refuse a state of windows where there are none."""
    if state.per_window and not of_windows:
        raise PlanError(f"state {name!r} is per_window(…), which only functions of windows have; leave that out here")


def _has(function: Any, method: str, base: type | None) -> bool:
    found = getattr(type(function), method, None)
    return callable(found) and not isinstance(function, type) and found is not getattr(base, method, None)


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
    return _found(*_scopes(type(function)), getattr(function, "__dict__", {}))


def attributes_of_class(kind: type) -> bool:
    """Whether a class declares states."""
    return bool(_of_class(kind))


def _of_class(kind: type) -> dict[str, StateDescriptor]:
    return _found(*_scopes(kind))


def _scopes(kind: type) -> list[Mapping[str, Any]]:
    return [vars(base) for base in reversed(kind.__mro__)]


def _found(*scopes: Mapping[str, Any]) -> dict[str, StateDescriptor]:
    found: dict[str, Any] = {}
    for scope in scopes:
        # A subclass may put something else in a state's place.
        found.update((n, value) for n, value in scope.items() if n in found or isinstance(value, StateDescriptor))
    return {name: value for name, value in found.items() if isinstance(value, StateDescriptor)}


def keyed_states(declared: Mapping[str, StateDescriptor]) -> dict[str, KeyedState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, KeyedState)}


def operator_states(declared: Mapping[str, StateDescriptor]) -> dict[str, OperatorState]:
    return {attribute: state for attribute, state in declared.items() if isinstance(state, OperatorState)}
