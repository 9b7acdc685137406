"""Throughput, longest pause and p99 of each method of taking checkpoints, at each size of state.

Comes in: methods and sizes. Goes out: a report, a CSV to which runs in pieces add, and a plot of all that is in it.
Halting is stop, copy, go on: the same job and the same snapshot, but its sources stand still from the trigger until the
checkpoint is complete.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from weir.bench.cost.job import CostJob
from weir.bench.harness import BenchOptions, BenchReport, bench
from weir.bench.plot import Panel, bar_plots
from weir.bench.state.kinds import ENTRY_BYTES
from weir.bench.state.machine import Span
from weir.bench.state.numbers import Numbers
from weir.bench.state.valve import OPEN

METHODS = {"halting": "exactly_once", "aligned": "exactly_once", "at_least_once": "at_least_once"}
"""And the mode of checkpoints that each runs in."""

CHECKPOINTS = 2
EVERY_S = 8.0
"""Least time from one trigger to the next; a checkpoint that takes longer has as long again as it took beyond that."""

BASELINE_S = 6.0
WARM_UP_S = 2.0

NS = 1e9
DUE_EVERY_NS = 1_000_000

Arrivals: TypeAlias = "tuple[Numbers, Numbers]"
"""When probes of a task were made, in order, and when each came."""


@dataclass(frozen=True)
class Cost:
    """What one method cost at one size."""

    state_mb: int
    method: str
    rows_per_s: int
    """While checkpoints were taken."""
    rows_per_s_without: int
    share: float
    checkpoint_s: float
    pause_ms: float
    """The longest time between two probes that came to the same task, at full speed."""
    pause_without_ms: float
    p99_full_ms: float
    """At full speed, with checkpoints."""
    p99_full_without_ms: float
    p99_ms: float
    """With nothing but the probes."""
    p99_without_ms: float
    wrong: int


def run_comparison(
    options: BenchOptions, methods: Sequence[str], sizes: Sequence[int], *, plot: Path | None = None
) -> BenchReport:
    """`sizes` in bytes."""
    began_s = time.monotonic()
    costs = []
    for size in sizes:
        for method in methods:
            costs.append(_measured(options, method, size))
            if plot is not None:
                add_to_csv(costs[-1], plot.with_suffix(".csv"))
    if plot is not None:
        plot.write_text(plot_of(read_csv(plot.with_suffix(".csv"))), encoding="utf-8")
    return BenchReport(
        workload="checkpoint-cost",
        events=round(sum(cost.rows_per_s for cost in costs) * EVERY_S * CHECKPOINTS),
        seconds=round(time.monotonic() - began_s, 3),
        events_per_s=round(sum(cost.rows_per_s for cost in costs) / len(costs)),
        checkpoints=2 * CHECKPOINTS * len(costs),
        verified=all(cost.wrong == 0 for cost in costs),
        parallelism=options.parallelism,
        more={"costs": [asdict(cost) for cost in costs]},
    )


def _measured(options: BenchOptions, method: str, size: int) -> Cost:
    with bench(options, "checkpoint-cost") as place:
        job = CostJob(place.directory, size // ENTRY_BYTES, mode=METHODS[method], parallelism=options.parallelism)
        try:
            job.fill()
            job.checkpoint()  # of everything; and what is done for the first time is nobody's cost
            full, full_without, took_s = _watched(job, method, bulk=OPEN)
            quiet, quiet_without, _ = _watched(job, method, bulk=0)
            wrong = job.stop()
        finally:
            job.handle.cancel()
        rate, rate_without, probes = job.rate(*full), job.rate(*full_without), job.probes()
    return Cost(
        state_mb=round(size / 1e6),
        method=method,
        rows_per_s=round(rate),
        rows_per_s_without=round(rate_without),
        share=round(rate / rate_without, 3) if rate_without else 0.0,
        checkpoint_s=round(took_s, 2),
        pause_ms=longest_ms(probes, full),
        pause_without_ms=longest_ms(probes, full_without),
        p99_full_ms=p99_ms(probes, full),
        p99_full_without_ms=p99_ms(probes, full_without),
        p99_ms=p99_ms(probes, quiet),
        p99_without_ms=p99_ms(probes, quiet_without),
        wrong=wrong,
    )


def _watched(job: CostJob, method: str, *, bulk: int) -> tuple[Span, Span, float]:
    """The time with checkpoints, the time before without any, and how long the longest checkpoint took."""
    job.let(bulk=bulk)
    job.handle.wait(WARM_UP_S)
    without_s = time.monotonic()
    job.handle.wait(BASELINE_S)
    began_s, longest_s = time.monotonic(), 0.0
    for _ in range(CHECKPOINTS):
        triggered_s = time.monotonic()
        if method == "halting":
            job.let(bulk=0, probes=0)
        job.checkpoint()
        job.let(bulk=bulk)
        took_s = time.monotonic() - triggered_s
        longest_s = max(longest_s, took_s)
        job.handle.wait(max(EVERY_S - took_s, EVERY_S / 4))
    return (began_s, time.monotonic()), (without_s, began_s), longest_s


def longest_ms(probes: Sequence[Arrivals], within: Span) -> float:
    """The longest time without a probe that comes, of one task."""
    longest_ns = 0
    for _, came_ns in probes:
        inside = np.sort(came_ns[(came_ns >= within[0] * NS) & (came_ns < within[1] * NS)])
        longest_ns = max(longest_ns, int(np.diff(inside).max(initial=0)))
    return round(longest_ns / 1e6, 1)


def p99_ms(probes: Sequence[Arrivals], within: Span) -> float:
    """Of rows that are due at each millisecond: how long until the next probe made at or behind it has come. So rows
    count, too, that a source that stands still does not make."""
    due_ns = np.arange(within[0] * NS, within[1] * NS - DUE_EVERY_NS, DUE_EVERY_NS)
    took_ns = []
    for made_ns, came_ns in probes:
        # Of several that were made behind it, the first to come; ends where no probe is known any more.
        first_ns = np.minimum.accumulate(came_ns[::-1])[::-1]
        next_one = np.searchsorted(made_ns, due_ns)
        known = next_one < len(made_ns)
        took_ns.append(first_ns[next_one[known]] - due_ns[known])
    return round(float(np.percentile(np.concatenate(took_ns), 99)) / 1e6, 2)


# --- The CSV and the plot -----------------------------------------------------------------------------


def add_to_csv(cost: Cost, path: Path) -> None:
    """What was measured before of the same method and size is replaced."""
    costs = [] if not path.exists() else read_csv(path)
    others = [other for other in costs if (other.state_mb, other.method) != (cost.state_mb, cost.method)]
    order = list(METHODS)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Cost)])
        writer.writeheader()
        for each in sorted([*others, cost], key=lambda one: (one.state_mb, order.index(one.method))):
            writer.writerow(asdict(each))


def read_csv(path: Path) -> list[Cost]:
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Cost(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Cost)})
            for row in csv.DictReader(file)
        ]


def plot_of(costs: Sequence[Cost]) -> str:
    """Throughput, pause and latency of each method, by size."""
    sizes = sorted({cost.state_mb for cost in costs})
    methods = [method for method in METHODS if any(cost.method == method for cost in costs)]

    def panel(title: str, name: str, *, is_log: bool) -> Panel:
        found = {(cost.state_mb, cost.method): float(getattr(cost, name)) for cost in costs}
        values = {method: [found.get((size, method), math.nan) for size in sizes] for method in methods}
        return Panel(title, values, is_log=is_log)

    groups = [f"{size:,} MB" for size in sizes]
    panels = [
        panel("throughput, of that without checkpoints", "share", is_log=False),
        panel("longest pause at full speed, ms", "pause_ms", is_log=True),
        panel("p99 latency of 2,000 rows a second, ms", "p99_ms", is_log=True),
    ]
    return bar_plots("Checkpoints by halting, by aligned barriers, and at least once", groups, panels)
