"""States of each window of a key, kept as maps from the window's start.

Comes in: a keyed state that was declared for windows, and the map that holds it for all
windows of a key. Goes out: handles that stand at the window in hand. Like any map they are
read and written entry by entry: one for each window. Handles on a single entry serve others, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from weir.errors import PlanError
from weir.state.declared.base import StateDescriptor
from weir.state.declared.cursor import MAP_KEY_COLUMN, VALUE_COLUMN
from weir.state.declared.handles import UNSET
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState
from weir.state.keys.codec import stored_type

StateKind = TypeVar("StateKind", bound=StateDescriptor)

_MISSING: Any = object()


def per_window(state: StateKind) -> StateKind:
    """A state of each window of a key rather than of the key, for functions of windows: it is empty when the window
    begins, and gone when it is over.

    >>> import weir
    >>> weir.per_window(weir.ValueState("long", default=0))
    ValueState('bigint', default=0)
    """
    if not isinstance(state, KeyedState):
        raise PlanError(f"per_window: expected a state by key, such as a ValueState, found {state!r}")
    if state.ttl is not None:
        raise PlanError("per_window: such a state lives as long as its window; leave out ttl=")
    if state.pickled:
        raise PlanError("per_window: a state of a window cannot be Pickled(); give it a type")
    twin: Any = object.__new__(state.__class__)
    twin.__dict__.update(state.__dict__, per_window=True)
    return twin  # type: ignore[no-any-return]


def stored_form(state: StateDescriptor) -> StateDescriptor:
    """What a backend keeps: for a state of windows, a map by the window's start."""
    if not state.per_window:
        return state
    default = state.default if isinstance(state, ValueState) else None
    return MapState(pa.int64(), _cell_type(state), default, state.name, migrate=state.migrate)


def _cell_type(state: StateDescriptor) -> pa.DataType:
    """All that a state holds at one place, as one value."""
    kind = stored_type(state.type)
    if isinstance(state, ListState):
        return pa.list_(kind)
    if isinstance(state, MapState):
        key = pa.field(MAP_KEY_COLUMN, stored_type(state.key_type))
        return pa.list_(pa.struct([key, pa.field(VALUE_COLUMN, kind)]))
    return kind


class Entries(Protocol):
    """What handles ask of the map that holds them."""

    def get(self, key: Any, default: Any = UNSET) -> Any: ...

    def put(self, key: Any, value: Any) -> None: ...

    def remove(self, key: Any) -> None: ...


class WindowCursor:
    """The window in hand, by its start."""

    start_us = 0


def handle_at(state: KeyedState, held: Entries, window: WindowCursor) -> Any:
    """The handle of a state of windows, on the map that holds it."""
    for kind, handle in _HANDLES.items():
        if isinstance(state, kind):
            return handle(state, held, window)
    raise PlanError(f"per_window: {state!r} is no keyed state")


class _WindowState:
    def __init__(self, state: Any, held: Entries, window: WindowCursor) -> None:
        self._state = state
        self._held = held
        self._window = window

    def clear(self) -> None:
        self._held.remove(self._window.start_us)

    def _load(self, default: Any = None) -> Any:
        return self._held.get(self._window.start_us, default)

    def _store(self, value: Any) -> None:
        self._held.put(self._window.start_us, value)


class _WindowValue(_WindowState):
    def get(self) -> Any:
        return self._held.get(self._window.start_us)

    def set(self, value: Any) -> None:
        self._store(value)

    @property
    def value(self) -> Any:
        return self.get()

    @value.setter
    def value(self, value: Any) -> None:
        self._store(value)


class _WindowList(_WindowState):
    def get(self) -> list[Any]:
        return list(self._load(self._state.default))

    def add(self, value: Any) -> None:
        self._store([*self.get(), value])

    def add_all(self, values: Iterable[Any]) -> None:
        self._store([*self.get(), *values])

    def set(self, values: Iterable[Any]) -> None:
        self._store(list(values))


class _WindowReducing(_WindowState):
    def get(self) -> Any:
        return self._load(self._state.default)

    def add(self, value: Any) -> None:
        so_far = self._load(_MISSING)
        self._store(value if so_far is _MISSING else self._state.function(so_far, value))


class _WindowAggregating(_WindowState):
    def get(self) -> Any:
        held = self._load(_MISSING)
        if held is _MISSING:
            return self._state.default
        return held if self._state.result is None else self._state.result(held)

    def add(self, value: Any) -> None:
        held = self._load(_MISSING)
        self._store(self._state.add_value(self._state.create_accumulator() if held is _MISSING else held, value))


class _WindowMap(_WindowState):
    def get(self, key: Any, default: Any = UNSET) -> Any:
        return self._entries().get(key, self._state.default if default is UNSET else default)

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        if None in entries:
            raise TypeError(f"state {self._state.name!r}: a map key cannot be None")
        self._replace({**self._entries(), **entries})

    def remove(self, key: Any) -> None:
        entries = self._entries()
        if entries.pop(key, UNSET) is not UNSET:
            self._replace(entries)

    def contains(self, key: Any) -> bool:
        return key in self._entries()

    def keys(self) -> list[Any]:
        return list(self._entries())

    def values(self) -> list[Any]:
        return list(self._entries().values())

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._entries().items())

    def is_empty(self) -> bool:
        return not self._entries()

    def __getitem__(self, key: Any) -> Any:
        entries = self._entries()
        if key not in entries and self._state.default is not None:
            return self._state.default
        return entries[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        entries = self._entries()
        del entries[key]
        self._replace(entries)

    def __contains__(self, key: Any) -> bool:
        return key in self._entries()

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def _entries(self) -> dict[Any, Any]:
        return {entry[MAP_KEY_COLUMN]: entry[VALUE_COLUMN] for entry in self._load(())}

    def _replace(self, entries: Mapping[Any, Any]) -> None:
        if entries:
            self._store([{MAP_KEY_COLUMN: key, VALUE_COLUMN: value} for key, value in entries.items()])
        else:
            self.clear()


_HANDLES: dict[type[KeyedState], type[_WindowState]] = {
    ValueState: _WindowValue,
    ListState: _WindowList,
    MapState: _WindowMap,
    ReducingState: _WindowReducing,
    AggregatingState: _WindowAggregating,
}
