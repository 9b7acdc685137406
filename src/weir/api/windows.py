"""The windows and triggers that users name.

Comes in: sizes, gaps and numbers. Goes out: windows and triggers, checked. Pure.
"""

from __future__ import annotations

from weir.config import Duration, duration_ms
from weir.operators.window_triggers import Continuous, OnCount, OnWatermark, Trigger
from weir.operators.windows import AlignedWindows, CountWindows, GlobalWindows, SessionWindows


def tumbling(size: Duration, *, offset: Duration = 0) -> AlignedWindows:
    """Windows of one size, one after the other, from 1970 on, or from `offset` behind that.

    >>> tumbling("10s").size_us
    10000000
    """
    size_us = duration_ms(size, "tumbling") * 1_000
    return AlignedWindows(size_us, size_us, duration_ms(offset, "offset") * 1_000)


def sliding(size: Duration, slide: Duration, *, offset: Duration = 0) -> AlignedWindows:
    """Windows of one size, of which one begins every `slide`, so that they overlap."""
    return AlignedWindows(
        duration_ms(size, "sliding") * 1_000, duration_ms(slide, "slide") * 1_000, duration_ms(offset, "offset") * 1_000
    )


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
