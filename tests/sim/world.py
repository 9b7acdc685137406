"""The simulated world: one seeded loop that steps workers, delivers messages, moves time and breaks things.

The driver and the workers are the production ones, over simulated ports. A run ends when the job
has finished, or fails with SimulationFailed and the trace of what happened.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.ports import SimBackground, SimChannel, SimClock, SimControl, SimTransport
from tests.sim.storage import CallerCrashed, SimStorage
from tests.sim.workload import External, Job, draw_job
from weir.config import FixedDelay, JobConfig
from weir.errors import JobError, ProtocolViolation, StorageUnavailable, WeirError
from weir.ids import AttemptId, TaskIndex
from weir.runtime import layout, phases
from weir.runtime.checkpoint_store import CheckpointStore
from weir.runtime.driver import Driver
from weir.runtime.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.coordinator import CoordinatorSettings
from weir.snapshot.manifest import decode
from weir.snapshot.messages import DeployTask, StopTask, TaskFailed, TaskRegistered, ToTask

STEPS_MAX = 60_000
"""A run that takes longer hangs."""

FAULT_STEPS = 2_000
"""Faults fall within the first so many steps; afterwards the job must finish."""


class SimulationFailed(AssertionError):
    """The job did something that it must never do."""


class SimTask:
    """One task process of one attempt."""

    def __init__(self, world: World, stage: SimStage, task: TaskIndex) -> None:
        self.world = world
        self.stage = stage
        self.task = task
        self.control = SimControl()
        self.background = SimBackground()
        self.inbox: deque[ToTask] = deque()
        self.on_the_way: deque[ToTask] = deque()
        self.worker: Worker | None = None
        self.alive = True
        self.started = False
        self.frozen_until_ms = 0.0
        self.beat_ms = 0.0

    @property
    def label(self) -> str:
        return f"task {self.stage.attempt}.{self.task}"

    def step(self) -> None:
        """What the task's loop does in one turn."""
        self.guard(self._turn)

    def guard(self, act: Callable[[], None]) -> None:
        """Run something in this process: an error ends it, as it would on Spark."""
        try:
            act()
        except ProtocolViolation as error:
            raise SimulationFailed(f"{self.label}: {error}") from error
        except WeirError as error:
            self.control.send(
                TaskFailed(self.stage.attempt, self.task, str(error), error.code, isinstance(error, JobError))
            )
            self.world.log(f"{self.label} failed: {error}")
            self.die(f"task {self.task} failed")
        except CallerCrashed:
            self.die(f"task {self.task} was killed in the middle of a write")

    def _turn(self) -> None:
        if not self.started:
            self.started = True
            self.control.send(TaskRegistered(self.stage.attempt, self.task, f"sim:{self.task}", 0))
            return
        while self.inbox:
            self._order(self.inbox.popleft())
            if not self.alive:
                return
        if self.worker is None:
            return
        self.worker.step()
        if self.world.clock.now_ms() >= self.beat_ms:
            self.beat_ms = self.world.clock.now_ms() + 20
            self.worker.heartbeat()

    def _order(self, order: ToTask) -> None:
        if isinstance(order, DeployTask):
            self._deploy(order)
        elif self.worker is not None:
            self.worker.handle(order)
        if isinstance(order, StopTask):
            self.leave()

    def _deploy(self, order: DeployTask) -> None:
        storage = self.world.job_storage
        manifest = None
        if order.restore is not None:
            manifest = decode(storage.read(layout.manifest_path(order.restore)).to_pybytes())
        job = self.world.job
        config = WorkerConfig("sim", job.plan, self.task, self.stage.attempt, job.checkpoints.mode, job.settings)
        ports = WorkerPorts(self.world.clock, SimTransport(self.stage.channels), self.control, self.background, storage)
        self.worker = Worker(config, ports)
        self.worker.open(manifest)

    def leave(self) -> None:
        """Exit in good order. The process waits for its background work, as ThreadBackground.close does."""
        while self.background.waiting:
            work, _ = self.background.waiting.popleft()
            run_quietly(work)
        if self.worker is not None:
            self.worker.close()
        self.alive = False
        self.stage.task_ended(None)

    def die(self, reason: str) -> None:
        """Die at once. Work that a thread had begun may still reach storage, later."""
        if not self.alive:
            return
        self.alive = False
        self.world.orphans += [work for work, _ in self.background.waiting if self.world.rng.random() < 0.5]
        self.world.log(f"{self.label} died: {reason}")
        if self.world.rng.random() < 0.7:
            self.stage.lost.append((self.task, reason))
        self.stage.task_ended(reason)


class SimStage:
    """The barrier stage of one attempt: when one task fails, the stage fails; the others may linger."""

    def __init__(self, world: World, attempt: AttemptId) -> None:
        self.world = world
        self.attempt = attempt
        self.channels: dict[Any, SimChannel] = {}
        plan = world.job.plan
        for channel in plan.channels:
            local = channel.source == channel.target
            self.channels[channel] = SimChannel(world.job.settings.channel_batches_max, local)
        self.tasks = [SimTask(world, self, TaskIndex(i)) for i in range(plan.parallelism)]
        self.lost: deque[tuple[TaskIndex, str]] = deque()
        self.error: str | None = None
        self.told = False
        self.doomed = False

    def task_ended(self, error: str | None) -> None:
        if error is not None:
            self.error = self.error or error
            self.doomed = True

    @property
    def over(self) -> bool:
        """Whether Spark would say so: it does not wait for killed tasks to be gone."""
        return self.doomed or not any(task.alive for task in self.tasks)

    def kill(self) -> None:
        self.doomed = True
        self.error = self.error or "killed by the driver"


