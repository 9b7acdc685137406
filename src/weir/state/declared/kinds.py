"""What users declare: a state's kind, type, name, default and time-to-live.

Comes in: DDL strings or Arrow types. Goes out: picklable descriptions that a backend
turns into handles. Holds no values itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from weir.errors import PlanError
from weir.schema import format_type
from weir.state.declared.base import Migrate, StateDescriptor, StateType, map_key_type
from weir.state.declared.base import Pickled as Pickled
from weir.state.declared.base import Ttl as Ttl
from weir.state.declared.handles import (
    AggregatingHandle,
    ListHandle,
    MapHandle,
    OperatorListHandle,
    ReducingHandle,
    ValueHandle,
)

Redistribute: TypeAlias = Literal["split", "union"]


class KeyedState(StateDescriptor):
    """A state with a value for each key: declared as a class attribute of a ProcessFunction, or in
    `process(…, state={…})`. While the job runs, a handle stands in its place."""


class ValueState(KeyedState, ValueHandle):
    """One value per key.

    While the job runs: `get()`, `set(value)`, `clear()`, and `value` as a property for both.
    `get()` of a key that has no value is `default`.

    >>> ValueState("long", default=0)
    ValueState('bigint', default=0)
    """

    def __init__(
        self,
        type: StateType,
        default: Any = None,
        name: str | None = None,
        *,
        ttl: Ttl | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(type, name=name, migrate=migrate)
        self._expire(ttl)
        self.default = self._value(default)


class ListState(KeyedState, ListHandle):
    """A list per key.

    While the job runs: `get()`, `add(value)`, `add_all(values)`, `set(values)`, `clear()`. The list of a key
    that has none is `default`; what is added comes after it.

    >>> ListState("string", ttl=Ttl("1d", refresh="read"))
    ListState('string', ttl=Ttl(after_ms=86400000, refresh='read'))
    """

    def __init__(
        self,
        type: StateType,
        default: Iterable[Any] = (),
        name: str | None = None,
        *,
        ttl: Ttl | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(type, name=name, migrate=migrate)
        self._expire(ttl)
        self.default: list[Any] = [self._value(value) for value in default or ()]


class MapState(KeyedState, MapHandle):
    """A dictionary per key.

    While the job runs: `get(key)`, `put(key, value)`, `put_all(entries)`, `remove(key)`, `contains(key)`, `keys()`,
    `values()`, `items()`, `is_empty()`, `clear()`, and `[]`, `del`, `in`, `len()` and iteration as with a dict.
    `get` of a map key that is not there is `default`.

    >>> MapState("string", "long", default=0)
    MapState('string', 'bigint', default=0)
    """

    key_type: pa.DataType

    def __init__(
        self,
        key_type: str | pa.DataType,
        value_type: StateType,
        default: Any = None,
        name: str | None = None,
        *,
        ttl: Ttl | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(value_type, name=name, migrate=migrate, what="value type")
        self._expire(ttl)
        self.key_type = map_key_type(self._parsed(key_type, "key type"), self._kind)
        self.default = self._value(default)

    def _types(self) -> list[str]:
        return [repr(format_type(self.key_type)), *super()._types()]


class ReducingState(KeyedState, ReducingHandle):
    """One value per key, into which `function(so_far, value)` folds each value that is added.

    While the job runs: `add(value)`, `get()`, `clear()`. A key's first value is stored as it is;
    `get()` of a key that has none is `default`.

    >>> ReducingState("long", max)
    ReducingState('bigint', max)
    """

    def __init__(
        self,
        type: StateType,
        function: Callable[[Any, Any], Any],
        default: Any = None,
        name: str | None = None,
        *,
        ttl: Ttl | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(type, name=name, migrate=migrate)
        self._expire(ttl)
        self.function: Callable[[Any, Any], Any] = self._function(function, "function")
        self.default = self._value(default)

    def _types(self) -> list[str]:
        return [*super()._types(), getattr(self.function, "__name__", repr(self.function))]


class AggregatingState(KeyedState, AggregatingHandle):
    """An accumulator per key, of the given type: made by `create()`, replaced by `add(accumulator, value)`.

    While the job runs: `add(value)`, `get()`, `clear()`. `get()` is `result(accumulator)` or, without a `result`,
    the accumulator itself; `default` for a key to which nothing was added. Here: the mean.

    >>> AggregatingState("struct<n:long,sum:double>", create=lambda: {"n": 0, "sum": 0.0},
    ...     add=lambda so_far, value: {"n": so_far["n"] + 1, "sum": so_far["sum"] + value},
    ...     result=lambda so_far: so_far["sum"] / so_far["n"])
    AggregatingState('struct<n:bigint,sum:double>')
    """

    def __init__(
        self,
        type: StateType,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
        default: Any = None,
        name: str | None = None,
        ttl: Ttl | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(type, name=name, migrate=migrate)
        self._expire(ttl)
        self.create_accumulator: Callable[[], Any] = self._function(create, "create")
        self.add_value: Callable[[Any, Any], Any] = self._function(add, "add")
        self.result: Callable[[Any], Any] | None = self._function(result, "result") if result is not None else None
        self.default = default
        """A result, so of any type."""


class OperatorState(StateDescriptor):
    """A state that belongs to a subtask rather than to a key: declared as a class attribute of any function object
    that is given to map, flat_map, filter, map_batches or process."""


class OperatorListState(OperatorState, OperatorListHandle):
    """A list of a subtask's own.

    While the job runs: `get()`, `add(value)`, `set(values)`, `clear()`. At another parallelism the elements of all
    subtasks are dealt out one by one (redistribute="split"), or each subtask gets all of them ("union").

    >>> OperatorListState("string", redistribute="union")
    OperatorListState('string', redistribute='union')
    """

    def __init__(
        self,
        type: StateType,
        redistribute: Redistribute = "split",
        name: str | None = None,
        *,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(type, name=name, migrate=migrate)
        if redistribute not in get_args(Redistribute):
            raise PlanError(f"{self._kind}: redistribute must be 'split' or 'union', found {redistribute!r}")
        self.redistribute: Redistribute = redistribute
        self.default: list[Any] = []

    def _types(self) -> list[str]:
        return [*super()._types(), f"redistribute={self.redistribute!r}"]


class BroadcastState(OperatorState, MapHandle):
    """A dictionary that every subtask has a copy of: fed by a broadcast stream, so that all copies are equal.

    While the job runs it is used like a MapState. At another parallelism each subtask gets one old subtask's copy.

    >>> BroadcastState("string", "double")
    BroadcastState('string', 'double')
    """

    key_type: pa.DataType

    def __init__(
        self,
        key_type: str | pa.DataType,
        value_type: StateType,
        default: Any = None,
        name: str | None = None,
        *,
        migrate: Migrate | None = None,
    ) -> None:
        self._declare(value_type, name=name, migrate=migrate, what="value type")
        self.key_type = map_key_type(self._parsed(key_type, "key type"), self._kind)
        self.default = self._value(default)

    def _types(self) -> list[str]:
        return [repr(format_type(self.key_type)), *super()._types()]
