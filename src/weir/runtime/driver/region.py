"""One region of a job, a part that shares no edge with the others: the life of its attempts.

Comes in: claims, what its tasks say, the time. Goes out: its phase, and orders to its
tasks. What follows from what, region_machine.py decides; about checkpoints, restarts and
the rest of the job, loop.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from weir.config import Settings
from weir.graph.plan import Plan
from weir.ids import AttemptId, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver import region_machine as machine
from weir.runtime.driver.phases import Phase
from weir.runtime.driver.region_machine import RegionSettings
from weir.runtime.driver.verdicts import Verdict
from weir.runtime.ports import Clock, Cluster
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot import messages as m
from weir.snapshot.parts import NONE_RESERVED, Json, ReservedSources


def regions_of(plan: Plan, settings: Settings) -> tuple[Plan, ...]:
    """What runs, fails and recovers for itself."""
    return (plan,) if settings.share_slots else plan.regions


def slots_of(plan: Plan, settings: Settings) -> int:
    """How many Spark tasks the job has in all."""
    return sum(region.parallelism for region in regions_of(plan, settings))


def restoring(regions: Iterable[Region]) -> Json | None:
    """How far the tasks are that restore a checkpoint; None: nobody does, or nobody has told yet."""
    told = [
        told for region in regions if isinstance(region.phase, phases.Deploying) for told in region.restoring.values()
    ]
    if not told:
        return None
    of_bytes = max(one.of_bytes for one in told)
    # At another parallelism, a file may be read by several.
    return {"read_bytes": min(sum(one.read_bytes for one in told), of_bytes), "of_bytes": of_bytes}


class Region:
    """One part of a job, from the first of its attempts to the last: does what its machine says."""

    def __init__(self, plan: Plan, settings: Settings, *, clock: Clock, cluster: Cluster) -> None:
        self.plan = plan
        self.phase: Phase = phases.Created()
        self.metrics: dict[TaskIndex, Json] = {}
        """The latest that each task has told."""
        self.restoring: dict[TaskIndex, m.TaskRestoring] = {}
        """How far the tasks are that restore a checkpoint, as far as they have told."""
        self._settings = RegionSettings.of(settings, plan.parallelism)
        self._clock = clock
        self._cluster = cluster
        self._order: m.DeployTask | None = None
        """What the tasks of the attempt are told, but for their addresses."""
        self._failed_ms: float | None = None
        """Since when it does not run, because of failures."""

    @property
    def attempt(self) -> AttemptId | None:
        return self.phase.attempt

    @property
    def is_running(self) -> bool:
        return isinstance(self.phase, phases.Running)

    @property
    def is_away(self) -> bool:
        """It has no tasks."""
        return self.attempt is None or (isinstance(self.phase, phases.Stopping) and self.phase.ended)

    @property
    def due_ms(self) -> float | None:
        """When the driver should look after it."""
        if isinstance(self.phase, phases.Running):
            oldest = min(self.phase.heard_ms.values(), default=self._clock.now_ms())
            return oldest + self._settings.heartbeat_timeout_ms
        return self.phase.due_ms

    # --- The way up ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The job starts."""
        self._handle(machine.Begins())

    def launch(
        self, claim: Claim, origin: str | None, read: ReservedSources = NONE_RESERVED, *, reserves: bool = False
    ) -> None:
        """Start the tasks.

        origin:   where the checkpoint to restore lies, when it is none of the job's own
        read:     how far sources have come for good, where the checkpoint does not say it
        reserves: rows wait in their sources until it is noted that they were read
        """
        restored = claim.restore.checkpoint if claim.restore else None
        loses_state = restored is not None and read.read_behind >= restored
        self._order = m.DeployTask(claim.attempt, (), restored, origin, read.sources, loses_state, reserves)
        self.metrics, self.restoring = {}, {}
        self._handle(machine.Claimed(claim))

    def registered(self, message: m.TaskRegistered) -> None:
        self._handle(machine.Registered(message.task, message.address))

    def runs(self, task: TaskIndex) -> machine.AllRun | None:
        """A task runs. Not None when it was the last to be waited for."""
        return next((e for e in self._handle(machine.Runs(task)) if isinstance(e, machine.AllRun)), None)

    def heartbeat(self, message: m.Heartbeat) -> None:
        self.metrics[message.task] = message.metrics
        self._handle(machine.Heard(message.task))

    def told(self, message: m.FromTask) -> bool:
        """A task says something to the coordinator: whether that hears it now. Too early, it is kept."""
        return any(isinstance(effect, machine.Coordinate) for effect in self._handle(machine.Told(message)))

    def tick(self) -> str | None:
        """Time has passed. Why the attempt has failed by now, if time alone tells."""
        return next((e.reason for e in self._handle(machine.ClockMoved()) if isinstance(e, machine.Overdue)), None)

    def recovered(self, now_ms: float) -> int | None:
        """It runs again: how long after the first failure since it last ran, if there was one."""
        failed_ms, self._failed_ms = self._failed_ms, None
        return None if failed_ms is None else round(now_ms - failed_ms)

    # --- The way down ----------------------------------------------------------------------------------

    def failed(self, now_ms: float) -> None:
        """An attempt has failed, or could not be claimed."""
        self._failed_ms = now_ms if self._failed_ms is None else self._failed_ms

    def leave(self, verdict: Verdict, *, stage_runs: bool) -> None:
        """Tell the tasks to go, if there are any."""
        self._handle(machine.IsLeft(verdict, stage_runs))

    def left(self) -> None:
        """The stage has ended."""
        self._handle(machine.StageOver())

    def begin_again(self, until_ms: float) -> None:
        """The next attempt may begin then."""
        self._handle(machine.BeginsAgain(until_ms))

    # --- Small things ----------------------------------------------------------------------------------

    def tell(self, message: Callable[[AttemptId], m.ToTask]) -> None:
        """Tell every task."""
        if (attempt := self.attempt) is not None:
            self._tell_all(attempt, message(attempt))

    def tell_one(self, task: TaskIndex, message: m.ToTask) -> None:
        """Tell one task."""
        self._cluster.send(message.attempt, task, message)

    def _tell_all(self, attempt: AttemptId, message: m.ToTask) -> None:
        for task in self._settings.tasks:
            self._cluster.send(attempt, task, message)

    def _handle(self, event: machine.RegionEvent) -> list[machine.RegionEffect]:
        self.phase, effects = machine.step(self.phase, event, self._settings, self._clock.now_ms())
        for effect in effects:
            self._perform(effect)
        return effects

    def _perform(self, effect: machine.RegionEffect) -> None:
        match effect:
            case machine.LaunchTasks(claim):
                self._cluster.launch(claim.attempt, self.plan)
            case machine.DeployTasks(claim, addresses):
                assert self._order is not None, "launch() comes first"
                self._tell_all(claim.attempt, replace(self._order, addresses=addresses))
            case machine.StopTasks(attempt, cancelled):
                self._tell_all(attempt, m.StopTask(attempt, cancelled=cancelled))
            case machine.StopLate(attempt, task):
                self._cluster.send(attempt, task, m.StopTask(attempt, cancelled=True))
            case machine.KillTasks(attempt):
                self._cluster.kill(attempt)
            case machine.AllRun() | machine.Coordinate() | machine.Overdue():
                pass  # The driver's business.


def laid_out(plan: Plan, settings: Settings, *, clock: Clock, cluster: Cluster) -> tuple[Region, ...]:
    """The regions of a plan, none of which has begun."""
    return tuple(Region(part, settings, clock=clock, cluster=cluster) for part in regions_of(plan, settings))
