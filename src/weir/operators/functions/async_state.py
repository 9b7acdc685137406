"""State by key for async functions: each call works on a copy, which is kept when its row comes out.

Comes in: declared states, and a backend. Goes out: what a call is given of its key's state,
and what it made of it. Calls run in another thread, many side by side, but of a key one at
a time; the backend is touched by the task's thread only. A call that fails changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from weir.errors import PlanError
from weir.operators.functions.declared import FunctionStates
from weir.operators.functions.stateful import States
from weir.state.backend import Backend
from weir.state.declared.base import StateDescriptor
from weir.state.declared.handles import UNSET, ValueHandle
from weir.state.declared.kinds import KeyedState, OperatorState, ValueState
from weir.state.declared.per_window import WindowCursor, handle_at, one_cell

_MISSING: Any = object()


class CallState:
    """What one call holds of its key's state, by name, and what of it the call has changed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.changed: set[str] = set()

    def fresh(self) -> CallState:
        """For another attempt: one that fails leaves nothing behind."""
        return CallState(copy.deepcopy(self.values))


_CALL: ContextVar[CallState] = ContextVar("weir_call")
"""What the call in hand holds. Each runs in a context of its own."""


class CallStates:
    """The states of one function in one subtask."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._handles: dict[str, tuple[KeyedState, ValueHandle]] = {}

    def declare(self, state: KeyedState) -> Any:
        """The handle that calls use; it stands wherever the call does."""
        check_call_state(state)
        name = state.name or ""
        self._handles[name] = (state, self._backend.value_state(one_cell(state)))
        return handle_at(state, _CallCell(name), WindowCursor())

    def read(self, key: Any) -> CallState:
        """What there is at a key, for a call."""
        self._backend.cursor.key = key
        found = {name: handle.get() for name, (_, handle) in self._handles.items()}
        # Only of values it is None that may be held.
        kept = {n: v for n, v in found.items() if v is not None or isinstance(self._handles[n][0], ValueState)}
        return CallState(kept)

    def write(self, key: Any, held: CallState) -> None:
        """What a call has made of it; TypeError where a value is of another type."""
        self._backend.cursor.key = key
        for name in held.changed:
            _, handle = self._handles[name]
            if name in held.values:
                handle.set(held.values[name])
            else:
                handle.clear()


def check_call_state(state: StateDescriptor) -> None:
    """Refuse what states of async functions cannot have."""
    if isinstance(state, OperatorState):
        raise PlanError(
            f"map_async: state {state.name!r} belongs to the subtask, but its calls run side by side; keep it by key"
        )
    if state.ttl is not None or state.pickled:
        what = "a time-to-live" if state.ttl is not None else "Pickled() values"
        raise PlanError(f"map_async: state {state.name!r} has {what}, which states of async functions cannot have")


class _CallCell:
    """One state of the call in hand, in the place of a map with one entry."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get(self, key: Any, default: Any = UNSET) -> Any:
        return _held().values.get(self._name, None if default is UNSET else default)

    def put(self, key: Any, value: Any) -> None:
        held = _held()
        held.values[self._name] = value
        held.changed.add(self._name)

    def remove(self, key: Any) -> None:
        held = _held()
        held.values.pop(self._name, None)
        held.changed.add(self._name)


def _held() -> CallState:
    found = _CALL.get(_MISSING)
    if found is _MISSING:
        raise LookupError("there is no key here: the state of an async function is for its calls")
    return found  # type: ignore[no-any-return]


class CallAtKey:
    """The function, called with a row and the state of its key; what it returned, and the state that it left."""

    def __init__(
        self, function: Callable[..., Awaitable[Any]], states: FunctionStates, handles: Mapping[str, Any]
    ) -> None:
        self._function = function
        self._given = (States(handles),) if states.is_given else ()

    async def __call__(self, row_and_state: tuple[Any, CallState]) -> tuple[Any, CallState]:
        row, before = row_and_state
        held = before.fresh()
        _CALL.set(held)
        return await self._function(row, *self._given), held
