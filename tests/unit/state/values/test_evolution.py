"""Which stored types become which declared ones, and that no value changes on the way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from weir.schema import parse_type
from weir.state.values.evolution import evolve, plan_evolution

WIDER = [
    ("byte", "short"),
    ("int", "long"),
    ("int", "double"),
    ("short", "float"),
    ("float", "double"),
    ("int", "decimal(12,2)"),
    ("decimal(5,2)", "decimal(7,3)"),
    ("struct<a:int,b:string>", "struct<b:string>"),
    ("struct<a:int>", "struct<a:int,b:array<long>>"),
    ("array<struct<a:int>>", "array<struct<a:long,b:string>>"),
    ("map<string,int>", "map<string,double>"),
    ("map<int,struct<a:int>>", "map<long,struct<z:int,a:long>>"),
]
NARROWER = [
    ("long", "int"),
    ("long", "double"),
    ("int", "float"),
    ("double", "float"),
    ("int", "string"),
    ("string", "binary"),
    ("timestamp", "timestamp_ntz"),
    ("date", "timestamp"),
    ("decimal(7,3)", "decimal(7,4)"),
    ("boolean", "int"),
    ("array<int>", "int"),
    ("struct<a:int>", "map<string,int>"),
    ("struct<a:struct<b:long>>", "struct<a:struct<b:int>>"),
]


@pytest.mark.parametrize(("stored", "declared"), WIDER)
def test_what_keeps_every_value_needs_no_migration(stored: str, declared: str) -> None:
    assert plan_evolution(parse_type(stored), parse_type(declared), False) == "evolved"
    assert plan_evolution(parse_type(stored), parse_type(declared), True) == "migrated", "who gives one wants it called"
    assert plan_evolution(parse_type(stored), parse_type(stored), True) == "same"


@pytest.mark.parametrize(("stored", "declared"), NARROWER)
def test_anything_else_does_and_the_refusal_shows_both_types(stored: str, declared: str) -> None:
    kinds = parse_type(stored), parse_type(declared)
    assert plan_evolution(*kinds, True) == "migrated"
    refusal = plan_evolution(*kinds, False)
    assert "stored as " in refusal and "declared as " in refusal and "migrate=" in refusal


def test_a_new_field_that_is_never_null_needs_a_default() -> None:
    declared = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    stored = pa.struct([("a", pa.int64())])
    assert "field b is new, never null, and has no default" in plan_evolution(stored, declared, False)
    assert plan_evolution(stored, declared, False, {"a": 0, "b": 1}) == "evolved"


@pytest.mark.parametrize(
    ("stored", "values", "declared", "default", "expected"),
    [
        ("int", [1, None], "double", None, [1.0, None]),
        (
            "struct<a:int,b:string>",
            [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
            "struct<c:long,a:long,d:string>",
            {"c": 7},
            [{"c": 7, "a": 1, "d": None}, None, {"c": 7, "a": None, "d": None}],
        ),
        (
            "array<struct<a:int>>",
            [[{"a": 1}, None], None, [], [{"a": 2}]],
            "array<struct<a:long,b:string>>",
            None,
            [[{"a": 1, "b": None}, None], None, [], [{"a": 2, "b": None}]],
        ),
        ("map<string,int>", [[("a", 1)], None, []], "map<string,double>", None, [[("a", 1.0)], None, []]),
    ],
)
def test_values_stay_what_they_are(stored: str, values: list[Any], declared: str, default: Any, expected: Any) -> None:
    array = pa.array(values, parse_type(stored))
    for start in range(len(values)):
        found = evolve(array[start:], parse_type(declared), default)
        found.validate(full=True)
        assert found.type == parse_type(declared)
        assert found.to_pylist() == expected[start:]
