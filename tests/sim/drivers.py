"""The driver processes of a simulated job: what the launcher does, the production driver, and what a process does last.

Each of these may stop at any storage call, for good, or until another driver has taken the job over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.sim.faults import FAULT_STEPS
from tests.sim.stage import SimCluster, SimulationFailed
from tests.sim.work import CallerCrashed, Process, SimBackground, Work
from weir.config import FixedDelay, JobConfig
from weir.errors import OwnershipError
from weir.ids import AttemptId, CheckpointId
from weir.runtime.driver import phases
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import CheckpointSucceeded, Notice
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.driver.verdicts import Finished
from weir.runtime.storage import layout
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.savepoints import going_on
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.manifest import Manifest

if TYPE_CHECKING:
    from tests.sim.world import World

LOOP_PAUSE_MAX_MS = 20.0
"""Time is short here: nobody waits a second before a loop is looked at again."""

CLOSE_TIMEOUT_MS = 30.0
"""So long a driver that ends waits for what its threads have begun."""

BEGUN_STEPS = 12
"""An ambush falls within so many steps after background work was handed over."""


class SimDriver(Process):
    """One driver process: the production driver, its background threads, and the plan that it was started with."""

    def __init__(self, world: World, number: int, *, resume: bool, back_to: CheckpointId | None = None) -> None:
        job = world.job
        super().__init__(job.settings.snapshot_threads)
        self.background = AmbushedBackground(world, self)
        self.number = number
        self.is_fresh = not resume
        self.goes_back = back_to is not None
        self.may_miss = False
        """It may have looked while something was taken away that was put back since."""
        self.name = f"driver-{number}"
        self.was_broken = False
        """A task of it has died, or was killed."""
        self.refused: Exception | None = None
        """Why the job was not even started."""
        self.reported: phases.Ended | None = None
        """What whoever started it is told at last."""
        self.was_overtaken_at_its_end = False
        self.is_forgotten = False
        """Its users have deleted everything, and do not know that it still runs."""
        self.thaws_at: int | None = None
        """It is frozen until so many checkpoints were completed."""
        self.adopted_at = 0
        """The step in which it had looked at the directory, and found that it may begin."""
        self.has_launched = False
        self.freezes_in_launch: int | None = None
        """After so many storage calls of its launch it freezes, and another is started."""
        self._closing_ms: float | None = None
        self._world = world
        self._due_ms: float | None = None
        self._is_due_known = False
        self._config = JobConfig(
            "sim",
            checkpoints=job.checkpoints,
            restart=FixedDelay(attempts=10_000, delay="5ms"),
            settings=job.settings,
            resume=resume,
            back_to=back_to,
            from_savepoint=world.savepoint,
        )
        self._store: CheckpointStore | None = None
        self._driver: Driver | None = None
        self._plan = job.plan(world.rng)
        self.main = Work(self._launch, owner=self)

    # --- The main thread -----------------------------------------------------------------------------------

    def _launch(self) -> Driver:
        """What the launcher does before anything starts."""
        world, config = self._world, self._config
        current = current_lineage(world.job_storage)
        if config.resume and current is not None and config.back_to is None and world.users.forget_savepoint():
            found = CheckpointStore(world.job_storage, "sim", lineage=current).listing()
            config = self._config = going_on(replace(config, from_savepoint=None), found)
        lineage = current if config.resume and current is not None else world.new_lineage(self.number)
        store = self._store = CheckpointStore(world.job_storage, "sim", lineage=lineage, is_found=lineage == current)
        store.finish = self._finish  # type: ignore[method-assign]
        store._copied = self._copied  # type: ignore[method-assign,assignment]
        store.check_free(config.resume)
        SinkDesk(config, lineage, store.check_newest, lives=store.lives).validate(self._plan)
        store.adopt(self.name, config.resume)
        self.adopted_at = world.steps
        settings = CoordinatorSettings.from_config(config.checkpoints, is_at_most_once=config.is_at_most_once)
        return Driver(
            config,
            self._plan,
            run=self.name,
            clock=world.clock,
            background=self.background,
            cluster=SimCluster(world, self),
            store=store,
            opener=world.storage.open,
            settings=replace(settings, loop_pause_max_ms=LOOP_PAUSE_MAX_MS),
            notify=self._noticed,
            chance=world.pause_rng.random,
        )

    def go_on(self, work: Work) -> None:
        super().go_on(work)
        if self.freezes_in_launch is not None and self.is_early and self._world.steps < FAULT_STEPS:
            self.freezes_in_launch -= 1
            if self.freezes_in_launch <= 0:
                self.freezes_in_launch = None
                self.freeze(0.0, thaws_at=len(self._world.completed_ids) + self._world.rng.choice([0, 1, 2]))
                self._world.log(f"{self.name} hangs before it has an attempt, and another is started")
                self._world.start_driver(resume=True)

    def launches(self, attempt: AttemptId) -> None:
        """It has an attempt, and starts its tasks: nobody that was started later may have had one before."""
        later = [d.name for older, d in self._world.launched if older < attempt and d.adopted_at > self.adopted_at]
        if later and not self.has_launched and not self.is_forgotten:
            raise SimulationFailed(f"{self.name} takes over from {later[0]}, which was started later")
        self.has_launched = True
        self._world.launched.append((attempt, self))
        if not self.is_forgotten:
            self._world.hands.goes_on_with(self.store.lineage)

    @property
    def is_early(self) -> bool:
        """It lives, and has not claimed anything."""
        return self.alive and not self.is_gone and (self._store is None or not self._store._attempts.claims)

    def main_ended(self, work: Work) -> None:
        if isinstance(work.result, Exception):
            self.refused = work.result
            self._world.log(f"{self.name} is refused: {work.result}")
        elif not work.has_crashed:
            self._driver = work.result
            self.act(self.driver.start)

    def act(self, act: Callable[[], None]) -> None:
        """Something happens on the main thread."""
        self._is_due_known = False
        act()
        if self.ended is not None and self._closing_ms is None:
            self._closing_ms = self._world.clock.time_ms + CLOSE_TIMEOUT_MS
            self.background.waiting.clear()
            self.background.run(self.store.give_up, lambda _: None)

    def told(self, work: Work) -> None:
        self.act(lambda: super(SimDriver, self).told(work))

    def crashed(self) -> None:
        self._world.crash_driver(self, "killed in the middle of a write")

    def pass_time(self) -> None:
        """What the passing of time makes it do."""
        now_ms = self._world.clock.time_ms
        if self.thaws_at is not None and len(self._world.completed_ids) >= self.thaws_at:
            self.thaw()
        if not self.alive or now_ms < self.frozen_until_ms or self._driver is None:
            return
        if self._closing_ms is not None:
            if self.reported is None and (not self.background.begun or now_ms >= self._closing_ms):
                self._world.orphaned(self.kill_works())
                self.reported = self.ended
                self._check_reported()
            return
        if not self._is_due_known:
            self._due_ms, self._is_due_known = self.driver.next_due_ms(), True
        if self._due_ms is not None and now_ms >= self._due_ms:
            self.act(self.driver.tick)

    def _check_reported(self) -> None:
        is_finished = self.reported is not None and isinstance(self.reported.verdict, Finished)
        if self.was_overtaken_at_its_end and is_finished and self._stands_a_newer_claim():
            raise SimulationFailed(f"{self.name} says that the job is finished, although another has taken it over")

    def _stands_a_newer_claim(self) -> bool:
        """One that was withdrawn has taken nothing over."""
        with self._world.storage.quiet():
            names = self._world.job_storage.list(layout.ATTEMPTS)
            attempts = self.store._attempts
            claimed = [attempt for name in names if (attempt := layout.claimed_attempt(name)) is not None]
            return any(a > (attempts.own or 0) and not attempts._is_withdrawn(a, names) for a in claimed)

    def _finish(self, *, drained: bool = False) -> None:
        """What the driver does last, looked at: from here on it knows, or could."""
        with self._world.storage.quiet():
            try:
                self.store.check_newest()
            except OwnershipError:
                self.was_overtaken_at_its_end = True
        self._world.finishing(self)
        CheckpointStore.finish(self.store, drained=drained)

    def _copied(self, *given: Any) -> Manifest:
        """What it goes back to is there; perhaps it dies before it has noted that it starts from it."""
        manifest = CheckpointStore._copied(self.store, *given)
        if self._world.hands.breaks_off():
            raise CallerCrashed
        return manifest

    def freeze(self, until_ms: float, *, thaws_at: int | None = None) -> None:
        self.frozen_until_ms = math.inf if thaws_at is not None else until_ms
        self.thaws_at = thaws_at

    def thaw(self) -> None:
        if self.thaws_at is not None:
            self._world.log(f"{self.name} thaws")
        self.frozen_until_ms, self.thaws_at = 0.0, None

    # --- What can be asked -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._driver is not None and isinstance(self._driver.phase, phases.Running)

    @property
    def phase(self) -> str:
        """For people to read."""
        return "being launched" if self._driver is None else str(self._driver.phase)

    @property
    def has_started(self) -> bool:
        return self._driver is not None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            raise SimulationFailed(f"{self.name} is only being launched")
        return self._driver

    @property
    def store(self) -> CheckpointStore:
        if self._store is None:
            raise SimulationFailed(f"{self.name} is only being launched")
        return self._store

    @property
    def is_gone(self) -> bool:
        """Its process has come to its end, in whatever way."""
        return not self.alive or self.reported is not None or self.refused is not None

    @property
    def ended(self) -> phases.Ended | None:
        phase = None if self._driver is None else self._driver.phase
        return phase if isinstance(phase, phases.Ended) else None

    def _noticed(self, notice: Notice) -> None:
        self._world.log(f"{self.name}: {notice}")
        if isinstance(notice, CheckpointSucceeded) and not self.is_forgotten:
            self._world.completed(notice.checkpoint)
        if not self.is_forgotten:
            self._world.users.noticed(notice)
        self._world.hands.noticed(notice)
        self._world.kept.noticed(notice)


class AmbushedBackground(SimBackground):
    """The driver's threads. While a job runs they publish, discard and retire: the worst moments for a fault."""

    def __init__(self, world: World, driver: SimDriver) -> None:
        super().__init__(world.job.settings.snapshot_threads, driver)
        self._world = world

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        super().run(work, done)
        self._world.maybe_ambush(within_steps=BEGUN_STEPS)
