"""The simulated world: one seeded loop that steps workers, delivers messages, moves time and breaks things.

The drivers and the workers are the production ones, over simulated ports. A run ends when the job
has finished, or fails with SimulationFailed and the trace of what happened.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable

from greenlet import getcurrent

from tests.sim import faults, turns
from tests.sim.at_most_once import KeptRows
from tests.sim.disks import Disks
from tests.sim.draws import drawn_job
from tests.sim.drivers import SimDriver
from tests.sim.externals import External
from tests.sim.hands import Hands
from tests.sim.ports import SimClock
from tests.sim.replacements import replace_drivers
from tests.sim.stage import SimStage, SimTask, SimulationFailed
from tests.sim.storage import SimStorage
from tests.sim.users import Users, read_savepoint, savepoint_files
from tests.sim.watch import Watch
from tests.sim.work import Call, Process, Work, run_quietly
from tests.sim.workload import FIRST_PLACE, Job
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.operators.sink import Sink
from weir.runtime.driver.verdicts import Finished
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore

STEPS_MAX = 60_000
"""A run that takes longer hangs."""

LINGER_STEPS = 150
"""After the end, what is left of old attempts and drivers goes on for so long."""

DRIVERS_MAX = 20
"""A run that needs more drivers makes no progress."""

REFUSALS_MAX = 100
"""Starts that storage may refuse, with its troubles."""

AMBUSH_PROBABILITY = 0.25

RESUMED_AT_THE_END = 0.1
"""How often a driver dies when the job is finished, and the job is resumed all the same."""

OVERTAKEN_AT_THE_END = 0.5
"""How often a driver that has drained the job is overtaken while it tidies up."""

STARTED_TWICE = 0.12
"""How often two people start the job at once."""


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
        self.rng: random.Random = after.rng if after else random.Random(seed)
        self.region_rng: random.Random = after.region_rng if after else random.Random(f"regions of {seed}")
        self.calls_rng: random.Random = after.calls_rng if after else random.Random(f"calls of {seed}")
        self.pause_rng: random.Random = after.pause_rng if after else random.Random(f"pauses of {seed}")
        self.clock = SimClock()
        self.disks = Disks(random.Random(f"disks of {seed}"))
        self.savepoint = savepoint
        self.trace: deque[str] = deque(maxlen=400)
        self.digest: int = after.digest if after else 0
        self._tracer, self.steps = trace, 0
        self.storage: SimStorage = after.storage if after else SimStorage(self.rng)
        self.external = External(self.rng, self.storage.open)
        self.hangs = faults.Hangs(self, random.Random(f"hangs of {seed}"))
        self.storage.hangs_until_ms = self.hangs.until_ms
        self.storage.is_full_behind = faults.NearlyFull(self, seed).is_behind
        if after is None:
            self.storage.pauses = self.rng.choice([0.3, 0.7, 1.0])
            self.storage.has_rename = self.rng.random() < 0.6
        self.place: str = str(int(after.place) + 1) if after else FIRST_PLACE
        self.job_storage = self.storage.below(f"{self.place}/sim")
        self.job: Job = (
            self._goes_on(after, savepoint)
            if after and savepoint
            else drawn_job(self.rng, seed, self.external, region_rng=self.region_rng)
        )
        # Users draw from numbers of their own, so that a run without them is the same as it ever was.
        self.users: Users = Users(self, after.users.rng if after else random.Random(f"users of {seed}"))
        self.hands: Hands = Hands(self, after.hands.rng if after else random.Random(f"hands of {seed}"))
        self.watch, self.kept = Watch(self), KeptRows(self)
        self.sinks: list[Sink] = self.job.sinks
        self.stages: dict[tuple[int, AttemptId], SimStage] = {}
        self.orphans: list[Call] = []  # of processes that are gone; each may still take effect
        self.came_late: set[str] = set()  # what processes were writing when they died, and may have written since
        self.completed_ids: list[int] = []
        self.ids_since_backup: list[int] = []  # since users last put one back
        self._given_out: dict[tuple[Lineage, CheckpointId], tuple[int, int]] = {}
        """By whom, and in which step."""
        self.newest_completed: int | None = None
        """Of those that nobody has gone back behind."""
        self.is_tidy, self.was_troubled = True, False
        self.stopped: SimDriver | None = None
        """Whom the user has had stop the job, while nobody goes on with it."""
        self.faults = faults.draw_faults(self.rng)
        self.ambushes = faults.draw_ambushes(self.rng)
        self._ambush: tuple[int, faults.Fault] | None = None
        # Backpressure needs somebody who is slow: the tasks of one index, or the wires between tasks.
        self.slow_task = self.rng.choice([None, None, 0, 1, 2])
        self.slow_wire = self.rng.random() < 0.2
        self.drivers: list[SimDriver] = []
        self.launched: list[tuple[AttemptId, SimDriver]] = []
        self.driver_count = self.refusals = 0
        self._start(is_first=after is None)

    def _start(self, *, is_first: bool) -> None:
        self.start_driver(resume=False)
        if is_first and self.rng.random() < STARTED_TWICE:
            self.start_driver(resume=False)
            self._ambush = (self.rng.randint(1, 40), faults.freeze_launch)

    # --- Running -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step until a driver has finished the job, or has stopped it because the user wanted that."""
        while self.stopped is None and not self._has_finished():
            if self.steps > STEPS_MAX:
                raise SimulationFailed(f"the job did not finish in {STEPS_MAX} steps; driver: {self.driver.phase}")
            self._step()
            replace_drivers(self)

    def resume(self) -> None:
        """Somebody goes on with the stopped job, in place."""
        if self.stopped is None:
            raise SimulationFailed("the job is not stopped")
        self.bury(self.stopped)
        self.stopped = None
        self.start_driver(resume=True)

    def settle(self) -> None:
        """What the drivers do when the job is over."""
        # Clean-up that storage refused, that hung, or that a driver has to do which still runs, is not done yet.
        is_alone = all(driver.is_gone for driver in self.drivers) and not self.orphans and not self.alive_tasks()
        self.is_tidy = self.is_tidy and self.storage.trouble == 0 and is_alone and not self.hangs.count
        self.stop_faults()
        self.hands.rest()

    def new_lineage(self, driver: int) -> Lineage:
        return Lineage(f"{int(self.place):02x}{driver:08x}")

    def store(self) -> CheckpointStore:
        """As somebody sees it who looks now."""
        with self.storage.quiet():
            lineage = current_lineage(self.job_storage)
        if lineage is None:
            raise SimulationFailed("no attempt has started")
        return CheckpointStore(self.job_storage, "sim", lineage=lineage)

    def _goes_on(self, after: World, savepoint: str) -> Job:
        with self.storage.quiet():
            manifest = read_savepoint(after, savepoint)
            read = after.job.rows_read(manifest, savepoint_files(after, savepoint))
        is_unclear = after.users.went_on_after_draining or after.users.had_gone_on_before
        return after.job.going_on(manifest, self.external, self.place, before=read, is_unclear=is_unclear)

    def _has_finished(self) -> bool:
        for driver in list(self.drivers):
            if driver.reported and isinstance(driver.reported.verdict, Finished) and driver.is_forgotten:
                self.bury(driver)  # Others go on from a backup, and do not know of it.
            elif driver.reported and isinstance(driver.reported.verdict, Finished):
                if any(self._goes_on_behind(driver, other) for other in self.drivers):
                    # It was drained, and has rows left for whoever takes over from it, be it one that was started
                    # before and looked later; or that one goes back. If that one fails, somebody starts another.
                    self.log(f"{driver.name} is done, and another goes on")
                    self.bury(driver)
                    continue
                if self.rng.random() > RESUMED_AT_THE_END or self.driver_count >= DRIVERS_MAX:
                    return True
                # It dies before it has told anybody: whoever resumes the job finds nothing left to do, unless it was
                # drained.
                self.crash_driver(driver, "SIGKILL at the very end")
                return False
        return False

    def _goes_on_behind(self, driver: SimDriver, other: SimDriver) -> bool:
        """Whether another may take over, or has done so, from one that has finished."""
        if other is driver or other.is_gone or other.is_forgotten or not (self.users.drained or other.goes_back):
            return False
        launches = [owner for _, owner in self.launched if owner in (driver, other)]
        return other not in launches or launches[-1] is other

    def linger(self) -> None:
        """Let what is left of old attempts and drivers go on for a while: it must not change anything."""
        for driver in self.drivers:
            driver.alive = driver.alive and not driver.is_gone
            driver.thaw()
        if self.stages or any(driver.alive for driver in self.drivers):
            for _ in range(LINGER_STEPS):
                self._step()
        for process in self.processes():
            for work in process.background.begun:
                run_quietly(work.go_to_the_end)
        while self.orphans:
            run_quietly(self.orphans.pop().perform)
        self.watch.look()

    def close(self) -> None:
        """Nothing of this world goes on."""
        for process in self.processes():
            process.kill_works()
        self.disks.close()

    def stop_faults(self) -> None:
        self.faults, self.ambushes, self._ambush = [], [], None
        faults.calm(self)
        self.storage.tear = False
        for driver in self.drivers:
            driver.thaw()
        self.slow_task, self.slow_wire = None, False

    def _step(self) -> None:
        self.steps += 1
        self._maybe_break()
        self.users.act()
        self.hands.act()
        tasks = self.alive_tasks()
        # One task does one thing in a step, but all of them share the time. After the faults every machine is fast, so
        # that a time-out which was too short for a checkpoint is not for ever.
        pace = 1.0 if self.steps < faults.FAULT_STEPS else 0.3
        self.clock.time_ms += pace * self.rng.random() / (2 + len(tasks))
        dice = self.rng.random()
        if dice < 0.5:
            task = self.rng.choice(tasks) if tasks else None
            if task is not None and (task.task != self.slow_task or self.rng.random() < turns.SLOWNESS):
                task.step()
        elif dice < 0.75:
            for _ in range(self.rng.randint(1, turns.DELIVERIES_MAX)):
                turns.deliver(self)
        elif dice < 0.93:
            turns.background(self)
        else:
            turns.stages(self)
        for driver in self.drivers:
            driver.pass_time()
        if self.storage.changed:
            self.watch.look()

    def alive_tasks(self) -> list[SimTask]:
        """The processes that run now."""
        now_ms = self.clock.time_ms
        return [t for s in self.stages.values() for t in s.tasks if t.alive and now_ms >= t.frozen_until_ms]

    def processes(self) -> list[Process]:
        return [
            self.hands.program,
            *self.drivers,
            *(task for stage in self.stages.values() for task in stage.tasks if task.alive),
        ]

    def completed(self, checkpoint: int) -> None:
        """Tasks are told: sinks commit what it holds."""
        self.completed_ids.append(checkpoint)
        self.ids_since_backup.append(checkpoint)
        self.newest_completed = checkpoint
        self.kept.completed(checkpoint)

    @property
    def is_drivers_call(self) -> bool:
        """Whether what runs now is a thread of a driver."""
        work = getcurrent()
        return isinstance(work, Work) and isinstance(work.owner, SimDriver)

    def given_out(self, lineage: Lineage, checkpoint: CheckpointId, driver: int) -> None:
        """A driver tells its tasks to take this checkpoint. Ids are never used twice."""
        if self.hands.has_brought_back and any(d.number == driver and d.is_forgotten for d in self.drivers):
            return  # It does not know what was put in the place of its directory.
        at = self._given_out.setdefault((lineage, checkpoint), (driver, self.steps))
        if at != (driver, self.steps):
            raise SimulationFailed(f"checkpoint {checkpoint} is given out by driver-{driver}, and was before: {at}")

    def orphaned(self, calls: list[Call]) -> None:
        """Of a process that has died: each takes effect later, as a whole or in part, or never."""
        for call in calls:
            dice = self.rng.random()
            if call.half is not None and dice < 0.5:
                whole = Call(call.name, call.half) if dice < 0.1 else call
                whole.not_before_ms = call.not_before_ms
                self.orphans.append(whole)
                self.came_late.add(call.path)

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

    def start_driver(self, *, resume: bool, back_to: CheckpointId | None = None) -> None:
        self.driver_count += 1
        if self.driver_count - self.refusals > DRIVERS_MAX or self.refusals > REFUSALS_MAX:
            raise SimulationFailed(f"{DRIVERS_MAX} drivers were started and the job has not finished")
        back_to = back_to or (self.hands.back_to if resume else None)
        self.drivers.append(SimDriver(self, self.driver_count, resume=resume, back_to=back_to))

    def crash_driver(self, driver: SimDriver, reason: str) -> None:
        """A driver dies: its tasks notice later, or linger; a new driver is started with resume."""
        self.log(f"{driver.name} died: {reason}")
        self.bury(driver)
        self.start_driver(resume=True)

    def kill_drivers(self, reason: str) -> None:
        """All of them; somebody will start another."""
        self.log(f"all drivers are killed: {reason}")
        for driver in list(self.drivers):
            self.bury(driver)

    def kill_everything(self, reason: str) -> None:
        """Drivers, tasks, and what of theirs was on its way."""
        self.kill_drivers(reason)
        for stage in self.stages.values():
            for task in stage.tasks:
                if task.alive:
                    task.die(reason)
        self.orphans.clear()

    def forget_ids(self) -> None:
        """What was given out since a backup that is put back may be given out again, under other attempts."""
        self._given_out.clear()
        self.ids_since_backup.clear()
        self.launched.clear()

    def forget_drivers(self, *, thaw_at: int) -> None:
        """They are frozen, and go on when another has completed so many checkpoints."""
        for driver in list(self.drivers):
            if driver.has_started and driver.ended is None:
                driver.is_forgotten = True
                driver.freeze(0.0, thaws_at=thaw_at)
            else:
                self.bury(driver)

    def finishing(self, driver: SimDriver) -> None:
        """The job is about to be finished: whoever is late to begin it gives up; it would begin the finished job once
        more. What somebody else still writes then, nobody sweeps up before the next run."""
        self.is_tidy = not any(t.alive for s in self.stages.values() if s.owner is not driver for t in s.tasks)
        for other in list(self.drivers):
            if other.is_fresh and other is not driver:
                self.bury(other)
        if self.users.drained and self.steps < faults.FAULT_STEPS and self.users.rng.random() < OVERTAKEN_AT_THE_END:
            self.ambush(faults.second_driver)  # which has rows left to read

    def bury(self, driver: SimDriver) -> None:
        driver.alive = False
        self.drivers.remove(driver)
        self.orphaned(driver.kill_works())
        for stage in self.stages.values():
            if stage.owner is driver:
                stage.doomed = stage.told = True
                for task in stage.tasks:
                    task.control.to_driver.clear()

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
