"""The workloads `window`, `sliding` and `session`: rows counted by key and window of event time.

Comes in: a number of events. Goes out: how fast they are counted, and whether the
committed results are exactly the true ones, each of them once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weir
from weir import connectors
from weir.bench import window_data
from weir.bench.harness import Bench, BenchOptions, BenchReport, bench
from weir.bench.keyed_data import Numbers
from weir.bench.window_data import TimedRows

SIZE, SLIDE, GAP = "10s", "10s", "2s"
SLIDING_SIZE = "60s"
WINDOW_STEP_US, SESSION_STEP_US = 2, 5
"""Five million rows in ten seconds of event time; for sessions two million, so that keys fall silent now and then."""

_SECOND_US = 1_000_000


WORKLOADS: dict[str, tuple[int, Any]] = {
    "window": (WINDOW_STEP_US, weir.tumbling(SIZE)),
    "sliding": (WINDOW_STEP_US, weir.sliding(SLIDING_SIZE, SLIDE)),
    "session": (SESSION_STEP_US, weir.session(GAP)),
}
"""How far rows are apart, and what windows they are counted in."""


def run_window(options: BenchOptions) -> BenchReport:
    size_us = 10 * _SECOND_US
    rows = TimedRows(WINDOW_STEP_US)
    return _run(options, "window", window_data.true_windows(options.events, rows, size_us=size_us, slide_us=size_us))


def run_sliding(options: BenchOptions) -> BenchReport:
    rows = TimedRows(WINDOW_STEP_US)
    true = window_data.true_windows(options.events, rows, size_us=60 * _SECOND_US, slide_us=10 * _SECOND_US)
    return _run(options, "sliding", true)


def run_session(options: BenchOptions) -> BenchReport:
    rows = TimedRows(SESSION_STEP_US)
    true = window_data.true_sessions(options.events, rows, gap_us=2 * _SECOND_US)
    return _run(options, "session", true)


def counted(it: Bench, workload: str, events: int | None) -> weir.Stream:
    """The rows of a workload, counted by key and window; None: without end."""
    step_us, windows = WORKLOADS[workload]
    stream = it.read(connectors.Generator(events, TimedRows(step_us), window_data.SCHEMA))
    timed = stream.with_watermarks(weir.bounded_disorder("ts", "1s"), uid="watermarks")
    return timed.key_by("key").window(windows).agg(n=weir.count(), uid="window")


def _run(options: BenchOptions, name: str, true: Numbers) -> BenchReport:
    with bench(options, name) as it:
        counted(it, name, options.events).write(it.sink(window_data.ResultDigests), uid="sink")
        run = it.run()
        found = window_data.committed(run.epochs)
        return it.report(
            run, verified=bool(np.array_equal(found, true)), results=int(found[1]), rows_counted=int(found[2])
        )
