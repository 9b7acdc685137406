"""Which types the text formats hold, for sinks and sources alike: what the one writes the other reads.

Comes in: types. Goes out: why a format cannot hold one, or nothing. Knows no values.
"""

from __future__ import annotations

import pyarrow as pa

from weir.operators.expressions.polars_bridge import in_flight_type


def text_problem(kind: pa.DataType, format: str) -> str:
    """Why csv or jsonl cannot hold values of a type; empty: it can."""
    kind = plain_type(kind)
    if format == "csv":
        if pa.types.is_nested(kind):
            return "csv has no nested values"
        if _is_bytes(kind):
            return "csv is text"
    nodes = nodes_of(kind)
    if len(nodes) > 1 and any(map(_is_bytes, nodes)):
        return "binary inside a nested value has no form in JSON"
    if any(pa.types.is_map(node) and not pa.types.is_string(node.key_type) for node in nodes):
        return "keys of JSON objects are strings"
    if len(nodes) > 1 and any(map(pa.types.is_null, nodes)):
        return "void inside a nested value cannot be told from nothing at all"
    if not all(map(_has_form, nodes)):
        return "it has no form in text that every reader takes for the same value"
    return ""


def plain_type(kind: pa.DataType) -> pa.DataType:
    """What a text format reads and writes for a type: as in flight, and lists of no fixed size."""
    kind = in_flight_type(kind)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, plain_type(inner.type), inner.nullable) for inner in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind


def nodes_of(kind: pa.DataType) -> list[pa.DataType]:
    """A type and all types inside it."""
    return [kind, *(node for i in range(kind.num_fields) for node in nodes_of(kind.field(i).type))]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _has_form(kind: pa.DataType) -> bool:
    types = pa.types
    plain = (types.is_boolean, types.is_integer, types.is_string, types.is_date32, types.is_timestamp, types.is_null)
    nested = (types.is_list, types.is_struct, types.is_map)
    numbers = (types.is_float32, types.is_float64, types.is_decimal128)
    return _is_bytes(kind) or any(holds(kind) for holds in (*plain, *numbers, *nested))
