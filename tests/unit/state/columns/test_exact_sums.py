"""Sums beyond their type: one rule, however batches are cut and wherever flushes fall.

A running sum is shown after each row, so that no row may take it beyond; a window's is shown when it is over.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.unit.operators.running import context
from weir.errors import DataError
from weir.operators.aggregates import named as of
from weir.operators.aggregates.running import PartialAggregate, RunningAggregate
from weir.testing import collect_local

MAX = (1 << 63) - 1
MIN = -MAX - 1


def cuts(count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut so many rows into batches."""
    for number in range(count):
        for places in itertools.combinations(range(1, count), number):
            bounds = [0, *places, count]
            yield list(itertools.pairwise(bounds))


def running_sum(rows: Sequence[tuple[str, Any]], pieces: Sequence[tuple[int, int]], kind: pa.DataType) -> Any:
    """The last sum of each key, through both halves, flushed behind each piece; or "beyond"."""
    schema = pa.schema({"k": pa.string(), "v": kind})
    first = PartialAggregate(["k"], {"total": of.sum("v"), "n": of.count(), "last": of.last("v")}, schema)
    second = RunningAggregate(["k"], first.aggregates, schema)
    half, whole = first.make(), second.make()
    half.open(context(), None)
    whole.open(context(), None)
    results: list[pa.RecordBatch] = []
    try:
        for start, end in pieces:
            keys, values = zip(*rows[start:end], strict=True)
            batch = pa.record_batch([pa.array(keys), pa.array(values, kind)], schema=schema)
            half.process(batch, lambda sent: whole.process(sent, results.append))
            half.flush(lambda sent: whole.process(sent, results.append))
            whole.flush(results.append)
    except DataError as error:
        assert "'total'" in str(error)
        return "beyond"
    return {row["k"]: (row["total"], row["n"], row["last"]) for batch in results for row in batch.to_pylist()}


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ([MAX, 1, -1], False),
        ([MIN, -1, 1], False),
        ([MAX, -1, 1], True),
        ([-1, MAX, 1], True),
        ([MAX - 10, 20, -15], False),
        ([1, -1, MAX, MIN], True),
        ([MIN, MAX, MAX], True),
        ([MIN, MIN, MAX, MAX], False),
        ([MAX, None, 1], False),
    ],
)
def test_a_running_sum_fails_at_every_cut_or_at_none(values: list[int | None], fits: bool) -> None:
    rows = [("a", value) for value in values]
    rows.insert(1, ("b", 5))
    expected: Any = "beyond"
    if fits:
        expected = {"a": (sum(v or 0 for v in values), len(values), values[-1]), "b": (5, 1, 5)}
    found = [running_sum(rows, pieces, pa.int64()) for pieces in cuts(len(rows))]
    assert found == [expected] * len(found)


@pytest.mark.parametrize(("values", "fits"), [([1, 0, -1], True), ([9, 1, -1], False), ([9, -1, 1], True)])
def test_a_running_sum_of_wide_decimals_fails_at_every_cut_or_at_none(values: list[int], fits: bool) -> None:
    step = int("1" * 38)
    rows = [("a", Decimal(step * value)) for value in values]
    found = [running_sum(rows, pieces, pa.decimal128(38, 0)) for pieces in cuts(len(rows))]
    assert found == ["beyond"] * len(found) if not fits else all(one["a"][0] == step * sum(values) for one in found)


@pytest.mark.parametrize("seed", seeds(40))
def test_random_running_sums_are_what_a_loop_gives_or_fail_where_it_does(seed: int) -> None:
    rng = random.Random(seed)
    rows = [(rng.choice("ab"), rng.choice([MAX, MIN, 1, -1, MAX // 2, MIN // 2, 0])) for _ in range(6)]
    sums: dict[str, int] = {}
    fits = True
    for key, value in rows:
        sums[key] = sums.get(key, 0) + value
        fits &= MIN <= sums[key] <= MAX
    for pieces in cuts(len(rows)):
        found = running_sum(rows, pieces, pa.int64())
        assert found == "beyond" if not fits else {key: one[0] for key, one in found.items()} == sums


BEGIN = datetime(2026, 1, 1)


def windowed(values: Sequence[int], windows: Any, *, batch_rows: int, seconds: Sequence[float]) -> Any:
    """The sums over windows, or "beyond"."""
    rows = pl.DataFrame(
        {"k": ["a"] * len(values), "v": values, "ts": [BEGIN + timedelta(seconds=s) for s in seconds]},
        schema={"k": pl.String, "v": pl.Int64, "ts": pl.Datetime("us")},
    )
    settings = weir.Settings(batch_rows_max=batch_rows, buffer_timeout="0ms")
    env = weir.Environment(parallelism=1, settings=settings)
    stream = env.from_collection(rows, watermark=weir.bounded_disorder("ts", "1h"), uid="rows")
    result = stream.key_by("k").window(windows).agg(total=weir.sum("v"), uid="sums")
    try:
        return sorted(collect_local(result)["total"].to_pylist())
    except DataError as error:
        assert "beyond the range" in str(error)
        return "beyond"


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "windows",
    [weir.tumbling("1m"), weir.sliding("2m", "1m"), weir.session("1m")],
    ids=["tumbling", "sliding", "session"],
)
def test_a_windows_sum_may_be_beyond_in_passing_and_must_fit_at_its_end(windows: Any, batch_rows: int) -> None:
    seconds = [1.0, 2.0, 3.0, 4.0]
    for values, fits in (
        ([MAX, 1, -1, 0], True),
        ([MAX, MAX, MIN, MIN], True),
        ([MIN, MIN, MAX, MAX], True),
        ([MAX, 1, 0, 0], False),
        ([MAX, MAX, MIN, 2], False),
    ):
        found = windowed(values, windows, batch_rows=batch_rows, seconds=seconds)
        assert found == "beyond" if not fits else set(found) == {sum(values)}


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_sessions_and_panes_that_are_beyond_can_be_merged(batch_rows: int) -> None:
    # Two sessions, both beyond, that the last row joins.
    values, seconds = [MAX, MAX, MIN, MIN, 7], [0.0, 1.0, 100.0, 101.0, 50.0]
    assert windowed(values, weir.session("1m"), batch_rows=batch_rows, seconds=seconds) == [sum(values)]
    # Two panes, of which only the window over both has a sum that fits.
    found = windowed([MAX, 1, -5], weir.sliding("2m", "1m"), batch_rows=batch_rows, seconds=[1.0, 2.0, 61.0])
    assert found == "beyond"
    joined = windowed([MAX, -1, -5], weir.sliding("2m", "1m"), batch_rows=batch_rows, seconds=[1.0, 2.0, 61.0])
    assert joined == sorted([MAX - 1, MAX - 6, -5])
