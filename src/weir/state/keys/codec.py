"""Key columns as Python dictionary keys, and back.

Comes in: the key columns of a batch. Goes out: one hashable Python value per row,
such that keys are equal exactly when their columns are: one NaN, one zero, instants
as numbers (two moments of a clock change look alike as datetimes). Holds no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from weir.state.keys.columns import check_key_type, plain_type
from weir.state.values.conversion import to_list

_NAN = float("nan")
"""The one NaN: a dictionary finds it by identity."""


class KeyCodec:
    """Translates between key columns of one schema and Python keys: a scalar for one column, a tuple for several."""

    def __init__(self, key_schema: pa.Schema) -> None:
        for field in key_schema:
            check_key_type(field.type, field.name)
        self.schema = pa.schema([pa.field(field.name, stored_type(field.type)) for field in key_schema])
        """The key columns of a state table."""
        self._types = [field.type for field in self.schema]
        self._has_instants = any(map(_is_instant, self._types))

    def keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """The keys of the rows of a batch."""
        lists = [_to_hashable(column, kind) for column, kind in zip(columns, self._types)]
        return lists[0] if len(lists) == 1 else list(zip(*lists))

    def columns(self, keys: Sequence[Any]) -> list[pa.Array]:
        """The key columns of a state table."""
        if len(self._types) == 1:
            return [_from_hashable(keys, self._types[0])]
        return [_from_hashable([key[i] for key in keys], kind) for i, kind in enumerate(self._types)]

    def shown(self, key: Any) -> Any:
        """A key as users know it: with datetimes, not numbers."""
        if not self._has_instants:
            return key
        values = tuple(to_list(column)[0] for column in self.columns([key]))
        return values[0] if len(values) == 1 else values


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a key column in a state table: Arrow cannot sort views, and dictionaries need not be kept."""
    kind = plain_type(kind)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))


def _number_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _to_hashable(column: pa.Array, kind: pa.DataType) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_instant(kind):
        return to_list(column.view(_number_type(kind)))
    values = to_list(column)
    if pa.types.is_floating(kind):
        return [_NAN if value != value else value if value is None else value + 0.0 for value in values]
    return values


def _from_hashable(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_instant(kind):
        return pa.array(values, _number_type(kind)).view(kind)
    if pa.types.is_float16(kind):
        return pa.array(values, pa.float32()).cast(kind)
    return pa.array(values, kind)
