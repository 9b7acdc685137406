"""The contract of a state backend: values by key, frozen at once, written later.

Comes in: key columns and declared states. Goes out: handles that read and write
the value of the current key, and tables for snapshots. The names and shapes here
are what backends and operators share; tests/contract holds what they promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from weir.state.descriptors import ValueState
from weir.state.frozen import KEY_GROUP_COLUMN as KEY_GROUP_COLUMN
from weir.state.frozen import FrozenState, RestoredState

VALUE_COLUMN = "value"
"""Last column of a value state's table; a key column of that name pushes it to `_value`."""

Key: TypeAlias = Any
"""A key as a backend holds it: a scalar for one key column, a tuple for several."""


MakeRow: TypeAlias = Callable[[Iterable[Any]], Any]
"""Makes a row of its values."""


class KeyCursor:
    """The key whose row is being processed. The operator sets it once per row; all handles read it."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: Key = None


class ValueHandle(Protocol):
    """One value state at the current key. What `get` returns may be changed freely: only `set` changes the state."""

    value: Any

    def get(self) -> Any:
        """The value, or the declared default where none was set or it was cleared."""

    def set(self, value: Any) -> None:
        """Store a value of the declared type, or None; TypeError when it has another type."""

    def clear(self) -> None:
        """Forget the value."""


class RowHandle(Protocol):
    """One row at the current key: what an operator of ours keeps, under the same law."""

    def get(self) -> Any:
        """The row, or None."""

    def set(self, row: Sequence[Any]) -> None:
        """Store a row, or NotOfType. That its integers and strings can be written is for the caller to make sure of."""


class Backend(Protocol):
    """The keyed state of one operator in one subtask. Called by one thread."""

    cursor: KeyCursor

    def keys(self, columns: Sequence[pa.Array]) -> list[Key]:
        """The keys of a batch's rows, from its key columns; equal keys are equal Python values."""

    def shown(self, key: Key) -> Any:
        """A key as users know it."""

    def value_state(self, descriptor: ValueState) -> ValueHandle:
        """Declare a state. Each name once, before `restore`."""

    def row_state(self, name: str, schema: pa.Schema, make: MakeRow) -> RowHandle:
        """Declare a state of whole rows, a struct in its table; `make` builds the rows that `get` returns."""

    def freeze(self) -> Mapping[str, FrozenState]:
        """Every state as it is now, by name."""

    def restore(self, states: Mapping[str, RestoredState]) -> None:
        """Take over what was frozen, for exactly this subtask's key groups."""

    def close(self) -> None:
        """Release what is held."""
