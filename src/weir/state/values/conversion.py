"""Python values and Arrow arrays, both ways.

Comes in: an array, or Python values for a declared type. Goes out: a list, or an
array that holds exactly those values; a value that does not fit is named, never
bent (Arrow alone would make 1 of 1.5, and an infinite float of 1e300). Knows nothing of rows, keys or operators.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from weir.errors import DataError
from weir.schema import format_type
from weir.state.values.infinities import array_of
from weir.state.values.kept import Bent, check_of, with_dicts
from weir.texts import quoted

SHOWN_CHARACTERS_MAX = 500
"""Most characters of a value that go into an error message."""

Copy: TypeAlias = Callable[[Any], Any]
Normalise: TypeAlias = Callable[[Any], Any]

_UTC = datetime.timezone.utc
CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError)
"""What Arrow may raise for a Python value that it cannot take."""


class NotOfType(Exception):
    """A value does not fit the declared type. `index`: which one."""

    def __init__(self, index: int, value: Any, reason: str) -> None:
        super().__init__(index, value, reason)
        self.index = index
        self.value = value
        self.reason = reason

    @property
    def found(self) -> str:
        return found(self.value)


def found(value: Any) -> str:
    """A value and its Python type, for an error message."""
    return f"{shown(value)} ({type(value).__name__})"


def shown(value: Any) -> str:
    """A value's repr for an error message, cut to a limit."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return quoted(text, SHOWN_CHARACTERS_MAX)


# --- Arrow to Python ---


def to_list(array: pa.Array) -> list[Any]:
    """The values of an array as Python objects: datetimes for timestamps (nanoseconds are cut), dicts for maps."""
    kind = array.type
    types = pa.types
    if types.is_timestamp(kind):
        return _datetimes(array)
    if types.is_date(kind) or types.is_duration(kind):
        # NumPy makes these twenty times faster than Arrow does.
        array = array.cast(pa.date32() if types.is_date(kind) else pa.duration("us"), safe=False)
        return list(array.to_numpy(zero_copy_only=False).tolist())
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    if types.is_nested(kind):
        try:
            return list(array.to_pylist(maps_as_pydicts="strict"))
        except KeyError as error:
            raise DataError(
                f"a {format_type(kind)} has a key more than once, which no dict can have; keep one of each, "
                f"in a batch function or where the data are made ({error.args[0]})"
            ) from None
    return list(array.to_pylist())


def _datetimes(array: pa.Array) -> list[Any]:
    zone = array.type.tz
    if zone not in (None, "UTC"):
        return list(array.cast(pa.timestamp("us", zone), safe=False).to_pylist())
    naive = array.cast(pa.timestamp("us", zone), safe=False).to_numpy(zero_copy_only=False).tolist()
    if zone is None:
        return list(naive)
    return [None if moment is None else moment.replace(tzinfo=_UTC) for moment in naive]


