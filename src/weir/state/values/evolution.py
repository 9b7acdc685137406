"""Whether and how values of a stored type become values of the type that a job declares now.

Comes in: two Arrow types, and arrays of the stored one. Goes out: a verdict, and arrays
of the declared type. Pure. Fields of structs may be added, removed and widened, at any
depth; widening is what keeps every value of a type. Anything else is for `migrate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.schema import format_type
from weir.state.values.conversion import integer_limits

SAME = "same"
EVOLVED = "evolved"
MIGRATED = "migrated"
VERDICTS = frozenset({SAME, EVOLVED, MIGRATED})

_FLOAT_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""Integers of that many bits are exact in a float of that width."""
_UNITS = ("s", "ms", "us", "ns")


def plan_evolution(stored: pa.DataType, declared: pa.DataType, has_migrate: bool, default: Any = None) -> str:
    """One of "same", "evolved" and "migrated", or else the reason why the stored values cannot be read.

    >>> plan_evolution(pa.int32(), pa.int64(), has_migrate=False)
    'evolved'
    >>> plan_evolution(pa.int64(), pa.string(), has_migrate=True)
    'migrated'
    >>> print(plan_evolution(pa.int64(), pa.int32(), has_migrate=False))
    stored as bigint, declared as int: bigint cannot become int. Declare a type that can hold...
    """
    if stored == declared:
        return SAME
    if has_migrate:
        # Whoever writes a function for the old values wants it called: evolving would lose a field that was renamed.
        return MIGRATED
    problem = _problem(stored, declared, default=default, path="")
    if problem is None:
        return EVOLVED
    return (
        f"stored as {format_type(stored)}, declared as {format_type(declared)}: {problem}. Declare a type that can hold"
        " every stored value, or give the state a migrate=function of the old value that returns the new one"
    )


def _problem(stored: pa.DataType, declared: pa.DataType, *, default: Any, path: str) -> str | None:
    """Why not; None: it can be done."""
    types = pa.types
    if stored == declared or _is_wider(stored, declared):
        return None
    if types.is_struct(stored) and types.is_struct(declared):
        return _struct_problem(stored, declared, default=default, path=path)
    if _is_list(stored) and _is_list(declared):
        return _problem(stored.value_type, declared.value_type, default=None, path=f"{path}[]")
    if types.is_map(stored) and types.is_map(declared):
        return _problem(stored.key_type, declared.key_type, default=None, path=f"{path}.key") or _problem(
            stored.item_type, declared.item_type, default=None, path=f"{path}.value"
        )
    where = f"field {path.lstrip('.')}: " if path else ""
    return f"{where}{format_type(stored)} cannot become {format_type(declared)}"


def _struct_problem(stored: pa.DataType, declared: pa.DataType, *, default: Any, path: str) -> str | None:
    before = {field.name: field.type for field in stored}
    for field in declared:
        given = _inner_default(default, field.name)
        inside = f"{path}.{field.name}"
        if field.name in before:
            problem = _problem(before[field.name], field.type, default=given, path=inside)
        elif not field.nullable and given is None:
            problem = f"field {inside.lstrip('.')} is new, never null, and has no default"
        else:
            problem = None
        if problem is not None:
            return problem
    return None


def _inner_default(default: Any, name: str) -> Any:
    return default.get(name) if isinstance(default, dict) else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


# --- Widening -----------------------------------------------------------------------------------------


def _is_wider(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether every value of the one type is a value of the other."""
    types = pa.types
    if types.is_null(stored):
        return True
    if types.is_integer(stored):
        return _holds_integers(stored, declared)
    if types.is_floating(stored):
        return bool(types.is_floating(declared) and declared.bit_width > stored.bit_width)
    if types.is_decimal(stored) and types.is_decimal(declared):
        more = declared.scale - stored.scale
        return bool(more >= 0 and declared.precision - stored.precision >= more)
    if types.is_timestamp(stored) and types.is_timestamp(declared):
        return (stored.tz is None) == (declared.tz is None) and _is_finer(stored, declared)
    if (types.is_time(stored) and types.is_time(declared)) or (
        types.is_duration(stored) and types.is_duration(declared)
    ):
        return _is_finer(stored, declared)
    return (_is_text(stored) and _is_text(declared)) or (_is_bytes(stored) and _is_bytes(declared))


def _holds_integers(stored: pa.DataType, declared: pa.DataType) -> bool:
    types = pa.types
    low, high = integer_limits(stored)
    if types.is_integer(declared):
        least, greatest = integer_limits(declared)
        return least <= low and high <= greatest
    if types.is_floating(declared):
        return high <= 1 << _FLOAT_EXACT_BITS[declared.bit_width]
    return bool(types.is_decimal(declared)) and len(str(high)) <= declared.precision - declared.scale


def _is_finer(stored: pa.DataType, declared: pa.DataType) -> bool:
    return _UNITS.index(stored.unit) <= _UNITS.index(declared.unit)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


# --- Arrays -------------------------------------------------------------------------------------------


def evolve(array: pa.Array, declared: pa.DataType, default: Any = None) -> pa.Array:
    """Values of a stored type as values of the declared one, where `plan_evolution` says "same" or "evolved".

    ArrowInvalid when a value does not fit after all, such as a moment that nanoseconds do not reach.
    """
    stored = array.type
    types = pa.types
    if stored == declared:
        return array
    if types.is_struct(stored) and types.is_struct(declared):
        children = [_field(array, field, _inner_default(default, field.name)) for field in declared]
        if not children:
            return pa.nulls(len(array), declared)
        return pa.StructArray.from_arrays(children, fields=list(declared), mask=array.is_null())
    if _is_list(stored) and _is_list(declared):
        return with_elements(array, evolve(array.flatten(), declared.value_type), declared)
    if types.is_map(stored) and types.is_map(declared):
        array = _as_list(array)
        entries = array.flatten()
        keys, items = evolve(entries.field(0), declared.key_type), evolve(entries.field(1), declared.item_type)
        return pa.MapArray.from_arrays(_offsets(array, np.int32), keys, items, type=declared, mask=array.is_null())
    return array.cast(declared)


def with_elements(array: pa.Array, elements: pa.Array, declared: pa.DataType) -> pa.Array:
    """A list array with others in the place of its flattened elements."""
    if pa.types.is_large_list(declared):
        offsets = _offsets(array, np.int64)
        return pa.LargeListArray.from_arrays(offsets, elements, type=declared, mask=array.is_null())
    return pa.ListArray.from_arrays(_offsets(array, np.int32), elements, type=declared, mask=array.is_null())


def _field(array: pa.Array, field: pa.Field, default: Any) -> pa.Array:
    index = array.type.get_field_index(field.name)
    if index >= 0:
        return evolve(array.field(index), field.type, default)
    return pa.repeat(pa.scalar(default, field.type), len(array))


def _as_list(array: pa.Array) -> pa.Array:
    """Arrow has few kernels for maps, but they lie in memory as lists do."""
    return array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))


def _offsets(array: pa.Array, dtype: Any) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)
