"""Windows by the calendar: days of 23 and 25 hours, weeks, months, quarters and years, against Polars."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import polars as pl
import pytest

import weir
from weir.errors import DataError, PlanError
from weir.operators.time.watermarks import as_us
from weir.operators.windows.calendar import DAY_US
from weir.operators.windows.event_time import TimeWindows
from weir.testing import collect_local

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def random_times(seed: int, first_year: int, count: int = 2_000) -> pl.Series:
    generator = np.random.default_rng(seed)
    first, last = as_us(datetime(first_year, 1, 1)), as_us(datetime(2031, 1, 1))
    return pl.Series(generator.integers(first, last, count)).cast(pl.Datetime("us"))


def in_zone(times: pl.Series, zone: str) -> pl.Series:
    return times.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)


@pytest.mark.parametrize("zone", ["UTC", BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata"])
@pytest.mark.parametrize("size", ["1d", "3d", "1w", "2w", "1mo", "5mo", "1q", "1y"])
def test_windows_begin_where_polars_truncates(size: str, zone: str) -> None:
    # Where a midnight is left out, Polars has no answer: Lord Howe Island did that in 1981.
    times = random_times(1, 1962 if zone == "UTC" else 1990)
    windows = weir.tumbling(size, timezone=zone)
    expected = in_zone(times, zone).dt.truncate(size)
    assert windows.panes(times.cast(pl.Int64).to_numpy()).tolist() == expected.cast(pl.Int64).to_list()
    ends = windows.ends(windows.panes(times.cast(pl.Int64).to_numpy()))
    assert ends.tolist() == expected.dt.offset_by(size).cast(pl.Int64).to_list()


def test_a_week_in_utc_needs_no_time_zone_and_begins_on_a_monday() -> None:
    start_us = weir.tumbling("1w").pane_of(as_us(datetime(2026, 3, 5, 12)))
    assert start_us == as_us(datetime(2026, 3, 2))


def day_hours(windows: TimeWindows, *day: int) -> float:
    (start, end) = next(windows.windows(windows.pane_of(as_us(datetime(*day, 12)))))  # type: ignore[arg-type]
    return (end - start) / 3.6e9


def test_days_have_as_many_hours_as_the_zone_gives_them() -> None:
    windows = weir.tumbling("1d", timezone=BERLIN)
    assert [day_hours(windows, 2026, 3, day) for day in (28, 29, 30)] == [24, 23, 24]
    assert [day_hours(windows, 2026, 10, day) for day in (24, 25, 26)] == [24, 25, 24]
    assert day_hours(weir.tumbling("1d", timezone=LORD_HOWE), 2026, 4, 5) == 24.5


def test_a_day_without_a_midnight_begins_when_the_clock_is_put_forward() -> None:
    """In Brazil clocks went from 24:00 to 1:00."""
    windows = weir.tumbling("1d", timezone="America/Sao_Paulo")
    start, end = next(windows.windows(windows.pane_of(as_us(datetime(2018, 11, 4, 12)))))
    assert (start, end - start) == (as_us(datetime(2018, 11, 4, 3)), 23 * DAY_US // 24)


def test_a_day_that_a_zone_left_out_has_no_rows_and_does_no_harm() -> None:
    """Samoa went over the date line, from December 29th to 31st."""
    windows = weir.sliding("2d", "1d", timezone="Pacific/Apia")
    hours = np.arange(as_us(datetime(2011, 12, 29)), as_us(datetime(2012, 1, 2)), 3_600_000_000)
    panes = windows.panes(hours)
    assert (panes <= hours).all()
    assert sorted(set(panes.tolist()))[2] == as_us(datetime(2011, 12, 30, 10))
    last, before = windows.each_start(panes)
    assert (last == panes).all() and (before < panes).all()


@pytest.mark.parametrize(
    ("size", "offset", "time", "start"),
    [
        ("1d", "6h", datetime(2026, 3, 29, 3), datetime(2026, 3, 28, 6)),
        ("1d", "6h", datetime(2026, 3, 29, 7), datetime(2026, 3, 29, 6)),
        ("1mo", "4d", datetime(2026, 3, 4), datetime(2026, 2, 5)),
        ("1q", "1mo", datetime(2026, 1, 31), datetime(2025, 11, 1)),
        ("1y", "3mo", datetime(2026, 3, 31), datetime(2025, 4, 1)),
        ("1w", "6d", datetime(2026, 3, 4), datetime(2026, 3, 1)),
    ],
)
def test_windows_may_begin_later_by_the_clock_on_the_wall(
    size: str, offset: str, time: datetime, start: datetime
) -> None:
    windows = weir.tumbling(size, offset=offset, timezone=BERLIN)
    (local,) = pl.Series([time, start]).dt.replace_time_zone(BERLIN).cast(pl.Int64).to_numpy().reshape(1, 2)
    assert windows.pane_of(int(local[0])) == local[1]


SCHEMA = "name string, amount long, ts timestamp"


def sales(seed: int, days: int) -> list[tuple[str, int, datetime]]:
    """Around the change to summer time, up to two hours out of order."""
    rng = random.Random(seed)
    first = datetime(2026, 3, 20, tzinfo=timezone.utc)
    times = [first + timedelta(hours=24 * days * i / 400) for i in range(400)]
    return [(rng.choice("ab"), rng.randrange(10), time + timedelta(hours=rng.random() * 2)) for time in times]


def summed(size: str, slide: str | None, rows: list[Any], **options: Any) -> list[tuple[Any, ...]]:
    env = weir.Environment(parallelism=2)
    stream = env.from_collection(rows, SCHEMA, watermark=weir.bounded_disorder("ts", "2h"), uid="rows")
    windows = weir.tumbling(size, timezone=BERLIN) if slide is None else weir.sliding(size, slide, timezone=BERLIN)
    result = stream.key_by("name").window(windows).agg(total=weir.sum("amount"), n=weir.count(), uid="sums")
    return sorted(tuple(row.values()) for row in collect_local(result, **options).to_pylist())


def dynamic(size: str, slide: str | None, rows: list[Any]) -> list[tuple[Any, ...]]:
    frame = pl.DataFrame(rows, schema=["name", "amount", "ts"], orient="row")
    local = frame.with_columns(pl.col("ts").dt.convert_time_zone(BERLIN)).sort("ts")
    earlier = {"3d": "-2d", "1w": "-6d", "2mo": "-1mo"}[size] if slide else "0d"  # or it leaves out the first ones
    grouped = local.group_by_dynamic("ts", every=slide or size, period=size, offset=earlier, group_by="name")
    found = grouped.agg(total=pl.col("amount").sum(), n=pl.len().cast(pl.Int64))
    utc = pl.col("ts").dt.convert_time_zone("UTC")
    end = pl.col("ts").dt.offset_by(size).dt.convert_time_zone("UTC")
    return sorted(found.select("name", utc, end.alias("end"), "total", "n").iter_rows())


@pytest.mark.parametrize(
    ("size", "slide", "days"),
    [("1d", None, 20), ("1mo", None, 120), ("3d", "1d", 20), ("1w", "1d", 20), ("2mo", "1mo", 90)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_sums_by_calendar_windows_are_those_of_polars_whatever_fails(
    seed: int, size: str, slide: str | None, days: int
) -> None:
    rows = sales(seed, days)
    assert summed(size, slide, rows, seed=seed, crash_at=[25, 60]) == dynamic(size, slide, rows)


def test_functions_over_the_rows_of_a_window_and_joins_take_calendar_windows_too() -> None:
    rows = sales(3, 20)
    env = weir.Environment(parallelism=2)
    read = [env.from_collection(rows, SCHEMA, watermark=weir.bounded_disorder("ts", "2h"), uid=u) for u in "lr"]
    windows = weir.tumbling("1d", timezone=BERLIN)
    reduced = read[0].key_by("name").window(windows).reduce(lambda a, b: (a.name, a.amount + b.amount, b.ts), uid="sum")
    totals = [row["amount"] for row in collect_local(reduced, seed=5).to_pylist()]
    assert sorted(totals) == sorted(total for _, _, _, total, _ in dynamic("1d", None, rows))
    joined = read[0].key_by("name").join(read[1].key_by("name"), windows, uid="join")
    assert collect_local(joined, seed=5).num_rows == sum(n * n for *_, n in dynamic("1d", None, rows))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weir.tumbling("0mo"), "a window's size must be above zero"),
        (lambda: weir.tumbling("1mo", timezone="Mars/Olympus"), "'Mars/Olympus' is no time zone"),
        (lambda: weir.tumbling("6h", timezone=BERLIN), "do not fit a calendar"),
        (lambda: weir.sliding("1mo", "1d"), "do not fit a calendar"),
        (lambda: weir.sliding("5mo", "2mo"), "must be a whole number of slides"),
        (lambda: weir.tumbling("1w", offset="1mo"), "give the offset in days or less"),
    ],
)
def test_what_no_calendar_has_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def test_a_time_beyond_all_calendars_is_an_error() -> None:
    with pytest.raises(DataError, match="is in no calendar"):
        weir.tumbling("1mo").panes(np.array([1 << 61]))
