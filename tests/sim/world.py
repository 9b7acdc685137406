"""The simulated world: one seeded loop that steps workers, delivers messages, moves time and breaks things.

The drivers and the workers are the production ones, over simulated ports. A run ends when the job
has finished, or fails with SimulationFailed and the trace of what happened.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.sim import faults
from tests.sim.externals import External
from tests.sim.ports import SimBackground, SimChannel, SimClock
from tests.sim.stage import SimCluster, SimStage, SimTask, SimulationFailed, run_quietly
from tests.sim.storage import CallerCrashed, SimStorage
from tests.sim.users import Users, read_savepoint, savepoint_files
from tests.sim.workload import FIRST_PLACE, SCHEME, Job, draw_job, with_loop, with_regions
from weir.config import FixedDelay, JobConfig
from weir.ids import AttemptId, Lineage
from weir.operators.sink import Sink
from weir.runtime import phases
from weir.runtime.attempts import current_lineage
from weir.runtime.checkpoint_store import CheckpointStore
from weir.runtime.driver import Driver, Notice
from weir.runtime.phases import Outcome
from weir.runtime.sink_desk import SinkDesk
from weir.runtime.storage import register_scheme
from weir.snapshot.run import CoordinatorSettings

STEPS_MAX = 60_000
"""A run that takes longer hangs."""

LINGER_STEPS = 150
"""After the end, what is left of old attempts and drivers goes on for so long."""

STUCK_PROBABILITY, STUCK_MS = 0.05, 25.0
"""How often, and for how long, work of the driver of a job with several regions hangs in storage; a task dies then."""

DRIVERS_MAX = 12
"""A run that needs more drivers makes no progress."""

AMBUSH_PROBABILITY = 0.25

LOOPED_EVERY, LOOPED_AT = 6, 3
"""Which seeds have a loop; the others are the runs that they ever were."""

LOOP_PAUSE_MAX_MS = 20.0
"""Time is short here: nobody waits a second before a loop is looked at again."""

RESUMED_AT_THE_END = 0.1
"""How often a driver dies when the job is finished, and the job is resumed all the same."""

SLOWNESS = 0.2
"""How often a slow task or wire does what a fast one does at once."""


class SimDriver:
    """One driver process: the production driver, its background threads, and the plan that it was started with."""

    def __init__(self, world: World, name: str, *, resume: bool) -> None:
        job = world.job
        self.name = name
        plan = job.plan(world.rng)
        self.background = AmbushedBackground(world, self)
        self.alive = True
        self.frozen_until_ms = 0.0
        self.was_broken = False
        """A task of it has died, or was killed."""
        self._world = world
        # What the launcher does before anything starts.
        with world.storage.quiet():
            current = current_lineage(world.job_storage)
        lineage = current if resume and current is not None else world.new_lineage()
        store = CheckpointStore(world.job_storage, "sim", lineage=lineage)
        config = JobConfig(
            "sim",
            checkpoints=job.checkpoints,
            restart=FixedDelay(attempts=10_000, delay="5ms"),
            settings=job.settings,
            resume=resume,
            from_savepoint=world.savepoint,
        )
        with world.storage.quiet():
            SinkDesk(config, lineage, store.check_newest).validate(plan)
        self.store = store
        self.driver = Driver(
            config,
            plan,
            run=name,
            clock=world.clock,
            background=self.background,
            cluster=SimCluster(world, self),
            store=store,
            settings=replace(CoordinatorSettings.from_config(job.checkpoints), loop_pause_max_ms=LOOP_PAUSE_MAX_MS),
            notify=self._noticed,
            chance=world.pause_rng.random,
        )
        self.driver.start()

    @property
    def awake(self) -> bool:
        return self.alive and self._world.clock.time_ms >= self.frozen_until_ms

    @property
    def hung(self) -> bool:
        """Whether some of its work has hung in storage up to now."""
        return self.background.has_stuck

    @property
    def ended(self) -> phases.Ended | None:
        return self.driver.phase if isinstance(self.driver.phase, phases.Ended) else None

    def guard(self, act: Callable[[], None]) -> None:
        """Run something in this process, which may die of it."""
        try:
            act()
        except CallerCrashed:
            self._world.crash_driver(self, "killed in the middle of a write")

    def _noticed(self, notice: Notice) -> None:
        self._world.log(f"{self.name}: {notice.kind} {notice.detail}")
        if notice.kind == "checkpoint_completed":
            self._world.completed_ids.append(notice.detail["id"])
        self._world.users.noticed(notice)


class AmbushedBackground(SimBackground):
    """The driver's threads. While a job runs they publish, discard and retire: the worst moments for a fault."""

    def __init__(self, world: World, driver: SimDriver) -> None:
        super().__init__()
        self._world = world
        self._driver = driver

        self._stuck: tuple[Callable[[], Any], float] | None = None
        """Work that hangs in storage, and until when, while other work goes on."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        super().run(work, done)
        if isinstance(self._driver.driver.phase, phases.Running):
            self._world.maybe_ambush(within_steps=1)
            if self._world.job.beside is not None and self._world.region_rng.random() < STUCK_PROBABILITY:
                self._stuck = work, self._world.clock.time_ms + STUCK_MS
                if self._world.steps < faults.FAULT_STEPS:
                    self._world.ambush(faults.kill_task)

    @property
    def ready(self) -> bool:
        """Whether there is work that does not hang."""
        return len(self.waiting) > 1 or (bool(self.waiting) and not self._is_stuck(0))

    @property
    def has_stuck(self) -> bool:
        return self._stuck is not None and any(work is self._stuck[0] for work, _ in self.waiting)

    def take(self, index: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return super().take(1 - index if len(self.waiting) > 1 and self._is_stuck(index) else index)

    def _is_stuck(self, index: int) -> bool:
        stuck = self._stuck
        return stuck is not None and self._world.clock.time_ms < stuck[1] and self.waiting[index][0] is stuck[0]


class World:
    """One simulated run of a job: the first, or one that goes on from a savepoint of the run before."""

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        *,
        after: World | None = None,
        savepoint: str | None = None,
    ) -> None:
        self.rng = after.rng if after else random.Random(seed)
        self.region_rng = after.region_rng if after else random.Random(f"regions of {seed}")
        self.calls_rng = after.calls_rng if after else random.Random(f"calls of {seed}")
        self.pause_rng = after.pause_rng if after else random.Random(f"pauses of {seed}")
        self.clock = SimClock()
        self.trace: deque[str] = deque(maxlen=400)
        self.digest = after.digest if after else 0
        self._tracer = trace
        self.steps = 0
        self.external = External(self.rng)
        self.storage = after.storage if after else SimStorage(self.rng)
        self.storage.between_calls = self._act_elsewhere
        self.place = str(int(after.place) + 1) if after else FIRST_PLACE
        self.job_storage = self.storage.below(f"{self.place}/sim")
        register_scheme(SCHEME, lambda uri: self.storage.below(uri.split("://")[1]))
        self.savepoint = savepoint
        self.job: Job = self._goes_on(after, savepoint) if after and savepoint else self._drawn(seed)
        # Users draw from numbers of their own, so that a run without them is the same as it ever was.
        self.users = Users(self, after.users.rng if after else random.Random(f"users of {seed}"))
        self.sinks: list[Sink] = self.job.sinks
        self.stages: dict[AttemptId, SimStage] = {}
        self.orphans: list[Callable[[], Any]] = []
        self.completed_ids: list[int] = []
        self.is_tidy = True
        self.was_troubled = False
        self.stopped: SimDriver | None = None
        """Whom the user has had stop the job, while nobody goes on with it."""
        self.faults = faults.draw_faults(self.rng)
        self.ambushes = faults.draw_ambushes(self.rng)
        self._ambush: tuple[int, faults.Fault] | None = None
        # Backpressure needs somebody who is slow: the tasks of one index, or the wires between tasks.
        self.slow_task = self.rng.choice([None, None, 0, 1, 2])
        self.slow_wire = self.rng.random() < 0.2
        self.drivers: list[SimDriver] = []
        self._driver_count = 0
        self.start_driver(resume=False)

    # --- Running -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step until a driver has finished the job, or has stopped it because the user wanted that."""
        while self.stopped is None and not self._has_finished():
            if self.steps > STEPS_MAX:
                raise SimulationFailed(
                    f"the job did not finish in {STEPS_MAX} steps; driver: {self.driver.driver.phase}"
                )
            self._step()
            self._replace_drivers()

    def resume(self) -> None:
        """Somebody goes on with the stopped job, in place."""
        if self.stopped is None:
            raise SimulationFailed("the job is not stopped")
        self._bury(self.stopped)
        self.stopped = None
        self.start_driver(resume=True)

    def settle(self) -> None:
        """What the drivers do when the job is over."""
        # Clean-up that storage refused, or that a driver which still runs has to do, is not done yet.
        # Nor is what a call leaves that hung in storage until now.
        hung = any(driver.hung for driver in self.drivers)
        for driver in self.drivers:
            if driver.ended:
                for work, _ in driver.background.waiting:
                    run_quietly(work)
        self.is_tidy = self.storage.trouble == 0 and all(driver.ended for driver in self.drivers) and not hung
        self.stop_faults()

    def new_lineage(self) -> Lineage:
        return Lineage(f"{int(self.place):02x}{self._driver_count:08x}")

    def store(self) -> CheckpointStore:
        """As somebody sees it who looks now."""
        lineage = current_lineage(self.job_storage)
        if lineage is None:
            raise SimulationFailed("no attempt has started")
        return CheckpointStore(self.job_storage, "sim", lineage=lineage)

    def _drawn(self, seed: int) -> Job:
        # What is beside the first region is drawn from numbers of its own, so that most jobs are what they ever were.
        time_rng = random.Random(f"time of {seed}")
        job = with_regions(draw_job(self.rng, self.external), self.region_rng, self.external, time_rng=time_rng)
        if seed % LOOPED_EVERY == LOOPED_AT:
            job = with_loop(job, random.Random(f"loops of {seed}"), self.external)
        return job

    def _goes_on(self, after: World, savepoint: str) -> Job:
        with self.storage.quiet():
            manifest = read_savepoint(after, savepoint)
            read = after.job.rows_read(manifest, savepoint_files(after, savepoint))
        is_unclear = after.users.went_on_after_draining
        return after.job.going_on(manifest, self.external, self.place, before=read, is_unclear=is_unclear)

    def _has_finished(self) -> bool:
        for driver in list(self.drivers):
            if driver.ended and driver.ended.outcome is Outcome.FINISHED:
                if driver is not self.driver and self.users.drained:
                    # It was drained, and has rows left for whoever has taken over from it.
                    self._bury(driver)
                    continue
                if self.rng.random() > RESUMED_AT_THE_END or self._driver_count == DRIVERS_MAX:
                    return True
                # It dies before it has told anybody: whoever resumes the job finds nothing left to do, unless it was
                # drained.
                self.crash_driver(driver, "SIGKILL at the very end")
                return False
        return False

    def linger(self) -> None:
        """Let what is left of old attempts and drivers go on for a while: it must not change anything."""
        for driver in self.drivers:
            driver.alive = driver.alive and not driver.ended
        if self.stages or any(driver.alive for driver in self.drivers):
            for _ in range(LINGER_STEPS):
                self._step()
        while self.orphans:
            run_quietly(self.orphans.pop())

    def stop_faults(self) -> None:
        self.faults, self.ambushes, self._ambush = [], [], None
        faults.calm(self)
        self.storage.tear = False
        self.slow_task, self.slow_wire = None, False

    def _step(self) -> None:
        self.steps += 1
        self._maybe_break()
        self.users.act()
        tasks = self.alive_tasks()
        # One task does one thing in a step, but all of them share the time. After the faults every machine is fast, so
        # that a time-out which was too short for a checkpoint is not for ever.
        pace = 1.0 if self.steps < faults.FAULT_STEPS else 0.3
        self.clock.time_ms += pace * self.rng.random() / (2 + len(tasks))
        dice = self.rng.random()
        if dice < 0.5:
            task = self.rng.choice(tasks) if tasks else None
            if task is not None and (task.task != self.slow_task or self.rng.random() < SLOWNESS):
                task.step()
        elif dice < 0.75:
            for _ in range(self.rng.randint(1, 3)):
                self._deliver()
        elif dice < 0.93:
            self._background()
        else:
            self._stages()
        for driver in self.drivers:
            due_ms = driver.driver.next_due_ms() if driver.awake else None
            if due_ms is not None and self.clock.time_ms >= due_ms:
                driver.driver.tick()

    def alive_tasks(self) -> list[SimTask]:
        """The processes that run now."""
        now_ms = self.clock.time_ms
        return [t for s in self.stages.values() for t in s.tasks if t.alive and now_ms >= t.frozen_until_ms]

    def _deliver(self) -> None:
        """One thing that is on its way arrives: control messages and channel elements keep their order per line."""
        choices: list[tuple[Callable[..., None], Any]] = []
        for stage in self.stages.values():
            listening_ms = stage.owner.frozen_until_ms
            for task in stage.tasks:
                if task.control.to_driver and self.clock.time_ms >= max(task.heard_after_ms, listening_ms):
                    choices.append((self._to_driver, task))
                if task.on_the_way and task.alive:
                    choices.append((self._to_task, task))
            if not self.slow_wire or self.rng.random() < SLOWNESS:
                choices += [(SimChannel.deliver, channel) for _, channel in stage.remote if channel.wire]
        if choices:
            act, subject = self.rng.choice(choices)
            act(subject)

    def _to_driver(self, task: SimTask) -> None:
        message = task.control.to_driver.popleft()
        if task.stage.owner.alive:
            task.stage.owner.driver.hear(message)

    def _to_task(self, task: SimTask) -> None:
        task.inbox.append(task.on_the_way.popleft())

    def _background(self) -> None:
        if self.orphans and self.rng.random() < 0.3:
            self._run_orphan()
        owners: list[SimTask | SimDriver] = [task for task in self.alive_tasks() if task.background.waiting]
        owners += [driver for driver in self.drivers if driver.awake and driver.background.ready]
        if not owners:
            return
        owner = self.rng.choice(owners)
        work, done = owner.background.take(self.rng.randrange(min(2, len(owner.background.waiting))))
        owner.guard(lambda: done(outcome_of(work)))

    def _act_elsewhere(self) -> None:
        """Between two storage calls of one process, another's work may run as a whole."""
        if self.orphans:
            self._run_orphan()
            return
        others = [driver for driver in self.drivers[:-1] if driver.alive and driver.background.waiting]
        if others:
            other = self.rng.choice(others)
            other.frozen_until_ms = 0.0  # It thaws at the worst moment.
            work, done = other.background.take(0)
            other.guard(lambda: done(outcome_of(work)))

    def _run_orphan(self) -> None:
        run_quietly(self.orphans.pop(self.rng.randrange(len(self.orphans))))

    def _stages(self) -> None:
        for attempt, stage in list(self.stages.items()):
            owner = stage.owner
            if stage.lost and (owner.awake or not owner.alive):
                task, reason = stage.lost.popleft()
                if owner.alive:
                    owner.driver.task_lost(attempt, task, reason)
            if stage.doomed and self.rng.random() < stage.linger:
                victims = [task for task in stage.tasks if task.alive]
                if victims and self.clock.time_ms >= victims[0].frozen_until_ms:
                    self.rng.choice(victims).die("killed by Spark with its stage")
            if stage.over and not stage.told and owner.awake and self.rng.random() < 0.5:
                stage.told = True
                owner.driver.stage_ended(attempt, stage.error)
            if stage.gone:
                del self.stages[attempt]

    # --- Faults ------------------------------------------------------------------------------------------

    def _maybe_break(self) -> None:
        if self.steps == faults.FAULT_STEPS:
            self.stop_faults()
        if self._ambush is not None and self.steps >= self._ambush[0]:
            ambush, self._ambush = self._ambush[1], None
            ambush(self)
        while self.faults and self.faults[0][0] <= self.steps:
            self.faults.pop(0)[1](self)

    def maybe_ambush(self, within_steps: int) -> None:
        """Something delicate has begun: a good moment for the next ambush."""
        if self.ambushes and self._ambush is None and self.rng.random() < AMBUSH_PROBABILITY:
            self._ambush = (self.steps + self.rng.randint(1, within_steps), self.ambushes.pop())

    def ambush(self, fault: faults.Fault) -> None:
        """This, in the next step."""
        self._ambush = (self.steps + 1, fault)

    # --- Drivers -----------------------------------------------------------------------------------------

    @property
    def driver(self) -> SimDriver:
        """The one that was started last."""
        return self.drivers[-1]

    def start_driver(self, *, resume: bool) -> None:
        self._driver_count += 1
        if self._driver_count > DRIVERS_MAX:
            raise SimulationFailed(f"{DRIVERS_MAX} drivers were started and the job has not finished")
        self.drivers.append(SimDriver(self, f"driver-{self._driver_count}", resume=resume))

    def crash_driver(self, driver: SimDriver, reason: str) -> None:
        """A driver dies: its tasks notice later, or linger; a new driver is started with resume."""
        self.log(f"{driver.name} died: {reason}")
        self._bury(driver)
        self.start_driver(resume=True)

    def _bury(self, driver: SimDriver) -> None:
        driver.alive = False
        self.drivers.remove(driver)
        self.orphans += [work for work, _ in driver.background.waiting if self.rng.random() < 0.5]
        for stage in self.stages.values():
            if stage.owner is driver:
                stage.doomed = stage.told = True
                for task in stage.tasks:
                    task.control.to_driver.clear()

    def _replace_drivers(self) -> None:
        """Of several drivers at most one goes on. One that was overtaken may fail; when none is left, start another."""
        for driver in list(self.drivers):
            ended = driver.ended
            if ended is None or ended.outcome is Outcome.FINISHED:
                continue
            if ended.outcome is Outcome.STOPPED and driver is self.driver:
                self.stopped = driver
                return
            left = (Outcome.CANCELLED, Outcome.STOPPED)
            if ended.outcome not in left and not self._was_overtaken(ended):
                raise SimulationFailed(f"{driver.name} ended as {ended}")
            self._bury(driver)
        if not self.drivers:
            self.start_driver(resume=True)

    def _was_overtaken(self, ended: phases.Ended) -> bool:
        if self._driver_count == 1:
            return False
        return "taken over" in (ended.error or "") or "missing although the manifest" in (ended.error or "")

    def log(self, text: str) -> None:
        line = f"{self.steps:6d} {self.clock.time_ms:9.2f}ms  {text}"
        self.trace.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self._tracer is not None:
            self._tracer(line)

    @property
    def fingerprint(self) -> tuple[int, int, float]:
        """The same for two runs that took the same decisions."""
        return self.steps, self.digest, self.rng.random()


def outcome_of(work: Callable[[], Any]) -> Any:
    """The result of background work, or its exception, as a thread pool would hand it back."""
    try:
        return work()
    except Exception as error:
        return error
