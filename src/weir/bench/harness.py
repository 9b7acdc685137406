"""What all workloads share: their settings, the directory that they work in, the run itself, the report.

Comes in: a workload's dataflow. Goes out: committed epochs, the seconds from the first
event to the last as the tasks saw them, and a report that prints as one JSON line.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import weir
from weir.api.job import ENDED
from weir.bench.epochs import Epoch, FoldSink, read_epochs
from weir.bench.stopwatch import Stopwatch, first_poll_ns
from weir.errors import WeirError
from weir.operators.source import Source
from weir.runtime.driver.notices import CheckpointSucceeded, Notice

POLL_S = 0.05
KILL_WAIT_S = 60.0
"""Longest wait for a job to be ready to be killed, or to recover."""

Show = Callable[[Any], None]


@dataclass(frozen=True)
class BenchOptions:
    """What a workload is asked to do."""

    events: int
    parallelism: int = 2
    checkpoint_every: str | None = "5s"
    """None: no periodic checkpoints."""
    work: str | None = None
    """A directory that driver and executors share; None: a temporary one."""
    tls: bool = False
    """Whether the tasks encrypt what they say to each other."""
    show: Show | None = None
    """Called with the handle now and then."""
    memory_max: str | None = None
    """State in RocksDB, with so much memory for each task; None: state on the heap."""


@dataclass(frozen=True)
class BenchReport:
    """What a workload measured. Fields that are None do not apply to it."""

    workload: str
    events: int
    seconds: float
    events_per_s: float
    checkpoints: int
    verified: bool
    parallelism: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What only this workload has to say."""

    def as_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in asdict(self).items() if value is not None and name != "more"}
        return {**values, **self.more}

    def as_json(self) -> str:
        return json.dumps({**self.as_dict(), "weir": weir.__version__, "python": platform.python_version()})


@dataclass(frozen=True)
class FinishedJob:
    """One finished job."""

    epochs: list[Epoch]
    seconds: float
    """From the first poll of a source to the last row at a sink, whatever Spark took to start."""
    checkpoints: int
    notices: list[tuple[float, Notice]]
    """With the time.monotonic() at which each was heard."""


class TimedEnvironment(weir.Environment):
    """Times every source from its first poll on."""

    def __init__(self, starts: Path, **options: Any) -> None:
        super().__init__(**options)
        self._starts = starts
        self._sources = 0

    def timed(self, source: Source, *, prepare: Callable[[], object] | None = None) -> Stopwatch:
        """The source with a stopwatch; `prepare` runs in each task before it starts."""
        self._sources += 1
        timed = Stopwatch(source, self._starts / f"source-{self._sources}", prepare=prepare)
        if self._sources > 1:
            timed.profiles = None  # one profile of a thread is enough, and Python allows no more
        return timed

    def read(self, source: Source, **options: Any) -> weir.Stream:
        return super().read(source if isinstance(source, Stopwatch) else self.timed(source), **options)


class Bench:
    """One workload's job: made in a directory of its own, run once."""

    def __init__(self, options: BenchOptions, directory: Path, name: str) -> None:
        self.options = options
        self.name = name
        self.directory = directory
        self.local = directory / "local"
        """Where tasks keep state that lies on disk."""
        self.notices: list[tuple[float, Notice]] = []
        # Without checkpoints there is no restart, either: to count every row at most once has a price of its own.
        restart = weir.FixedDelay(attempts=100, delay=0) if options.checkpoint_every else weir.NoRestart()
        checkpoints = weir.Checkpoints(
            every=options.checkpoint_every,
            to=str(directory / "checkpoints"),
            mode="exactly_once" if options.checkpoint_every else "none",
        )
        self.environment = TimedEnvironment(
            directory / "starts",
            parallelism=options.parallelism,
            checkpoints=checkpoints,
            restart=restart,
            settings=weir.Settings(tls=options.tls or "auto", backend=self._backend()),
            name=name,
        )

    def _backend(self) -> weir.Heap | weir.RocksDb:
        if self.options.memory_max is None:
            return weir.Heap()
        self.local.mkdir(exist_ok=True)
        return weir.RocksDb(memory_max=self.options.memory_max, directory=str(self.local))

    def read(self, source: Source, *, prepare: Callable[[], object] | None = None) -> weir.Stream:
        """The source, timed from its first poll on; `prepare` runs in each task before that."""
        return self.environment.read(self.environment.timed(source, prepare=prepare), uid="source")

    def sink(self, make_fold: Callable[[], Any]) -> FoldSink:
        return FoldSink(self.directory / "epochs", make_fold)

    def run(self, meanwhile: Callable[[Any], None] = lambda job: None) -> FinishedJob:
        """Run to the end; `meanwhile` is called once with the handle, after the start."""
        job: Any = self.environment.submit()
        job.listen(lambda notice: self.notices.append((time.monotonic(), notice)))
        try:
            meanwhile(job)
            while job.wait(POLL_S) not in ENDED:
                if self.options.show is not None:
                    self.options.show(job)
            if self.options.show is not None:
                self.options.show(job)
        except BaseException:
            job.cancel()
            raise
        epochs = read_epochs(self.directory / "epochs")
        first_ns = first_poll_ns(self.directory / "starts")
        last_ns = max((epoch.last_row_ns for epoch in epochs), default=first_ns)
        completed = sum(isinstance(notice, CheckpointSucceeded) for _, notice in self.notices)
        return FinishedJob(epochs, (last_ns - first_ns) / 1e9, completed, list(self.notices))

    def report(self, run: FinishedJob, *, verified: bool, **more: Any) -> BenchReport:
        known = {name: more.pop(name) for name in ("p50_ms", "p99_ms") if name in more}
        return BenchReport(
            workload=self.name,
            events=self.options.events,
            seconds=round(run.seconds, 3),
            events_per_s=round(self.options.events / run.seconds) if run.seconds else 0,
            checkpoints=run.checkpoints,
            verified=verified,
            parallelism=self.options.parallelism,
            more=more,
            **known,
        )


@contextmanager
def bench(options: BenchOptions, name: str) -> Iterator[Bench]:
    """A job in a fresh directory, which is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"weir-bench-{name}-", dir=options.work))
    try:
        yield Bench(options, directory, name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def await_until(condition: Callable[[], Any], job: Any, what: str) -> Any:
    """Wait for something that a running job will do."""
    deadline_s = time.monotonic() + KILL_WAIT_S
    while not (value := condition()):
        if job.wait(POLL_S / 10) in ENDED:
            raise WeirError(f"the job ended before {what}; give it more --events")
        if time.monotonic() > deadline_s:
            raise WeirError(f"waited {KILL_WAIT_S:.0f} s in vain for {what}")
    return value


def kill_a_worker(job: Any, index: int) -> tuple[int, float]:
    """SIGKILL one of the job's Python workers: its process id and the time.monotonic() of the kill."""
    process_ids = job.process_ids
    victim = process_ids[index % len(process_ids)]
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return victim, killed_s
