"""How a function of windows is called: at the key and the window in hand, where it has states.

Comes in: the function, what it declares, and windows with their rows. Goes out: the key and
the window, one after the other, and snapshots of what the function keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.errors import PlanError
from weir.operators.base import OperatorContext
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.declared import FunctionStates
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.stateful import StatefulFunction, States
from weir.state.backend import Backend, declare
from weir.state.backends import make_backend
from weir.state.declared.kinds import KeyedState, MapState
from weir.state.declared.per_window import WindowCursor, handle_at, stored_form
from weir.state.frozen import FrozenState, RestoredState
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints


@dataclass(frozen=True)
class Groups:
    """The rows of many windows. Window i has rows bounds[i] to bounds[i + 1]."""

    rows: pa.RecordBatch
    bounds: Ints
    starts_us: Ints | None
    ends_us: Ints | None
    watermark_us: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def keys(self, names: Sequence[str]) -> list[pa.Array]:
        """These columns of each window's first row."""
        return list(take_rows(self.rows.select(list(names)), self.bounds[:-1]).columns) if names else []


class WindowCall:
    """What one subtask calls with the rows of windows. This one keeps nothing."""

    has_window_states = False
    """Whether `over` is to be told of windows that are."""

    def __init__(self, call: Callable[[Groups], Iterator[pa.RecordBatch]]) -> None:
        self._call = call

    def __call__(self, groups: Groups) -> Iterator[pa.RecordBatch]:
        return self._call(groups)

    def over(self, keys: Sequence[pa.Array], starts_us: Ints) -> None:
        """These windows will not be seen again: forget what was kept for them."""

    def freeze(self) -> Mapping[str, FrozenState]:
        return {}

    def close(self) -> None:
        """Release what is held."""


class StatefulCall(WindowCall):
    """A function that may keep states: by key, of each window, of the subtask, or what its hooks say."""

    def __init__(
        self,
        function: Any,
        states: FunctionStates,
        *,
        keys: Sequence[str],
        schema: pa.Schema,
        context: OperatorContext,
        held: Mapping[str, RestoredState],
        refusal: str | None,
    ) -> None:
        """`refusal`: why there can be no states of windows here."""
        self._stateful = StatefulFunction(function, states)
        self._keys = keys
        self._refusal = refusal
        self._window = WindowCursor()
        self._window_states: list[Any] = []
        self._backend: Backend | None = None
        if states.may_be_keyed:
            self._backend = make_backend(
                key_schema_of(keys, schema),
                max_parallelism=context.max_parallelism,
                key_groups=context.key_groups,
                place=context.place,
            )
        self._stateful.attach(context, held, self._backend, by_key=self._declare if self._backend else None)
        self._stateful.open(FunctionContext(context, self._stateful.state))
        self.function: Callable[..., Any] = self._stateful.function
        if states.is_given:
            plain, given = self._stateful.function, States(self._stateful.handles)
            self.function = lambda *arguments: plain(*arguments, given)

    @property
    def has_window_states(self) -> bool:  # type: ignore[override]
        return bool(self._window_states)

    def bind(self, call: Callable[[Groups], Iterator[pa.RecordBatch]]) -> StatefulCall:
        """What is called with the windows; it asks `at_each` for the one in hand."""
        self._call = call
        return self

    def at_each(self, groups: Groups) -> Iterator[int]:
        """The number of each window, once the states stand there."""
        if self._backend is None:
            return iter(range(len(groups)))
        starts = [0] * len(groups) if groups.starts_us is None else groups.starts_us.tolist()
        return self.at(groups.keys(self._keys), starts)

    def at(self, columns: Sequence[pa.Array], starts_us: Sequence[int]) -> Iterator[int]:
        """The same, where each has a row in these key columns."""
        backend = self._backend
        if backend is None:
            yield from range(len(starts_us))
            return
        keys = backend.keys(columns)
        step = max(backend.keys_at_once, 1)
        for first in range(0, len(keys), step):
            some = keys[first : first + step]
            backend.begin(some)
            for number, key in enumerate(some, first):
                backend.cursor.key, self._window.start_us = key, starts_us[number]
                yield number
            backend.end()

    def over(self, keys: Sequence[pa.Array], starts_us: Ints) -> None:
        backend = self._backend
        if backend is None or not self._window_states:
            return
        found = backend.keys(keys)
        backend.begin(found)
        for backend.cursor.key, start_us in zip(found, starts_us.tolist()):
            for held in self._window_states:
                held.remove(start_us)
        backend.end()

    def freeze(self) -> Mapping[str, FrozenState]:
        by_key = {} if self._backend is None else self._backend.freeze()
        return {**by_key, **self._stateful.freeze()}

    def close(self) -> None:
        try:
            self._stateful.close()
        finally:
            if self._backend is not None:
                self._backend.close()

    def _declare(self, state: KeyedState) -> Any:
        assert self._backend is not None
        if not state.per_window:
            return declare(self._backend, state)
        if self._refusal is not None:
            raise PlanError(f"state {state.name!r} is per_window(…): {self._refusal}")
        form = stored_form(state)
        assert isinstance(form, MapState)
        held = self._backend.map_state(form)
        self._window_states.append(held)
        return handle_at(state, held, self._window)


def check_window_states(states: FunctionStates, refusal: str | None) -> None:
    """Tell when the job is written that there can be no states of windows."""
    named: Collection[str] = [name for name, state in states.declared.items() if state.per_window]
    if refusal is not None and named:
        raise PlanError(f"state {min(named)!r} is per_window(…): {refusal}")