# --- Python to Arrow ---


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of exactly these values; NotOfType names the first that does not fit."""
    try:
        check_of(kind)(values)
    except Bent:
        raise _first_bent(values, kind) from None
    try:
        return _converted(values, kind)
    except CONVERSION_ERRORS as error:
        raise _first_misfit(values, kind, error) from None


def _converted(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return array_of(values, kind)
    except CONVERSION_ERRORS:
        if not pa.types.is_nested(kind):
            raise
        # It may be a mapping that is no dict, of which Arrow knows nothing.
        return array_of([with_dicts(value, kind) for value in values], kind)


def _first_bent(values: Sequence[Any], kind: pa.DataType) -> NotOfType:
    check = check_of(kind)
    for index, value in enumerate(values):
        try:
            check([value])
        except Bent as problem:
            if problem.value is value:
                return NotOfType(index, value, problem.reason or "wrong type")
            reason = f": {problem.reason}" if problem.reason else f", where {problem.kind} is expected"
            return NotOfType(index, value, f"{found(problem.value)} inside of it{reason}")
    raise AssertionError("a value that was refused is not refused again")


def _first_misfit(values: Sequence[Any], kind: pa.DataType, error: Exception) -> NotOfType:
    for index, value in enumerate(values):
        try:
            _converted([value], kind)
        except CONVERSION_ERRORS as reason:
            return NotOfType(index, value, str(reason))
    return NotOfType(0, values, str(error))


# --- State values ---


def normaliser(kind: pa.DataType) -> Normalise:
    """A function that returns a value as it will be after a restore, or raises NotOfType.

    What it lets through can always be written, and reads back as the same value.
    """
    copy = copier(kind)
    is_exact = exactness(kind) if copy is None else _nested_exactness(kind)

    def normalise(value: Any) -> Any:
        if value is None:
            return None
        if is_exact(value):
            return value if copy is None else copy(value)
        return to_list(to_array([value], kind))[0]

    return normalise


def _nested_exactness(kind: pa.DataType) -> Callable[[Any], bool]:
    """The same test for types that hold others. Asking Arrow takes twenty times as long."""
    types = pa.types
    if types.is_struct(kind):
        return _struct_exactness(kind)
    if types.is_map(kind):
        is_key, is_item = _nested_exactness(kind.key_type), _or_none(_nested_exactness(kind.item_type))
        return lambda value: type(value) is dict and all(map(is_key, value)) and all(map(is_item, value.values()))
    if types.is_list(kind) or types.is_large_list(kind):
        is_item = _or_none(_nested_exactness(kind.value_type))
        return lambda value: type(value) is list and all(map(is_item, value))
    return exactness(kind) if copier(kind) is None else lambda value: False


def _struct_exactness(kind: pa.DataType) -> Callable[[Any], bool]:
    tests = {field.name: _or_none(_nested_exactness(field.type)) for field in kind}
    count = kind.num_fields

    def is_exact(value: Any) -> bool:
        if type(value) is not dict or len(value) != count:
            return False
        return all(name in value and test(value[name]) for name, test in tests.items())

    return is_exact


def _or_none(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def exactness(kind: pa.DataType) -> Callable[[Any], bool]:
    """A quick test whether a type surely holds a value as it is; False: Arrow must be asked."""
    types = pa.types
    usual = usual_type(kind)
    if types.is_integer(kind):
        low, high = integer_limits(kind)
        return lambda value: type(value) is int and low <= value <= high
    if usual is str:
        # Other strings may hold lone surrogates, which no file can.
        return lambda value: type(value) is str and value.isascii()
    if usual is not None:
        return lambda value: type(value) is usual
    if types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        zone = None if kind.tz is None else _UTC
        return lambda value: type(value) is datetime.datetime and value.tzinfo is zone
    return lambda value: False


def usual_type(kind: pa.DataType) -> type | None:
    """The Python type whose values read back as they were written, if they can be written at all; None: no such."""
    types = pa.types
    tests: tuple[tuple[type, Callable[[pa.DataType], bool]], ...] = (
        (int, types.is_integer),
        (float, types.is_float64),
        (str, types.is_string),
        (bool, types.is_boolean),
        (bytes, types.is_binary),
        (datetime.date, types.is_date32),
    )
    return next((usual for usual, test in tests if test(kind)), None)


def integer_limits(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    half = 1 << (kind.bit_width - 1)
    return -half, half - 1


def copier(kind: pa.DataType) -> Copy | None:
    """How to copy a value of a nested type, so that changing it leaves the original; None: there is no need to."""
    types = pa.types
    if types.is_map(kind):
        return _container_copy(dict, lambda value, copy: {k: copy(v) for k, v in value.items()}, copier(kind.item_type))
    if types.is_struct(kind):
        return _struct_copy(kind)
    if types.is_nested(kind):
        return _container_copy(list, lambda value, copy: [copy(item) for item in value], copier(kind.value_type))
    return None


def _container_copy(shallow: Copy, deep: Callable[[Any, Copy], Any], inner: Copy | None) -> Copy:
    if inner is None:
        return lambda value: None if value is None else shallow(value)
    inside: Copy = inner
    return lambda value: None if value is None else deep(value, inside)


def _struct_copy(kind: pa.DataType) -> Copy:
    inner = {field.name: copy for field in kind if (copy := copier(field.type)) is not None}

    def copy_struct(value: Any) -> Any:
        if value is None:
            return None
        return {**value, **{name: copy(value[name]) for name, copy in inner.items()}}

    return copy_struct
