"""A function object with operator states, as one subtask runs it.

Comes in: the function that a job was built with, and what it declares. Goes out: a copy
of it with handles in the place of its states, and their snapshots. A function without
states stays what it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from weir.operators.base import Frozen, Restored
from weir.state.declared.kinds import OperatorState
from weir.state.operator_state import OperatorStates


class StatefulFunction:
    """One subtask's own copy of a function; its states are empty until `restore`."""

    def __init__(self, function: Any, declared: Mapping[str, OperatorState]) -> None:
        self._states = OperatorStates(declared)
        # Subtasks may share one process, and what a function keeps must not be shared.
        self.function = copy.deepcopy(function) if declared else function
        for attribute, handle in self._states.handles.items():
            setattr(self.function, attribute, handle)

    def restore(self, restored: Restored | None) -> None:
        if restored is not None:
            self._states.restore(restored.states)

    def freeze(self) -> Frozen:
        return Frozen(states=self._states.freeze())


def state_names(declared: Mapping[str, OperatorState]) -> tuple[str, ...]:
    return tuple(state.name or "" for state in declared.values())
