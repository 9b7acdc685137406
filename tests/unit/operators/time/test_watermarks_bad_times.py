"""What is wrong in time is told with the operator, the row and what to do, by every operator of event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import polars as pl
import pytest

import weir
from weir.errors import DataError, PlanError, SchemaError
from weir.testing import collect_local


def rows(env: weir.Environment, uid: str) -> weir.Stream:
    return env.from_collection(
        [(1, datetime(2026, 1, 1))], "k long, ts timestamp_ntz", watermark=weir.monotonic("ts"), uid=uid
    )


def without_times(env: weir.Environment) -> weir.Stream:
    """The times were there when watermarks were made, and are gone since: a function of batches may do that."""
    lose = pl.when(pl.col("k") > 5).then(pl.col("ts")).alias("ts")
    return rows(env, "rows").map_batches(lambda frame: frame.with_columns(lose), kind="polars", uid="lost")


TAKES_TIMES: dict[str, Callable[[weir.Environment, weir.KeyedStream], weir.Stream]] = {
    "agg": lambda env, lost: lost.window(weir.tumbling("1s")).agg(n=weir.count(), uid="it"),
    "agg-late": lambda env, lost: lost.window(weir.tumbling("1s"), late="late").agg(n=weir.count(), uid="it"),
    "session": lambda env, lost: lost.window(weir.session("1s")).agg(n=weir.count(), uid="it"),
    "reduce": lambda env, lost: lost.window(weir.tumbling("1s")).reduce(lambda a, b: a, uid="it"),
    "join": lambda env, lost: lost.join(rows(env, "other").key_by("k"), weir.tumbling("1s"), uid="it"),
    "interval": lambda env, lost: lost.interval_join(rows(env, "other").key_by("k"), lower=0, upper=1, uid="it"),
    "as_of": lambda env, lost: lost.as_of(rows(env, "other").key_by("k"), uid="it"),
}


@pytest.mark.parametrize("kind", TAKES_TIMES)
def test_a_row_without_a_time_is_shown_with_the_operator_that_it_came_to(kind: str) -> None:
    env = weir.Environment(parallelism=1)
    stream = TAKES_TIMES[kind](env, without_times(env).key_by("k"))
    with pytest.raises(DataError, match=r"operator 'it.*row \{'k': 1, 'ts': None\}.*has no time in 'ts'; leave such"):
        collect_local(stream)


def test_windows_over_all_rows_do_not_show_a_key_that_nobody_gave() -> None:
    env = weir.Environment(parallelism=1)
    with pytest.raises(DataError, match=r"row \{'k': 1, 'ts': None\} has no time"):
        collect_local(without_times(env).window(weir.tumbling("1s")).agg(n=weir.count(), uid="it"))


def test_a_value_that_is_no_time_is_told_with_its_row() -> None:
    env = weir.Environment(parallelism=1)
    with pytest.raises(SchemaError, match="row 0: column 'ts' is timestamp, found 'noon' of type str"):
        env.from_collection([(1, "noon")], "k long, ts timestamp", watermark=weir.monotonic("ts"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: weir.tumbling(0),
        lambda: weir.tumbling("0mo", timezone="Europe/Berlin"),
        lambda: weir.sliding("1m", 0),
        lambda: weir.session("0s"),
        lambda: weir.count_window(0),
        lambda: weir.continuous(0),
        lambda: weir.on_count(0),
    ],
)
def test_nothing_is_of_no_length(make: Callable[[], object]) -> None:
    with pytest.raises(PlanError, match=r"above zero|at least 1"):
        make()


@pytest.mark.parametrize("kind", ["join", "interval_join", "as_of", "co_group"])
def test_keys_of_different_types_do_not_meet(kind: str) -> None:
    env = weir.Environment(parallelism=1)
    left = rows(env, "left").key_by("k")
    right = rows(env, "right").with_columns(k=pl.col("k").cast(pl.String)).key_by("k")
    joins: dict[str, Callable[[], object]] = {
        "join": lambda: left.join(right, weir.tumbling("1s")),
        "interval_join": lambda: left.interval_join(right, lower=0, upper=1),
        "as_of": lambda: left.as_of(right),
        "co_group": lambda: left.co_group(right, weir.tumbling("1s")).apply(lambda a, b: None, "k long"),
    }
    with pytest.raises(SchemaError, match=rf"{kind}.*'k' is of type int64.*'k' of type string; equal values of diff"):
        joins[kind]()
