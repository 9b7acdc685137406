"""The soak: a workload at full speed for minutes, with the memory of every process and the disk sampled.

Comes in: a workload's name, minutes. Goes out: a CSV of samples, a plot, and how flat memory and disk were after
their warm-up. Reads process sizes with `ps`, and files as they lie there; the job itself knows nothing of it.
"""

from __future__ import annotations

import csv
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import weir
from weir import connectors
from weir.api.job import ENDED
from weir.bench import keyed_data, windows
from weir.bench.harness import Bench, BenchOptions, BenchReport, bench
from weir.bench.interval_join import joined
from weir.bench.plot import Series, line_plot
from weir.errors import ConfigError
from weir.runtime.driver.notices import CheckpointSucceeded

SAMPLE_S = 1.0
WARM_UP_SHARE = 0.2
WINDOW_SHARE = 0.05
"""Sizes are compared as means over this share of the run: at WARM_UP_SHARE, and at the end."""
GROWTH_MAX = 1.10

MEMORY = ("driver", "jvm", "workers")
DISK = ("local", "checkpoints")
KINDS = (*MEMORY, *DISK)
MAY_NOT_GROW = ("driver", "workers", "local")
"""Those that a job in balance leaves as they are. Checkpoints breathe: how many of them share files differs."""


@dataclass(frozen=True)
class Sample:
    """The resident memory of the job's processes, and what its files take on disk, in bytes; the rows so far."""

    at_s: float
    rows: int
    driver: int
    jvm: int
    workers: int
    local: int = 0
    """State that tasks keep in files of their own."""
    checkpoints: int = 0

    @property
    def disk(self) -> int:
        return self.local + self.checkpoints


def _summed(it: Bench) -> weir.Stream:
    rows = it.read(connectors.Generator(None, keyed_data.make_rows, keyed_data.SCHEMA))
    return rows.key_by("key").agg(total=weir.sum("value"), uid="sum")


WORKLOADS: dict[str, Callable[[Bench], weir.Stream]] = {
    "keyed-sum": _summed,
    **{name: partial(windows.counted, workload=name, events=None) for name in windows.WORKLOADS},
    "interval-join": partial(joined, rows=None),
}


def run_soak(options: BenchOptions, workload: str = "keyed-sum", *, minutes: float, plot: Path) -> BenchReport:
    if workload not in WORKLOADS:
        raise ConfigError(f"soak: there is no workload {workload!r}; there are {', '.join(WORKLOADS)}")
    with bench(options, "soak") as it:
        WORKLOADS[workload](it).write(connectors.Discard(), uid="sink")
        samples, checkpoints = _sampled(it, seconds=minutes * 60)
    growth = {kind: growth_of(samples, kind) for kind in KINDS}
    write_csv(samples, plot.with_suffix(".csv"))
    plot.write_text(plot_of(samples, workload), encoding="utf-8")
    seconds = samples[-1].at_s - samples[0].at_s
    events = samples[-1].rows - samples[0].rows
    return BenchReport(
        workload=f"soak-{workload}",
        events=events,
        seconds=round(seconds, 1),
        events_per_s=round(events / seconds) if seconds else 0,
        checkpoints=checkpoints,
        verified=all(growth[kind] <= GROWTH_MAX for kind in MAY_NOT_GROW),
        parallelism=options.parallelism,
        more={
            "growth_after_warm_up": {kind: round(value, 3) for kind, value in growth.items()},
            "rss_end_mb": {kind: round(getattr(samples[-1], kind) / 1e6) for kind in MEMORY},
            "disk_end_mb": {kind: round(getattr(samples[-1], kind) / 1e6) for kind in DISK},
            "csv": str(plot.with_suffix(".csv")),
            "plot": str(plot),
        },
    )


def _sampled(it: Bench, *, seconds: float) -> tuple[list[Sample], int]:
    job: Any = it.environment.submit()
    completed = []
    job.listen(lambda notice: completed.append(1) if isinstance(notice, CheckpointSucceeded) else None)
    samples: list[Sample] = []
    try:
        while job.status != "running":
            if job.wait(SAMPLE_S / 10) in ENDED:
                break
        started_s = time.monotonic()
        while time.monotonic() - started_s < seconds and job.wait(SAMPLE_S) not in ENDED:
            samples.append(sample_of(it, job, time.monotonic() - started_s))
            if it.options.show is not None:
                it.options.show(job)
    finally:
        job.cancel()
    return samples, len(completed)


def sample_of(it: Bench, job: Any, at_s: float) -> Sample:
    rows = sum(o["rows_out"] for o in job.metrics()["operators"] if o["uid"] in ("source", "right"))
    workers = set(job.process_ids)
    sizes = {"driver": 0, "jvm": 0, "workers": 0}
    for process, (_, size_bytes, command) in _processes().items():
        if process == os.getpid():
            sizes["driver"] += size_bytes
        elif process in workers:
            sizes["workers"] += size_bytes
        elif "java" in command and _descends(process):
            sizes["jvm"] += size_bytes
    disk = {"local": disk_bytes(it.local), "checkpoints": disk_bytes(it.directory / "checkpoints")}
    return Sample(at_s, rows, **sizes, **disk)


def disk_bytes(directory: Path) -> int:
    """What all files below take, each of them once, however many links it has. Files may go meanwhile."""
    sizes: dict[int, int] = {}
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.stat(os.path.join(place, name))
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def _processes() -> dict[int, tuple[int, int, str]]:
    """Process id to its parent, resident bytes and command."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss=,comm="], capture_output=True, text=True, check=True)
    found = {}
    for line in listing.stdout.splitlines():
        process, parent, size_kb, command = line.split(None, 3)
        found[int(process)] = (int(parent), int(size_kb) * 1024, command)
    return found


def _descends(process: int) -> bool:
    """Whether a process was started by this one, directly or not."""
    parents = {number: parent for number, (parent, _, _) in _processes().items()}
    while process in parents and process != os.getpid():
        process = parents[process]
    return process == os.getpid()


def growth_of(samples: Sequence[Sample], kind: str) -> float:
    """Memory at the end over memory after the warm-up, each as a mean over a window."""
    window = max(1, round(len(samples) * WINDOW_SHARE))
    warm = round(len(samples) * WARM_UP_SHARE)
    early = mean(getattr(sample, kind) for sample in samples[warm : warm + window])
    late = mean(getattr(sample, kind) for sample in samples[-window:])
    return late / early if early else 1.0


def write_csv(samples: Sequence[Sample], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [*(f"{kind}_rss_bytes" for kind in MEMORY), *(f"{kind}_disk_bytes" for kind in DISK)]
        writer.writerow(["seconds", "rows", *columns])
        for sample in samples:
            writer.writerow([f"{sample.at_s:.1f}", sample.rows, *(getattr(sample, kind) for kind in KINDS)])


def plot_of(samples: Sequence[Sample], workload: str) -> str:
    times = [sample.at_s / 60 for sample in samples]
    series = [Series(kind, [getattr(sample, kind) / 1e6 for sample in samples]) for kind in (*MEMORY, "disk")]
    rows = samples[-1].rows - samples[0].rows
    title = f"{workload} at full speed: resident memory and disk over {rows / 1e9:.2f} billion events"
    return line_plot(title, times, series, x_label="minutes", y_label="MB")
