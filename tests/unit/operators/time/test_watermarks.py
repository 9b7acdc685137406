"""Watermarks from rows: disorder, splits, idleness, restarts, and what is refused."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.unit.runtime.fakes import context
from weir.errors import DataError, SchemaError
from weir.operators.base import Restored, RestoredInline
from weir.operators.time.watermarks import AssigningWatermarks, AssignWatermarks, as_us
from weir.snapshot.elements import StreamIdle, Watermark

SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("n", pa.int64())])


def batch(*times_us: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(times_us, pa.timestamp("us")), pa.array(range(len(times_us)))], schema=SCHEMA)


def opened(strategy: Any, restored: Restored | None = None) -> AssigningWatermarks:
    spec = AssignWatermarks(strategy)
    spec.schema([SCHEMA])
    operator = spec.make()
    operator.open(context("w"), restored)
    return operator


def fed(operator: AssigningWatermarks, *times_us: int, split: str = "", still_open: set[str] | None = None) -> None:
    operator.reading(split, still_open)
    out: list[pa.RecordBatch] = []
    operator.process(batch(*times_us), out.append)
    assert [b.num_rows for b in out] == [len(times_us)]


def test_the_watermark_is_so_far_behind_the_latest_row() -> None:
    operator = opened(weir.bounded_disorder("ts", "1ms"))
    fed(operator, 5_000, 9_000, 7_000)
    assert operator.generated(0, is_starved=False) == Watermark(8_000)
    fed(operator, 6_000)
    assert operator.generated(1, is_starved=False) is None


def test_it_waits_for_the_slowest_open_split() -> None:
    operator = opened(weir.monotonic("ts"))
    fed(operator, 100, split="a", still_open={"a", "b"})
    fed(operator, 40, split="b", still_open={"a", "b"})
    assert operator.generated(0, is_starved=False) == Watermark(40)
    fed(operator, 120, split="a", still_open={"a"})
    assert operator.generated(0, is_starved=False) == Watermark(120)


def test_a_split_without_rows_so_far_holds_event_time_back() -> None:
    operator = opened(weir.monotonic("ts"))
    fed(operator, 100, split="a", still_open={"a", "b"})
    assert operator.generated(0, is_starved=False) is None
    fed(operator, 40, split="b", still_open={"a", "b"})
    assert operator.generated(0, is_starved=False) == Watermark(40)


def test_a_stream_without_rows_is_idle_after_a_while_but_not_when_there_is_no_room() -> None:
    operator = opened(weir.bounded_disorder("ts", "1ms", idle_after="100ms"))
    fed(operator, 5_000)
    operator.generated(0, is_starved=True)
    assert operator.generated(10, is_starved=True) is None
    assert operator.generated(90, is_starved=False) is None  # backpressure
    assert operator.generated(150, is_starved=True) is None
    assert operator.generated(250, is_starved=True) == StreamIdle()
    assert operator.generated(400, is_starved=True) is None  # told once


def test_what_was_told_before_a_restart_is_told_again_without_new_rows() -> None:
    first = opened(weir.monotonic("ts"))
    fed(first, 70, split="a")
    first.generated(0, is_starved=False)
    part = RestoredInline(0, 1, first.freeze().inline)
    second = opened(weir.monotonic("ts"), Restored([part]))
    assert second.generated(0, is_starved=True) == Watermark(70)
    fed(second, 50, split="a")
    assert second.generated(1, is_starved=False) is None


def test_a_row_without_a_time_is_an_error_that_shows_it() -> None:
    operator = opened(weir.monotonic("ts"))
    with pytest.raises(DataError, match=r"row \{'ts': None, 'n': 1\} has no time in 'ts'"):
        operator.process(batch(1, None), lambda b: None)


def test_a_row_that_is_too_far_ahead_is_an_error_where_that_is_set() -> None:
    operator = opened(weir.bounded_disorder("ts", 0, jump_max="1h"))
    fed(operator, 0)
    with pytest.raises(DataError, match=r"7200 s ahead of the latest before it, more than the 3600 s of jump_max"):
        operator.process(batch(1, 7_200_000_000), lambda b: None)


def test_what_counts_is_the_jump_from_row_to_row_not_the_length_of_a_batch() -> None:
    operator = opened(weir.bounded_disorder("ts", 0, jump_max="1h"))
    hour_us = 3_600_000_000
    fed(operator, 0, hour_us, 2 * hour_us, hour_us // 2, 3 * hour_us)
    fed(operator, 4 * hour_us)
    with pytest.raises(DataError, match=r"'n': 1\} is 7200 s ahead"):
        operator.process(batch(4 * hour_us, 6 * hour_us, 5 * hour_us, 9 * hour_us), lambda b: None)


def test_a_wrong_time_in_the_first_batch_is_seen_too() -> None:
    operator = opened(weir.bounded_disorder("ts", 0, jump_max="1h"))
    with pytest.raises(DataError, match=r"'n': 2\} is 7200 s ahead"):
        operator.process(batch(5, 0, 7_200_000_005), lambda b: None)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (pa.int64(), r"with_columns\(t=pl.from_epoch\('t', time_unit='ms'\)\)"),
        (pa.string(), r"with_columns\(t=pl.col\('t'\).str.to_datetime\(\)\)"),
        (pa.date32(), r"with_columns\(t=pl.col\('t'\).cast\(pl.Datetime\('us'\)\)\)"),
    ],
)
def test_the_error_tells_how_to_make_a_timestamp_of_the_column(kind: pa.DataType, how: str) -> None:
    with pytest.raises(SchemaError, match=how):
        AssignWatermarks(weir.monotonic("t")).schema([pa.schema([("t", kind)])])


def test_event_time_needs_a_timestamp() -> None:
    with pytest.raises(SchemaError, match="column 'n' is of type int64; event time needs a timestamp"):
        AssignWatermarks(weir.monotonic("n")).schema([SCHEMA])
    with pytest.raises(SchemaError, match="no column 'tss' for event time"):
        AssignWatermarks(weir.monotonic("tss")).schema([SCHEMA])


class Every(weir.WatermarkGenerator):
    """A watermark with each row whose n is 0: punctuated."""

    def observe(self, rows: pl.DataFrame) -> datetime | None:
        marks = rows.filter(pl.col("n") == 0)["ts"]
        return marks.max() if len(marks) else None  # type: ignore[return-value]


def test_a_user_may_make_watermarks_herself() -> None:
    operator = opened(weir.watermarks_by("ts", Every))
    fed(operator, 30, 90)
    assert operator.generated(0, is_starved=False) == Watermark(30)


def test_times_with_and_without_a_zone_are_the_same_instants() -> None:
    assert (
        as_us(datetime(1970, 1, 1, 0, 0, 1)) == as_us(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)) == 1_000_000
    )


class Clock(weir.WatermarkGenerator):
    now_us = 0

    def observe(self, rows: pl.DataFrame) -> None:
        return None

    def periodic(self) -> int:
        return Clock.now_us


def test_a_generator_is_asked_now_and_then_also_while_no_rows_come(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = opened(weir.watermarks_by("ts", Clock, idle_after="100ms"))
    fed(operator, 5)
    for now_ms, time_us in ((0, 10), (100, 20), (200, 30)):
        monkeypatch.setattr(Clock, "now_us", time_us)
        assert operator.generated(now_ms, is_starved=True) == Watermark(time_us)
    # Only when time stands still, too, it is idle.
    assert operator.generated(300, is_starved=True) is None
    assert operator.generated(400, is_starved=True) == StreamIdle()
