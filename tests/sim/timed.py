"""Regions of random jobs that live in event time: sessions, timers, joins, calls, late rows; and their known answers.

Rows of a split come in the order of their times, and all splits begin at zero: so nothing is late but the stragglers
of `_late`, and the answer does not depend on how fast the splits are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import polars as pl

import weir
from tests.sim.externals import Row
from weir.operators.sink import Sink
from weir.operators.windows.event_time import AlignedWindows

TIMES = 100
"""Splits of timed sources have at most so many rows, and begin at a multiple of it: a row's time is what is left."""

OTHER = 5_000
"""Ids of the second of two sources are so much above those of the first, and of the next region so much below."""

WINDOW_S, GAP_S = 5, 5
LOWER_S, UPPER_S = -3, 4
SECOND_US = 1_000_000
STRAGGLING_S = 12

Answer = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Timed:
    """One sort of region: what it does with its streams, and the same done in one thread."""

    name: str
    apply: Callable[[Sequence[Any], Sink, str], None]
    answer: Callable[[Sequence[Row]], Answer]
    kind: Literal["final", "conserved"] = "final"
    sources: int = 1
    forgets: bool = True
    """Whether nothing is left of the rows before, once event time has ended."""

    @property
    def sink_uid(self) -> str:
        return f"{self.name}-out"


def draw_timed(rng: random.Random) -> Timed:
    """One of them, with whatever is to be chosen."""
    often = [_WINDOWS, _SESSIONS, _ALARMS, _LATE, _calls(rng), _join(rng)]
    return rng.choice([*often, *often, _DELAYS, _CHAINED])


def _seconds(id: int) -> int:
    return id % TIMES


def timed(stream: Any, prefix: str, number: int = 0) -> Any:
    """With a column of times, and watermarks that follow them."""
    times = pl.col("id").map_batches(_to_times, return_dtype=pl.Datetime("us"))
    named = stream.with_columns(ts=times, uid=f"{prefix}times-{number}")
    return named.with_watermarks(weir.monotonic("ts").aligned("all", drift=0), uid=f"{prefix}watermarks-{number}")


def _to_times(ids: pl.Series) -> pl.Series:
    return (ids % TIMES * SECOND_US).cast(pl.Datetime("us"))


def written(result: Any, sink: Sink, prefix: str, name: str) -> None:
    """(key, start, n, total)"""
    start = pl.col("window_start").dt.epoch("s")
    result.select("key", start, "n", "total", uid=f"{prefix}{name}-plain").write(sink, uid=f"{prefix}{name}-out")


