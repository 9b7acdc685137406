"""A whole job in one thread of this process: the production driver and workers over ports in memory.

Comes in: a plan, settings and when to crash. Goes out: what the plan's own sinks do
with their rows, and the driver's records. Opens no socket, and starts no thread but for
async functions; only the rocksdb backend has files, in a directory for temporary ones.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weir.config import Checkpoints, FixedDelay, JobConfig, RocksDb, Settings
from weir.errors import JobFailed, ProtocolViolation
from weir.graph.plan import Plan
from weir.ids import AttemptId, ChannelId, Lineage, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import CheckpointSucceeded, Notice
from weir.runtime.driver.verdicts import Finished
from weir.runtime.net.channels import LocalChannel
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.opening import opener_of
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.task.calls import ThreadedCalls
from weir.runtime.task.deploy import deploy
from weir.runtime.task.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import DeployTask, FromTask, StopTask, TaskRegistered, ToTask
from weir.snapshot.parts import Json

JOB = "local"
TURN_MS = 1.0
IDLE_S = 0.000_2
"""A nap when everybody waits for a source that keeps to the real clock."""

IDLE_TURNS_MAX = 10_000
"""Turns in which nothing happens, and no source is waited for, before the run is given up as stuck."""

MEMORY_BYTES = 1 << 40


class _Clock:
    def __init__(self) -> None:
        self.time_ms = 0.0

    def now_ms(self) -> float:
        return self.time_ms

    def wall_ms(self) -> int:
        return round(self.time_ms)

    def not_before(self, wall_ms: float) -> None:
        """Nobody sets this clock."""


class _Background:
    """Work that waits for its turn."""

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = rng
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))

    def breathe(self) -> None:
        """Time does not pass while work is done."""

    def turn(self) -> bool:
        """Do what waits, or with a seed perhaps not yet. True when something was there."""
        waiting = len(self._waiting)
        for _ in range(waiting):
            if self._rng is not None and self._rng.random() < 0.5:
                break
            work, done = self._waiting.popleft()
            try:
                result = work()
            except Exception as error:
                result = error
            done(result)
        return waiting > 0


class _Task:
    """One task of the attempt: a production worker, its orders and its background work."""

    def __init__(self, run: LocalRun, attempt: AttemptId, task: TaskIndex) -> None:
        self.worker: Worker | None = None
        self.left = False
        self.orders: deque[ToTask] = deque()
        self._run = run
        self._background = _Background(run.rng)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._config = WorkerConfig(JOB, run.shipped_plan(), task, attempt, "exactly_once", run.settings, run.lineage)
        self.send(TaskRegistered(attempt, task, f"local:{task}", 0))

    def send(self, message: FromTask) -> None:
        """The worker's line to the driver."""
        self._run.said.append(message)

    def turn(self) -> bool:
        busy = self._background.turn()
        while self.orders and not self.left:
            busy = True
            self._obey(self.orders.popleft())
        if self.worker is not None and not self.left:
            busy = self.worker.step() or busy
        return busy

    def close(self) -> None:
        self.left = True
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        if self._directory is not None:
            self._directory.cleanup()

    def _obey(self, order: ToTask) -> None:
        if isinstance(order, DeployTask):
            self._deploy(order)
        elif isinstance(order, StopTask):
            if self.worker is not None:
                self._run.metrics.append(self.worker.metrics())
            self.close()
        elif self.worker is not None:
            self.worker.handle(order)

    def _deploy(self, order: DeployTask) -> None:
        run = self._run
        if isinstance(run.settings.backend, RocksDb):
            self._directory = tempfile.TemporaryDirectory(prefix="weir-", dir=run.settings.backend.directory)
        directory = None if self._directory is None else self._directory.name
        ports = WorkerPorts(
            run.clock,
            run,
            self,
            self._background,
            run.storage,
            opener_of(run.settings),
            directory=directory,
            calls=ThreadedCalls,
        )
        self.worker = Worker(self._config, ports)
        deploy(self.worker, order)


