"""Windows over a stream, and what can be computed over each.

Comes in: windows, triggers, aggregates and functions of the user. Goes out: logical nodes
behind a hash exchange. Windows are checked when they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.api.build import MakeSpec, Options
from weir.api.keyed import checked_aggregates
from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.graph.logical import TimeColumn
from weir.operators.aggregates.named import Aggregate
from weir.operators.base import OperatorSpec
from weir.operators.windows.aggregate import PartialWindowAggregate, WindowAggregate
from weir.operators.windows.counts import CountedRows
from weir.operators.windows.definition import END, WindowDefinition
from weir.operators.windows.event_time import CountWindows, GlobalWindows, SessionWindows, TimeWindows, Windows
from weir.operators.windows.functions import (
    AggregateFunction,
    ProcessFunctionOfWindow,
    ReduceFunction,
    WindowFunction,
)
from weir.operators.windows.rows import WindowRows
from weir.operators.windows.sessions.aggregate import SessionAggregate
from weir.operators.windows.sessions.partial import PartialSessionAggregate
from weir.operators.windows.triggers import OnCount, OnWatermark, Trigger
from weir.schema import parse_schema
from weir.state.declared.base import StateDescriptor

if TYPE_CHECKING:
    from weir.api.keyed import KeyedStream
    from weir.api.stream import Stream


class WindowedStream:
    """A stream by windows. Made by `KeyedStream.window`, and by `Stream.window` where there are no keys."""

    def __init__(
        self,
        keyed: KeyedStream,
        windows: Windows,
        *,
        lateness: Duration = 0,
        late: str | None = None,
        trigger: Trigger | None = None,
        parallelism: int | None = None,
    ) -> None:
        trigger = OnWatermark() if trigger is None else trigger
        _check(windows, trigger)
        if isinstance(windows, GlobalWindows) and isinstance(trigger, OnCount):
            windows, trigger = CountWindows(trigger.rows if trigger.purges else None, trigger.rows), OnWatermark()
        self._keyed = keyed
        self._windows = windows
        self._time = keyed._upstream.time
        self._lateness_us = duration_ms(lateness, "lateness") * 1_000
        self._late = late
        self._trigger = trigger
        self._parallelism = parallelism
        if self._is_timed and self._time is None:
            raise PlanError(
                "window: the rows have no event time; give the source a watermark=, such as "
                "bounded_disorder('ts', '2s'), and keep that column"
            )
        if not self._is_timed and (self._lateness_us or late is not None):
            raise PlanError("window: a window that is not of time has no late rows; leave out lateness= and late=")

    @property
    def _is_timed(self) -> bool:
        return isinstance(self._windows, TimeWindows | SessionWindows)

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

        The columns are the keys, `window_start`, `window_end` (not in the window any more) and the aggregates; count
        and global windows have no bounds. The event time of a result is the last instant of its window. With a trigger
        other than `on_watermark`, and for count and global windows, the rows are kept until their window is over;
        otherwise only the aggregates are.

        >>> import weir
        >>> bids = weir.Environment().from_collection([], "auction long, price long, ts timestamp")
        >>> bids = bids.with_watermarks(weir.bounded_disorder("ts", "2s"))
        >>> bids.key_by("auction").window(weir.tumbling("10s")).agg(n=weir.count())
        Stream[auction bigint, window_start timestamp, window_end timestamp, n bigint]
        """
        options = Options(uid, name, parallelism or self._parallelism)
        chosen = {**(aggregates or {}), **named}
        keyed, time = self._keyed, self._time
        if not self._is_timed or not isinstance(self._trigger, OnWatermark) or time is None:
            return self._over_rows(
                lambda keys, rows, time: AggregateFunction(keys, rows, time, checked_aggregates(chosen)), options
            )
        assert isinstance(self._windows, TimeWindows | SessionWindows)
        definition = WindowDefinition(self._windows, keyed.keys, chosen, keyed.schema, time.name, time.offset_us)
        sessions = isinstance(self._windows, SessionWindows)

        def make() -> OperatorSpec:
            checked_aggregates(definition.aggregates)
            kind = SessionAggregate if sessions else WindowAggregate
            return kind(definition, self._lateness_us, self._late)

        def make_combine() -> OperatorSpec:
            return PartialSessionAggregate(definition) if sessions else PartialWindowAggregate(definition)

        return self._apply(make, options, make_combine=None if self._late is not None else make_combine)

    def reduce(
        self,
        function: Callable[..., Any],
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Fold the rows of each window into one: `function(so far, row)`, in the order in which they came.

        The columns are those of the rows, then `window_start` and `window_end`, if it is a window of time. State as for
        `process`.

        >>> import weir
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> best = bids.key_by("auction").window(weir.count_window(10))
        >>> best.reduce(lambda best, bid: bid if bid.price > best.price else best)
        Stream[auction bigint, price bigint]
        """
        options = Options(uid, name, parallelism or self._parallelism)
        return self._over_rows(lambda keys, rows, time: ReduceFunction(keys, rows, time, function, state), options)

    def process(
        self,
        function: Callable[..., Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a function with all rows of a window, as a Polars frame, and the window: key, start, end, watermark.

        It returns a frame, rows (a list of tuples or dicts), one row, or None. If `schema` has a column `window_end`,
        the results go on by event time: their time is the last instant of the window.

        A function object may declare states in its class, by key, or `weir.per_window(…)` of each window; a plain
        function of (rows, window, state) has them in `state`.

        >>> import weir
        >>> def spread(bids, window):
        ...     return window.key, bids["price"].max() - bids["price"].min()
        >>> bids = weir.Environment().from_collection([(1, 250)], "auction long, price long")
        >>> bids.key_by("auction").window(weir.count_window(10, every=2)).process(spread, "auction long, spread long")
        Stream[auction bigint, spread bigint]
        """
        options = Options(uid, name, parallelism or self._parallelism)
        return self._over_rows(
            lambda keys, rows, time: ProcessFunctionOfWindow(keys, rows, time, function, schema, state),
            options,
            has_bounds=END in parse_schema(schema).names,
        )

    def _over_rows(
        self, function: Callable[[Any, Any, Any], WindowFunction], options: Options, *, has_bounds: bool = True
    ) -> Stream:
        """A function over rows that are kept until their windows are over."""
        keyed, windows, time = self._keyed, self._windows, self._time

        def make() -> OperatorSpec:
            made = function(keyed.keys, keyed.schema, time.name if self._is_timed and time is not None else None)
            if isinstance(windows, CountWindows):
                return CountedRows(windows, made)
            named, offset_us = (None, 0) if time is None else (time.name, time.offset_us)
            return WindowRows(windows, made, named, offset_us, self._lateness_us, self._late, self._trigger)

        return self._apply(make, options, has_bounds=has_bounds)

    def _apply(
        self, make: MakeSpec, options: Options, *, make_combine: MakeSpec | None = None, has_bounds: bool = True
    ) -> Stream:
        keyed = self._keyed
        return keyed._stream._apply(
            "window",
            make,
            options,
            upstream=keyed._upstream,
            make_combine=make_combine,
            time=TimeColumn(END, -1) if self._is_timed and has_bounds else None,
        )


def _check(windows: object, trigger: object) -> None:
    if not isinstance(windows, TimeWindows | SessionWindows | CountWindows | GlobalWindows):
        raise PlanError(f"window: {windows!r} is no window; write for example weir.tumbling('10s')")
    if not isinstance(trigger, Trigger):
        raise PlanError(f"window: {trigger!r} is no trigger; write for example weir.on_count(100)")
    if isinstance(windows, CountWindows) and not isinstance(trigger, OnWatermark):
        raise PlanError(
            "window: a count window comes out when it has its rows; for a trigger take weir.global_window()"
        )
    if isinstance(trigger, OnWatermark) and trigger.purges:
        raise PlanError("window: at its end a window is gone anyway; on_watermark() cannot be purging()")
