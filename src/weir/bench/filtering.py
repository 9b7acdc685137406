"""The workload `filter`: 80-byte payloads, of which one in a thousand holds a rare word.

Comes in: a number of events. Goes out: how fast they pass a substring filter, and
whether exactly the right number of them came through.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir import connectors
from weir.bench.epochs import Arrays
from weir.bench.harness import BenchOptions, BenchReport, bench

PAYLOAD_BYTES = 80
NEEDLE = "WEIR"
TEMPLATES = 1 << 18
"""21 MB of text per subtask: more than a core's own caches hold, so that reading it costs what it would."""
ONE_IN = 1_000
SCHEMA = "payload string"

Numbers = npt.NDArray[np.int64]


class Payloads:
    """Row n is template n modulo TEMPLATES; a batch of evenly spaced rows is a slice, without a copy."""

    def __init__(self) -> None:
        self._cached: dict[tuple[int, int], pa.StringArray] = {}
        self._pool: pa.StringArray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_cached": {}, "_pool": None}  # Each task makes its own: it is quicker than sending it.

    def __call__(self, numbers: Numbers) -> pa.RecordBatch:
        first, count = int(numbers[0]), len(numbers)
        step = int(numbers[1]) - first if count > 1 else 1
        if int(numbers[-1]) != first + step * (count - 1):
            return pa.record_batch([self.prepare().take(pa.array(numbers % TEMPLATES))], names=["payload"])
        column = self._cached.get((step, first % step))
        period = TEMPLATES // np.gcd(step, TEMPLATES)
        if column is None or len(column) < period + count:
            rows = (first % step + step * np.arange(period + count, dtype=np.int64)) % TEMPLATES
            column = self._cached[(step, first % step)] = self.prepare().take(pa.array(rows))
        return pa.record_batch([column.slice((first // step) % period, count)], names=["payload"])

    def prepare(self) -> pa.StringArray:
        """Make the templates, unless they are there."""
        if self._pool is None:
            self._pool = templates()
        return self._pool


def templates() -> pa.StringArray:
    """Lower-case letters and spaces at random, with the needle somewhere in one of a thousand."""
    random = np.random.default_rng(1)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
    text = letters[random.integers(0, len(letters), size=(TEMPLATES, PAYLOAD_BYTES), dtype=np.int8)]
    holders = needle_templates()
    places = random.integers(0, PAYLOAD_BYTES - len(NEEDLE), size=len(holders))
    for offset, letter in enumerate(NEEDLE.encode()):
        text[holders, places + offset] = letter
    offsets = np.arange(0, (TEMPLATES + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(TEMPLATES, pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def needle_templates() -> Numbers:
    """The templates that hold the needle, in order."""
    chosen = np.random.default_rng(2).choice(TEMPLATES, TEMPLATES // ONE_IN, replace=False)
    return np.sort(chosen).astype(np.int64)


def known_number(events: int) -> int:
    """How many of the first `events` rows hold the needle."""
    holders = needle_templates()
    return events // TEMPLATES * len(holders) + int(np.searchsorted(holders, events % TEMPLATES))


class Passed:
    """Counts what came through, and what should not have."""

    def __init__(self) -> None:
        self._counts = np.zeros(2, dtype=np.int64)

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        right = pc.sum(pc.match_substring(batch.column(0), NEEDLE)).as_py() or 0
        self._counts += (right, batch.num_rows - right)

    def take(self) -> Arrays:
        counts, self._counts = self._counts, np.zeros(2, dtype=np.int64)
        return {"counts": counts}


def run_filter(options: BenchOptions) -> BenchReport:
    with bench(options, "filter") as it:
        make = Payloads()
        rows = it.read(connectors.Generator(options.events, make, SCHEMA), prepare=make.prepare)
        passed = rows.filter(pl.col("payload").str.contains(NEEDLE, literal=True), uid="filter")
        passed.write(it.sink(Passed), uid="sink")
        run = it.run()
        right, wrong = sum((epoch.arrays["counts"] for epoch in run.epochs), np.zeros(2, dtype=np.int64)).tolist()
        expected = known_number(options.events)
        return it.report(run, verified=right == expected and wrong == 0, passed=right, expected=expected)
