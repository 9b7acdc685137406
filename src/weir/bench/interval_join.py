"""The workload `interval-join`: two streams by 1,000,000 keys, joined where their times are within a second.

Comes in: a number of events, half of them on each side. Goes out: how fast they are
joined, and whether exactly the true pairs were committed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import weir
from weir import connectors
from weir.bench.epochs import Arrays, Epoch
from weir.bench.harness import Bench, BenchOptions, BenchReport, bench

KEYS = 1_000_000
ROWS_PER_S = 500_000
"""Of each side, in event time."""
STEP_US = 1_000_000 // ROWS_PER_S
DISORDER_US = 1_000_000
INTERVAL_US = 1_000_000
BEGIN_US = 1_767_225_600_000_000
VALUE_BITS = 20
CHUNK = 1 << 21

Numbers = npt.NDArray[np.int64]

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("ts", pa.timestamp("us"))])


def columns(numbers: Numbers, salt: int) -> tuple[Numbers, Numbers, Numbers]:
    """Keys, values and times: multiply, then take bits. Times are out of order by up to a second."""
    mixed = (numbers.view(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    low = mixed & np.uint64(0xFFFFFFFF)
    values = (low >> np.uint64(32 - VALUE_BITS)).view(np.int64)
    delays = ((low * np.uint64(DISORDER_US)) >> np.uint64(32)).view(np.int64)
    keys = (((mixed >> np.uint64(32)) * np.uint64(KEYS)) >> np.uint64(32)).view(np.int64)
    return keys, values, BEGIN_US + numbers * STEP_US - delays


def maker(salt: int) -> Callable[[Numbers], pa.RecordBatch]:
    """For a Generator: SCHEMA."""

    def make(numbers: Numbers) -> pa.RecordBatch:
        keys, values, times = columns(numbers, salt)
        arrays = [pa.array(keys), pa.array(values), pa.array(times).view(pa.timestamp("us"))]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    return make


class PairSums:
    """Counts pairs, and sums up the products of their values, modulo 2**64."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = np.uint64(0)

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        left, right = (batch.column(name).to_numpy().view(np.uint64) for name in ("value", "value_right"))
        with np.errstate(over="ignore"):
            self._sum += np.add.reduce(left * right)
        self._rows += batch.num_rows

    def take(self) -> Arrays:
        arrays: Arrays = {"rows": np.array([self._rows]), "sum": np.array([self._sum])}
        self._rows, self._sum = 0, np.uint64(0)
        return arrays


def true_pairs(rows: int) -> tuple[int, int]:
    """How many pairs the first rows of both sides make, and the sum of their products modulo 2**64."""
    count, total = 0, np.uint64(0)
    reach = (DISORDER_US + INTERVAL_US) // STEP_US + 1
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        keys, values, times = columns(np.arange(start, stop, dtype=np.int64), 1)
        near = np.arange(max(0, start - reach), min(rows, stop + reach), dtype=np.int64)
        other_keys, other_values, other_times = columns(near, 2)
        base_us = min(int(other_times.min()), int(times.min())) - INTERVAL_US
        # One number for key and time, so that a search finds the partners of a row.
        span = np.int64(max(int(other_times.max()), int(times.max())) - base_us + INTERVAL_US + 1)
        placed = other_keys * span + (other_times - base_us)
        order = np.argsort(placed)
        placed = placed[order]
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(other_values[order].view(np.uint64))))
        at = keys * span + (times - base_us)
        first = np.searchsorted(placed, at - INTERVAL_US)
        last = np.searchsorted(placed, at + INTERVAL_US, side="right")
        count += int((last - first).sum())
        with np.errstate(over="ignore"):
            total += np.add.reduce(values.view(np.uint64) * (sums[last] - sums[first]))
    return count, int(total)


def committed_pairs(epochs: list[Epoch]) -> tuple[int, int]:
    rows = sum(int(epoch.arrays["rows"][0]) for epoch in epochs)
    total = sum(int(epoch.arrays["sum"][0]) for epoch in epochs)
    return rows, total % (1 << 64)


def joined(it: Bench, rows: int | None) -> weir.Stream:
    """The pairs of so many rows on each side; None: without end."""
    strategy = weir.bounded_disorder("ts", DISORDER_US / 1e6)
    left = it.read(connectors.Generator(rows, maker(1), SCHEMA)).with_watermarks(strategy, uid="left-time")
    right = it.environment.read(connectors.Generator(rows, maker(2), SCHEMA), watermark=strategy, uid="right")
    reach = INTERVAL_US / 1e6
    return left.key_by("key").interval_join(right.key_by("key"), lower=-reach, upper=reach, uid="join")


def run_interval_join(options: BenchOptions) -> BenchReport:
    rows = max(options.events // 2, 1)
    with bench(options, "interval-join") as it:
        joined(it, rows).write(it.sink(PairSums), uid="sink")
        run = it.run()
        found, expected = committed_pairs(run.epochs), true_pairs(rows)
        return it.report(run, verified=found == expected, pairs=found[0], true_pairs=expected[0])
