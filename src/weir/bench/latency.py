"""The workload `latency`: 10,000 events a second through one keyed shuffle, from creation to the sink.

Comes in: a number of events. Goes out: percentiles of the time that rows took, and whether
every row arrived once. Clocks are compared between processes, so all must run on one host.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir import ValueState, connectors
from weir.bench import keyed_data
from weir.bench.epochs import Arrays, Epoch
from weir.bench.harness import BenchOptions, BenchReport, bench
from weir.connectors.generator import SPLITS

RATE_PER_S = 10_000
WARM_UP_S = 2.0
SCHEMA = "key long, value long, number long, created_ns long"

Numbers = npt.NDArray[np.int64]


def make_rows(numbers: Numbers) -> dict[str, Any]:
    """Rows with the time at which they were made. Not replayable, which is why nothing is killed here."""
    rows = keyed_data.make_numbered_rows(numbers)
    return {**rows, "created_ns": np.full(len(numbers), time.monotonic_ns())}


def add_up(row: Any, state: Any) -> tuple[int, int, int]:
    state.total.value += row.value
    return row.number, row.created_ns, state.total.value


class ArrivalTimes:
    """Keeps which row came when."""

    def __init__(self) -> None:
        self._parts: list[tuple[Numbers, Numbers, Numbers]] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        number, created_ns = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        self._parts.append((number, created_ns, np.full(len(number), now_ns)))

    def take(self) -> Arrays:
        number, created_ns, arrived_ns = (np.concatenate(column) for column in zip(*self._parts))
        self._parts = []
        return {"number": number, "created_ns": created_ns, "arrived_ns": arrived_ns}


def run_latency(options: BenchOptions, rate_per_s: float = RATE_PER_S) -> BenchReport:
    with bench(options, "latency") as it:
        rows = it.read(connectors.Generator(options.events, make_rows, SCHEMA, rate=rate_per_s))
        total = ValueState("long", default=0)
        sums = rows.key_by("key").process(
            add_up, "number long, created_ns long, total long", state={"total": total}, uid="sum"
        )
        sums.write(it.sink(ArrivalTimes), uid="sink")
        run = it.run()
        number, created_ns, arrived_ns = (column(run.epochs, c) for c in ("number", "created_ns", "arrived_ns"))
        lost, duplicated = lost_and_duplicated(number, options.events)
        due_ns = due_times_ns(number, created_ns, rate_per_s=rate_per_s, parallelism=options.parallelism)
        measured = percentiles(created_ns, arrived_ns, due_ns)
        return it.report(
            run, verified=lost == 0 and duplicated == 0, lost=lost, duplicated=duplicated, rate=rate_per_s, **measured
        )


def column(epochs: list[Epoch], name: str) -> Numbers:
    """One column over all epochs."""
    return np.concatenate([epoch.arrays[name] for epoch in epochs] or [np.empty(0, dtype=np.int64)])


def lost_and_duplicated(number: Numbers, events: int) -> tuple[int, int]:
    """How many of the rows 0 to `events` never came, and how many came once too often."""
    times = np.bincount(number, minlength=events)
    return int(np.count_nonzero(times == 0)), int(np.sum(np.maximum(times - 1, 0)))


def due_times_ns(
    number: Numbers, created_ns: Numbers, *, rate_per_s: float, parallelism: int
) -> npt.NDArray[np.float64]:
    """When the rate said that each row should be made, by the clock of the subtask that made it.

    A subtask's clock starts such that none of its rows was made before it was due.
    """
    due_ns = number.astype(np.float64) * (1e9 / rate_per_s)
    subtask = number % SPLITS % parallelism
    for index in np.unique(subtask):
        own = subtask == index
        due_ns[own] += np.min(created_ns[own] - due_ns[own])
    return due_ns


def percentiles(created_ns: Numbers, arrived_ns: Numbers, due_ns: npt.NDArray[np.float64]) -> dict[str, float]:
    """After the warm-up: from when a row was made, and from when it was due.

    The second counts the wait of rows that a stalled task made too late, which the first forgives.
    """
    if not len(created_ns):
        return {}
    warm = created_ns >= created_ns.min() + min(WARM_UP_S * 1e9, (created_ns.max() - created_ns.min()) / 2)
    took_ms = (arrived_ns - created_ns)[warm] / 1e6
    took_due_ms = (arrived_ns - due_ns)[warm] / 1e6
    p50, p99, p999, worst = np.percentile(took_ms, [50, 99, 99.9, 100]).round(2).tolist()
    due_p50, due_p99 = np.percentile(took_due_ms, [50, 99]).round(2).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "p99.9_ms": p999,
        "max_ms": worst,
        "due_p50_ms": due_p50,
        "due_p99_ms": due_p99,
    }
