"""What users declare: a state's name, type and default.

Comes in: a DDL string or an Arrow type. Goes out: a picklable description that a
backend turns into a handle. Holds no values itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.schema import format_type, parse_type
from weir.state.values import NotOfType, to_array, to_list


class ValueState:
    """One value per key.

    Declared as a class attribute of a ProcessFunction, or in `process(…, state={…})`.
    While the job runs, a handle stands in its place: `get()`, `set(value)`, `clear()`,
    and `value` as a property for both. `get()` of a key that has no value is `default`.

    >>> ValueState("long", default=0)
    ValueState('bigint', default=0)
    """

    def __init__(self, type: str | pa.DataType, default: Any = None, name: str | None = None) -> None:
        if not isinstance(type, (str, pa.DataType)):
            raise SchemaError(f"ValueState: expected a type such as 'long' or pa.int64(), found {type!r}")
        self.type: pa.DataType = parse_type(type) if isinstance(type, str) else type
        try:
            self.default = to_list(to_array([default], self.type))[0]
        except NotOfType as problem:
            raise SchemaError(f"ValueState: the default {problem.found} is not a {format_type(self.type)}") from None
        self.name = name

    def named(self, attribute: str) -> ValueState:
        """The same state with the attribute's name, unless it has one of its own."""
        return self if self.name else ValueState(self.type, self.default, attribute)

    def get(self) -> Any:
        """The current key's value, or the default."""
        self._not_running()

    def set(self, value: Any) -> None:
        """Store a value for the current key."""
        self._not_running()

    def clear(self) -> None:
        """Forget the current key's value."""
        self._not_running()

    @property
    def value(self) -> Any:
        """The current key's value; assign to it to store one."""
        self._not_running()

    @value.setter
    def value(self, value: Any) -> None:
        self._not_running()

    def _not_running(self) -> NoReturn:
        name = f" '{self.name}'" if self.name else ""
        raise PlanError(f"state{name} has no value here: only a process function of a running job can read or set it")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueState) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((self.type, self.name))

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"ValueState({format_type(self.type)!r}, default={self.default!r}{name})"

    def _parts(self) -> tuple[Any, ...]:
        return (self.type, self.default, self.name)
