"""The tasks of one simulated attempt: production workers over simulated ports, in processes that can die or freeze."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.ports import SimCalls, SimChannel, SimControl, SimTransport
from tests.sim.work import Process, Work
from weir.errors import JobError, ProtocolViolation, WeirError
from weir.graph.plan import Plan
from weir.ids import AttemptId, ChannelId, TaskIndex
from weir.runtime.task.deploy import deploy
from weir.runtime.task.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.messages import (
    DeployTask,
    DrainSources,
    StopTask,
    TaskFailed,
    TaskRegistered,
    ToTask,
    TriggerCheckpoint,
)

if TYPE_CHECKING:
    from tests.sim.drivers import SimDriver
    from tests.sim.world import World

HEARTBEAT_MS = 10.0


class SimulationFailed(AssertionError):
    """The job did something that it must never do."""


class SimTask(Process):
    """One task process of one attempt."""

    def __init__(self, world: World, stage: SimStage, task: TaskIndex) -> None:
        super().__init__(world.job.settings.snapshot_threads)
        self.world = world
        self.stage = stage
        self.task = task
        self.control = SimControl()
        self.inbox: deque[ToTask] = deque()
        self.on_the_way: deque[ToTask] = deque()
        self.worker: Worker | None = None
        self.started = False
        self.heard_after_ms = 0.0
        self.beat_ms = 0.0

    @property
    def label(self) -> str:
        return f"task {self.stage.attempt}.{self.task}"

    def step(self) -> None:
        """What the task's loop does in one turn, or as far as it comes."""
        if self.main is None:
            self.main = Work(self._turn, owner=self)
        if self.main.is_ready(self.world.clock.time_ms):
            self.go_on(self.main)

    def main_ended(self, work: Work) -> None:
        if isinstance(work.result, Exception):
            self._ended_by(work.result)

    def told(self, work: Work) -> None:
        self.guard(lambda: super(SimTask, self).told(work))

    def crashed(self) -> None:
        self.die("killed in the middle of a write")

    def guard(self, act: Callable[[], None]) -> None:
        """Run something in this process: an error ends it, as it would on Spark."""
        try:
            act()
        except Exception as error:
            self._ended_by(error)

    def _ended_by(self, error: Exception) -> None:
        if isinstance(error, ProtocolViolation):
            raise SimulationFailed(f"{self.label}: {error}") from error
        if not isinstance(error, WeirError | OSError):
            raise error
        code = error.code if isinstance(error, WeirError) else type(error).__name__
        self.control.send(TaskFailed(self.stage.attempt, self.task, str(error), code, isinstance(error, JobError)))
        self.world.log(f"{self.label} failed: {error}")
        self.die(f"task {self.task} failed")

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
        if self.world.clock.time_ms >= self.beat_ms:
            self.beat_ms = self.world.clock.time_ms + HEARTBEAT_MS
            self.worker.heartbeat()

    def _order(self, order: ToTask) -> None:
        if isinstance(order, DeployTask):
            self._deploy(order)
        elif self.worker is not None:
            self.worker.handle(order)
        if isinstance(order, StopTask):
            self.leave()

    def _deploy(self, order: DeployTask) -> None:
        storage, job = self.stage.owner.store.storage, self.world.job
        config = WorkerConfig(
            "sim",
            self.stage.plan,
            self.task,
            self.stage.attempt,
            job.checkpoints.mode,
            job.settings,
            self.stage.owner.store.lineage,
        )
        clock, rng = self.world.clock, self.world.calls_rng
        ports = WorkerPorts(
            clock,
            SimTransport(self.stage.channels),
            self.control,
            self.background,
            storage,
            self.world.storage.open,
            calls=lambda function, policy: SimCalls(function, clock, rng),
            chance=self.world.pause_rng.random,
            directory=self.world.disks.of_task(self.world.job.settings),
            aside=self.world.disks.aside,
        )
        self.worker = Worker(config, ports)
        deploy(self.worker, order)

    def leave(self) -> None:
        """Exit in good order: what has begun in the background is waited for, but not for ever; the rest is dropped."""
        for work in self.background.begun:
            if not work.has_hung and self.world.rng.random() < 0.7:
                work.go_to_the_end()
        self.main = None  # this very thread
        self.world.orphaned(self.kill_works())
        if self.worker is not None:
            self.worker.close()
        self.alive = False
        self.stage.task_ended(None)

    def die(self, reason: str) -> None:
        """Die at once. What it was writing may still reach storage, later."""
        if not self.alive:
            return
        self.alive = False
        self.world.orphaned(self.kill_works())
        self.world.log(f"{self.label} died: {reason}")
        if self.world.rng.random() < 0.3:
            # Its last words are still on their way.
            self.heard_after_ms = self.world.clock.time_ms + self.world.rng.choice([8, 20, 50])
        if self.world.rng.random() < 0.7:
            self.stage.lost.append((self.task, reason))
        self.stage.task_ended(reason)


class SimStage:
    """The barrier stage of one attempt: when one task fails, the stage fails; the others may linger."""

    def __init__(self, world: World, owner: SimDriver, attempt: AttemptId, plan: Plan) -> None:
        self.attempt = attempt
        self.owner = owner
        self.plan = plan
        capacity = world.job.settings.channel_batches_max
        self.channels: dict[ChannelId, SimChannel] = {
            channel: SimChannel(capacity, channel.source == channel.target) for channel in self.plan.channels
        }
        self.remote = [(id, channel) for id, channel in self.channels.items() if id.source != id.target]
        self.tasks = [SimTask(world, self, TaskIndex(i)) for i in range(self.plan.parallelism)]
        self.lost: deque[tuple[TaskIndex, str]] = deque()
        self.error: str | None = None
        self.told = False
        self.doomed = False
        self.linger = world.rng.choice([0.3, 0.03])
        """How likely a task that is to be killed is killed, each time that Spark looks."""

    def task_ended(self, error: str | None) -> None:
        if error is not None:
            self.error = self.error or error
            self.doomed = self.owner.was_broken = True

    @property
    def over(self) -> bool:
        """Whether Spark would say so: it does not wait for killed tasks to be gone."""
        return self.doomed or not any(task.alive for task in self.tasks)

    @property
    def gone(self) -> bool:
        return self.told and not any(task.alive or task.control.to_driver for task in self.tasks)


class SimCluster:
    """One driver's Cluster port."""

    def __init__(self, world: World, owner: SimDriver) -> None:
        self._world = world
        self._owner = owner

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        self._owner.launches(attempt)
        which = "" if len(self._owner.driver.regions) == 1 else f" of region {plan.region}"
        self._world.log(f"{self._owner.name} launches attempt {attempt}{which}, parallelism {plan.parallelism}")
        users = self._world.users
        users.went_on_after_draining = users.went_on_after_draining or bool(users.drained)
        self._world.stages[self._owner.number, attempt] = SimStage(self._world, self._owner, attempt, plan)

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        stage = self._world.stages.get((self._owner.number, attempt))
        if stage is not None and stage.tasks[task].alive:
            stage.tasks[task].on_the_way.append(message)
        if isinstance(message, DrainSources):
            self._world.users.drained.add(attempt)
        if isinstance(message, TriggerCheckpoint):
            self._world.given_out(self._owner.store.lineage, message.checkpoint, self._owner.number)
            if task == 0:
                self._world.maybe_ambush(within_steps=200)

    def kill(self, attempt: AttemptId) -> None:
        if stage := self._world.stages.get((self._owner.number, attempt)):
            stage.doomed = self._owner.was_broken = True
            stage.error = stage.error or "killed by the driver"
