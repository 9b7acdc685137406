"""How users say how far event time has come.

Comes in: a column and what may be expected of it. Goes out: a strategy that
`read(…, watermark=…)` and `with_watermarks(…)` take.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.operators.time.watermarks import WatermarkGenerator, WatermarkStrategy


def bounded_disorder(
    column: str, by: Duration, *, idle_after: Duration | None = None, jump_max: Duration | None = None
) -> WatermarkStrategy:
    """Rows may come in any order within `by`: the watermark is so far behind the latest time seen.

    idle_after: a source, or a part of one, without rows for so long does not hold event time back until it has some
    jump_max:   a row that is so far ahead of the latest before it is an error: a wrong time would close every window

    >>> bounded_disorder("ts", "2s").disorder_us
    2000000
    """
    return _strategy(column, duration_ms(by, "bounded_disorder"), idle_after, jump_max)


def monotonic(
    column: str, *, idle_after: Duration | None = None, jump_max: Duration | None = None
) -> WatermarkStrategy:
    """Rows come in the order of their times, within each split of the source."""
    return _strategy(column, 0, idle_after, jump_max)


def watermarks_by(
    column: str, generator: Callable[[], WatermarkGenerator], *, idle_after: Duration | None = None
) -> WatermarkStrategy:
    """Watermarks of your own making: `generator()` makes a WatermarkGenerator for each split."""
    if not callable(generator):
        raise PlanError(f"watermarks_by: {generator!r} cannot be called to make a WatermarkGenerator")
    idle_after_ms = None if idle_after is None else duration_ms(idle_after, "idle_after")
    return WatermarkStrategy(column, 0, idle_after_ms, None, generator)


def _strategy(
    column: str, disorder_ms: int, idle_after: Duration | None, jump_max: Duration | None
) -> WatermarkStrategy:
    if not isinstance(column, str):
        raise PlanError(f"{column!r} is not the name of a column")
    return WatermarkStrategy(
        column,
        disorder_ms * 1_000,
        None if idle_after is None else duration_ms(idle_after, "idle_after"),
        None if jump_max is None else duration_ms(jump_max, "jump_max") * 1_000,
    )
