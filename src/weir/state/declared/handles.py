"""The handles through which functions reach their states, one class for each kind.

A backend makes the handles of keyed states: each stands at the current key. Descriptors
inherit these classes too, so that an editor knows what may be called; there every call
says that the job is not running. What a handle hands out may be changed freely: only
the handle's own methods change the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from weir.errors import PlanError

UNSET: Any = object()
"""In place of an argument that was left out."""


def _not_running(handle: object) -> NoReturn:
    name = getattr(handle, "name", None)
    named = f" '{name}'" if name else ""
    raise PlanError(f"state{named} has no value here: only a function of a running job can read or set it")


class ValueHandle(Protocol):
    """One value."""

    def get(self) -> Any:
        """The value, or the declared default where none was set or it was cleared."""
        _not_running(self)

    def set(self, value: Any) -> None:
        """Store a value of the declared type, or None; TypeError when it has another type."""
        _not_running(self)

    def clear(self) -> None:
        """Forget the value."""
        _not_running(self)

    @property
    def value(self) -> Any:
        """The same as `get()`; assign to it to store a value."""
        _not_running(self)

    @value.setter
    def value(self, value: Any) -> None:
        _not_running(self)


class ListHandle(Protocol):
    """A list."""

    def get(self) -> list[Any]:
        """A copy of the list; the declared default, or an empty one, where nothing was stored."""
        _not_running(self)

    def add(self, value: Any) -> None:
        """Append a value."""
        _not_running(self)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append some values: all of them, or none when one has another type."""
        _not_running(self)

    def set(self, values: Iterable[Any]) -> None:
        """Put these in the place of what was there."""
        _not_running(self)

    def clear(self) -> None:
        """Forget the list."""
        _not_running(self)


class MapHandle(Protocol):
    """A dictionary, in no order that could be relied on. Keys are never None; values may be.

    `in`, `len()` and iteration over the keys work, too.
    """

    def get(self, key: Any, default: Any = UNSET) -> Any:
        """The value of a key, or the default: the one given here, or else the declared one."""
        _not_running(self)

    def put(self, key: Any, value: Any) -> None:
        """Store a value."""
        _not_running(self)

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Store some values: all of them, or none when one has another type."""
        _not_running(self)

    def remove(self, key: Any) -> None:
        """Forget a key, if it is there."""
        _not_running(self)

    def contains(self, key: Any) -> bool:
        """Whether there is such a key."""
        _not_running(self)

    def keys(self) -> list[Any]:
        _not_running(self)

    def values(self) -> list[Any]:
        _not_running(self)

    def items(self) -> list[tuple[Any, Any]]:
        _not_running(self)

    def is_empty(self) -> bool:
        _not_running(self)

    def clear(self) -> None:
        """Forget all keys."""
        _not_running(self)

    def __getitem__(self, key: Any) -> Any:
        """The value of a key; where there is none, the declared default, or KeyError if none was declared."""
        _not_running(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        _not_running(self)

    def __delitem__(self, key: Any) -> None:
        """Forget a key; KeyError when it is not there."""
        _not_running(self)

    def __contains__(self, key: Any) -> bool:
        _not_running(self)

    def __len__(self) -> int:
        _not_running(self)

    def __iter__(self) -> Iterator[Any]:
        _not_running(self)


class ReducingHandle(Protocol):
    """All values that were added, folded into one."""

    def get(self) -> Any:
        """The values so far, folded; the declared default where none was added."""
        _not_running(self)

    def add(self, value: Any) -> None:
        """Fold a value in; a key's first is stored as it is."""
        _not_running(self)

    def clear(self) -> None:
        """Forget all values."""
        _not_running(self)


class AggregatingHandle(Protocol):
    """All values that were added, in an accumulator."""

    def get(self) -> Any:
        """The accumulator's result; the declared default where nothing was added."""
        _not_running(self)

    def add(self, value: Any) -> None:
        """Let the accumulator take a value."""
        _not_running(self)

    def clear(self) -> None:
        """Forget the accumulator."""
        _not_running(self)


class OperatorListHandle(Protocol):
    """A list that belongs to the subtask."""

    def get(self) -> list[Any]:
        """A copy of the list."""
        _not_running(self)

    def add(self, value: Any) -> None:
        """Append a value."""
        _not_running(self)

    def set(self, values: Iterable[Any]) -> None:
        """Put these in the place of what was there."""
        _not_running(self)

    def clear(self) -> None:
        """Forget the list."""
        _not_running(self)


class RowHandle(Protocol):
    """One row at the current key: what an operator of ours keeps, under the same law."""

    def get(self) -> Any:
        """The values of the row, or None."""

    def set(self, row: tuple[Any, ...]) -> None:
        """Store a row, or NotOfType. That its integers and strings can be written is for the caller to make sure of."""
