"""The windows and triggers that users name.

Comes in: sizes, gaps and numbers. Goes out: windows and triggers, checked. Pure.
"""

from __future__ import annotations

from datetime import timedelta

from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.operators.windows.calendar import MONDAY, CalendarLength, CalendarWindows
from weir.operators.windows.event_time import AlignedWindows, CountWindows, GlobalWindows, SessionWindows, TimeWindows
from weir.operators.windows.triggers import Continuous, OnCount, OnWatermark, Trigger


def tumbling(size: Duration, *, offset: Duration = 0, timezone: str | None = None) -> TimeWindows:
    """Windows of one size, one after the other, from 1970 on, or from `offset` behind that.

    The calendar's units are weeks, which begin on Mondays, months, quarters and years ("1w", "1mo", "1q", "1y"), and,
    with a time zone, days ("1d"): these begin at midnight there, and may have 23 or 25 hours.

    >>> tumbling("10s").size_us
    10000000
    >>> tumbling("1mo", timezone="Europe/Berlin").timezone
    'Europe/Berlin'
    >>> tumbling("1d", timezone="America/New_York", offset="6h").offset_us  # from six in the morning
    21600000000
    """
    if (calendar := _calendar(size, size, offset, timezone)) is not None:
        return calendar
    size_us = duration_ms(size, "tumbling") * 1_000
    return AlignedWindows(size_us, size_us, duration_ms(offset, "offset") * 1_000)


def sliding(size: Duration, slide: Duration, *, offset: Duration = 0, timezone: str | None = None) -> TimeWindows:
    """Windows of one size, of which one begins every `slide`, so that they overlap.

    By the calendar, size and slide must both be of days and weeks, or both of months, quarters and years.

    >>> sliding("3mo", "1mo").windows_per_pane
    3
    """
    if (calendar := _calendar(size, slide, offset, timezone)) is not None:
        return calendar
    return AlignedWindows(
        duration_ms(size, "sliding") * 1_000, duration_ms(slide, "slide") * 1_000, duration_ms(offset, "offset") * 1_000
    )


def _calendar(size: Duration, slide: Duration, offset: Duration, timezone: str | None) -> TimeWindows | None:
    """Windows by the calendar; None: those asked for are of fixed lengths."""
    lengths = [CalendarLength.parse(size), CalendarLength.parse(slide)]
    beyond_days = [length for length in lengths if length is not None and (length.unit == "month" or length.in_weeks)]
    if timezone is None and not beyond_days:
        return None
    whole, step = lengths
    if whole is None or step is None or whole.unit != step.unit:
        raise PlanError(
            f"windows of {size!r} every {slide!r} do not fit a calendar: with a time zone, or units of the calendar, "
            "both must be whole days and weeks, such as '1d' and '2w', or whole months, such as '1mo', '1q' and '1y'"
        )
    anchor = MONDAY if step.in_weeks else 0
    shift = CalendarLength.parse(offset)
    if shift is not None and shift.unit == "month":
        if step.unit != "month":
            raise PlanError(f"windows of {size!r} cannot begin {offset!r} later: give the offset in days or less")
        anchor, offset = anchor + shift.count, 0
    elif shift is not None:
        anchor, offset = (anchor + shift.count, 0) if step.unit == "day" else (anchor, timedelta(days=shift.count))
    offset_us = duration_ms(offset, "offset") * 1_000
    return CalendarWindows(step.unit, whole.count, step.count, timezone or "UTC", anchor, offset_us)


def session(gap: Duration) -> SessionWindows:
    """Windows of activity: rows of a key that come less than `gap` apart are in one, which ends `gap` behind the last.

    >>> session("30s").gap_us
    30000000
    """
    return SessionWindows(duration_ms(gap, "session") * 1_000)


def count_window(size: int, *, every: int | None = None) -> CountWindows:
    """The last `size` rows of a key, whenever `every` more have come; without `every` each row is in one window.

    What is left at the end of input does not come out. Before there are `size` rows, a window has fewer.

    >>> count_window(100, every=10)
    CountWindows(size=100, every=10)
    """
    return CountWindows(size, size if every is None else every)


def global_window() -> GlobalWindows:
    """One window for all rows of a key. It comes out when a trigger fires, and at the end of input.

    With `on_count(n)` it comes out at each n-th row exactly, and with `on_count(n).purging()` it is `count_window(n)`.
    Without purging its rows are kept for ever.
    """
    return GlobalWindows()


def on_watermark() -> Trigger:
    """A window comes out when the watermark passes its end. The default."""
    return OnWatermark()


def on_count(rows: int) -> Trigger:
    """A window comes out early when at least so many rows have come since it last did.

    Batches are taken as a whole, so that there may be more. Not for sliding windows.
    """
    return OnCount(rows)


def on_processing_time(every: Duration) -> Trigger:
    """Windows with new rows come out early, every so often by the wall clock."""
    return Continuous(every_ms=duration_ms(every, "on_processing_time"))


def continuous(every: Duration) -> Trigger:
    """Windows with new rows come out early whenever event time passes a multiple of `every`."""
    return Continuous(every_us=duration_ms(every, "continuous") * 1_000)
