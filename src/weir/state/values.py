"""Python values and Arrow arrays, both ways.

Comes in: an array, or Python values for a declared type. Goes out: a list, or an
array that holds exactly those values; a value that does not fit is named, never
bent (Arrow alone would make 1 of 1.5, and an infinite float of 1e300). Knows nothing of rows, keys or operators.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from weir.state.infinities import array_of

SHOWN_CHARACTERS_MAX = 500
"""Most characters of a value that go into an error message."""

Copy: TypeAlias = Callable[[Any], Any]
Normalise: TypeAlias = Callable[[Any], Any]

_NONE = type(None)
_UTC = datetime.timezone.utc
_CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class NotOfType(Exception):
    """A value does not fit the declared type. `index`: which one."""

    def __init__(self, index: int, value: Any, reason: str) -> None:
        super().__init__(index, value, reason)
        self.index = index
        self.value = value
        self.reason = reason

    @property
    def found(self) -> str:
        return f"{shown(self.value)} ({type(self.value).__name__})"


def shown(value: Any) -> str:
    """A value's repr for an error message, cut to a limit."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


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
        return list(array.to_pylist(maps_as_pydicts="strict"))
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
    fast, accepted = _python_types(kind)
    if fast is not None and not {fast, _NONE}.issuperset(set(map(type, values))):
        for index, value in enumerate(values):
            if not _is_acceptable(value, accepted):
                raise NotOfType(index, value, "wrong type")
    try:
        array = array_of(values, kind)
    except _CONVERSION_ERRORS as error:
        raise _first_misfit(values, kind, error) from None
    check_kept(values, kind)
    return array


def check_kept(values: Sequence[Any], kind: pa.DataType) -> None:
    """NotOfType names the first value of which Arrow, which has taken it, has kept something else: an instant in a
    column that has no zone, the time of day of a date, a fraction inside of a list of integers."""
    is_clock = pa.types.is_timestamp(kind) and kind.tz is None
    if is_clock or pa.types.is_date(kind):
        # A function is called only for those that may be wrong.
        suspects = (i for i, value in enumerate(values) if not is_clock or getattr(value, "tzinfo", None) is not None)
        for index in suspects:
            if (reason := _bent_time(values[index], kind)) is not None:
                raise NotOfType(index, values[index], reason)
    elif pa.types.is_nested(kind):
        is_exact = _or_none(_nested_exactness(kind))
        for index, value in enumerate(values):
            if not is_exact(value):
                try:
                    _check_leaves(value, kind)
                except NotOfType as problem:
                    raise NotOfType(index, value, f"{problem.found} {problem.reason}") from None


def _bent_time(value: Any, kind: pa.DataType) -> str | None:
    """What of a moment a type does not keep, although Arrow takes it."""
    if not isinstance(value, datetime.datetime):
        return None
    if pa.types.is_date(kind):
        is_midnight = value.tzinfo is None and value.time() == datetime.time()
        return None if is_midnight else "a date keeps no time of day; use its date()"
    if pa.types.is_timestamp(kind) and kind.tz is None and value.tzinfo is not None:
        return "it has a time zone, and timestamp_ntz has none; declare it timestamp, or take the zone off"
    return None


def _is_acceptable(value: Any, accepted: tuple[type, ...]) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) and bool not in accepted:
        return False
    return isinstance(value, accepted)


def _first_misfit(values: Sequence[Any], kind: pa.DataType, error: Exception) -> NotOfType:
    for index, value in enumerate(values):
        try:
            array_of([value], kind)
        except _CONVERSION_ERRORS as reason:
            return NotOfType(index, value, str(reason))
    return NotOfType(0, values, str(error))


def _python_types(kind: pa.DataType) -> tuple[type | None, tuple[type, ...]]:
    """The usual Python type for an Arrow type, and all that are accepted; (None, …): leave it to Arrow."""
    types = pa.types
    if types.is_integer(kind):
        return int, (numbers.Integral,)
    if types.is_floating(kind):
        return float, (numbers.Real,)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return str, (str,)
    if types.is_boolean(kind):
        return bool, (bool, np.bool_)
    if types.is_timestamp(kind):
        return datetime.datetime, (datetime.datetime, np.datetime64)
    if types.is_date(kind):
        return datetime.date, (datetime.date, np.datetime64)
    if types.is_decimal(kind):
        return decimal.Decimal, (decimal.Decimal, numbers.Integral)
    if types.is_duration(kind):
        return datetime.timedelta, (datetime.timedelta, np.timedelta64)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return bytes, (bytes, bytearray, memoryview)
    return None, ()


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


def _check_leaves(value: Any, kind: pa.DataType) -> None:
    """NotOfType where Arrow has bent a value inside of another, which it took."""
    types = pa.types
    if value is None:
        return
    if types.is_struct(kind):
        inner = value if isinstance(value, dict) else dict(zip((field.name for field in kind), value))
        for field in kind:
            _check_leaves(inner.get(field.name), field.type)
    elif types.is_map(kind):
        for key, item in value.items() if isinstance(value, dict) else value:
            _check_leaves(key, kind.key_type)
            _check_leaves(item, kind.item_type)
    elif types.is_nested(kind):
        for item in value:
            _check_leaves(item, kind.value_type)
    else:
        fast, accepted = _python_types(kind)
        if fast is not None and not _is_acceptable(value, accepted):
            raise NotOfType(0, value, f"inside of it, where {kind} is expected")
        if (reason := _bent_time(value, kind)) is not None:
            raise NotOfType(0, value, f"inside of it: {reason}")


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
    limits = np.iinfo(kind.to_pandas_dtype())
    return int(limits.min), int(limits.max)


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
