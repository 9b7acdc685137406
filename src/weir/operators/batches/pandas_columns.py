"""Columns of pandas frames as Arrow arrays of a declared type.

Comes in: a Series. Goes out: an array of the same values, or an error. pandas has no nulls in most of its types, no
dates and other such habits: what it cannot say otherwise is taken where nothing is lost. NaN is null, at any depth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.expressions.polars_bridge import in_flight_type
from weir.state.values.conversion import to_array
from weir.state.values.infinities import infinite_count

_KIN = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_floating, pa.types.is_integer),
    (pa.types.is_floating, pa.types.is_floating),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (pa.types.is_timestamp, pa.types.is_date),
    (pa.types.is_duration, pa.types.is_duration),
)
"""What a column may be, and as what it may be declared; a value that would become another one is an error."""

_MISSING = ("NAType", "NaTType")


def from_pandas(series: Any, kind: pa.DataType) -> pa.Array:
    """An array of this type; NotOfType, ValueError or an error of Arrow when a value does not fit."""
    if series.dtype == object:
        values = series.to_numpy(copy=True)
        values[series.isna().to_numpy()] = None
        listed = values.tolist()
        return to_array([_unpacked(value, kind) for value in listed] if pa.types.is_nested(kind) else listed, kind)
    array = pa.array(series, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    found = in_flight_type(array.type)
    if found == in_flight_type(kind) or pa.types.is_null(found):
        return array.cast(kind)
    if not any(of(found) and to(kind) for of, to in _KIN):
        raise ValueError(f"it holds {found}")
    return _exactly(array.cast(found), kind)


def _exactly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(array.type) and array.type.tz and not getattr(kind, "tz", None):
        raise ValueError("its moments have a time zone, which the declared type has not")
    cast = array.cast(kind)
    if pa.types.is_date(kind) and cast.cast(array.type) != array:
        raise ValueError("a date keeps no time of day; use dt.date")
    if infinite_count(cast) != infinite_count(array):
        raise ValueError("a value is too large for a float, and would become infinite")
    return cast


def _unpacked(value: Any, kind: pa.DataType) -> Any:
    """A nested value as pandas has it, in the form in which row functions give one."""
    types = pa.types
    if _is_missing(value):
        return None
    if types.is_integer(kind) and isinstance(value, float) and value.is_integer():
        return int(value)  # beside a null, integers of structs are floats, too
    if types.is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        return {name: _unpacked(one, kinds[name]) if name in kinds else one for name, one in value.items()}
    if types.is_map(kind) and isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else value
        return [_pair(pair, kind) for pair in pairs]
    if not types.is_nested(kind) or types.is_struct(kind) or not isinstance(value, (np.ndarray, list)):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return _items(value, kind.value_type)
    return [_unpacked(one, kind.value_type) for one in value]


def _is_missing(value: Any) -> bool:
    """None, NaN, and pandas' own NA and NaT, by name: pandas need not be installed."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in _MISSING


def _pair(pair: Any, kind: pa.DataType) -> Any:
    return (pair[0], _unpacked(pair[1], kind.item_type)) if isinstance(pair, tuple) and len(pair) == 2 else pair


def _items(values: Any, kind: pa.DataType) -> Any:
    """The array inside of a list: integers with nulls are floats there, times may have another unit."""
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        whole = pa.types.is_integer(kind) and bool((np.floor(values) == values)[~missing].all())
        if whole or missing.any():
            return [None if one != one else int(one) if whole else one for one in values.tolist()]
    if values.dtype.kind in "mM" and hasattr(kind, "unit"):
        same = values.astype(f"{values.dtype.kind}8[{kind.unit}]")
        return same if bool((same == values)[~np.isnat(values)].all()) else values
    return values
