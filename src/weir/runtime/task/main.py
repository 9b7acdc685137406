"""One Spark task of an attempt: the worker loop on real ports.

Comes in: a TaskSpec that Spark ships, and the driver's address. Goes out: nothing but
what the worker does; the task ends when the driver says so, when it fails, or when the
driver is gone or has not been heard for Settings.line_timeout. The only thread that runs
operators is the one that Spark calls us on.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from weir.config import Mode, Settings
from weir.errors import JobError, TaskLost, WeirError
from weir.graph.plan import Plan
from weir.ids import AttemptId, Lineage, TaskIndex
from weir.runtime.aside import ThreadAside
from weir.runtime.clock import Mailbox, SystemClock, ThreadBackground
from weir.runtime.net.control import ControlClient, RemoteStorage
from weir.runtime.net.exchange import TaskTransport
from weir.runtime.net.lines import Lines
from weir.runtime.ports import Copies, Storage
from weir.runtime.storage.local_copies import NO_COPIES, LocalCopies
from weir.runtime.storage.local_directory import TaskDirectory, needs_directory, run_directory
from weir.runtime.storage.opening import opener_of
from weir.runtime.task.calls import ThreadedCalls
from weir.runtime.task.deploy import deploy
from weir.runtime.task.failures import for_driver, for_spark
from weir.runtime.task.memory import Allocator
from weir.runtime.task.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.messages import (
    DeployTask,
    StopTask,
    TaskFailed,
    TaskRegistered,
    ToTask,
    WorkerDeath,
)

SWITCH_INTERVAL_S = 0.001
"""How long a background thread may keep the interpreter when the loop wants it back: Python's own 5 ms, each time that
the loop calls into Arrow or RocksDB, would add up to a pause."""

IDLE_WAIT_MAX_MS = 100.0
"""Longest nap of an idle loop; whatever arrives wakes it earlier."""

STUCK_EXIT_CODE = 75
"""Of a process that ended itself, since its task could not (EX_TEMPFAIL of sysexits.h)."""


@dataclass(frozen=True)
class TaskSpec:
    """What every task of an attempt is given."""

    job: str
    plan: Plan
    lineage: Lineage
    attempt: AttemptId
    mode: Mode
    settings: Settings
    control_address: str
    lines: Lines
    storage_uri: str | None = field(repr=False)
    """Where checkpoints of this lineage lie; None: in the driver's memory."""
    may_drop_state: bool = False


def run_task(spec: TaskSpec, task: TaskIndex, host: str, deaths: tuple[WorkerDeath, ...] = ()) -> None:
    """Run one task until the driver lets it go. `deaths`: of other processes on this host, for the driver to hear."""
    _Task(spec, task, host, deaths).run()


