"""One region of a job, a part that shares no edge with the others: the life of its attempts.

Comes in: claims, what its tasks say, the time. Goes out: its phase, and orders to its
tasks. Decides nothing about checkpoints, restarts or the rest of the job (loop.py does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weir.config import Settings, duration_ms
from weir.graph.plan import Plan
from weir.ids import AttemptId, TaskIndex
from weir.runtime.driver import phases
from weir.runtime.driver.phases import Phase
from weir.runtime.driver.verdicts import Finished, Stopped, Verdict
from weir.runtime.ports import Clock, Cluster
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot import messages as m

RESTORING_PATIENCE_MS = 1_000.0
"""Longest wait for tasks that restore their state to leave: they hear nothing meanwhile, and have done nothing yet."""


def regions_of(plan: Plan, settings: Settings) -> tuple[Plan, ...]:
    """What runs, fails and recovers for itself."""
    return (plan,) if settings.share_slots else plan.regions


def slots_of(plan: Plan, settings: Settings) -> int:
    """How many Spark tasks the job has in all."""
    return sum(region.parallelism for region in regions_of(plan, settings))


class Region:
    """One part of a job, from the first of its attempts to the last."""

    def __init__(self, plan: Plan, settings: Settings, *, clock: Clock, cluster: Cluster) -> None:
        self.plan = plan
        self.phase: Phase = phases.Created()
        self.metrics: dict[TaskIndex, m.Json] = {}
        """The latest that each task has told."""
        self._settings = settings
        self._clock = clock
        self._cluster = cluster
        self._tasks = [TaskIndex(i) for i in range(plan.parallelism)]
        self._origin: str | None = None
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
            return oldest + duration_ms(self._settings.heartbeat_timeout)
        return self.phase.due_ms

    # --- The way up ------------------------------------------------------------------------------------

    def launch(self, claim: Claim, origin: str | None) -> None:
        """Start the tasks. `origin`: where the checkpoint to restore lies, when it is none of the job's own."""
        self._origin = origin
        self.phase = phases.Launching(claim, {}, self._deadline())
        self.metrics = {}
        self._cluster.launch(claim.attempt, self.plan)

    def registered(self, message: m.TaskRegistered) -> None:
        if isinstance(self.phase, phases.Stopping):
            # It was not there when the others were told.
            self._cluster.send(message.attempt, message.task, m.StopTask(message.attempt, cancelled=True))
        if not isinstance(self.phase, phases.Launching):
            return
        self.phase.addresses[message.task] = message.address
        if len(self.phase.addresses) < len(self._tasks):
            return
        claim = self.phase.claim
        addresses = tuple(self.phase.addresses[task] for task in self._tasks)
        self.phase = phases.Deploying(claim, set(), [], self._deadline())
        restored = claim.restore.checkpoint if claim.restore else None
        self.tell(lambda attempt: m.DeployTask(attempt, addresses, restored, self._origin))

    def runs(self, task: TaskIndex) -> phases.Deploying | None:
        """A task runs. When it was the last to be waited for: the phase that is over now."""
        deploying = self.phase
        if not isinstance(deploying, phases.Deploying):
            return None
        deploying.running.add(task)
        if len(deploying.running) < len(self._tasks):
            return None
        self.phase = phases.Running(deploying.claim, dict.fromkeys(self._tasks, self._clock.now_ms()))
        return deploying

    def heartbeat(self, message: m.Heartbeat) -> None:
        self.metrics[message.task] = message.metrics
        if isinstance(self.phase, phases.Running):
            self.phase.heard_ms[message.task] = self._clock.now_ms()

    def overdue(self, now_ms: float) -> str | None:
        """Why the attempt has failed by now, if time alone tells."""
        phase = self.phase
        if isinstance(phase, phases.Launching | phases.Deploying) and now_ms >= phase.deadline_ms:
            return phase.late_message(len(self._tasks))
        if isinstance(phase, phases.Running):
            timeout_ms = duration_ms(self._settings.heartbeat_timeout)
            for task, heard_ms in phase.heard_ms.items():
                if now_ms - heard_ms >= timeout_ms:
                    return f"task {task} was silent for {round(now_ms - heard_ms)} ms"
        return None

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
        attempt = self.attempt
        if attempt is None or isinstance(self.phase, phases.Stopping):
            return
        now_ms, timeout_ms = self._clock.now_ms(), duration_ms(self._settings.stop_timeout)
        patience_ms: float = timeout_ms
        if isinstance(self.phase, phases.Launching):
            patience_ms = 0.0  # Tasks that have not registered cannot be told, and the others have done nothing yet.
        elif isinstance(self.phase, phases.Deploying):
            patience_ms = min(timeout_ms, RESTORING_PATIENCE_MS)
        if stage_runs:
            is_good = isinstance(verdict, Finished | Stopped)
            self.tell(lambda attempt: m.StopTask(attempt, cancelled=not is_good))
        kill_ms = now_ms + patience_ms
        self.phase = phases.Stopping(attempt, verdict, kill_ms, kill_ms + timeout_ms, ended=not stage_runs)
        self.hurry(now_ms)

    def left(self) -> None:
        """The stage has ended."""
        if isinstance(self.phase, phases.Stopping):
            self.phase = replace(self.phase, ended=True)

    def hurry(self, now_ms: float) -> None:
        """Tasks that do not go are killed; those that cannot be killed are left behind."""
        phase = self.phase
        if not isinstance(phase, phases.Stopping) or phase.ended:
            return
        if not phase.killed and now_ms >= phase.kill_ms:
            self.phase = replace(phase, killed=True)
            self._cluster.kill(phase.attempt_left)
        elif phase.killed and now_ms >= phase.leave_ms:
            # The old tasks are fenced: whatever they still do does not count. Go on without them.
            self.left()

    # --- Small things ----------------------------------------------------------------------------------

    def tell(self, message: Callable[[AttemptId], m.ToTask]) -> None:
        """Tell every task."""
        attempt = self.attempt
        if attempt is None:
            return
        for task in self._tasks:
            self._cluster.send(attempt, task, message(attempt))

    def _deadline(self) -> float:
        return self._clock.now_ms() + duration_ms(self._settings.launch_timeout)


def laid_out(plan: Plan, settings: Settings, *, clock: Clock, cluster: Cluster) -> tuple[Region, ...]:
    """The regions of a plan, none of which has begun."""
    return tuple(Region(part, settings, clock=clock, cluster=cluster) for part in regions_of(plan, settings))
