"""Collections: what may be a row, and what is said about one that may not."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.contract.sinks import context
from tests.contract.sources import drain, opened, positions
from weir.connectors import Collection
from weir.errors import CheckpointError, SchemaError
from weir.schema import format_schema

SCHEMA = "a long, b string"
INSTANT = datetime(2024, 1, 1, tzinfo=timezone.utc)


def rows_of(source: Collection) -> list[tuple[Any, ...]]:
    reader = source.reader()
    reader.open(context(), None)
    return drain(reader, 100)


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "x"), (2, None)],
        [[1, "x"], [2, None]],
        [{"a": 1, "b": "x"}, {"b": None, "a": 2}],
        ((a, b) for a, b in ((1, "x"), (2, None))),
        pa.table({"b": ["x", None], "a": [1, 2]}),
        pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]}),
        pl.DataFrame({"a": [1, 2], "b": ["x", None]}),
    ],
)
def test_rows_may_be_tuples_lists_dicts_or_tables(rows: Any) -> None:
    source = Collection(rows, SCHEMA)
    assert rows_of(source) == [(1, "x"), (2, None)]
    assert format_schema(source.schema) == "a bigint, b string"


def test_scalars_are_rows_of_the_one_column() -> None:
    assert rows_of(Collection(range(3), "n long")) == [(0,), (1,), (2,)]
    assert rows_of(Collection([[1], [2, 3]], "l array<long>")) == [([1],), ([2, 3],)]


def test_one_subtask_keeps_the_order() -> None:
    assert rows_of(Collection(range(1000), "n long")) == [(n,) for n in range(1000)]


def test_a_few_rows_still_reach_several_subtasks() -> None:
    readers = opened(Collection(range(4), "n long"), parallelism=2)
    assert [drain(reader, 10) for reader in readers] == [[(0,), (2,)], [(1,), (3,)]]


def test_the_schema_is_inferred_for_dicts_scalars_and_tables() -> None:
    assert format_schema(Collection([{"a": 1, "b": "x"}]).schema) == "a bigint, b string"
    assert format_schema(Collection([1.5]).schema) == "value double"
    assert format_schema(Collection(pl.DataFrame({"s": ["x"], "l": [["y"]]})).schema) == "s string, l array<string>"


def test_naive_instants_are_utc() -> None:
    source = Collection([(datetime(2024, 1, 1),)], "t timestamp")
    assert rows_of(source) == [(datetime(2024, 1, 1, tzinfo=timezone.utc),)]


@pytest.mark.parametrize(
    ("rows", "schema", "part"),
    [
        ([(1, "x"), ("y", "z")], SCHEMA, "row 1: column 'a' is bigint, found 'y' of type str"),
        ([(1, "x"), (2, 3)], SCHEMA, "row 1: column 'b' is string, found 3 of type int"),
        ([(1.0, "x"), (2.5, "y")], SCHEMA, "row 1: column 'a' is bigint, found 2.5"),
        ([(True, "x")], SCHEMA, "row 0: column 'a' is bigint, found True"),
        ([(2**63, "x")], SCHEMA, "row 0: column 'a' is bigint, found 9223372036854775808"),
        ([(math.inf,), (1e300,)], "a float", "row 1: column 'a' is float, found 1e+300 of type float"),
        ([([1.0],), ([0.5, -1e39],)], "a array<float>", "row 1: column 'a' is array<float>, found [0.5, -1e+39]"),
        (pa.table({"a": [1.0, 1e300]}), "a float", "column 'a' has 1e+300, which does not fit into float"),
        ([(2**64,)], pa.schema([("a", pa.uint64())]), "row 0: column 'a' is uint64, found 18446744073709551616"),
        ([([1],), ([2, 1.5],)], "a array<long>", "row 1: column 'a' is array<bigint>, found [2, 1.5]"),
        ([({"k": 1.5},)], "a map<string,long>", "(1.5 (float) inside of it, where int64 is expected)"),
        ([(INSTANT,)], "a timestamp_ntz", "(it has a time zone, and timestamp_ntz has none"),
        ([([INSTANT],)], "a array<timestamp_ntz>", "row 0: column 'a' is array<timestamp_ntz>"),
        (pa.table({"a": [INSTANT]}), "a timestamp_ntz", "column 'a' of the table holds instants"),
        ([(datetime(2024, 1, 1, 13),)], "a date", "row 0: column 'a' is date, found datetime.datetime(2024, 1, 1, 13"),
        ([(1, "x"), (2,)], SCHEMA, "row 1: 1 values for the 2 columns a, b: (2,)"),
        ([{"a": 1, "b": "x"}, {"a": 1, "c": "x"}], SCHEMA, "row 1: unknown 'c' and missing 'b'"),
        ([{"a": 1}], SCHEMA, "row 0: missing 'b'"),
        ([(1, "x"), {"a": 1, "b": "x"}], SCHEMA, "row 1: found {'a': 1, 'b': 'x'}; rows are all tuples or all dicts"),
        ([1, 2], SCHEMA, "row 0: found 1; rows are all tuples or all dicts"),
        ([(1,), (None,)], "a long not null", "row 1: column 'a' is declared not null"),
        (pa.table({"a": [1]}), SCHEMA, "has columns a; the schema declares a, b"),
        (pa.table({"a": ["x"], "b": ["y"]}), SCHEMA, "cannot become the declared schema (a bigint, b string)"),
        ([], None, "no rows to infer"),
        ([(1, 2)], None, "tuples need a schema"),
        ([{"a": 1}, {"a": "x"}], None, "no schema fits"),
    ],
)
def test_a_wrong_row_is_shown_with_its_number(rows: Any, schema: Any, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Collection(rows, schema)
    assert part in str(caught.value)


def test_values_at_the_ends_of_their_types_are_kept() -> None:
    schema = pa.schema([("n", pa.uint64()), ("x", pa.float32())])
    rows = [(2**64 - 1, math.inf), (2**63, -math.inf), (0, None), (1.0, 3.0e38)]
    assert rows_of(Collection(rows, schema))[:3] == rows[:3]
    for wrong in (1.5, 1e300, math.nan):
        with pytest.raises(SchemaError, match=rf"row 4: .* found {re.escape(repr(wrong))}"):
            Collection([*rows, (wrong, None)], schema)


def test_what_is_inside_of_values_is_kept() -> None:
    rows = [([1, None, 2],), (None,), ([],)]
    assert rows_of(Collection(rows, "a array<long>")) == rows
    moments = [(datetime(2024, 1, 1, 13),), (None,)]
    assert rows_of(Collection(moments, "t timestamp_ntz")) == moments
    assert rows_of(Collection([(datetime(2024, 1, 1),)], "d date")) == [(datetime(2024, 1, 1).date(),)]


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(SchemaError) as caught:
        Collection([("x" * 10_000,)], "a long")
    assert len(str(caught.value)) < 500


def test_other_rows_than_those_of_the_checkpoint_are_refused() -> None:
    readers = opened(Collection(range(10), "n long"), parallelism=1)
    with pytest.raises(CheckpointError, match=r"had 10 rows .* has 11 now"):
        opened(Collection(range(11), "n long"), parallelism=1, restored=positions(readers))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([datetime(2024, 1, 1, 23)]), "date"),
        (pa.array([True]), "long"),
        (pa.array([{"a": 1}]), "struct<b:long>"),
        (pa.array([{"a": 1, "b": 2}]), "struct<b:long>"),
    ],
)
def test_a_table_whose_columns_hold_other_things_is_refused(column: pa.Array, kind: str) -> None:
    with pytest.raises(SchemaError, match=r"cannot become the declared schema .*: column 'x'"):
        Collection(pa.table({"x": column}), f"x {kind}")


def test_numbers_from_1970_are_moments() -> None:
    (row,) = rows_of(Collection([(5,)], "t timestamp_ntz"))
    assert row == (datetime(1970, 1, 1, 0, 0, 0, 5),)
