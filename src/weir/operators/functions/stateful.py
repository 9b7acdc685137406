"""A function object with states, as one subtask runs it.

Comes in: the function that a job was built with, what it declares, and for states by key a
backend. Goes out: a copy of it with handles in the place of its states, and their
snapshots. A function without states stays what it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from weir.errors import CheckpointError
from weir.operators.base import OperatorContext
from weir.operators.functions.declared import FunctionStates, keyed_states, operator_states
from weir.operators.user_code import operator_label
from weir.state.backend import Backend, declare
from weir.state.frozen import FrozenState, RestoredState
from weir.state.operator_state import OperatorStates


class StatefulFunction:
    """One subtask's own copy of a function; its states are empty until `restore`."""

    def __init__(self, function: Any, states: FunctionStates) -> None:
        self.states = states
        self._operator_states = OperatorStates(operator_states(states.declared))
        # Subtasks may share one process, and what a function keeps must not be shared.
        self.function = copy.deepcopy(function) if states.is_held else function
        self.handles: dict[str, Any] = {}
        """By attribute, once `declare` has made them."""

    def declare(self, backend: Backend | None = None) -> None:
        """Put the handles in the place of the states. `backend`: for those by key."""
        self.handles = dict(self._operator_states.handles)
        if backend is not None:
            keyed = keyed_states(self.states.declared)
            self.handles |= {attribute: declare(backend, state) for attribute, state in keyed.items()}
        if self.states.is_held:
            for attribute, handle in self.handles.items():
                setattr(self.function, attribute, handle)

    @property
    def call(self) -> Callable[[Any], Any]:
        """The function of one row, which a plain one is given its states with."""
        function = self.function
        if not self.states.is_given:
            return function  # type: ignore[no-any-return]
        given = States(self.handles)
        return lambda row: function(row, given)

    def restore(
        self, states: Mapping[str, RestoredState], context: OperatorContext, backend: Backend | None = None
    ) -> None:
        """Take over what a checkpoint holds."""
        unkeyed = self._operator_states.names
        try:
            if backend is not None:
                backend.restore({name: state for name, state in states.items() if name not in unkeyed})
                states = {name: state for name, state in states.items() if name in unkeyed}
            self._operator_states.restore(states)
        except CheckpointError as error:
            raise type(error)(f"{operator_label(context)}: {error.message}") from None

    def freeze(self) -> dict[str, FrozenState]:
        """The states that are not the backend's."""
        return self._operator_states.freeze()


class States:
    """The states of a plain function, as attributes."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self.__dict__.update(handles)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no state {name!r}; declared are: {', '.join(self.__dict__) or 'none'}")
