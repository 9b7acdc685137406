"""How a value is held: checked when it comes, safe to hand out when it goes.

Comes in: what a function stores. Goes out: what a backend holds (normalised, or pickled),
and copies of it that may be changed. Also the errors that name state, key and value.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from weir.schema import format_type
from weir.state.declared.base import StateDescriptor
from weir.state.declared.cursor import KeyCursor
from weir.state.values.conversion import NotOfType, copier, normaliser, shown

_NAN = float("nan")
"""The one NaN among map keys: a dictionary finds it by identity."""


class ValueForm:
    """Values of one type: `encode` makes what is held, or raises NotOfType; `decode` makes what is handed out."""

    def __init__(self, kind: pa.DataType, pickled: bool = False) -> None:
        copy = copier(kind)
        self.plain = copy is None and not pickled
        """Whether what is held is handed out as it is."""
        self.encode: Callable[[Any], Any] = _pickle if pickled else normaliser(kind)
        self.decode: Callable[[Any], Any] = pickle.loads if pickled else copy or _same


def _same(value: Any) -> Any:
    return value


def _pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise NotOfType(0, value, f"it cannot be pickled: {type(error).__name__}: {error}") from None


def key_form(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a map's key of a value: None is refused, there is one NaN and one zero."""
    normalise = normaliser(kind)
    is_float = pa.types.is_floating(kind)

    def encode(key: Any) -> Any:
        if key is None:
            raise NotOfType(0, None, "a map key cannot be None")
        key = normalise(key)
        if is_float:
            return _NAN if key != key else key + 0.0
        return key

    return encode


class Refusals:
    """What is raised when a value does not fit a state."""

    def __init__(self, state: StateDescriptor, cursor: KeyCursor | None, holds: str = "") -> None:
        self._name = state.name
        self._holds = holds or state.shown_type
        self._cursor = cursor
        """None: the state has no key."""

    def __call__(self, problem: NotOfType, done: str = "was set to") -> TypeError:
        key = "" if self._cursor is None else f" at key {shown(self._cursor.shown(self._cursor.key))}"
        return TypeError(f"state {self._name!r} holds {self._holds}, but {done} {problem.found}{key}: {problem.reason}")


def list_holds(state: StateDescriptor) -> str:
    return f"a list of {state.shown_type}"


def map_holds(state: StateDescriptor, key_type: pa.DataType) -> str:
    return f"a map of {format_type(key_type)} to {state.shown_type}"
