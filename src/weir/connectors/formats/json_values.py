"""JSON lines, one by one, where whole blocks cannot do: numbers that JSON has no form for, and maps.

NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity" in our files, as Spark writes
them. Arrow reads them without the quotes, and maps as lists of entries. Comes in: lines. Goes out:
lines. Numbers keep every digit: they are never read as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

SPECIAL = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}
"""What such a float is as a string, and bare."""


class _Digits(str):
    """A number as it is written."""


class _Pairs(list[tuple[str, Any]]):
    """An object, with its members in order."""


def for_arrow(line: bytes, schema: pa.Schema) -> bytes:
    """A line of our files as Arrow's reader takes it; ValueError when it is not JSON."""
    return _object(_loaded(line), pa.struct(list(schema)), {}).encode() + b"\n"


def with_special_floats(line: bytes, row: dict[str, Any], schema: pa.Schema) -> bytes:
    """A line that was written with null for NaN and the infinities, with them."""
    return _object(_loaded(line), pa.struct(list(schema)), row, writes=True).encode()


def special_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _loaded(line: bytes) -> Any:
    loaded = json.loads(
        line.decode(), parse_float=_Digits, parse_int=_Digits, parse_constant=_Digits, object_pairs_hook=_Pairs
    )
    if not isinstance(loaded, _Pairs):
        raise ValueError("a line is not a JSON object")
    return loaded


def _text(value: Any, kind: pa.DataType | None, found: Any, writes: bool) -> str:
    """A value as JSON. `kind`: what the schema says of it; `found`: when writing, what it is."""
    if writes and isinstance(found, float) and not math.isfinite(found):
        return json.dumps(special_name(found))
    if isinstance(value, _Digits):
        return value
    if isinstance(value, str):
        is_float = kind is not None and pa.types.is_floating(kind)
        return SPECIAL[value] if is_float and not writes and value in SPECIAL else json.dumps(value)
    if isinstance(value, _Pairs):
        if kind is not None and pa.types.is_map(kind):
            return _map(value, kind, found, writes)
        return _object(value, kind, found, writes=writes)
    if isinstance(value, list):
        inner = kind.value_type if kind is not None and pa.types.is_list(kind) else None
        given: Sequence[Any] = found if isinstance(found, list) else [None] * len(value)
        return f"[{','.join(_text(one, inner, other, writes) for one, other in zip(value, given, strict=True))}]"
    return json.dumps(value)


def _object(pairs: _Pairs, kind: pa.DataType | None, found: Any, *, writes: bool = False) -> str:
    kinds = {field.name: field.type for field in kind} if kind is not None and pa.types.is_struct(kind) else {}
    given = found if isinstance(found, dict) else {}
    members = (f"{json.dumps(name)}:{_text(value, kinds.get(name), given.get(name), writes)}" for name, value in pairs)
    return f"{{{','.join(members)}}}"


def _map(pairs: _Pairs, kind: pa.DataType, found: Any, writes: bool) -> str:
    given: Sequence[Any] = [value for _, value in found] if isinstance(found, list) else [None] * len(pairs)
    texts = [_text(value, kind.item_type, other, writes) for (_, value), other in zip(pairs, given, strict=True)]
    names = [json.dumps(name) for name, _ in pairs]
    if not writes and len(set(names)) != len(names):
        raise ValueError(f"a map has the key {next(name for name in names if names.count(name) > 1)} more than once")
    if writes:
        members = (f"{name}:{text}" for name, text in zip(names, texts, strict=True))
        return f"{{{','.join(members)}}}"
    entries = (f'{{"key":{name},"value":{text}}}' for name, text in zip(names, texts, strict=True))
    return f"[{','.join(entries)}]"
