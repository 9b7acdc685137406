"""State by key for async functions: each call works on a copy, which is kept when its row comes out.

Comes in: declared states, and a backend. Goes out: what a call is given of its key's state,
and what it made of it. Calls run in another thread, many side by side, but of a key one at
a time; the backend is touched by the task's thread only. A call that fails changes nothing.

What a call is given is what cells hold at its key, moments of the last touch and all, so
that its handles are those of any other function. It shares that with the backend: lists and
maps are copied by whoever changes them first (`own`), other values are never changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from weir.errors import PlanError
from weir.operators.functions.declared import FunctionStates
from weir.operators.functions.stateful import States
from weir.state.backend import Backend
from weir.state.declared.base import StateDescriptor
from weir.state.declared.cursor import Key, KeyCursor
from weir.state.declared.kinds import KeyedState, MapState, OperatorState
from weir.state.declared.making import HeldCells, cell_default, make_handle

_MISSING: Any = object()


class CallState:
    """What one call holds of its key's state, by name, and what of it the call has changed."""

    def __init__(self, key: Key, values: Mapping[str, Any]) -> None:
        self.key = key
        self.values = dict(values)
        self.owned: set[str] = set()
        """Those whose list or map is the call's own."""
        self.changed: dict[str, set[Any]] = {}
        """By name, of a map the keys of its entries."""

    def fresh(self) -> CallState:
        """For an attempt: one that fails leaves nothing behind."""
        return CallState(self.key, self.values)


_CALL: ContextVar[CallState] = ContextVar("weir_call")
"""What the call in hand holds. Each runs in a context of its own."""


@dataclass(frozen=True)
class _Declared:
    cells: HeldCells
    is_map: bool


class CallStates:
    """The states of one function in one subtask."""

    def __init__(self, backend: Backend, now_ms: Callable[[], int]) -> None:
        self._backend = backend
        self._now_ms = now_ms
        self._cursor = _CallCursor(backend.shown)
        self._states: dict[str, _Declared] = {}

    def declare(self, state: KeyedState) -> Any:
        """The handle that calls use; it stands wherever the call does."""
        check_call_state(state)
        name, is_map = state.name or "", isinstance(state, MapState)
        self._states[name] = _Declared(self._backend.held_state(state), is_map)
        made = make_handle(state, self._cursor, self._now_ms)
        made.owner.data = _CallCells(name, cell_default(state), is_map=is_map)
        return made.handle

    def read(self, key: Key) -> CallState:
        """What there is at a key, for a call."""
        values: dict[str, Any] = {}
        for name, state in self._states.items():
            found = state.cells.data[key]
            if found is state.cells.data.default:
                continue
            if state.is_map:
                found = dict(found.items())
            values[name] = found
        return CallState(key, values)

    def write(self, held: CallState) -> None:
        """What a call has made of it."""
        for name, entries in held.changed.items():
            state, value = self._states[name], held.values.get(name, _MISSING)
            cells = state.cells.data
            if state.is_map:
                _write_entries(cells, held.key, {} if value is _MISSING else value, entries)
            elif value is _MISSING:
                cells.forget(held.key)
            else:
                cells[held.key] = value
                cells.note(held.key)


def _write_entries(cells: Any, key: Key, entries: Mapping[Any, Any], changed: set[Any]) -> None:
    there = {name: entries[name] for name in changed if name in entries}
    own = cells.own(key)
    if own is None:
        if not there:
            return
        cells[key] = own = {}
    own.update(there.items())
    for name in changed.difference(there):
        own.pop(name, None)
    for name in changed:
        cells.note((key, name))
    if not own:
        cells.forget(key)


def check_call_state(state: StateDescriptor) -> None:
    """Refuse what states of async functions cannot have."""
    if isinstance(state, OperatorState):
        raise PlanError(
            f"map_async: state {state.name!r} belongs to the subtask, but its calls run side by side; keep it by key"
        )


class _CallCursor(KeyCursor):
    """Stands at the key of the call in hand."""

    def __init__(self, shown: Callable[[Key], Any]) -> None:
        self.shown = shown

    @property
    def key(self) -> Key:
        return _held().key


class _CallCells:
    """One state of the call in hand, as handles use the cells of a backend."""

    def __init__(self, name: str, default: Any, *, is_map: bool) -> None:
        self.default = default
        self._name = name
        self._is_map = is_map

    def __getitem__(self, key: Key) -> Any:
        return _held().values.get(self._name, self.default)

    def __setitem__(self, key: Key, value: Any) -> None:
        held = _held()
        held.values[self._name] = value
        held.owned.add(self._name)

    def own(self, key: Key) -> Any:
        held = _held()
        found = held.values.get(self._name)
        if found is not None and self._name not in held.owned:
            self[key] = found = found.copy()
        return found

    def forget(self, key: Key) -> None:
        held = _held()
        changed = held.changed.setdefault(self._name, set())
        before = held.values.pop(self._name, ())
        if self._is_map:
            changed.update(before)

    def note(self, changed: Any) -> None:
        entries = _held().changed.setdefault(self._name, set())
        if self._is_map:
            entries.add(changed[1])


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
