"""Windows over a keyed stream, and what can be computed over each.

Comes in: windows and aggregates of the user. Goes out: logical nodes behind a hash
exchange. Windows are checked when they are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weir.api.build import Options
from weir.api.keyed import checked_aggregates
from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.graph.logical import TimeColumn
from weir.operators.aggregates import Aggregate
from weir.operators.base import OperatorSpec
from weir.operators.session_aggregate import PartialSessionAggregate, SessionAggregate
from weir.operators.window_aggregate import PartialWindowAggregate, WindowAggregate
from weir.operators.window_definition import END, WindowDefinition
from weir.operators.windows import AlignedWindows, SessionWindows

if TYPE_CHECKING:
    from weir.api.keyed import KeyedStream
    from weir.api.stream import Stream


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


class WindowedStream:
    """A keyed stream by windows of event time. Made by `KeyedStream.window`."""

    def __init__(
        self,
        keyed: KeyedStream,
        windows: AlignedWindows | SessionWindows,
        *,
        lateness: Duration = 0,
        late: str | None = None,
    ) -> None:
        if not isinstance(windows, AlignedWindows | SessionWindows):
            raise PlanError(f"window: {windows!r} is no window; write for example weir.tumbling('10s')")
        time = keyed._upstream.time
        if time is None:
            raise PlanError(
                "window: the rows have no event time; give the source a watermark=, such as "
                "bounded_disorder('ts', '2s'), and keep that column"
            )
        self._keyed = keyed
        self._windows = windows
        self._time: TimeColumn = time
        self._lateness_us = duration_ms(lateness, "lateness") * 1_000
        self._late = late

    def agg(
        self,
        aggregates: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: Aggregate,
    ) -> Stream:
        """Aggregates of each key in each window, once event time has passed its end.

        The columns are the keys, `window_start`, `window_end` (not in the window any more) and the aggregates. The
        event time of a result is the last instant of its window.

        >>> import weir
        >>> bids = weir.Environment().from_collection([], "auction long, price long, ts timestamp")
        >>> bids = bids.with_watermarks(weir.bounded_disorder("ts", "2s"))
        >>> bids.key_by("auction").window(weir.tumbling("10s")).agg(n=weir.count())
        Stream[auction bigint, window_start timestamp_ntz, window_end timestamp_ntz, n bigint]
        """
        keyed, time = self._keyed, self._time
        definition = WindowDefinition(
            self._windows, keyed.keys, {**(aggregates or {}), **named}, keyed.schema, time.name, time.offset_us
        )

        def make() -> OperatorSpec:
            checked_aggregates(definition.aggregates)
            kind = SessionAggregate if isinstance(self._windows, SessionWindows) else WindowAggregate
            return kind(definition, self._lateness_us, self._late)

        def make_combine() -> OperatorSpec:
            if isinstance(self._windows, SessionWindows):
                return PartialSessionAggregate(definition)
            return PartialWindowAggregate(definition)

        return keyed._stream._apply(
            "window",
            make,
            Options(uid, name, parallelism),
            upstream=keyed._upstream,
            make_combine=None if self._late is not None else make_combine,
            time=TimeColumn(END, -1),
        )
