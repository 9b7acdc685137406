"""The contract of a state backend: values by key, frozen at once, written later.

Comes in: key columns and declared states. Goes out: handles that read and write what
belongs to the current key, and tables for snapshots. The names and shapes here are what
backends and operators share; tests/contract holds what they promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from weir.errors import PlanError
from weir.state.declared.cursor import Key, KeyCursor
from weir.state.declared.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, RowHandle, ValueHandle
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState
from weir.state.declared.making import HeldCells
from weir.state.frozen import FrozenState, RestoredState


class Backend(Protocol):
    """The keyed state of one operator in one subtask. Called by one thread.

    Each state is declared once, before `restore`. Handles obey the laws in declared/handles.py.
    """

    cursor: KeyCursor
    keys_at_once: int
    """For how many rows `begin` should be called at least, where there are so many: more keys are fetched faster."""

    def keys(self, columns: Sequence[pa.Array]) -> list[Key]:
        """The keys of a batch's rows, from its key columns; equal keys are equal Python values."""

    def columns(self, keys: Sequence[Key]) -> list[pa.Array]:
        """The key columns of a state table, from at least one key. Safe to call from another thread."""

    def shown(self, key: Key) -> Any:
        """A key as users know it."""

    def value_state(self, descriptor: ValueState) -> ValueHandle: ...

    def list_state(self, descriptor: ListState) -> ListHandle: ...

    def map_state(self, descriptor: MapState) -> MapHandle: ...

    def reducing_state(self, descriptor: ReducingState) -> ReducingHandle: ...

    def aggregating_state(self, descriptor: AggregatingState) -> AggregatingHandle: ...

    def held_state(self, descriptor: KeyedState) -> HeldCells:
        """Declare a state for those who make handles of their own, on what lies at a key as handles hold it."""

    def row_state(self, name: str, schema: pa.Schema) -> RowHandle:
        """Declare a state of whole rows, a struct in its table."""

    def begin(self, keys: Sequence[Key]) -> None:
        """Rows with these keys come now, one after the other: a backend may fetch their values at once."""

    def end(self) -> None:
        """They are through: a backend may write back what they changed. Not called when a function has raised."""

    def freeze(self) -> Mapping[str, FrozenState]:
        """Every state as it is now, by name. Never called between `begin` and `end`."""

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        """Take over what was frozen, for exactly this subtask's key groups."""

    def close(self) -> None:
        """Release what is held."""


def declare(backend: Backend, state: KeyedState) -> Any:
    """The handle of a state of any keyed kind."""
    if isinstance(state, ValueState):
        return backend.value_state(state)
    if isinstance(state, ListState):
        return backend.list_state(state)
    if isinstance(state, MapState):
        return backend.map_state(state)
    if isinstance(state, ReducingState):
        return backend.reducing_state(state)
    if isinstance(state, AggregatingState):
        return backend.aggregating_state(state)
    raise PlanError(f"{state!r} is no keyed state")
