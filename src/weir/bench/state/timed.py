"""Kinds of state that event time ends: windows, sessions, timers.

Comes in: row numbers, which are microseconds of event time, too. Goes out: rows in the order of time, and the sums of
what must come of them. Each entry is opened by one row and found again by another, much later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import weir
from weir.bench.state.kinds import (
    PADDING,
    STATE,
    Answer,
    KnownResults,
    Made,
    Read,
    SourceRows,
    column_names,
    numbers_of,
    sums_of,
)
from weir.bench.state.numbers import Given, Numbers, mixed, shuffled
from weir.state.timers.tables import TIMERS

BEGIN_US = 1_767_225_600_000_000
"""2026-01-01."""

SCHEMA = "key long, one long, ts timestamp_ntz"
MS = 1_000
WINDOWS_KEPT = 50
"""Windows that lateness keeps behind the one that is open."""


class TimedKind(KnownResults):
    """One source, in the order of time."""

    @property
    def sources(self) -> Mapping[str, SourceRows]:
        return {"source": SourceRows(self._rows, SCHEMA)}

    def _rows(self, numbers: Numbers) -> Made:
        return timed_rows(self.keys(numbers), numbers, np.ones(len(numbers), np.int64))

    def keys(self, numbers: Numbers) -> Numbers:
        """The key of each row."""
        raise NotImplementedError


def timed_rows(keys: Numbers, times_us: Numbers, values: Numbers, *more: tuple[str, pa.Array]) -> Made:
    columns = [pa.array(keys), pa.array(values), pa.array(times_us + BEGIN_US).view(pa.timestamp("us"))]
    names = ["key", "one", "ts", *(name for name, _ in more)]
    return pa.RecordBatch.from_arrays([*columns, *(column for _, column in more)], names)


def weighed(keys: Numbers, times_us: Numbers, values: Numbers) -> int:
    """A sum that tells keys and times apart; it does not matter which of their rows were added up before."""
    bits = mixed(keys * 3 + times_us * 5)
    with np.errstate(over="ignore"):
        return int(np.add.reduce(bits * values.view(np.uint64)).view(np.int64)) if len(keys) else 0


def added(answers: list[tuple[int, int, int]]) -> Answer:
    """Summaries, added up as 64 bits do."""
    with np.errstate(over="ignore"):
        total: Answer = np.add.reduce(np.array(answers, np.int64).reshape(-1, 3), axis=0)
    return total


class WindowPanes(TimedKind):
    """Tumbling windows of twelve sums by key, each row of a key in the window's first half met by one in its second;
    lateness keeps fifty windows behind the open one."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self._keys = max(MS // 2, entries // WINDOWS_KEPT // MS * MS)
        self._size_us = 2 * self._keys
        self._shift_us = BEGIN_US % self._size_us
        """How far the first row is behind the beginning of its window."""

    @property
    def fill_rows(self) -> int:
        return (WINDOWS_KEPT + 2) * self._size_us

    def keys(self, numbers: Numbers) -> Numbers:
        return shuffled(numbers + self._shift_us, self._keys)

    def build(self, read: Read) -> weir.Stream:
        size = timedelta(microseconds=self._size_us)
        keyed = read("source").with_watermarks(weir.monotonic("ts"), uid="time").key_by("key")
        return keyed.window(weir.tumbling(size), lateness=size * WINDOWS_KEPT).agg(sums_of("one"), uid=STATE)

    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        start_us = numbers_of(batch, "window_start") - BEGIN_US
        sums = numbers_of(batch, column_names()[-1])
        return added([(batch.num_rows, int(sums.sum()), weighed(numbers_of(batch, "key"), start_us, sums))])

    def answer(self, given: Mapping[str, Given]) -> Answer:
        rows = given["source"]
        found = []
        for numbers in rows.chunks():
            starts = (numbers + self._shift_us) // self._size_us * self._size_us - self._shift_us
            opens = (numbers - starts < self._keys) | ~rows.has(numbers - self._keys)
            weight = weighed(self.keys(numbers), starts, np.ones(len(numbers), np.int64))
            found.append((int(opens.sum()), len(numbers), weight))
        return added(found)


