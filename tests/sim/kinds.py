"""Regions of random jobs whose operators remember in other ways: rows of windows, counted rows, every kind of state,
state of calls, and what hooks say.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import polars as pl

import weir
from tests.sim.externals import Row
from tests.sim.timed import GAP_S, SECOND_US, TIMES, WINDOW_S, Answer, Timed, of_sessions, of_tumbling, timed, written
from weir.operators.sink import Sink

COUNTED = 3
"""Rows of a window of counted rows."""


def draw_kind(rng: random.Random) -> Timed:
    """One of them."""
    return rng.choice([_rows_of(rng), _COUNTED, _MEMORIES, _MEMORIES, _asked(rng), _hooked(rng)])


# --- Windows whose rows are kept ------------------------------------------------------------------------


def _added_up(rows: pl.DataFrame, window: Any) -> tuple[Any, ...]:
    return window.key, window.start, len(rows), rows["value"].sum()


def _rows_of(rng: random.Random) -> Timed:
    are_sessions = rng.random() < 0.5

    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        windows = weir.session(f"{GAP_S}s") if are_sessions else weir.tumbling(f"{WINDOW_S}s")
        kept = timed(streams[0], prefix).key_by("key").window(windows)
        schema = "key long, window_start timestamp_ntz, n long, total long"
        written(kept.process(_added_up, schema, uid=f"{prefix}window"), sink, prefix, "rows-of")

    return Timed("rows-of", apply, of_sessions if are_sessions else of_tumbling)


def _counted(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    """(key, rows) for each window that is full: which rows meet in one depends on their order."""
    full = streams[0].key_by("key").window(weir.count_window(COUNTED))
    counts = full.process(lambda rows, window: (window.key, len(rows)), "key long, n long", uid=f"{prefix}counted")
    counts.write(sink, uid=f"{prefix}counted-out")


def _of_counted(rows: Sequence[Row]) -> Answer:
    counts = Counter(key for _, key, _ in rows)
    return [(key, COUNTED) for key, count in counts.items() for _ in range(count // COUNTED)]


# --- Every kind of state ----------------------------------------------------------------------------------


class Memories(weir.ProcessFunction):
    """Each row is remembered in every way there is; behind all times it is told what was."""

    value = weir.ValueState("long", default=0)
    listed = weir.ListState("long")
    mapped = weir.MapState("long", "long")
    reduced = weir.ReducingState("long", lambda a, b: a + b)
    aggregated = weir.AggregatingState("long", create=lambda: 0, add=lambda so_far, value: so_far + value)

    def process(self, row: Any, context: Any) -> None:
        self.value.set(self.value.get() + row.value)
        self.listed.add(row.value)
        self.mapped[row.id] = self.mapped.get(row.id, 0) + row.value
        self.reduced.add(row.value)
        self.aggregated.add(row.value)
        context.timers.at(TIMES * SECOND_US)

    def on_timer(self, time: datetime, context: Any) -> Iterator[tuple[int, ...]]:
        held = self.listed.get()
        yield (
            context.key,
            len(held),
            self.value.get(),
            sum(held),
            sum(value for _, value in self.mapped.items()),
            self.reduced.get(),
            self.aggregated.get(),
        )
        for state in (self.value, self.listed, self.mapped, self.reduced, self.aggregated):
            state.clear()


def _memories(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
    schema = ", ".join(f"{name} long" for name in ("key", "n", "value", "listed", "mapped", "reduced", "aggregated"))
    told = timed(streams[0], prefix).key_by("key").process(Memories(), schema, uid=f"{prefix}memories")
    told.write(sink, uid=f"{prefix}memories-out")


def _of_memories(rows: Sequence[Row]) -> Answer:
    counts = Counter(key for _, key, _ in rows)
    return [(key, count, *[sum(v for _, k, v in rows if k == key)] * 5) for key, count in counts.items()]


# --- State of calls, and what hooks say -------------------------------------------------------------------


def _of_numbered(rows: Sequence[Row]) -> Answer:
    """(key, number, number) of each row: which one has which number depends on their order."""
    counts = Counter(key for _, key, _ in rows)
    return [(key, n, n) for key, count in counts.items() for n in range(1, count + 1)]


NUMBERED = "key long, n long, seen long"


class Asked:
    """Each call counts its key's rows, in two ways."""

    count = weir.ValueState("long", default=0)
    seen = weir.MapState("long", "long")

    async def __call__(self, row: Any) -> tuple[int, ...]:
        self.count.value += 1
        self.seen[row.id] = row.value
        return row.key, self.count.value, len(self.seen)


def _asked(rng: random.Random) -> Timed:
    ordered, capacity = rng.random() < 0.5, rng.choice([1, 3, 20])

    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        asked = timed(streams[0], prefix).key_by("key")
        numbered = asked.map_async(Asked(), NUMBERED, ordered=ordered, capacity=capacity, uid=f"{prefix}asked")
        numbered.write(sink, uid=f"{prefix}asked-out")

    return Timed("asked", apply, _of_numbered, forgets=False)


class Hooked:
    """Counts rows by key in plain attributes. All subtasks get what all have said: of a key its owner knows most."""

    snapshot_redistribute = "union"

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def __call__(self, row: Any) -> tuple[int, ...]:
        self.counts[row.key] += 1
        return row.key, self.counts[row.key], self.counts[row.key]

    def snapshot_state(self) -> Any:
        return [list(pair) for pair in self.counts.items()]

    def restore_state(self, values: Any) -> None:
        for key, count in (pair for value in values for pair in value):
            self.counts[key] = max(count, self.counts[key])


class HookedLater(Hooked):
    """The same, told behind the stream's back."""

    snapshot_state = None  # type: ignore[assignment]

    def snapshot_state_async(self) -> Any:
        counts = dict(self.counts)
        return lambda: [list(pair) for pair in counts.items()]


def _hooked(rng: random.Random) -> Timed:
    hooked = rng.choice([Hooked, HookedLater])

    def apply(streams: Sequence[Any], sink: Sink, prefix: str) -> None:
        numbered = streams[0].key_by("key").map(hooked(), NUMBERED, uid=f"{prefix}hooked")
        numbered.write(sink, uid=f"{prefix}hooked-out")

    return Timed("hooked", apply, _of_numbered, forgets=False)


_COUNTED = Timed("counted", _counted, _of_counted, forgets=False)
_MEMORIES = Timed("memories", _memories, _of_memories)
