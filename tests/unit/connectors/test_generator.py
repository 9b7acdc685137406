"""The generator: order, rate, endlessness, and what is said when the user's function is wrong."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.contract.sinks import context
from tests.contract.sources import drain, numbered_columns, opened, positions
from weir.connectors import Generator
from weir.connectors.strides import Strides
from weir.errors import ConfigError, SchemaError, UserCodeError
from weir.operators.source import SourceReader

SCHEMA = "n long, twice long"


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def reader_of(generator: Generator, **where: int) -> SourceReader:
    reader = generator.reader()
    reader.open(context(**where), None)
    return reader


def numbers(reader: SourceReader, rows_max: int) -> list[int]:
    batch = reader.poll(rows_max)
    return [] if batch is None else batch["n"].to_pylist()


def test_one_subtask_yields_the_rows_in_order() -> None:
    assert drain(reader_of(Generator(300, numbered_columns, SCHEMA)), 7) == [(n, 2 * n) for n in range(300)]


def test_subtasks_interleave_row_by_row_so_that_none_runs_ahead() -> None:
    readers = [reader_of(Generator(None, numbered_columns, SCHEMA), index=i, parallelism=4) for i in range(4)]
    assert [numbers(reader, 3) for reader in readers] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_splits_that_are_behind_catch_up_first_after_a_restore() -> None:
    generator = Generator(None, numbered_columns, SCHEMA, splits=4)
    ahead, behind = opened(generator, parallelism=2)
    drain(ahead, 10, polls_max=1)
    drain(behind, 3, polls_max=1)
    (reader,) = opened(generator, parallelism=1, restored=positions([ahead, behind]))
    after: list[int] = []
    while len(after) < 40:
        after += numbers(reader, 5)
    assert after[:12] == [7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 24]
    assert after == sorted(after)


def test_strides_agree_with_counting_by_hand() -> None:
    for splits, count, own in (
        (7, 50, (1, 2, 5)),
        (4, 4, (0, 3)),
        (3, None, (2,)),
        (128, 1000, (0, 64)),
        (5, 2, (3, 4)),
    ):
        strides = Strides(splits, count, dict.fromkeys(own, 0))
        expected = [n for n in range(200 if count is None else count) if n % splits in own]
        found: list[int] = []
        for size in (1, 2, 3, 30, 1, 50, 7) * 10:
            found += strides.take(size).tolist()
            taken = {s: sum(1 for n in found if n % splits == s) for s in own}
            assert strides.rounds() == taken
        assert found[: len(expected)] == expected
        assert strides.finished == (count is not None)


def test_a_rate_holds_over_all_subtasks_together() -> None:
    clock = FakeClock()
    generator = Generator(None, numbered_columns, SCHEMA, rate=1000.0, clock=clock)
    readers = [reader_of(generator, index=i, parallelism=2) for i in range(2)]
    made = 0
    for _ in range(2000):
        clock.now_s += 0.0005
        made += sum(len(numbers(reader, 65_536)) for reader in readers)
    assert abs(made - 1000) <= 2


def test_rows_are_handed_out_one_by_one_as_they_fall_due() -> None:
    clock = FakeClock()
    reader = reader_of(Generator(None, numbered_columns, SCHEMA, rate=100.0, clock=clock))
    assert numbers(reader, 100) == []
    assert reader.wait_ms == 10.0
    clock.now_s += 0.0095
    assert numbers(reader, 100) == []
    assert reader.wait_ms == 1.0
    clock.now_s += 0.001
    assert numbers(reader, 100) == [0]
    clock.now_s += 0.02
    assert numbers(reader, 100) == [1, 2]


def test_a_reader_that_was_held_up_catches_up_for_a_second_at_most() -> None:
    clock = FakeClock()
    reader = reader_of(Generator(None, numbered_columns, SCHEMA, rate=100.0, clock=clock))
    clock.now_s += 60
    assert len(numbers(reader, 65_536)) == 100
    assert numbers(reader, 65_536) == []
    clock.now_s += 0.5
    assert len(numbers(reader, 65_536)) == 50


def test_a_rate_far_below_one_row_a_second_still_yields_rows() -> None:
    clock = FakeClock()
    reader = reader_of(Generator(2, numbered_columns, SCHEMA, rate=0.01, clock=clock))
    for _ in range(2):
        clock.now_s += 99.0
        assert numbers(reader, 10) == []
        clock.now_s += 1.5
        assert len(numbers(reader, 10)) == 1
    assert reader.finished


def test_a_generator_without_count_is_unbounded() -> None:
    generator = Generator(None, numbered_columns, SCHEMA)
    assert not generator.bounded
    reader = reader_of(generator)
    assert len(numbers(reader, 1_000_000)) == 1_000_000 and not reader.finished


@pytest.mark.parametrize(
    "columns",
    [
        lambda n: pa.RecordBatch.from_arrays([pa.array(n)], names=["n"]),
        lambda n: {"n": pa.array(n)},
        lambda n: {"n": pa.array(n, pa.int32())},
        lambda n: {"n": n.astype(np.int32)},
        lambda n: {"n": n[::-1][::-1]},
        lambda n: {"n": pa.chunked_array([n])},
        lambda n: {"n": n.tolist()},
    ],
)
def test_columns_come_as_batches_arrow_arrays_numpy_arrays_or_lists(columns: Any) -> None:
    assert numbers(reader_of(Generator(3, columns, "n long")), 10) == [0, 1, 2]


def test_instants_may_be_given_as_microseconds_or_numpy_times() -> None:
    for make in (lambda n: {"t": n}, lambda n: {"t": n.tolist()}, lambda n: {"t": n.astype("datetime64[us]")}):
        batch = reader_of(Generator(3, make, "t timestamp")).poll(10)
        assert batch is not None
        assert batch["t"].cast(pa.int64()).to_pylist() == [0, 1, 2]


ZONED = datetime.datetime(2024, 1, 1, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("made", "schema"),
    [
        ([1.5], "x long"),
        ([1e300], "x float"),
        (np.array([1e300]), "x float"),
        (pa.array([1e300]), "x float"),
        (np.array([1.5]), "x long"),
        (np.array([1.5], object), "x long"),
        ([ZONED], "x timestamp_ntz"),
        (pa.array([ZONED]), "x timestamp_ntz"),
        ([ZONED], "x date"),
        (pa.array([ZONED.replace(tzinfo=None)]), "x date"),
        (np.array(["2024-01-01T23"], "M8[us]"), "x date"),
        (np.array(["2024-01-01T00:00:00.000000001"], "M8[ns]"), "x timestamp"),
        ([None], "x long not null"),
        (pa.array([None], pa.int64()), "x long not null"),
        ([True], "x double"),
        (np.array([True]), "x long"),
        ([[1.5]], "x array<long>"),
        (pa.array([[1.5]]), "x array<long>"),
        (pa.array([{"a": 1}]), "x struct<b:long>"),
        (pa.array([{"a": 1, "b": 2}]), "x struct<b:long>"),
        (pa.array(["5"]), "x long"),
        (pa.array([ZONED]), "x long"),
    ],
)
def test_a_value_that_the_schema_does_not_hold_is_refused_and_not_bent(made: Any, schema: str) -> None:
    with pytest.raises(SchemaError, match="column 'x'"):
        reader_of(Generator(1, lambda n: {"x": made}, schema)).poll(1)


def test_a_batch_with_nulls_where_there_are_none_is_refused() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema)
    with pytest.raises(SchemaError, match="column 'x' is declared not null"):
        reader_of(Generator(1, lambda n: batch, schema)).poll(1)


@pytest.mark.parametrize(
    ("made", "schema", "kept"),
    [
        (np.array([1.0]), "x long", 1),
        (np.array([1]), "x double", 1.0),
        (np.array([math.inf]), "x float", math.inf),
        (np.array(["a"]), "x string", "a"),
        (np.array(["2024-01-01"], "M8[D]"), "x date", datetime.date(2024, 1, 1)),
        (np.array([5]), "x decimal(38,0)", 5),
        (pl.Series(["a"]), "x string", "a"),
        (pl.Series([[1]]), "x array<long>", [1]),
        (pa.array(["a"]).dictionary_encode(), "x string", "a"),
        (pa.array([None]), "x string", None),
        (({"a": 1},), "x map<string,long>", [("a", 1)]),
        (range(1), "x long", 0),
    ],
)
def test_arrays_of_a_kindred_type_are_taken(made: Any, schema: str, kept: Any) -> None:
    batch = reader_of(Generator(1, lambda n: {"x": made}, schema)).poll(1)
    assert batch is not None and batch["x"].to_pylist() == [kept]


def fail(numbers: Any) -> Any:
    raise KeyError(f"no {numbers[0]}")


def test_a_function_that_raises_shows_its_own_traceback_the_operator_and_the_rows() -> None:
    with pytest.raises(UserCodeError) as caught:
        reader_of(Generator(3, fail, "n long")).poll(10)
    text = str(caught.value)
    assert "'the sink' (uid 'out')" in text and "KeyError for rows 0 to 2" in text
    assert "raise KeyError" in text and "generator.py" not in text.replace("test_generator.py", "")


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda n: {"m": n}, "the columns m"),
        (lambda n: {"n": n, "m": n}, "the columns n, m"),
        (lambda n: {"n": n.astype(str)}, "column 'n'"),
        (lambda n: {"n": n[:1]}, "1 rows for 3 numbers"),
        (lambda n: n, "a ndarray, not"),
        (lambda n: pa.RecordBatch.from_arrays([pa.array(["x"] * 3)], names=["n"]), "(n string)"),
    ],
)
def test_a_function_that_does_not_fit_its_schema_is_refused_with_both(make: Any, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        reader_of(Generator(3, make, "n long")).poll(10)
    assert part in str(caught.value) and "n bigint" in str(caught.value)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"count": -1}, {"rate": 0.0}, {"splits": 0}):
        with pytest.raises(ConfigError, match=f"Generator.{next(iter(wrong))}"):
            Generator(**{"count": 1, "make": numbered_columns, "schema": SCHEMA, **wrong})  # type: ignore[arg-type]


def test_a_changed_number_of_splits_is_refused_on_restore() -> None:
    readers = opened(Generator(10, numbered_columns, SCHEMA, splits=4), parallelism=1)
    with pytest.raises(ConfigError, match="set it back to 4"):
        opened(Generator(10, numbered_columns, SCHEMA, splits=8), parallelism=1, restored=positions(readers))
