"""Schemas as people write them.

Comes in: a Spark DDL string ("a long, b array<string> not null") or a pyarrow
schema. Goes out: a pyarrow schema, and back again a DDL string for messages.
Never touches data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa

from weir.errors import SchemaError

TIMESTAMP = pa.timestamp("us", "UTC")
"""What `timestamp` means: an instant."""

_SIMPLE_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_KNOWN_TYPES = (
    "boolean, byte, short, int, long, float, double, decimal(p,s), string, binary, date, timestamp, "
    "timestamp_ntz, array<…>, map<…,…>, struct<…>"
)
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.|'')*')|(\w+)|([<>(),:]))")
_DECIMAL_DIGITS_MAX = 38


def parse_schema(schema: str | pa.Schema) -> pa.Schema:
    """Turn a DDL string into a pyarrow schema; a pyarrow schema stays as it is.

    >>> parse_schema("word string not null, n: bigint").names
    ['word', 'n']
    >>> parse_schema("tags array<struct<k: string, v: decimal(10,2)>>").field("tags").type
    ListType(list<item: struct<k: string, v: decimal128(10, 2)>>)
    """
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, str):
        kind = type(schema).__name__
        raise SchemaError(f"schema: expected a DDL string such as 'a long, b string' or a pyarrow schema, found {kind}")
    return _Parser(schema).schema()


def parse_type(ddl: str) -> pa.DataType:
    """Turn one DDL type into a pyarrow type.

    >>> parse_type("map<string, bigint>")
    MapType(map<string, int64>)
    """
    return _Parser(ddl).single_type()


def format_schema(schema: pa.Schema) -> str:
    """A schema as DDL, for messages.

    >>> format_schema(parse_schema("a long, b array<timestamp> not null"))
    'a bigint, b array<timestamp> not null'
    """
    return ", ".join(f"{_format_name(f.name)} {format_type(f.type)}{'' if f.nullable else ' not null'}" for f in schema)


def read_as_one(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The schema of several streams of the same columns: one may be null where it may in any of them.

    >>> never, sometimes = parse_schema("a long not null, b long not null"), parse_schema("a long not null, b long")
    >>> format_schema(read_as_one([never, sometimes]))
    'a bigint not null, b bigint'
    """
    first, others = schemas[0], schemas[1:]
    if all(other.equals(first) for other in others):
        return first
    fields = [f.with_nullable(any(s.field(number).nullable for s in schemas)) for number, f in enumerate(first)]
    return pa.schema(fields, first.metadata)


def format_type(kind: pa.DataType) -> str:
    """A type as DDL; the Arrow name where DDL has none.

    >>> format_type(pa.list_(pa.int64())), format_type(pa.uint8())
    ('array<bigint>', 'uint8')
    """
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{format_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{format_type(kind.key_type)},{format_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_format_name(f.name)}:{format_type(f.type)}' for f in kind)}>"
    return next((name for name, simple in _SIMPLE_TYPES.items() if simple == kind), str(kind))


def _format_name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


class _Parser:
    """Recursive descent over the tokens of one DDL string."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._position = 0

    def schema(self) -> pa.Schema:
        if not self._ddl.strip():
            self._fail("found no column; write for example 'a long, b string'")
        if re.match(r"\s*struct\s*<", self._ddl, re.IGNORECASE):
            return pa.schema(list(self.single_type()))
        fields = self._fields(closing="")
        if self._position < len(self._ddl.rstrip()):
            self._fail("expected ',' or the end")
        return pa.schema(fields)

    def single_type(self) -> pa.DataType:
        kind = self._type()
        if self._position < len(self._ddl.rstrip()):
            self._fail("expected the end")
        return kind

    def _fields(self, *, closing: str) -> list[pa.Field]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            self._fail(f"column {twice[0]!r} is there twice")
        if closing:
            self._expect(closing)
        return fields

    def _field(self) -> pa.Field:
        name = self._name("a column name")
        self._take(":")
        kind = self._type()
        nullable = True
        if self._take("not"):
            self._expect("null")
            nullable = False
        if self._take("comment"):
            self._next()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        start = self._position
        name = self._name("a type").lower()
        if name in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char"):
            self._expect("(")
            self._number()
            self._expect(")")
            return pa.string()
        if name in ("array", "map", "struct"):
            return self._nested(name)
        self._position = start
        self._fail(f"{name!r} is not a type; known are {_KNOWN_TYPES}")

    def _nested(self, name: str) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            return pa.struct(self._fields(closing=">"))
        first = self._type()
        if name == "array":
            self._expect(">")
            return pa.list_(first)
        self._expect(",")
        second = self._type()
        self._expect(">")
        return pa.map_(first, second)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
            self._fail(f"decimal({precision},{scale}): precision is 1 to {_DECIMAL_DIGITS_MAX}, scale 0 to precision")
        return pa.decimal128(precision, scale)

    # --- Tokens ---

    def _next(self) -> tuple[str, bool]:
        """The next token, and whether it may be a name."""
        match = _TOKEN.match(self._ddl, self._position)
        if match is None:
            self._fail("found the end too soon" if not self._ddl[self._position :].strip() else "cannot be read")
        self._position = match.end()
        quoted, literal, word, sign = match.groups()
        if quoted is not None:
            return quoted.replace("``", "`"), True
        return literal or word or sign, word is not None

    def _name(self, wanted: str) -> str:
        start = self._position
        token, is_name = self._next()
        if not is_name:
            self._position = start
            self._fail(f"expected {wanted}, found {token!r}")
        return token

    def _number(self) -> int:
        token = self._name("a number")
        if not token.isdigit():
            self._fail(f"expected a number, found {token!r}")
        return int(token)

    def _take(self, wanted: str) -> bool:
        match = _TOKEN.match(self._ddl, self._position)
        if match is None or (match[3] or match[4] or "").lower() != wanted:
            return False
        self._position = match.end()
        return True

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            self._fail(f"expected {wanted!r}")

    def _fail(self, problem: str) -> NoReturn:
        raise SchemaError(f"schema {self._ddl!r}, at character {self._position + 1}: {problem}")
