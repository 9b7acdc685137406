"""Joins of two keyed streams.

Comes in: two keyed streams and how their rows belong together. Goes out: logical nodes
with two inputs, each behind a hash exchange of its own. What does not fit is refused here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.api.build import MakeSpec, Options
from weir.api.places import placed
from weir.config import Duration, duration_ms
from weir.errors import PlanError
from weir.graph.logical import TimeColumn
from weir.operators.base import OperatorSpec
from weir.operators.join_interval import IntervalJoin
from weir.operators.join_output import How, JoinLayout
from weir.operators.join_side import JoinSide

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
    late: tuple[str | None, str | None],
    options: Options,
) -> Stream:
    """See KeyedStream.interval_join."""

    def make() -> OperatorSpec:
        sides = _sides(left, right, "interval_join")
        own = [pa.field(time, _time_type(sides[0]))]
        layout = JoinLayout(*sides, how=how, suffix=suffix, own=own)
        return IntervalJoin(layout, signed_us(lower, "lower"), signed_us(upper, "upper"), late)

    return two_inputs("interval_join", make, left, right, options=options, time=TimeColumn(time))


def two_inputs(
    kind: str, make: MakeSpec, left: KeyedStream, right: KeyedStream, *, options: Options, time: TimeColumn | None
) -> Stream:
    """An operator that reads one keyed stream at port 0 and another at port 1."""
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
    inputs = left._upstream.inputs + tuple(replace(i, port=1) for i in right._upstream.inputs)
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
