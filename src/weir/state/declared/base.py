"""What all declared states have in common: types, time-to-live, defaults and names.

Comes in: what users write. Goes out: the base of the descriptors in kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import pyarrow as pa

from weir.config import Duration, duration_ms
from weir.errors import ConfigError, PlanError, SchemaError
from weir.schema import format_type, parse_type
from weir.state.keys.columns import check_key_type
from weir.state.values.conversion import NotOfType, to_array, to_list

Refresh: TypeAlias = Literal["write", "read"]
Migrate: TypeAlias = Callable[[Any], Any]
_Self = TypeVar("_Self", bound="StateDescriptor")


class Pickled:
    """In place of a type: values are any Python objects, kept as what `pickle` makes of them.

    They travel with the job, but cannot be read as a table, only as bytes, and they are unpickled
    only by a job that declares `Pickled` itself. An Arrow type is better wherever there is one.

    >>> import weir
    >>> weir.ValueState(weir.Pickled())
    ValueState(Pickled())
    """

    def __repr__(self) -> str:
        return "Pickled()"


StateType: TypeAlias = "str | pa.DataType | Pickled"
"""A type as users write it."""


@dataclass(frozen=True, init=False)
class Ttl:
    """How long a value lives after it was last written or, with refresh="read", last read or written.

    Measured by processing time. A value that has expired is never returned, and is left out of snapshots.
    The values of a map expire one by one, a list as a whole.

    >>> Ttl("1h")
    Ttl(after_ms=3600000, refresh='write')
    """

    after_ms: int
    refresh: Refresh

    def __init__(self, after: Duration, refresh: Refresh = "write") -> None:
        after_ms = duration_ms(after, "Ttl")
        if after_ms < 1:
            raise ConfigError(f"Ttl: {after!r} is too short; a value lives for a millisecond at least")
        if refresh not in get_args(Refresh):
            raise ConfigError(f"Ttl: refresh must be 'write' or 'read', found {refresh!r}")
        object.__setattr__(self, "after_ms", after_ms)
        object.__setattr__(self, "refresh", refresh)


class StateDescriptor:
    """What all states have in common."""

    type: pa.DataType
    """Of one value, as it is stored; binary when it is pickled."""
    pickled: bool
    default: Any
    name: str | None
    ttl: Ttl | None = None
    migrate: Migrate | None
    per_window: bool = False
    """Of each window of a key, rather than of the key: for functions of windows."""

    def _declare(self, type: StateType, *, name: str | None, migrate: Migrate | None, what: str = "type") -> None:
        self.pickled = isinstance(type, Pickled)
        self.type = pa.binary() if self.pickled else self._parsed(type, what)
        if name is not None and (not isinstance(name, str) or not name):
            raise PlanError(f"{self._kind}: a name is a string that is not empty, found {name!r}")
        self.name = name
        self.migrate = self._function(migrate, "migrate") if migrate is not None else None

    def _expire(self, ttl: Ttl | None) -> None:
        if ttl is not None and not isinstance(ttl, Ttl):
            raise PlanError(f"{self._kind}: expected ttl=Ttl(…), found {ttl!r}")
        self.ttl = ttl

    @property
    def _kind(self) -> str:
        return self.__class__.__name__

    def _parsed(self, type: StateType, what: str) -> pa.DataType:
        if not isinstance(type, (str, pa.DataType)):
            expected = f"expected a {what} such as 'long' or pa.int64()"
            instead = "; write Pickled(), with parentheses" if type is Pickled else ""
            raise SchemaError(f"{self._kind}: {expected}, found {type!r}{instead}")
        return parse_type(type) if isinstance(type, str) else type

    def _value(self, value: Any) -> Any:
        """A default as it would be read from the state."""
        if self.pickled:
            return value
        try:
            return to_list(to_array([value], self.type))[0]
        except NotOfType as problem:
            raise SchemaError(f"{self._kind}: the default {problem.found} is not a {self.shown_type}") from None

    def _function(self, function: Any, what: str) -> Any:
        if not callable(function):
            raise PlanError(f"{self._kind}: {what} must be a function, found {function!r}")
        return function

    @property
    def shown_type(self) -> str:
        """The type of a value, for messages."""
        return "pickled object" if self.pickled else format_type(self.type)

    def named(self: _Self, attribute: str) -> _Self:
        """The same state with the attribute's name, unless it has one of its own."""
        if self.name:
            return self
        twin = object.__new__(self.__class__)
        twin.__dict__.update(self.__dict__, name=attribute)
        return twin

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.__class__, self.type, self.name))

    def _types(self) -> list[str]:
        return ["Pickled()" if self.pickled else repr(format_type(self.type))]

    def __repr__(self) -> str:
        parts = self._types()
        if self.default not in (None, []):
            parts.append(f"default={self.default!r}")
        parts += [f"{part}={value!r}" for part in ("name", "ttl") if (value := getattr(self, part)) is not None]
        return f"{self._kind}({', '.join(parts)})"


def map_key_type(kind: pa.DataType, owner: str) -> pa.DataType:
    """A type whose values are equal in Python exactly when they are in Arrow, or SchemaError."""
    check_key_type(kind, f"{owner}'s map key")
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        raise SchemaError(f"{owner}: a map key of type {format_type(kind)} is ambiguous when clocks change; use UTC")
    return kind


def unique_names(found: Mapping[str, StateDescriptor], operator: str) -> None:
    """PlanError when two states have one name."""
    names = [descriptor.name for descriptor in found.values()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise PlanError(f"{operator}: two states are called {twice[0]!r}; state is matched by name, so rename one")