class _Task:
    def __init__(self, spec: TaskSpec, task: TaskIndex, host: str, deaths: tuple[WorkerDeath, ...]) -> None:
        self._spec = spec
        self._task = task
        self._deaths = deaths
        self._mailbox = Mailbox()
        self._clock = SystemClock()
        self._allocator = Allocator()
        self._orders: list[ToTask] = []
        self._lost: str | None = None
        self._last_resort: threading.Timer | None = None
        self._ended = threading.Event()
        self._worker: Worker | None = None
        self._remote_storage: RemoteStorage | None = None
        self._directory: TaskDirectory | None = None
        self._opener = opener_of(spec.settings)
        self._background = ThreadBackground(
            spec.settings.snapshot_threads, self._mailbox, share=spec.settings.snapshot_share, stands_back=True
        )
        self._aside = ThreadAside()
        self._transport = TaskTransport(
            spec.plan,
            task,
            spec.attempt,
            lines=spec.lines,
            host=host,
            capacity=spec.settings.channel_batches_max,
            wake=self._mailbox.wake,
        )
        self._control = ControlClient(
            spec.control_address,
            lines=spec.lines,
            attempt=spec.attempt,
            task=task,
            on_message=lambda message: self._mailbox.post(lambda: self._orders.append(message)),
            on_lost=self._driver_lost,
        )

    def run(self) -> None:
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            # Begins Polars' threads: those that a background thread begins would stand back, too.
            pl.LazyFrame({"a": [0]}).group_by("a").len().collect()
            self._run()
        except BaseException as error:
            self._report(error)
            raise for_spark(error, f"task {self._task} of attempt {self._spec.attempt}") from None
        finally:
            self._close()
            self._ended.set()
            if self._last_resort is not None:
                self._last_resort.cancel()
            sys.setswitchinterval(usual_s)

    def _run(self) -> None:
        spec = self._spec
        whoami = TaskRegistered(spec.attempt, self._task, self._transport.address, os.getpid(), self._deaths)
        self._control.send(whoami)
        order = self._await_deploy()
        if order is None:
            return
        storage = self._storage()
        self._transport.connect(order.addresses)
        config = WorkerConfig(
            spec.job,
            spec.plan,
            self._task,
            spec.attempt,
            spec.mode,
            spec.settings,
            spec.lineage,
            may_drop_state=spec.may_drop_state,
        )
        copies = self._make_directory(storage)
        ports = WorkerPorts(
            self._clock,
            self._transport,
            self._control,
            self._background,
            storage,
            self._opener,
            copies,
            None if self._directory is None else self._directory.path,
            lambda function, policy: ThreadedCalls(function, policy, wake=self._mailbox.wake),
            aside=self._aside,
        )
        self._worker = Worker(config, ports)
        deploy(self._worker, order)
        self._loop(self._worker)

    def _await_deploy(self) -> DeployTask | None:
        while True:
            self._mailbox.wait(IDLE_WAIT_MAX_MS)
            self._mailbox.drain()
            self._check_driver()
            for order in self._orders:
                if isinstance(order, StopTask):
                    return None
                if isinstance(order, DeployTask):
                    self._orders.remove(order)
                    return order

    def _loop(self, worker: Worker) -> None:
        heartbeat_ms = self._spec.settings.heartbeat_interval_ms
        beat_ms = 0.0
        while worker.stopped is None:
            self._mailbox.drain()
            self._check_driver()
            if self._transport.failure is not None:
                raise self._transport.failure
            orders, self._orders = self._orders, []
            for order in orders:
                worker.handle(order)
            progressed = worker.step()
            now_ms = self._clock.now_ms()
            if now_ms >= beat_ms:
                beat_ms = now_ms + heartbeat_ms
                worker.heartbeat()
                self._allocator.tidy(now_ms)
            if not progressed and not orders:
                self._nap(worker, now_ms, beat_ms)
        worker.heartbeat()

    def _nap(self, worker: Worker, now_ms: float, beat_ms: float) -> None:
        until_ms = min(now_ms + IDLE_WAIT_MAX_MS, beat_ms)
        if (wake_ms := worker.wake_ms) is not None:
            until_ms = min(until_ms, wake_ms)
        if until_ms > now_ms:
            self._mailbox.wait(until_ms - now_ms)

    def _storage(self) -> Storage:
        if self._spec.storage_uri is None:
            self._remote_storage = RemoteStorage(self._spec.control_address, self._spec.lines)
            return self._remote_storage
        return self._opener(self._spec.storage_uri)

    def _make_directory(self, storage: Storage) -> Copies:
        """Make the task's local directory, where one is wanted. Returns who keeps copies there of what storage gets."""
        spec = self._spec
        if not needs_directory(spec.settings):
            return NO_COPIES
        run = run_directory(spec.settings, spec.job, spec.lines.token)
        self._directory = TaskDirectory(run, spec.attempt, self._task, region=spec.plan.region)
        self._directory.make()
        return LocalCopies(storage, self._directory.copies) if spec.settings.local_recovery else NO_COPIES

    def _driver_lost(self, reason: str) -> None:
        """Called by the line's own thread. The loop leaves by itself, unless it hangs in a user's function or in a call
        of a storage that is cut off, too: then the process ends, so that Spark gets its slot back."""
        self._lost = reason
        self._mailbox.wake()
        self._last_resort = threading.Timer(self._spec.lines.timeout_s, self._end_process)
        self._last_resort.name = "weir-last-resort"
        self._last_resort.daemon = True
        self._last_resort.start()

    def _end_process(self) -> None:
        if not self._ended.is_set():
            print(
                f"weir: task {self._task} of attempt {self._spec.attempt} lost its driver ({self._lost}) and did not "
                f"end within {self._spec.lines.timeout_s:g} s: its process exits",
                file=sys.stderr,
                flush=True,
            )
            os._exit(STUCK_EXIT_CODE)

    def _check_driver(self) -> None:
        if self._lost is not None:
            raise TaskLost(f"task {self._task}: the driver is gone ({self._lost})")

    def _report(self, error: BaseException) -> None:
        text = for_driver(error, show_rows=self._spec.settings.show_rows)
        code = error.code if isinstance(error, WeirError) else type(error).__name__
        fatal = isinstance(error, JobError)
        _quietly(lambda: self._control.send(TaskFailed(self._spec.attempt, self._task, text, code, fatal)))

    def _close(self) -> None:
        # In the order in which they use each other; each is tried, whatever the others do.
        _quietly(self._background.close)
        _quietly(self._aside.close)
        if self._worker is not None:
            _quietly(self._worker.close)
        _quietly(self._transport.close)
        if self._remote_storage is not None:
            _quietly(self._remote_storage.close)
        _quietly(self._control.close)
        if self._directory is not None:
            stopped = None if self._worker is None else self._worker.stopped
            self._directory.remove(copies=stopped is not None and not stopped.cancelled)


def _quietly(act: Callable[[], object]) -> None:
    """Leaving must go on whatever fails on the way; the error that matters was told before."""
    try:
        act()
    except Exception:
        traceback.print_exc()
