"""DDL strings in, pyarrow schemas out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from weir.errors import SchemaError
from weir.schema import format_schema, parse_schema, parse_type


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("boolean", pa.bool_()),
        ("byte", pa.int8()),
        ("TINYINT", pa.int8()),
        ("short", pa.int16()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(12, 3)", pa.decimal128(12, 3)),
        ("string", pa.string()),
        ("varchar(10)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        (
            "map<string,struct<a:int,b:string>>",
            pa.map_(pa.string(), pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ),
    ],
)
def test_every_ddl_type_has_an_arrow_type(ddl: str, kind: pa.DataType) -> None:
    assert parse_type(ddl) == kind


def test_columns_may_be_written_with_or_without_a_colon_and_with_quotes_and_comments() -> None:
    expected = pa.schema([pa.field("a", pa.int64()), pa.field("b c", pa.string(), nullable=False)])
    assert parse_schema("a: bigint, `b c` string NOT NULL COMMENT 'it''s, odd'").names == expected.names
    assert parse_schema("a long,`b c` string not null") == expected
    assert parse_schema("struct<a:bigint,`b c`:string not null>") == expected


def test_a_pyarrow_schema_stays_as_it_is() -> None:
    schema = pa.schema([("x", pa.uint8())])
    assert parse_schema(schema) is schema


def test_what_was_formatted_parses_back() -> None:
    ddl = "a bigint, b array<struct<k:string,v:decimal(10,2)>> not null, `c d` map<string,timestamp>, e timestamp_ntz"
    assert format_schema(parse_schema(ddl)) == ddl


@pytest.mark.parametrize(
    ("ddl", "part"),
    [
        ("", "no column"),
        ("a", "end too soon"),
        ("a lnog", "'lnog' is not a type; known are boolean"),
        ("a long b long", "expected ','"),
        ("a long, a string", "'a' is there twice"),
        ("a array<long", "expected '>'"),
        ("a decimal(50)", "precision is 1 to 38"),
        ("a long not", "expected 'null'"),
        ("a long,", "end too soon"),
        ("a %", "cannot be read"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place_and_the_reason(ddl: str, part: str) -> None:
    with pytest.raises(SchemaError, match="schema") as caught:
        parse_schema(ddl)
    assert part in str(caught.value)
    assert repr(ddl) in str(caught.value)


def test_something_that_is_no_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="found int"):
        parse_schema(3)  # type: ignore[arg-type]
