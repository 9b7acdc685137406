"""Which Python values an Arrow type keeps as they are.

Comes in: a type, once; then columns of values, at any rate. Goes out: nothing, or Bent with the first value of which
Arrow would make another one in silence: 1 of 1.5, ['a', 'b'] of 'ab', a struct without the field that was misspelt.
What is too large for a type Arrow itself refuses. Whole columns are looked at by the set of their types, which takes
less time than to convert them.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Check: TypeAlias = "Callable[[Iterable[Any]], None]"
"""Raises Bent. What it is given can be gone through several times."""

_NONE = type(None)
_MIDNIGHT = datetime.time()
_TEXTS = (str, bytes, bytearray, memoryview)
_STEPS = {"s": 1_000_000, "ms": 1_000}
"""Microseconds of a unit that has not room for each of them."""

_LONG_ITEMS_MIN = 32
"""Lists of so many items, or more, are worth a look one by one."""

_zone_of = attrgetter("tzinfo")


class Bent(Exception):
    """A value of which a type keeps something else, or nothing."""

    def __init__(self, value: Any, kind: pa.DataType, reason: str = "") -> None:
        super().__init__(value, kind, reason)
        self.value = value
        self.kind = kind
        self.reason = reason
        """Empty: it is not of the type at all."""


@lru_cache(maxsize=1_024)
def check_of(kind: pa.DataType) -> Check:
    """The check of a column of this type."""
    types = pa.types
    if types.is_struct(kind):
        return _struct_check(kind)
    if types.is_map(kind):
        return _map_check(kind)
    if types.is_nested(kind):
        return _list_check(kind)
    if types.is_dictionary(kind):
        return check_of(kind.value_type)
    return _leaf_check(kind)


class _Chained:
    """The items of several collections, one after the other; None is an empty one. Copies nothing."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(filter(None, self._parts))

    def types(self) -> set[type]:
        parts = [part for part in self._parts if part]
        if sum(map(len, parts)) < _LONG_ITEMS_MIN * len(parts):
            return set(map(type, self))
        return set().union(*map(_types_of, parts))


def _types_of(values: Iterable[Any]) -> set[type]:
    """To count one type takes three quarters of the time that a set takes."""
    if isinstance(values, _Chained):
        return values.types()
    found = list(map(type, values))
    return {found[0]} if found and found.count(found[0]) == len(found) else set(found)


# --- Single values ---


def _leaf_check(kind: pa.DataType) -> Check:
    usual, accepted = _python_types(kind)
    if not accepted:
        return lambda values: None
    known = {*usual, _NONE}
    reason_of = _time_reason(kind)
    has_no_zone = pa.types.is_timestamp(kind) and kind.tz is None
    in_microseconds = getattr(kind, "unit", "us") in ("us", "ns")

    def check(values: Iterable[Any]) -> None:
        others = _types_of(values) - known
        if others and (wrong := {one for one in others if not _is_accepted(one, accepted)}):
            raise Bent(next(value for value in values if type(value) in wrong), kind)
        if reason_of is None:
            return
        if others or not in_microseconds or (has_no_zone and set(map(_zone_of, filter(None, values))) - {None}):
            _check_each(values, kind, reason_of)

    return check


def _is_accepted(found: type, accepted: tuple[type, ...]) -> bool:
    if issubclass(found, (bool, np.bool_)) and bool not in accepted:
        return False
    return issubclass(found, accepted)


def _python_types(kind: pa.DataType) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """The usual Python types for an Arrow type, and all that are accepted; none: leave it to Arrow."""
    types = pa.types
    if types.is_integer(kind):
        return (int,), (numbers.Integral,)
    if types.is_floating(kind):
        return (float, int), (numbers.Real,)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return (str,), (str,)
    if types.is_boolean(kind):
        return (bool,), (bool, np.bool_)
    if types.is_timestamp(kind):
        return (datetime.datetime,), (datetime.datetime, np.datetime64)
    if types.is_date(kind):
        return (datetime.date,), (datetime.date, np.datetime64)
    if types.is_decimal(kind):
        return (decimal.Decimal, int), (decimal.Decimal, numbers.Integral)
    if types.is_duration(kind):
        return (datetime.timedelta,), (datetime.timedelta, np.timedelta64)
    if types.is_time(kind):
        return (), (datetime.time,)  # each is looked at
    binary = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return ((bytes,), (bytes, bytearray, memoryview)) if any(test(kind) for test in binary) else ((), ())


def _check_each(values: Iterable[Any], kind: pa.DataType, reason_of: Callable[[Any], str]) -> None:
    for value in values:
        if value is not None and (reason := reason_of(value)):
            raise Bent(value, kind, reason)


def _time_reason(kind: pa.DataType) -> Callable[[Any], str] | None:
    """Says what of a value a type of time does not keep, although Arrow takes it; empty: nothing is lost."""
    types = pa.types
    if types.is_date(kind):
        return _date_reason
    if not (types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind)):
        return None
    unit, step = kind.unit, _STEPS.get(kind.unit, 1)
    has_no_zone = types.is_time(kind) or (types.is_timestamp(kind) and kind.tz is None)
    expected: tuple[type, ...] = (datetime.datetime, datetime.time)
    if types.is_duration(kind):
        expected = (datetime.timedelta,)

    def reason_of(value: Any) -> str:
        if not issubclass(type(value), expected):
            return ""
        if value != value:
            return "it is no moment; use None"
        if has_no_zone and value.tzinfo is not None:
            name = "timestamp_ntz" if types.is_timestamp(kind) else str(kind)
            return f"it has a time zone, and {name} has none; declare it timestamp, or take the zone off"
        microseconds = value.microseconds if isinstance(value, datetime.timedelta) else value.microsecond
        # pandas counts nanoseconds beside.
        finer = getattr(value, "nanoseconds", 0) or getattr(value, "nanosecond", 0)
        if microseconds % step or (finer and unit != "ns"):
            return f"it is finer than {kind} can hold; cut it off yourself, or declare a finer unit"
        return ""

    return reason_of


