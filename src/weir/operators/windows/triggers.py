"""When a window comes out before its end, or again: triggers.

Comes in: what is known of the windows of many keys, as columns. Goes out: which of them
fire. Windows that have an end always come out at it, too; what comes before are early
results, which a later one of the same window replaces.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from weir.errors import PlanError
from weir.snapshot.watermarks import NEVER_US
from weir.state.keys.xxhash64 import Ints

Cause: TypeAlias = Literal["rows", "watermark", "clock"]


@dataclass(frozen=True)
class WindowState:
    """What a trigger of the user sees of one window of one key.

    rows:     that it holds
    new_rows: those that came since it last fired
    cause:    why it is asked: "rows" came, the "watermark" moved on, or the "clock" showed `every_ms`
    Times are microseconds since 1970; `start_us` and `end_us` of a global window are None.
    """

    rows: int
    new_rows: int
    start_us: int | None
    end_us: int | None
    watermark_us: int
    cause: Cause


@dataclass(frozen=True)
class WindowColumns:
    """The same for many windows; only windows with new rows are among them."""

    rows: Ints
    new_rows: Ints
    starts_us: Ints | None
    ends_us: Ints | None


class Trigger:
    """When windows fire early. Write a subclass, with `fires`; or use on_count, continuous, on_processing_time."""

    every_ms: int | None = None
    """By the wall clock: how often to ask although nothing came."""
    every_us: int | None = None
    """By event time: ask when the watermark passes a multiple of this. None: each time that it moves on."""
    asks_rows = True
    """Whether to ask when rows have come."""
    asks_watermark = True
    """Whether to ask when the watermark has moved on."""
    purges = False

    def fires(self, window: WindowState) -> bool:
        """Whether a window with new rows comes out now."""
        raise NotImplementedError(f"{type(self).__name__}.fires")

    def purging(self) -> Trigger:
        """The same, but what has come out is forgotten: each result is of the rows since the one before."""
        purging = copy.copy(self)
        purging.purges = True
        return purging

    def chosen(self, windows: WindowColumns, *, cause: Cause, watermark_us: int) -> npt.NDArray[np.bool_]:
        """Which of many windows fire."""

        def at(column: Ints | None, i: int) -> Any:
            return None if column is None else int(column[i])

        states = (
            WindowState(
                int(windows.rows[i]),
                int(windows.new_rows[i]),
                at(windows.starts_us, i),
                at(windows.ends_us, i),
                watermark_us,
                cause,
            )
            for i in range(len(windows.rows))
        )
        return np.fromiter(map(bool, map(self.fires, states)), np.bool_, len(windows.rows))


class OnWatermark(Trigger):
    """At the end of a window only."""

    asks_rows = asks_watermark = False

    def chosen(self, windows: WindowColumns, *, cause: Cause, watermark_us: int) -> npt.NDArray[np.bool_]:
        return np.zeros(len(windows.rows), np.bool_)


class OnCount(Trigger):
    """When so many rows have come to a window since it last fired."""

    asks_watermark = False

    def __init__(self, rows: int) -> None:
        if not isinstance(rows, int) or rows < 1:
            raise PlanError(f"on_count: {rows!r} is not a whole number of at least 1")
        self.rows = rows

    def chosen(self, windows: WindowColumns, *, cause: Cause, watermark_us: int) -> npt.NDArray[np.bool_]:
        return windows.new_rows >= self.rows


class Continuous(Trigger):
    """Every so often, by event time or by the wall clock, what has new rows."""

    asks_rows = False

    def __init__(self, *, every_us: int | None = None, every_ms: int | None = None) -> None:
        if (every_us or every_ms or 0) <= 0:
            raise PlanError("a trigger that fires every so often needs an interval above zero")
        self.every_us = every_us
        self.every_ms = every_ms
        self.asks_watermark = every_us is not None

    def chosen(self, windows: WindowColumns, *, cause: Cause, watermark_us: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(windows.rows), np.bool_)


def has_passed(trigger: Trigger, before_us: int, now_us: int) -> bool:
    """Whether event time has passed a multiple of a trigger's interval."""
    every_us = trigger.every_us
    return not every_us or NEVER_US // every_us < before_us // every_us < now_us // every_us