def _totals(rows: Iterable[tuple[tuple[int, ...], int]]) -> Answer:
    """The count and the sum of the values of each group."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for group, value in rows:
        count, total = found.get(group, (0, 0))
        found[group] = count + 1, total + value
    return [(*group, *totals) for group, totals in found.items()]


# --- Windows and sessions ---------------------------------------------------------------------------------


def _windows(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    windows = timed(streams[0], prefix).key_by("key").window(AlignedWindows(2 * WINDOW_S * SECOND_US, 5 * SECOND_US))
    written(windows.agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}window"), sink, prefix, "window")


def _of_windows(rows: Sequence[Row]) -> Answer:
    starts = [(key, _seconds(id) // WINDOW_S * WINDOW_S, value) for id, key, value in rows]
    return _totals(((key, first), value) for key, start, value in starts for first in (start - WINDOW_S, start))


def of_tumbling(rows: Sequence[Row]) -> Answer:
    """(key, start, n, total)"""
    return _totals(((key, _seconds(id) // WINDOW_S * WINDOW_S), value) for id, key, value in rows)


def _sessions(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    sessions = timed(streams[0], prefix).key_by("key").window(weir.session(f"{GAP_S}s"))
    written(sessions.agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}session"), sink, prefix, "session")


def of_sessions(rows: Sequence[Row]) -> Answer:
    """(key, start, n, total)"""
    found: list[tuple[tuple[int, int], int]] = []
    last: tuple[int, int, int] = -1, 0, 0
    for key, time, value in sorted((key, _seconds(id), value) for id, key, value in rows):
        start = last[1] if key == last[0] and time - last[2] < GAP_S else time
        last = key, start, time
        found.append(((key, start), value))
    return _totals(found)


def _chained(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    """Windows over windows."""
    small = timed(streams[0], prefix).key_by("key").window(weir.tumbling(f"{WINDOW_S}s"))
    first = small.agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}small")
    large = first.key_by("key").window(weir.tumbling(f"{2 * WINDOW_S}s"))
    written(large.agg(n=weir.sum("n"), total=weir.sum("total"), uid=f"{prefix}large"), sink, prefix, "chained")


def _of_chained(rows: Sequence[Row]) -> Answer:
    return _totals(((key, _seconds(id) // (2 * WINDOW_S) * 2 * WINDOW_S), value) for id, key, value in rows)


# --- Late rows --------------------------------------------------------------------------------------------


def _straggling(ids: pl.Series) -> pl.Series:
    times = ids % TIMES
    return (times - pl.Series(times % 6 == 5).cast(pl.Int64) * STRAGGLING_S).clip(0) * SECOND_US


def straggles(id: int) -> bool:
    """Whether a row may be late."""
    return _seconds(id) % 6 == 5


def _late(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    """(key, start, n, total, -1) of each window, and (key, start, 1, value, id) of each row that is late for it."""
    times = pl.col("id").map_batches(
        lambda ids: _straggling(ids).cast(pl.Datetime("us")), return_dtype=pl.Datetime("us")
    )
    stream = streams[0].with_columns(ts=times, uid=f"{prefix}times")
    stream = stream.with_watermarks(weir.monotonic("ts").aligned("all", drift=0), uid=f"{prefix}watermarks")
    windows = stream.key_by("key").window(weir.tumbling(f"{WINDOW_S}s"), late="late")
    result = windows.agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}window")
    start = pl.col("window_start").dt.epoch("s").alias("start")
    whole = result.select("key", start, "n", "total", id=pl.lit(-1, pl.Int64), uid=f"{prefix}whole")
    alone = result.side("late").select(
        "key",
        start=pl.col("ts").dt.epoch("s") // WINDOW_S * WINDOW_S,
        n=pl.lit(1, pl.Int64),
        total="value",
        id="id",
        uid=f"{prefix}alone",
    )
    whole.union(alone).write(sink, uid=f"{prefix}late-out")


def _of_late(rows: Sequence[Row]) -> Answer:
    """(key, start, n, total), with those rows that may be late."""
    seconds = [max(0, _seconds(id) - STRAGGLING_S * straggles(id)) for id, _, _ in rows]
    return _totals(
        ((key, time // WINDOW_S * WINDOW_S), value) for time, (_, key, value) in zip(seconds, rows, strict=True)
    )


# --- Timers -----------------------------------------------------------------------------------------------


class Alarms(weir.ProcessFunction):
    """Windows made of timers: one at the end of each, one a second later that the first may delete, and one two
    seconds later that the first sets."""

    waiting = weir.MapState("long", "long")
    last = weir.ValueState("long", default=-1)

    def process(self, row: Any, context: Any) -> None:
        self.waiting[row.id] = row.value
        end = (_seconds(row.id) // WINDOW_S + 1) * WINDOW_S
        context.timers.at(end * SECOND_US)
        context.timers.at((end + 1) * SECOND_US)

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, ...]]:
        now = int((time - datetime(1970, 1, 1)).total_seconds())
        if now < self.last.get():
            yield context.key, now, -2, self.last.get()  # out of order: nobody expects this row
        self.last.set(now)
        if now % WINDOW_S:
            yield context.key, now, now % WINDOW_S - 2, 0
            return
        due = [(id, value) for id, value in self.waiting.items() if _seconds(id) < now]
        for id, _ in due:
            del self.waiting[id]
        total = sum(value for _, value in due)
        yield context.key, now, len(due), total
        context.timers.at((now + 2) * SECOND_US)
        if total % 2 == 0:
            context.timers.delete((now + 1) * SECOND_US)


def _alarms(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    keyed = timed(streams[0], prefix).key_by("key")
    fired = keyed.process(Alarms(), "key long, time long, n long, total long", uid=f"{prefix}alarms")
    fired.write(sink, uid=f"{prefix}alarms-out")


def _of_alarms(rows: Sequence[Row]) -> Answer:
    found: Answer = []
    for key, end, count, total in _totals(
        ((key, (_seconds(id) // WINDOW_S + 1) * WINDOW_S), value) for id, key, value in rows
    ):
        found += [(key, end, count, total), (key, end + 2, 0, 0)]
        if total % 2:
            found.append((key, end + 1, -1, 0))
    return found


class Delays(weir.ProcessFunction):
    """Each row comes out some time later by the wall clock."""

    deadlines = weir.MapState("long", "timestamp_ntz")

    def process(self, row: Any, context: Any) -> None:
        self.deadlines[row.id] = context.timers.after("5ms")

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, int]]:
        due = [id for id, deadline in self.deadlines.items() if deadline == time]
        if not due:
            yield -1, context.key  # it has fired before: nobody expects this row
        for id in due:
            del self.deadlines[id]
            yield id, context.key


def _delays(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    delayed = streams[0].key_by("key").process(Delays(), "id long, key long", uid=f"{prefix}delays")
    delayed.write(sink, uid=f"{prefix}delays-out")


# --- Calls ------------------------------------------------------------------------------------------------


def _calls(rng: random.Random) -> Timed:
    """Windows behind calls: a watermark that overtakes a row makes it late."""
    ordered, capacity = rng.random() < 0.5, rng.choice([1, 3, 20])

    async def tripled(row: Any) -> tuple[Any, ...]:
        return row.id, row.key, row.value * 3, row.ts

    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        called = timed(streams[0], prefix).map_async(
            tripled,
            "id long, key long, value long, ts timestamp_ntz",
            ordered=ordered,
            capacity=capacity,
            uid=f"{prefix}called",
        )
        windows = called.key_by("key").window(weir.tumbling(f"{WINDOW_S}s"))
        written(windows.agg(n=weir.count(), total=weir.sum("value"), uid=f"{prefix}window"), sink, prefix, "calls")

    def answer(rows: Sequence[Row]) -> Answer:
        return _totals(((key, _seconds(id) // WINDOW_S * WINDOW_S), 3 * value) for id, key, value in rows)

    return Timed("calls", apply, answer)


# --- Joins ------------------------------------------------------------------------------------------------


def _join(rng: random.Random) -> Timed:
    how = rng.choice(["inner", "left", "right", "full"])
    return rng.choice([_interval_join, _interval_join, _window_join, _as_of])(how)


def _both(streams: Sequence[Any], prefix: str) -> tuple[Any, Any]:
    left, right = (timed(stream, prefix, number) for number, stream in enumerate(streams))
    return left.key_by("key"), right.key_by("key")


def _pairs(joined: Any, sink: Sink, prefix: str) -> None:
    """(id, other id), -1 for none."""
    chosen = [pl.col(name).fill_null(-1) for name in ("id", "id_right")]
    joined.select(*chosen, uid=f"{prefix}pairs").write(sink, uid=f"{prefix}join-out")


def _paired(rows: Sequence[Row], how: str, meet: Callable[[int, int], bool]) -> Answer:
    left = [row for row in rows if row[0] % (2 * OTHER) < OTHER]
    right = [row for row in rows if row[0] % (2 * OTHER) >= OTHER]
    pairs = [(a, b) for a, key, _ in left for b, other, _ in right if key == other and meet(_seconds(a), _seconds(b))]
    with_partner = {id for pair in pairs for id in pair}
    alone = [(id, -1) for id, _, _ in left if id not in with_partner] if how in ("left", "full") else []
    alone += [(-1, id) for id, _, _ in right if id not in with_partner] if how in ("right", "full") else []
    return [*pairs, *alone]


def _interval_join(how: Any) -> Timed:
    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        left, right = _both(streams, prefix)
        bounds = {"lower": f"{LOWER_S}s", "upper": f"{UPPER_S}s"}
        _pairs(left.interval_join(right, **bounds, how=how, uid=f"{prefix}join"), sink, prefix)

    return Timed("join", apply, lambda rows: _paired(rows, how, lambda a, b: LOWER_S <= b - a <= UPPER_S), sources=2)


def _window_join(how: Any) -> Timed:
    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        left, right = _both(streams, prefix)
        _pairs(left.join(right, weir.tumbling(f"{WINDOW_S}s"), how=how, uid=f"{prefix}join"), sink, prefix)

    return Timed("join", apply, lambda rows: _paired(rows, how, lambda a, b: a // WINDOW_S == b // WINDOW_S), sources=2)


def _as_of(how: Any) -> Timed:
    """(id, time of what held), -1 for none. Several rows of the other side may have the same time."""
    how = "inner" if how == "inner" else "left"

    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        left, right = _both(streams, prefix)
        held = left.as_of(right, how=how, uid=f"{prefix}join")
        chosen = held.select("id", time=pl.col("ts_right").dt.epoch("s").fill_null(-1), uid=f"{prefix}pairs")
        chosen.write(sink, uid=f"{prefix}join-out")

    def answer(rows: Sequence[Row]) -> Answer:
        right = [(key, _seconds(id)) for id, key, _ in rows if id % (2 * OTHER) >= OTHER]
        left = [(id, key) for id, key, _ in rows if id % (2 * OTHER) < OTHER]
        found = [
            (id, max((time for other, time in right if other == key and time <= _seconds(id)), default=-1))
            for id, key in left
        ]
        return [pair for pair in found if how == "left" or pair[1] >= 0]

    return Timed("join", apply, answer, sources=2, forgets=False)


_WINDOWS = Timed("window", _windows, _of_windows)
_SESSIONS = Timed("session", _sessions, of_sessions)
_CHAINED = Timed("chained", _chained, _of_chained)
_LATE = Timed("late", _late, _of_late, kind="conserved", forgets=False)
_ALARMS = Timed("alarms", _alarms, _of_alarms, forgets=False)
_DELAYS = Timed("delays", _delays, lambda rows: [(id, key) for id, key, _ in rows])