class LocalRun:
    """The driver, its tasks and everything between them, in one loop. Also the driver's cluster and the channels.

    shipped_plan: makes the plan that one task gets, as if it had been sent there
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        *,
        shipped_plan: Callable[[], Plan],
        crashes: Sequence[int],
        checkpoint_every: int | None,
        rng: random.Random | None,
        lineage: Lineage,
    ) -> None:
        # Nobody is ever late here: the clock is ours. And there is one process, so whatever fails fails with it.
        settings = replace(settings, heartbeat_timeout="1000d", launch_timeout="1000d", stop_timeout="1000d")
        settings = replace(settings, restore_timeout="1000d", share_slots=True)
        self.settings, self.rng, self.shipped_plan = settings, rng, shipped_plan
        self._plan = plan
        store = CheckpointStore(MemoryStorage(MEMORY_BYTES), JOB, lineage=lineage)
        self.clock, self.storage, self.lineage = _Clock(), store.storage, lineage
        self.turns = 0
        self.checkpoints = 0
        self.said: deque[FromTask] = deque()
        self.metrics: list[Json] = []
        self._crashes = deque(sorted(crashes))
        self._checkpoint_every = checkpoint_every
        self._background = _Background(rng)
        self._tasks: list[_Task] = []
        self._attempt: AttemptId | None = None
        self._channels: dict[ChannelId, LocalChannel] = {}
        config = JobConfig(
            JOB, Checkpoints(every=None), FixedDelay(attempts=len(self._crashes), delay=0), settings=settings
        )
        self.driver = Driver(
            config,
            plan,
            run=JOB,
            clock=self.clock,
            background=self._background,
            cluster=self,
            store=store,
            opener=opener_of(settings),
            settings=CoordinatorSettings(),
            notify=self._noticed,
        )

    # --- The ports ---

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        self._attempt = attempt
        capacity = self.settings.channel_batches_max
        self._channels = {channel: LocalChannel(capacity) for channel in self._plan.channels}
        self._tasks = [_Task(self, attempt, TaskIndex(index)) for index in range(self._plan.parallelism)]

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        if attempt == self._attempt and self._tasks:
            self._tasks[task].orders.append(message)

    def kill(self, attempt: AttemptId) -> None:
        raise ProtocolViolation("local run: a task did not leave")

    def out(self, channel: ChannelId) -> LocalChannel:
        return self._channels[channel]

    into = out

    # --- The loop ---

    def to_end(self) -> None:
        """Run until the job has finished; whatever a task raises is raised here."""
        try:
            self._loop()
        finally:
            for task in self._tasks:
                task.close()
        phase = self.driver.phase
        if isinstance(phase, phases.Ended) and not isinstance(phase.verdict, Finished):
            raise JobFailed(f"local run: the job ended as {phase.verdict!r}")

    def _loop(self) -> None:
        idle_turns = 0
        self.driver.start()
        while not isinstance(self.driver.phase, phases.Ended):
            self.turns += 1
            self.clock.time_ms += TURN_MS
            idle_turns = 0 if self._turn() else idle_turns + 1
            if idle_turns:
                self._wait(idle_turns)

    def _turn(self) -> bool:
        busy = self._background.turn()
        tasks = self._tasks if self.rng is None else self.rng.sample(self._tasks, len(self._tasks))
        for task in tasks:
            busy = task.turn() or busy
        while self.said:
            busy = True
            self.driver.hear(self.said.popleft())
        running = isinstance(self.driver.phase, phases.Running)
        if running and self._checkpoint_every is not None and self.turns % self._checkpoint_every == 0:
            self.driver.request()
        if running and self._crashes and self.turns >= self._crashes[0]:
            self._crashes.popleft()
            self._crash()
        if self._tasks and all(task.left for task in self._tasks) and self._attempt is not None:
            self._tasks = []
            self.driver.stage_ended(self._attempt, None)
        due_ms = self.driver.next_due_ms()
        if due_ms is not None and due_ms <= self.clock.time_ms:
            self.driver.tick()
        return busy

    def _noticed(self, notice: Notice) -> None:
        if isinstance(notice, CheckpointSucceeded):
            self.checkpoints += 1

    def _crash(self) -> None:
        """Everything that the tasks held is gone; what is in storage stays."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.close()
        self.said.clear()
        self.driver.stage_ended(self.driver.attempt or AttemptId(0), f"lost at turn {self.turns}, as asked for")

    def _wait(self, idle_turns: int) -> None:
        """Nobody can do anything now: go to when a source wants to be asked again."""
        wakes_ms = [task.worker.wake_ms for task in self._tasks if task.worker is not None]
        waits_ms = [wake_ms for wake_ms in wakes_ms if wake_ms is not None]
        if waits_ms:
            self.clock.time_ms = max(self.clock.time_ms, min(waits_ms))
            time.sleep(IDLE_S)
        elif idle_turns > IDLE_TURNS_MAX:
            raise ProtocolViolation(f"local run: nothing happens any more; the driver is {self.driver.phase!r:.500}")
