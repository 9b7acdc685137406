"""What becomes of event time on the way: carried on under another name, never changed in silence."""

from __future__ import annotations

import warnings
from datetime import datetime, timezone

import polars as pl
import pytest

import weir
from tests.unit.api.fakes import FakeLauncher
from weir.connectors import Discard
from weir.errors import PlanError
from weir.testing import collect_local


def at(second: int) -> datetime:
    return datetime(2024, 1, 1, 0, 0, second, tzinfo=timezone.utc)


def timed(**options: int) -> weir.Stream:
    rows = [(n % 3, at(n)) for n in range(20)]
    env = weir.Environment(parallelism=2)
    return env.from_collection(rows, "k long, ts timestamp", uid="in", watermark=weir.monotonic("ts"), **options)


def test_a_column_that_is_renamed_is_still_the_event_time() -> None:
    assert timed().select("k", t="ts").time_column == "t"
    assert timed().select("k", pl.col("ts").alias("t")).time_column == "t"
    assert timed().select(pl.all()).time_column == "ts"
    assert timed().with_columns(t="ts").time_column == "ts"
    assert timed().with_columns(t="ts", ts=pl.col("ts").dt.offset_by("1h")).time_column == "t"
    assert timed().select("k").time_column is None


def test_windows_behind_a_renaming_hold_what_they_held_before() -> None:
    def counted(stream: weir.Stream) -> list[int]:
        table = collect_local(stream.key_by("k").window(weir.tumbling("5s")).agg(n=weir.count(), uid="n"))
        return sorted(table["n"].to_pylist())

    assert counted(timed().select("k", t="ts")) == counted(timed())


def test_the_time_of_a_windows_result_can_be_renamed_too() -> None:
    counts = timed().key_by("k").window(weir.tumbling("5s")).agg(n=weir.count(), uid="n")
    again = counts.select("n", until="window_end").window(weir.tumbling("10s")).agg(n=weir.sum("n"), uid="more")
    assert collect_local(again)["n"].to_pylist() == [10, 10]


@pytest.mark.parametrize("change", ["with_columns", "select", "select another"])
def test_changing_the_event_time_is_refused_and_the_ways_out_are_named(change: str) -> None:
    stream = timed().with_columns(other="ts")
    with pytest.raises(PlanError, match=r"changes 'ts', the rows' event time.*with_watermarks.*event_time='ts'"):
        if change == "with_columns":
            stream.with_columns(ts=pl.col("ts").dt.offset_by("1h"))
        elif change == "select":
            stream.select("k", ts=pl.col("ts").dt.truncate("1h"))
        else:
            stream.select("k", ts="other")


def test_a_new_time_with_watermarks_of_its_own_is_the_event_time() -> None:
    later = timed().with_columns(later=pl.col("ts").dt.offset_by("1h")).with_watermarks(weir.monotonic("later"))
    assert later.time_column == "later"
    # Without the old time in the way, its name is free.
    renamed = later.select("k", ts="later")
    assert renamed.time_column == "ts"


def mixed() -> weir.Stream:
    env = weir.Environment(parallelism=2)
    stream = env.from_collection([(1, at(1))], "k long, ts timestamp", uid="in", parallelism=1)
    return stream.with_watermarks(weir.monotonic("ts"), uid="marks")


def test_watermarks_behind_an_exchange_are_noted_in_explain() -> None:
    assert (
        "note: 'marks' makes watermarks behind an exchange, where the rows of all splits of 'in'" in mixed().explain()
    )
    assert "note:" not in timed().explain()
    assert "note:" not in timed(parallelism=1).explain()


def test_watermarks_behind_an_exchange_are_a_warning_when_the_job_starts(launcher: FakeLauncher) -> None:
    stream = mixed()
    stream.write(Discard(), uid="out")
    with pytest.warns(UserWarning, match="'marks' makes watermarks behind an exchange"):
        stream._environment.submit("mixed")
    good = timed()
    good.write(Discard(), uid="out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good._environment.submit("good")