class SimCluster:
    """The driver's Cluster port."""

    def __init__(self, world: World) -> None:
        self._world = world

    def launch(self, attempt: AttemptId) -> None:
        self._world.log(f"driver launches attempt {attempt}")
        self._world.stages[attempt] = SimStage(self._world, attempt)

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        stage = self._world.stages.get(attempt)
        if stage is not None and stage.tasks[task].alive:
            stage.tasks[task].on_the_way.append(message)

    def kill(self, attempt: AttemptId) -> None:
        if attempt in self._world.stages:
            self._world.stages[attempt].kill()


class World:
    """One simulated run."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.clock = SimClock()
        self.trace: deque[str] = deque(maxlen=400)
        self._tracer = trace
        self.external = External(self.rng)
        self.storage = SimStorage(self.rng)
        self.job_storage = self.storage.below("sim")
        self.job: Job = draw_job(self.rng, self.external)
        self.stages: dict[AttemptId, SimStage] = {}
        self.orphans: list[Callable[[], Any]] = []
        self.driver_background = SimBackground()
        self.driver_runs = 0
        self.steps = 0
        self.completed_ids: list[int] = []
        self.storage_was_calm = True
        self.faults = draw_faults(self.rng)
        self.driver = self._new_driver(resume=False)

    def log(self, text: str) -> None:
        line = f"{self.steps:6d} {self.clock.time_ms:9.2f}ms  {text}"
        self.trace.append(line)
        if self._tracer is not None:
            self._tracer(line)

    def run(self) -> None:
        """Step until the job has finished and everybody is gone."""
        while not isinstance(self.driver.phase, phases.Ended):
            self._step()
        if self.driver.phase.outcome is not phases.Outcome.FINISHED:
            raise SimulationFailed(f"the job ended as {self.driver.phase}")
        while self.driver_background.waiting:
            work, _ = self.driver_background.take(0)
            run_quietly(work)
        self.storage_was_calm = self.storage.trouble == 0
        self._fault_calm()
        self.storage.tear = False

    def linger(self) -> None:
        """Let what is left of old attempts go on for a while: it must not change anything."""
        for stage in self.stages.values():
            for task in stage.tasks:
                for _ in range(5):
                    if task.alive:
                        task.step()
                task.alive = False
        for work in self.orphans:
            run_quietly(work)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise SimulationFailed(f"the job did not finish in {STEPS_MAX} steps; driver: {self.driver.phase}")
        self.clock.time_ms += self.rng.random() * 0.4
        self._maybe_break()
        dice = self.rng.random()
        if dice < 0.5:
            self._step_task()
        elif dice < 0.75:
            self._deliver()
        elif dice < 0.93:
            self._background()
        else:
            self._stages()
        due_ms = self.driver.next_due_ms()
        if due_ms is not None and self.clock.time_ms >= due_ms:
            self.driver.tick()

    def _alive_tasks(self) -> list[SimTask]:
        now_ms = self.clock.time_ms
        return [t for s in self.stages.values() for t in s.tasks if t.alive and now_ms >= t.frozen_until_ms]

    def _step_task(self) -> None:
        if tasks := self._alive_tasks():
            self.rng.choice(tasks).step()

    def _deliver(self) -> None:
        """One thing that is on its way arrives: control messages and channel elements keep their order per line."""
        choices: list[Callable[[], None]] = []
        for stage in self.stages.values():
            for task in stage.tasks:
                if task.control.to_driver:
                    choices.append(lambda task=task: self.driver.hear(task.control.to_driver.popleft()))
                if task.alive and task.on_the_way:
                    choices.append(lambda task=task: task.inbox.append(task.on_the_way.popleft()))
            choices += [channel.deliver for channel in stage.channels.values() if channel.wire]
        if choices:
            self.rng.choice(choices)()

    def _background(self) -> None:
        owners: list[tuple[SimTask | None, SimBackground]] = [
            (task, task.background) for task in self._alive_tasks() if task.background.waiting
        ]
        if self.driver_background.waiting:
            owners.append((None, self.driver_background))
        if self.orphans and self.rng.random() < 0.3:
            run_quietly(self.orphans.pop(self.rng.randrange(len(self.orphans))))
        if not owners:
            return
        task, background = self.rng.choice(owners)
        work, done = background.take(self.rng.randrange(min(2, len(background.waiting))))
        if task is None:
            self._driver_guard(lambda: done(outcome_of(work)))
        else:
            task.guard(lambda: done(outcome_of(work)))

    def _driver_guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except CallerCrashed:
            self.crash_driver("killed in the middle of a write")

    def _stages(self) -> None:
        for attempt, stage in list(self.stages.items()):
            if stage.lost:
                task, reason = stage.lost.popleft()
                self.driver.task_lost(attempt, task, reason)
            if stage.doomed and self.rng.random() < 0.3:
                victims = [task for task in stage.tasks if task.alive]
                if victims and self.clock.time_ms >= victims[0].frozen_until_ms:
                    self.rng.choice(victims).die("killed by Spark with its stage")
            if stage.over and not stage.told and self.rng.random() < 0.5:
                stage.told = True
                self.driver.stage_ended(attempt, stage.error)
            if stage.told and not any(t.alive or t.control.to_driver for t in stage.tasks):
                del self.stages[attempt]

    # --- Faults ------------------------------------------------------------------------------------------

    def _maybe_break(self) -> None:
        if self.steps == FAULT_STEPS:
            self.storage.trouble = self.external.trouble = 0.0
            self.storage.tear = False
        while self.faults and self.faults[0][0] <= self.steps:
            _, fault = self.faults.pop(0)
            getattr(self, f"_fault_{fault}")()

    def _fault_kill_task(self) -> None:
        if tasks := self._alive_tasks():
            self.rng.choice(tasks).die("SIGKILL")

    def _fault_freeze_task(self) -> None:
        if tasks := self._alive_tasks():
            task = self.rng.choice(tasks)
            task.frozen_until_ms = self.clock.time_ms + self.rng.choice([5, 100, 900])
            self.log(f"{task.label} is frozen until {task.frozen_until_ms:.0f}ms")

    def _fault_crash_driver(self) -> None:
        self.crash_driver("SIGKILL")

    def _fault_tear_write(self) -> None:
        self.storage.tear = True

    def _fault_reset_channel(self) -> None:
        stages = [stage for stage in self.stages.values() if not stage.doomed]
        remote = [(s, c) for s in stages for c in s.channels if c.source != c.target]
        if remote:
            stage, channel = self.rng.choice(remote)
            self.log(f"channel {channel} of attempt {stage.attempt} is reset")
            stage.channels[channel].wire.clear()
            for end in (channel.source, channel.target):
                task = stage.tasks[end]
                if task.alive:
                    task.guard(lambda: _raise(StorageUnavailable("the stream to a peer broke")))

    def _fault_storage_trouble(self) -> None:
        self.storage.trouble = self.rng.choice([0.02, 0.1, 0.3])

    def _fault_external_trouble(self) -> None:
        self.external.trouble = 0.3

    def _fault_calm(self) -> None:
        self.storage.trouble = self.external.trouble = 0.0

    def crash_driver(self, reason: str) -> None:
        """The driver dies: its tasks notice later, or linger; a new driver is started with resume."""
        self.log(f"the driver died: {reason}")
        self.orphans += [work for work, _ in self.driver_background.waiting if self.rng.random() < 0.5]
        self.driver_background = SimBackground()
        for stage in self.stages.values():
            stage.doomed = True
            stage.told = True
            for task in stage.tasks:
                task.control.to_driver.clear()
        self.driver = self._new_driver(resume=True)

    def _new_driver(self, *, resume: bool) -> Driver:
        self.driver_runs += 1
        config = JobConfig(
            "sim",
            checkpoints=self.job.checkpoints,
            restart=FixedDelay(attempts=10_000, delay="5ms"),
            settings=self.job.settings,
            resume=resume,
        )
        driver = Driver(
            config,
            self.job.plan,
            run=f"run-{self.driver_runs}",
            clock=self.clock,
            background=self.driver_background,
            cluster=SimCluster(self),
            store=CheckpointStore(self.job_storage, "sim", retries_max=3),
            settings=CoordinatorSettings.from_config(self.job.checkpoints),
            notify=lambda notice: self._noticed(notice.kind, notice.detail),
        )
        driver.start()
        return driver

    def _noticed(self, kind: str, detail: dict[str, Any]) -> None:
        self.log(f"driver: {kind} {detail}")
        if kind == "checkpoint_completed":
            self.completed_ids.append(detail["id"])


FAULTS = [
    "kill_task",
    "kill_task",
    "kill_task",
    "freeze_task",
    "crash_driver",
    "tear_write",
    "reset_channel",
    "storage_trouble",
    "external_trouble",
    "calm",
]


def draw_faults(rng: random.Random) -> list[tuple[int, str]]:
    """When, in steps, and what. Some runs see none."""
    count = rng.choice([0, 1, 2, 3, 5, 8])
    # Most runs are over after some hundred steps, so most faults fall early.
    return sorted((10 + int(rng.random() ** 2 * (FAULT_STEPS - 10)), rng.choice(FAULTS)) for _ in range(count))


def outcome_of(work: Callable[[], Any]) -> Any:
    """The result of background work, or its exception, as a thread pool would hand it back."""
    try:
        return work()
    except Exception as error:
        return error


def run_quietly(work: Callable[[], Any]) -> None:
    """Work of a process that is gone: whatever comes of it, nobody hears."""
    try:
        work()
    except (Exception, CallerCrashed):
        return


def _raise(error: Exception) -> None:
    raise error
