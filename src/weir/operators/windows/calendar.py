"""Windows by the calendar of a time zone: days, which may have 23 or 25 hours, weeks, months, quarters and years.

Comes in: times in microseconds. Goes out: the starts and ends of windows, in microseconds. Windows
are numbered from 1970 on, and a table of those around the times in hand is what rows are looked up in. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import polars as pl

from weir.errors import DataError, PlanError
from weir.operators.windows.event_time import Times, TimeWindows

DAY_US = 86_400_000_000
MONDAY = 4
"""1970 began on a Thursday, so the first Monday was so many days later."""

_UNITS: dict[str, tuple[Literal["day", "month"], int]] = {
    "d": ("day", 1),
    "w": ("day", 7),
    "mo": ("month", 1),
    "q": ("month", 3),
    "y": ("month", 12),
}
_FIRST_US, _LAST_US = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("0001-02-01", "9998-12-01"))
"""Times that calendars are asked about."""


@dataclass(frozen=True)
class CalendarLength:
    """So many days or months."""

    unit: Literal["day", "month"]
    count: int
    in_weeks: bool = False

    @staticmethod
    def parse(text: object) -> CalendarLength | None:
        """Of "1d", "2w", "1mo", "1q" or "1y"; None: it is none of these."""
        match = re.fullmatch(r"\s*(\d+)\s*(d|w|mo|q|y)\s*", text) if isinstance(text, str) else None
        if match is None:
            return None
        unit, factor = _UNITS[match[2]]
        return CalendarLength(unit, int(match[1]) * factor, match[2] == "w")


@dataclass(frozen=True)
class CalendarWindows(TimeWindows):
    """Windows of so many days or months, of which one begins every `slide`.

    anchor:    the day or month, counted from 1970-01-01, from which windows are counted
    offset_us: by the clock on the wall; so much later than midnight a window begins
    """

    unit: Literal["day", "month"]
    size: int
    slide: int
    timezone: str
    anchor: int = 0
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise PlanError("a window's size must be above zero")
        if self.slide <= 0:
            raise PlanError("sliding windows must begin every so often: their slide must be above zero")
        if self.slide > self.size or self.size % self.slide:
            raise PlanError(
                f"windows of {self.size} {self.unit}s every {self.slide}: a window by the calendar must be a whole "
                "number of slides"
            )
        try:
            _local(np.zeros(1, np.int64), self.timezone)
        except (pl.exceptions.PolarsError, TypeError) as error:
            raise PlanError(f"{self.timezone!r} is no time zone; write for example 'Europe/Berlin'") from error

    @property
    def overlaps(self) -> bool:
        return self.slide < self.size

    @property
    def windows_per_pane(self) -> int:
        return self.size // self.slide

    @property
    def step_us(self) -> int:
        return 1

    @property
    def pane_us_max(self) -> int:
        # Where clocks are put back, or a zone changes sides of the date line, a stretch is up to a day longer.
        return (self.slide * (31 if self.unit == "month" else 1) + 1) * DAY_US

    @property
    def span_us(self) -> int:
        return self.windows_per_pane * self.pane_us_max

    def panes(self, times_us: Times) -> Times:
        table = self._around(times_us)
        return table.starts[table.find(times_us)]

    def each_start(self, panes: Times) -> Iterator[Times]:
        table = self._around(panes)
        at = table.find(panes)
        for back in range(self.windows_per_pane):
            yield table.starts[at - back]

    def ends(self, starts: Times) -> Times:
        table = self._around(starts)
        return table.starts[table.find(starts) + self.windows_per_pane]

    def pane_starts(self, window_start_us: int) -> list[int]:
        start = np.array([window_start_us])
        table = self._around(start)
        at = int(table.find(start)[0])
        found: list[int] = table.starts[at : at + self.windows_per_pane].tolist()
        return found

    def _around(self, times_us: Times) -> _Starts:
        if not len(times_us):
            return _Starts(np.empty(0, np.int64))
        first_us, last_us = int(times_us.min()), int(times_us.max())
        if first_us < _FIRST_US or last_us > _LAST_US:
            wrong_us = first_us if first_us < _FIRST_US else last_us
            raise DataError(f"window: a time of {wrong_us} microseconds since 1970 is in no calendar (years 1 to 9998)")
        # Whole days, so that consecutive batches mostly ask for the same table.
        return _table(self, first_us // DAY_US, last_us // DAY_US)

    def starts_of(self, numbers: Times) -> Times:
        """When windows begin, by their numbers."""
        if self.unit == "day":
            local = (numbers * self.slide + self.anchor) * DAY_US
        else:
            months = (numbers * self.slide + self.anchor).astype("datetime64[M]")
            local = months.astype("datetime64[us]").astype(np.int64)
        return _instants(local + self.offset_us, self.timezone)

    def number_near(self, time_us: int) -> int:
        """The number of the window that begins just before a time, or of one beside it."""
        local = _local(np.array([time_us]), self.timezone) - self.offset_us
        unit = "D" if self.unit == "day" else "M"
        count = int(local.view("datetime64[us]").astype(f"datetime64[{unit}]").astype(np.int64)[0])
        return (count - self.anchor) // self.slide


@dataclass(frozen=True)
class _Starts:
    """The starts of consecutive windows."""

    starts: Times

    def find(self, times_us: Times) -> Times:
        """Where in the table the last start is that is not behind a time."""
        return np.searchsorted(self.starts, times_us, side="right") - 1


@lru_cache(maxsize=64)
def _table(windows: CalendarWindows, first_day: int, last_day: int) -> _Starts:
    margin = windows.windows_per_pane + 2
    first = windows.number_near(first_day * DAY_US) - margin
    last = windows.number_near((last_day + 1) * DAY_US) + margin
    # A day that a zone has left out would begin with the next, and is none.
    return _Starts(np.unique(windows.starts_of(np.arange(first, last + 1))))


def _local(times_us: Times, timezone: str) -> Times:
    """What the clock on the wall shows, as microseconds since it showed 1970."""
    instants = pl.Series(times_us).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return instants.dt.convert_time_zone(timezone).dt.replace_time_zone(None).cast(pl.Int64).to_numpy()


def _instants(local_us: Times, timezone: str) -> Times:
    """When the clock on the wall first shows these times; or would, had it not been put forward past them."""
    shown = pl.Series(local_us).cast(pl.Datetime("us"))
    found = shown.dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null")
    if found.null_count():
        day_before = pl.Series(local_us - DAY_US).cast(pl.Datetime("us"))
        as_before = day_before.dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null").cast(pl.Int64)
        return found.cast(pl.Int64).fill_null(as_before + DAY_US).to_numpy()
    return found.cast(pl.Int64).to_numpy()
