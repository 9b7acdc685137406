"""The windowed workloads' data: 100,000 keys at event times that grow with the row's number, out of order by up to 1 s.

Comes in: row numbers. Goes out: columns, and what is true of each window or session. NumPy
only, no state: row n is the same wherever and whenever it is made.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.bench.epochs import Arrays, Epoch
from weir.bench.keyed_data import CHUNK, KEYS, Numbers, keys_and_values

SCHEMA = "key long, ts timestamp_ntz"
BEGIN_US = 1_767_225_600_000_000
"""2026-01-01."""
DISORDER_US = 1_000_000

_ARROW_SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us"))])


class TimedRows:
    """Rows whose event times are `step_us` apart, less some pseudo-random part of the disorder."""

    def __init__(self, step_us: int) -> None:
        self.step_us = step_us

    def columns(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Keys and times."""
        keys, values = keys_and_values(numbers)
        # The value has ten bits that have nothing to do with the key.
        return keys, numbers * self.step_us + (BEGIN_US - values * (DISORDER_US // 1_024))

    def __call__(self, numbers: Numbers) -> pa.RecordBatch:
        """For a Generator: SCHEMA."""
        keys, times = self.columns(numbers)
        return pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(times).view(pa.timestamp("us"))], schema=_ARROW_SCHEMA
        )


def digest(keys: Numbers, starts_us: Numbers, ends_us: Numbers, counts: Numbers) -> Numbers:
    """A pseudo-random number for each result; the sum over all tells two sets of results apart."""
    mixed = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for column in (starts_us, ends_us, counts):
        mixed ^= mixed >> np.uint64(31)
        mixed += np.ascontiguousarray(column).view(np.uint64)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    return mixed.view(np.int64)


class ResultDigests:
    """The sum of the digests of results, how many there were, and how many rows they count."""

    def __init__(self) -> None:
        self._sums = np.zeros(3, np.int64)

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        keys, starts, ends, counts = (_numbers(column) for column in batch.columns)
        self._sums += summary(keys, starts, ends, counts=counts)

    def take(self) -> Arrays:
        sums, self._sums = self._sums, np.zeros(3, np.int64)
        return {"sums": sums}


def summary(keys: Numbers, starts_us: Numbers, ends_us: Numbers, *, counts: Numbers) -> Numbers:
    return np.array([digest(keys, starts_us, ends_us, counts).sum(), len(keys), counts.sum()], np.int64)


def committed(epochs: list[Epoch]) -> Numbers:
    """The summary of everything that was committed."""
    total: Numbers = np.sum([epoch.arrays["sums"] for epoch in epochs], axis=0, dtype=np.int64)
    return total


def true_windows(events: int, rows: TimedRows, *, size_us: int, slide_us: int) -> Numbers:
    """The summary of all windows that begin at multiples of `slide_us`."""
    panes: dict[int, Numbers] = {}
    for start in range(0, events, CHUNK):
        keys, times = rows.columns(np.arange(start, min(start + CHUNK, events), dtype=np.int64))
        of_pane = times // slide_us
        for pane in np.unique(of_pane).tolist():
            counted = np.bincount(keys[of_pane == pane], minlength=KEYS)
            panes[pane] = panes[pane] + counted if pane in panes else counted
    total, per_window = np.zeros(3, np.int64), size_us // slide_us
    for first in range(min(panes) - per_window + 1, max(panes) + 1):
        parts = [panes[pane] for pane in range(first, first + per_window) if pane in panes]
        counts: Numbers = np.add.reduce([np.zeros(KEYS, np.int64), *parts])
        present = np.flatnonzero(counts)
        starts = np.full(len(present), first * slide_us)
        total += summary(present, starts, starts + size_us, counts=counts[present])
    return total


def true_sessions(events: int, rows: TimedRows, *, gap_us: int) -> Numbers:
    """The summary of all sessions. Keys are taken in parts, so that not all rows lie in memory at once."""
    total, parts = np.zeros(3, np.int64), -(-events // (8 * CHUNK))
    for part in range(parts):
        low, high = KEYS * part // parts, KEYS * (part + 1) // parts
        pieces = [
            _packed(rows, start, min(start + CHUNK, events), keys=(low, high)) for start in range(0, events, CHUNK)
        ]
        packed = np.sort(np.concatenate(pieces))
        keys, times = packed >> 44, packed & ((1 << 44) - 1)
        cut = np.concatenate(([True], (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] >= gap_us)))
        heads = np.flatnonzero(cut)
        counts = np.diff(np.append(heads, len(packed)))
        offset = BEGIN_US - DISORDER_US
        ends = times[heads + counts - 1] + (gap_us + offset)
        total += summary(keys[heads] + low, times[heads] + offset, ends, counts=counts)
    return total


def _packed(rows: TimedRows, start: int, stop: int, *, keys: tuple[int, int]) -> Numbers:
    """Key and time in one number, for those of some keys."""
    found, times = rows.columns(np.arange(start, stop, dtype=np.int64))
    own = np.flatnonzero((found >= keys[0]) & (found < keys[1]))
    packed: Numbers = ((found[own] - keys[0]) << 44) | (times[own] - (BEGIN_US - DISORDER_US))
    return packed


def _numbers(column: pa.Array) -> Numbers:
    numbers: Numbers = column.view(pa.int64()).to_numpy()
    return numbers