def _date_reason(value: Any) -> str:
    if not isinstance(value, datetime.datetime):
        return ""
    is_midnight = value.tzinfo is None and value.time() == _MIDNIGHT and not getattr(value, "nanosecond", 0)
    return "" if is_midnight else "a date keeps no time of day; use its date()"


# --- Values that hold others ---


def _list_check(kind: pa.DataType) -> Check:
    check_items = check_of(kind.value_type)
    keeps_dtype = _dtype_test(kind.value_type)

    def items_of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype.kind in "mM" and not keeps_dtype(value.dtype):  # Arrow mistakes the unit
                raise Bent(value, kind, f"an array of {value.dtype} is no {kind}; use astype")
            return () if keeps_dtype(value.dtype) else list(value)
        if isinstance(value, (list, tuple)):
            return value
        if isinstance(value, _TEXTS):
            raise Bent(value, kind, "it is no list; write [value] for a list of one")
        if isinstance(value, Mapping) or not hasattr(value, "__iter__") or hasattr(value, "__next__"):
            raise Bent(value, kind)
        return list(value)

    def check(values: Iterable[Any]) -> None:
        if not _types_of(values) <= {list, tuple, _NONE}:
            values = [items_of(value) for value in values if value is not None]
        check_items(_Chained(values))

    return check


def _dtype_test(kind: pa.DataType) -> Callable[[Any], bool]:
    """Whether every value of a NumPy array of some dtype can be kept, or is refused by Arrow."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_duration(kind):
        same = np.dtype(f"{'M' if types.is_timestamp(kind) else 'm'}8[{kind.unit}]")
        return lambda dtype: bool(dtype == same)
    by_test = ((types.is_integer, "iu"), (types.is_floating, "fiu"), (types.is_boolean, "b"), (types.is_string, "U"))
    kinds = next((kinds for test, kinds in by_test if test(kind)), "")
    return lambda dtype: dtype.kind in kinds


def _struct_check(kind: pa.DataType) -> Check:
    names = [field.name for field in kind]
    checks = [check_of(field.type) for field in kind]
    count = len(names)

    def check(values: Iterable[Any]) -> None:
        found = _types_of(values) - {_NONE}
        present = [value for value in values if value is not None]
        if not all(issubclass(one, (Mapping, tuple)) for one in found):
            raise Bent(next(one for one in present if not isinstance(one, (Mapping, tuple))), kind)
        for value in present if found != {dict} or set(map(len, present)) - {count} else ():
            _check_fields(value, kind, names)
        by_name = [value for value in present if not isinstance(value, tuple)]
        by_place = [value for value in present if isinstance(value, tuple)] if found != {dict} else []
        for place, (name, check_field) in enumerate(zip(names, checks, strict=True)):
            try:
                check_field([*map(itemgetter(name), by_name), *map(itemgetter(place), by_place)])
            except KeyError:
                _check_fields(next(value for value in by_name if name not in value), kind, names)

    return check


def _check_fields(value: Any, kind: pa.DataType, names: Sequence[str]) -> None:
    """Bent unless there is a value for each field and for nothing else, as in a row."""
    if isinstance(value, Mapping):
        problems = [f"field {name!r} is missing" for name in names if name not in value]
        problems += [f"field {name!r} is not in the struct" for name in value if name not in names]
        if problems:
            raise Bent(value, kind, "; ".join(problems))
    elif len(value) != len(names):
        raise Bent(value, kind, f"it has {len(value)} values for {len(names)} fields")
    elif (fields := getattr(value, "_fields", None)) and set(fields) == set(names) and list(fields) != names:
        raise Bent(value, kind, f"its fields are in another order; use _asdict(), or the order {', '.join(names)}")


def _map_check(kind: pa.DataType) -> Check:
    check_keys, check_items = check_of(kind.key_type), check_of(kind.item_type)

    def check(values: Iterable[Any]) -> None:
        mappings: list[Any] = [value for value in values if value is not None]
        if _types_of(mappings) - {dict}:
            mappings = [_mapping(value, kind) for value in mappings]
        check_keys(_Chained(mappings))
        check_items(_Chained([value.values() for value in mappings]))

    return check


def _mapping(value: Any, kind: pa.DataType) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        raise Bent(value, kind)
    try:
        made = dict(value)
    except TypeError:
        raise Bent(value, kind, "a key cannot be one of a dict") from None
    if len(made) != len(value):
        raise Bent(value, kind, "it has a key more than once")
    return made


# --- Mappings that Arrow does not know ---


def with_dicts(value: Any, kind: pa.DataType) -> Any:
    """A value that has been checked, with a dict for each other kind of mapping."""
    types = pa.types
    if value is None or not types.is_nested(kind):
        return value
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(with_dicts(key, kind.key_type), with_dicts(item, kind.item_type)) for key, item in pairs]
    if types.is_struct(kind):
        given = [value[field.name] for field in kind] if isinstance(value, Mapping) else value
        return tuple(with_dicts(one, field.type) for one, field in zip(given, kind, strict=True))
    return value if isinstance(value, np.ndarray) else [with_dicts(one, kind.value_type) for one in value]
