"""The state benchmarks: updates, pause, incremental, restore, rescale.

Comes in: keys and a backend. Goes out: one report each, after the state in a checkpoint
was compared with what the rows before it must come to.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.bench.epochs import read_epochs
from weir.bench.harness import BenchReport, kill_a_worker
from weir.bench.state.job import SIGNAL_ROWS, StateJob, StateOptions, state_job
from weir.bench.stolen import StolenTime
from weir.runtime.driver.notices import AttemptRunning

BASELINE_S = 10.0
AFTER_S = 5.0
"""How long the stream is watched after a checkpoint: what it leaves behind must not hold it, either."""

SETTLING_MAX = 10
SETTLED_SHARE = 0.1
Times = npt.NDArray[np.int64]


def run_updates(options: StateOptions, *, seconds: float) -> BenchReport:
    """Row-wise updates of random keys, and how much memory the workers take."""
    with state_job(options, "state-updates") as job, MemoryWatch(job) as memory:
        job.fill()
        started_rows, started_s = job.rows, time.monotonic()
        job.handle.wait(seconds)
        updates, elapsed_s = job.rows - started_rows, time.monotonic() - started_s
        record = job.checkpoint()
        wrong = job.wrong_entries(record)
        return _report(
            "state-updates",
            job,
            seconds=elapsed_s,
            events=updates,
            verified=wrong == 0,
            wrong_entries=wrong,
            worker_rss_max_mb=round(memory.most_bytes / 1e6),
            checkpoint_s=round(record.duration_ms / 1e3, 2),
            checkpoint_mb=round(record.size_bytes / 1e6),
        )


def run_pause(options: StateOptions) -> BenchReport:
    """How long a checkpoint of much state holds the stream, and what it costs while it is written.

    The gap is the longest time between two batches that reach the sink of the same subtask. The undisturbed one is the
    longest in which the machine had all of its processors.
    """
    with state_job(options, "state-pause") as job, MemoryWatch(job) as memory, StolenTime() as stolen:
        job.fill()
        job.checkpoint()  # The first one also warms everything up.
        job.handle.wait(AFTER_S)
        filled_bytes = sum(map(_resident_bytes, job.handle.process_ids))
        baseline_s = time.monotonic()
        job.handle.wait(BASELINE_S)
        record = job.checkpoint()
        job.handle.wait(AFTER_S)
        last = job.checkpoint()
        wrong = job.wrong_entries(last)
        times = _times(job.directory)
        began_s, ended_s = record.triggered_ms / 1e3, (record.triggered_ms + record.duration_ms) / 1e3
        before, during = _rate(times, baseline_s, began_s), _rate(times, began_s, ended_s)
        return _report(
            "state-pause",
            job,
            seconds=ended_s - baseline_s,
            events=round(before * (began_s - baseline_s) + during * (ended_s - began_s)),
            verified=wrong == 0,
            wrong_entries=wrong,
            checkpoint_mb=round(record.size_bytes / 1e6),
            checkpoint_s=round(record.duration_ms / 1e3, 2),
            gap_max_ms=round(_largest_gap_ms(times, began_s, ended_s), 1),
            gap_max_undisturbed_ms=round(_largest_gap_ms(times, began_s, ended_s, but_for=stolen.touches), 1),
            gap_max_before_ms=round(_largest_gap_ms(times, baseline_s, began_s), 1),
            gap_max_after_ms=round(_largest_gap_ms(times, ended_s, ended_s + AFTER_S), 1),
            events_per_s_before=round(before),
            events_per_s_during=round(during),
            ratio=round(during / before, 3) if before else 0.0,
            worker_bytes_per_key=round(filled_bytes / options.keys),
            worker_rss_max_mb=round(memory.most_bytes / 1e6),
        )


def run_incremental(options: StateOptions, *, share: float) -> BenchReport:
    """What a checkpoint uploads after a share of the keys has changed, of what a whole one does."""
    with state_job(replace(options, hot_share=share), "state-incremental") as job:
        job.fill()
        settled, settling = _settled(job)
        job.wait_for_rows(job.rows + round(3 * share * options.keys))
        last = job.checkpoint()
        wrong = job.wrong_entries(last)
        return _report(
            "state-incremental",
            job,
            seconds=last.duration_ms / 1e3,
            events=0,
            verified=wrong == 0,
            wrong_entries=wrong,
            share_changed=share,
            settling_checkpoints=settling,
            state_mb=round(settled.size_bytes / 1e6, 1),
            changed_mb=round(last.uploaded_bytes / 1e6, 2),
            ratio=round(last.uploaded_bytes / settled.size_bytes, 4),
        )


def run_restore(options: StateOptions) -> BenchReport:
    """How long a restart takes with much state, when the host has a copy of it."""
    with state_job(replace(options, local_recovery=True), "state-restore") as job:
        job.fill()
        record = job.checkpoint()
        ran: list[tuple[float, Any]] = []
        job.handle.listen(lambda notice: ran.append((time.monotonic(), notice)))
        _, killed_s = kill_a_worker(job.handle, 0)
        while not any(isinstance(notice, AttemptRunning) for _, notice in ran):
            job.handle.wait(0.02)
        running_s = next(at for at, notice in ran if isinstance(notice, AttemptRunning))
        last = job.checkpoint()
        wrong = job.wrong_entries(last)
        return _report(
            "state-restore",
            job,
            seconds=running_s - killed_s,
            events=0,
            verified=wrong == 0,
            wrong_entries=wrong,
            state_mb=round(record.size_bytes / 1e6),
            kill_to_running_s=round(running_s - killed_s, 2),
        )


def run_rescale(options: StateOptions, *, steps: tuple[int, ...] = (4, 3)) -> BenchReport:
    """Rescale a running job in place; afterwards no update is lost and none counted twice."""
    with state_job(options, "state-rescale") as job:
        job.fill()
        taken_s = []
        for parallelism in steps:
            started_s = time.monotonic()
            job.handle.rescale(parallelism)
            job.wait_for_rows(1)
            taken_s.append(round(time.monotonic() - started_s, 2))
        last = job.checkpoint()
        wrong = job.wrong_entries(last)
        return _report(
            "state-rescale",
            job,
            seconds=sum(taken_s),
            events=0,
            verified=wrong == 0,
            wrong_entries=wrong,
            steps=list(steps),
            rescale_s=taken_s,
        )


def _settled(job: StateJob) -> tuple[Any, int]:
    """Take checkpoints until one is small, and how many that took. RocksDB merges its files for a while after many keys
    came in; what that writes has nothing to do with what changes later."""
    for number in range(SETTLING_MAX):
        record = job.checkpoint()
        if number and record.uploaded_bytes < SETTLED_SHARE * record.size_bytes:
            break
        job.handle.wait(1.0)
    return record, number + 1


class MemoryWatch:
    """The most memory that any worker of a job has had, looked at twice a second."""

    def __init__(self, job: StateJob) -> None:
        self.most_bytes = 0
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.most_bytes = max([self.most_bytes, *map(_resident_bytes, self._job.handle.process_ids)])


def _report(workload: str, job: StateJob, *, seconds: float, events: int, verified: bool, **more: Any) -> BenchReport:
    return BenchReport(
        workload=workload,
        events=events,
        seconds=round(seconds, 3),
        events_per_s=round(events / seconds) if seconds else 0,
        checkpoints=len(job.handle.checkpoints()),
        verified=verified,
        parallelism=job.options.parallelism,
        more={
            "keys": job.options.keys,
            "kind": job.options.kind,
            "backend": type(job.options.backend).__name__.lower(),
            **more,
        },
    )


def _resident_bytes(process: int) -> int:
    listing = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False)
    return int(listing.stdout or 0) * 1024


def _times(directory: Path) -> dict[int, Times]:
    """When signals came, and how many at once, by subtask."""
    found: dict[int, list[Times]] = {}
    for epoch in read_epochs(directory / "epochs"):
        found.setdefault(epoch.subtask, []).append(epoch.arrays["times"])
    return {subtask: np.concatenate(parts) for subtask, parts in found.items()}


def _rate(times: dict[int, Times], start_s: float, end_s: float) -> float:
    signals = sum(
        int(rows[(at >= start_s * 1e9) & (at < end_s * 1e9)].sum()) for at, rows in (t.T for t in times.values())
    )
    return signals * SIGNAL_ROWS / (end_s - start_s) if end_s > start_s else 0.0


def _largest_gap_ms(
    times: dict[int, Times],
    start_s: float,
    end_s: float,
    *,
    but_for: Callable[[float, float], bool] = lambda start_s, end_s: False,
) -> float:
    """The longest time without a signal, of one subtask; those `but_for` says do not count."""
    largest_ms = 0.0
    for at, _ in (t.T for t in times.values()):
        within_s = at[(at >= start_s * 1e9) & (at < end_s * 1e9)] / 1e9
        gaps_s = np.diff(within_s)
        for gap in np.argsort(-gaps_s):
            if not but_for(within_s[gap], within_s[gap + 1]):
                largest_ms = max(largest_ms, float(gaps_s[gap]) * 1e3)
                break
    return largest_ms
