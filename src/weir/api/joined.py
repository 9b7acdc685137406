"""Joins of two keyed streams.

Comes in: two keyed streams and how their rows belong together. Goes out: logical nodes
with two inputs, each behind a hash exchange of its own. What does not fit is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.api.build import MakeSpec, Options
from weir.api.places import placed
from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.graph.logical import TimeColumn
from weir.operators.base import OperatorSpec
from weir.operators.joins.as_of import AsOfJoin
from weir.operators.joins.base import Late
from weir.operators.joins.co_group import CoGroup
from weir.operators.joins.interval import IntervalJoin
from weir.operators.joins.output import How, JoinLayout
from weir.operators.joins.side import JoinSide
from weir.operators.joins.window import WindowJoin, window_fields
from weir.operators.windows.definition import END
from weir.operators.windows.event_time import TimeWindows
from weir.state.declared.base import StateDescriptor

if TYPE_CHECKING:
    from weir.api.keyed import KeyedStream
    from weir.api.stream import Stream


def interval_join(
    left: KeyedStream,
    right: KeyedStream,
    *,
    lower: Duration,
    upper: Duration,
    how: How,
    suffix: str,
    time: str,
    late: Late,
    options: Options,
) -> Stream:
    """See KeyedStream.interval_join."""

    def make() -> OperatorSpec:
        sides = _sides(left, right, "interval_join")
        own = [pa.field(time, _time_type(sides[0]))]
        layout = JoinLayout(*sides, how=how, suffix=suffix, own=own)
        return IntervalJoin(layout, signed_us(lower, "lower"), signed_us(upper, "upper"), late)

    return two_inputs("interval_join", make, left, right, options=options, time=TimeColumn(time))


def window_join(
    left: KeyedStream,
    right: KeyedStream,
    windows: TimeWindows,
    *,
    how: How,
    suffix: str,
    lateness: Duration,
    late: Late,
    options: Options,
) -> Stream:
    """See KeyedStream.join."""

    def make() -> OperatorSpec:
        _check_windows(windows)
        sides = _sides(left, right, "join")
        layout = JoinLayout(*sides, how=how, suffix=suffix, own=window_fields(sides[0]))
        return WindowJoin(layout, windows, late, duration_ms(lateness, "lateness") * 1_000)

    return two_inputs("join", make, left, right, options=options, time=TimeColumn(END, -1))


def as_of(
    left: KeyedStream, right: KeyedStream, *, how: How, suffix: str, late: str | None, options: Options
) -> Stream:
    """See KeyedStream.as_of."""

    def make() -> OperatorSpec:
        return AsOfJoin(JoinLayout(*_sides(left, right, "as_of"), how=how, suffix=suffix), late)

    return two_inputs("as_of", make, left, right, options=options, time=left._upstream.time)


class CoGroupedStreams:
    """Two keyed streams, whose rows of a key and window are looked at together. Made by `KeyedStream.co_group`."""

    def __init__(
        self, left: KeyedStream, right: KeyedStream, windows: TimeWindows, *, lateness: Duration, late: Late
    ) -> None:
        _check_windows(windows)
        self._left, self._right, self._windows, self._late = left, right, windows, late
        self._lateness_us = duration_ms(lateness, "lateness") * 1_000

    def apply(
        self,
        function: Callable[..., Any],
        schema: pa.Schema | str,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call `function(left, right)` for each key and window, once event time has passed the window's end.

        It gets the rows of both sides as Polars frames, by event time; one of them may be empty. It returns a frame, a
        batch, a dict of columns, a list of these, or None. `schema` is that of what it returns; behind that come the
        columns `window_start` and `window_end`.

        A function object may declare states in its class, by key, or `weir.per_window(…)` of each window; a plain
        function of (left, right, state) has them in `state`.

        >>> import polars as pl, weir
        >>> env = weir.Environment()
        >>> one, two = (env.from_collection([], "key long, ts timestamp", watermark=weir.monotonic("ts")) for _ in "12")
        >>> def sizes(left, right):
        ...     return pl.DataFrame({"left": [len(left)], "right": [len(right)]})
        >>> both = one.key_by("key").co_group(two.key_by("key"), weir.tumbling("10s"))
        >>> both.apply(sizes, "left long, right long").columns
        ['left', 'right', 'window_start', 'window_end']
        """

        def make() -> OperatorSpec:
            left, right = _sides(self._left, self._right, "co_group")
            late, lateness_us = self._late, self._lateness_us
            return CoGroup(
                left, right, self._windows, function, schema, late=late, lateness_us=lateness_us, state=state
            )

        options, time = Options(uid, name, parallelism), TimeColumn(END, -1)
        return two_inputs("co_group", make, self._left, self._right, options=options, time=time)


def _check_windows(windows: object) -> None:
    if not isinstance(windows, TimeWindows):
        raise PlanError(f"joins take tumbling or sliding windows, such as weir.tumbling('10s'); found {windows!r}")


def two_inputs(
    kind: str, make: MakeSpec, left: KeyedStream, right: KeyedStream, *, options: Options, time: TimeColumn | None
) -> Stream:
    """An operator that reads one keyed stream at input 0 and another at input 1."""
    from weir.api.keyed import KeyedStream
    from weir.api.stream import Stream

    environment = left._stream._environment
    if not isinstance(right, KeyedStream):
        raise PlanError(f"{kind}: {right!r} is no keyed stream; write for example other.key_by('id')")
    if right._stream._environment is not environment:
        raise PlanError(f"{kind}: {right!r} is of another Environment")
    with placed(kind, left.schema):
        spec = make()
        schema = spec.schema([left.schema, right.schema])
        sides = spec.sides([left.schema, right.schema])
    inputs = left._upstream.inputs + tuple(replace(i, input_number=1) for i in right._upstream.inputs)
    builder = environment._builder
    node = builder._node(kind, spec, inputs, schema=schema, options=options, time=time, sides=sides)
    return Stream(environment, builder.add(node))


def _sides(left: KeyedStream, right: KeyedStream, kind: str) -> tuple[JoinSide, JoinSide]:
    return _side(left, "left", kind), _side(right, "right", kind)


def _side(keyed: KeyedStream, name: str, kind: str) -> JoinSide:
    time = keyed._upstream.time
    if time is None:
        raise PlanError(
            f"{kind}: the rows of the {name} side have no event time; give the source a watermark=, such as "
            "bounded_disorder('ts', '2s'), and keep that column"
        )
    return JoinSide(name, keyed.schema, keyed.keys, time.name, time.offset_us)


def _time_type(side: JoinSide) -> pa.DataType:
    kind = side.schema.field(side.time).type
    return pa.timestamp("us", kind.tz)


def signed_us(value: Duration, name: str) -> int:
    """A duration that may be negative, in microseconds.

    >>> signed_us("-5s", "lower"), signed_us("250ms", "upper")
    (-5000000, 250000)
    """
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -duration_ms(value.lstrip()[1:], name) * 1_000
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and value < 0:
        return -duration_ms(-value, name) * 1_000
    return duration_ms(value, name) * 1_000
