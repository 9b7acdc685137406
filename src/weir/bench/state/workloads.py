"""The state benchmarks: updates, pause, incremental, restore, rescale.

Comes in: a kind of state, its size and a backend. Goes out: one report each, after what the job had come to was
compared with what the rows that its sources gave must come to.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import weir
from weir.bench.harness import BenchReport, kill_a_worker
from weir.bench.state.job import StateJob, StateOptions, Times, state_job
from weir.bench.state.machine import MachinePauses, Span, beyond
from weir.runtime.driver.notices import AttemptRunning

BASELINE_S = 10.0
AFTER_S = 5.0
"""How long the stream is watched after a checkpoint: what it leaves behind must not hold it, either."""

WARM_UP_S = 2.0

SETTLING_MAX = 10
SETTLED_SHARE = 0.1


def run_updates(options: StateOptions, *, seconds: float, compare: bool = False) -> BenchReport:
    """How fast rows are taken once the state is there, and how much memory the workers take. `compare`: the same on
    heap, and the ratio to that."""
    report = _updates(options, seconds=seconds)
    if not compare:
        return report
    heap = _updates(replace(options, backend=weir.Heap()), seconds=seconds)
    more = {
        **report.more,
        "heap_events_per_s": heap.events_per_s,
        "heap_worker_rss_max_mb": heap.more["worker_rss_max_mb"],
        "ratio_to_heap": round(report.events_per_s / heap.events_per_s, 3) if heap.events_per_s else 0.0,
    }
    return replace(report, verified=report.verified and heap.verified, more=more)


def _updates(options: StateOptions, *, seconds: float) -> BenchReport:
    with state_job(options, "state-updates") as job, MemoryWatch(job) as memory:
        job.fill()
        job.let()
        job.handle.wait(WARM_UP_S)
        started_s = time.monotonic()
        job.handle.wait(seconds)
        ended_s = time.monotonic()
        record = job.checkpoint()
        rate = job.rate(started_s, ended_s)
        wrong = job.wrong()
        return _report(
            "state-updates",
            job,
            seconds=ended_s - started_s,
            events=round(rate * (ended_s - started_s)),
            verified=wrong == 0,
            wrong=wrong,
            worker_rss_max_mb=round(memory.most_bytes / 1e6),
            checkpoint_s=round(record.duration_ms / 1e3, 2),
            checkpoint_mb=round(record.size_bytes / 1e6),
        )


def run_pause(options: StateOptions) -> BenchReport:
    """How long a checkpoint of much state holds a task, and what it costs the stream while it is written.

    A pause is the longest time between two ticks of a task. Ticks go past the operator, so that they are late only
    when the task's own loop is: it has one thread for all that it does. What an idle process on some processor could
    not run either was the machine's.
    """
    with state_job(options, "state-pause") as job, MemoryWatch(job) as memory:
        with MachinePauses() as machine:
            job.fill()
            job.checkpoint()  # The first one also warms everything up.
            filled_bytes = sum(map(_resident_bytes, job.handle.process_ids))
            job.let()
            job.handle.wait(AFTER_S)
            baseline_s = time.monotonic()
            job.handle.wait(BASELINE_S)
            record = job.checkpoint()
            job.handle.wait(AFTER_S)
            last = job.checkpoint()
        began_s, ended_s = record.triggered_ms / 1e3, (record.triggered_ms + record.duration_ms) / 1e3
        ticks = job.ticks(last.id)
        before, during = job.rate(baseline_s, began_s), job.rate(began_s, ended_s)
        after = job.rate(ended_s, ended_s + AFTER_S)
        spans = {"before": (baseline_s, began_s), "during": (began_s, ended_s), "after": (ended_s, ended_s + AFTER_S)}
        wrong = job.wrong()
        return _report(
            "state-pause",
            job,
            seconds=ended_s - baseline_s,
            events=round(before * (began_s - baseline_s) + during * (ended_s - began_s)),
            verified=wrong == 0,
            wrong=wrong,
            checkpoint_mb=round(record.size_bytes / 1e6),
            checkpoint_uploaded_mb=round(record.uploaded_bytes / 1e6),
            checkpoint_s=round(record.duration_ms / 1e3, 2),
            **{f"pause_max_{name}_ms": _longest_ms(ticks, span, ()) for name, span in spans.items()},
            **{f"pause_max_{name}_beyond_ms": _longest_ms(ticks, span, machine.spans) for name, span in spans.items()},
            machine_pause_max_during_ms=_longest_of_ms(machine.spans, spans["during"]),
            events_per_s_before=round(before),
            events_per_s_during=round(during),
            events_per_s_after=round(after),
            ratio=round(during / before, 3) if before else 0.0,
            worker_bytes_per_entry=round(filled_bytes / options.entries),
            worker_rss_max_mb=round(memory.most_bytes / 1e6),
        )


def run_incremental(options: StateOptions, *, share: float) -> BenchReport:
    """What a checkpoint uploads after a share of the entries has changed, of what a whole one does."""
    with state_job(replace(options, share=share), "state-incremental") as job:
        job.fill()
        settled, settling = _settled(job)
        job.give(job.kind.fill_rows + job.kind.rows_to_change(share))
        last = job.checkpoint()
        wrong = job.wrong()
        return _report(
            "state-incremental",
            job,
            seconds=last.duration_ms / 1e3,
            events=0,
            verified=wrong == 0,
            wrong=wrong,
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
        job.let(2 * job.kind.fill_rows)
        job.handle.wait(AFTER_S)
        wrong = job.wrong()
        return _report(
            "state-restore",
            job,
            seconds=running_s - killed_s,
            events=0,
            verified=wrong == 0,
            wrong=wrong,
            state_mb=round(record.size_bytes / 1e6),
            kill_to_running_s=round(running_s - killed_s, 2),
        )


def run_rescale(options: StateOptions, *, steps: tuple[int, ...] = (4, 3)) -> BenchReport:
    """Rescale a running job in place; afterwards no update is lost and none counted twice."""
    with state_job(options, "state-rescale") as job:
        job.fill()
        job.let()
        taken_s = []
        for parallelism in steps:
            started_s = time.monotonic()
            job.handle.rescale(parallelism)
            job.wait_for_rows(1)
            taken_s.append(round(time.monotonic() - started_s, 2))
        wrong = job.wrong()
        return _report(
            "state-rescale",
            job,
            seconds=sum(taken_s),
            events=0,
            verified=wrong == 0,
            wrong=wrong,
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
            "entries": job.options.entries,
            "kind": job.options.kind,
            "backend": type(job.options.backend).__name__.lower(),
            **more,
        },
    )


def _resident_bytes(process: int) -> int:
    listing = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False)
    return int(listing.stdout or 0) * 1024


def _longest_ms(ticks: Sequence[Times], within: Span, pauses: Sequence[Span]) -> float:
    """The longest time without a tick of some task, without the machine's `pauses`."""
    longest_s = 0.0
    for at_ns in ticks:
        between = at_ns[(at_ns >= within[0] * 1e9) & (at_ns < within[1] * 1e9)] / 1e9
        at_s = np.concatenate(([within[0]], between, [within[1]]))  # a task without any was held up all the time
        gaps_s = np.diff(at_s)
        for gap in np.argsort(-gaps_s):
            if gaps_s[gap] <= longest_s:
                break
            longest_s = max(longest_s, beyond((float(at_s[gap]), float(at_s[gap + 1])), pauses))
    return round(longest_s * 1e3, 1)


def _longest_of_ms(pauses: Sequence[Span], within: Span) -> float:
    longest_s = max((to - since for since, to in pauses if since < within[1] and within[0] < to), default=0.0)
    return round(longest_s * 1e3, 1)