class OpenSessions(TimedKind):
    """Sessions of two rows each, of a key of their own, open for long behind the second."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self._block = max(MS, entries // 3)
        self._gap_us = -(-4 * self._block // MS) * MS

    @property
    def fill_rows(self) -> int:
        return 8 * self._block

    def keys(self, numbers: Numbers) -> Numbers:
        """Rows with even numbers open sessions. The others come back to those of the block before, in another order;
        those of the first block, before which there is none, are alone."""
        pair, is_second = numbers // 2, numbers % 2 == 1
        found = (pair // self._block - 1) * self._block + shuffled(pair, self._block)
        return np.where(is_second, np.where(pair < self._block, -1 - pair, found), pair)

    def build(self, read: Read) -> weir.Stream:
        keyed = read("source").with_watermarks(weir.monotonic("ts"), uid="time").key_by("key")
        sessions = keyed.window(weir.session(timedelta(microseconds=self._gap_us)))
        return sessions.agg(sums_of("one"), uid=STATE)

    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        keys, sums = numbers_of(batch, "key"), numbers_of(batch, column_names()[-1])
        return added([(batch.num_rows, int(sums.sum()), weighed(keys, np.zeros_like(keys), sums))])

    def answer(self, given: Mapping[str, Given]) -> Answer:
        rows = given["source"]
        found = []
        for numbers in rows.chunks():
            keys = self.keys(numbers)
            opens = (numbers % 2 == 0) | (keys < 0) | ~rows.has(2 * keys)
            weight = weighed(keys, np.zeros_like(keys), np.ones(len(numbers), np.int64))
            found.append((int(opens.sum()), len(numbers), weight))
        return added(found)


class CallLater(weir.ProcessFunction):
    """One timer for each row."""

    def __init__(self, delay: timedelta) -> None:
        self.delay = delay

    def process(self, row: Any, context: Any) -> Any:
        context.timers.at(row.ts + self.delay)

    def on_timer(self, time: datetime, context: Any) -> Any:
        yield context.key[0], time


class SetTimers(TimedKind):
    """Timers of keys of 90 bytes, each of a key of its own. A timer has fired, or a checkpoint holds it."""

    state = TIMERS

    @property
    def sources(self) -> Mapping[str, SourceRows]:
        return {"source": SourceRows(self._rows, f"{SCHEMA}, more binary")}

    @property
    def fill_rows(self) -> int:
        return self.entries + self.entries // 10

    def keys(self, numbers: Numbers) -> Numbers:
        return numbers

    def _rows(self, numbers: Numbers) -> Made:
        more = ("more", padding(len(numbers), PADDING[:82]))
        return timed_rows(numbers, numbers, np.ones(len(numbers), np.int64), more)

    @property
    def _delay(self) -> timedelta:
        return timedelta(microseconds=self.entries)

    def build(self, read: Read) -> weir.Stream:
        keyed = read("source").with_watermarks(weir.monotonic("ts"), uid="time").key_by("key", "more")
        return keyed.process(CallLater(self._delay), "key long, at timestamp_ntz", uid=STATE)

    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        keys, times_us = numbers_of(batch, "key"), numbers_of(batch, "at") - BEGIN_US
        return added([(batch.num_rows, 0, weighed(keys, times_us, np.ones(len(keys), np.int64)))])

    def answer_in(self, table: pa.Table) -> Answer:
        answers = [self.answer_of(batch) for batch in table.rename_columns(_named(table)).to_batches()]
        with np.errstate(over="ignore"):
            total: Answer = np.add.reduce([added([]), *answers], axis=0)
        return total

    def answer(self, given: Mapping[str, Given]) -> Answer:
        found = []
        for numbers in given["source"].chunks():
            weight = weighed(numbers, numbers + self.entries, np.ones(len(numbers), np.int64))
            found.append((len(numbers), 0, weight))
        return added(found)


def _named(table: pa.Table) -> list[str]:
    """A table of timers with the names of what comes of them."""
    return ["at" if name == "time" else name for name in table.column_names]


def padding(rows: int, value: bytes) -> pa.Array:
    """The same bytes in each row, made at once."""
    offsets = np.arange(rows + 1, dtype=np.int32) * len(value)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(value * rows)])
