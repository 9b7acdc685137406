"""What checkpoints cost: keyed-sum without them, every 5 s and every second, in turn in one process.

Comes in: events and rounds. Goes out: the throughput of each setting and its ratio to
none. Settings alternate, so that what changes on the machine meets all of them alike;
a run should last for many checkpoints, and the range of its rates tells noise from cost.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from weir.bench.harness import BenchOptions, BenchReport, bench
from weir.bench.keyed import run_keyed_sum, run_sums

SETTINGS: dict[str, str | None] = {"off": None, "5s": "5s", "1s": "1s"}


def run_checkpoint_cost(options: BenchOptions, rounds: int = 3) -> BenchReport:
    _warm_up(options)
    rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
    reports: list[BenchReport] = []
    for number in range(rounds):
        # Forwards, then backwards: no setting always comes first.
        for name in list(SETTINGS) if number % 2 == 0 else list(reversed(SETTINGS)):
            report = run_keyed_sum(replace(options, checkpoint_every=SETTINGS[name]))
            rates[name].append(report.events_per_s)
            reports.append(report)
    medians = {name: median(values) for name, values in rates.items()}
    seconds = sum(report.seconds for report in reports)
    return BenchReport(
        workload="checkpoint-cost",
        events=options.events * len(reports),
        seconds=round(seconds, 3),
        events_per_s=round(options.events * len(reports) / seconds),
        checkpoints=sum(report.checkpoints for report in reports),
        verified=all(report.verified for report in reports),
        parallelism=options.parallelism,
        more={
            "events_per_s_by_interval": {name: round(value) for name, value in medians.items()},
            "ratio_to_off": {name: round(value / medians["off"], 3) for name, value in medians.items()},
            "range": {name: [round(min(values)), round(max(values))] for name, values in rates.items()},
            "rounds": rounds,
        },
    )


def _warm_up(options: BenchOptions) -> None:
    """Spark's start and the first use of every code path are nobody's cost."""
    with bench(replace(options, events=max(1, options.events // 10), show=None), "keyed-sum") as it:
        run_sums(it)
