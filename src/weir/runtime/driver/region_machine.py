"""The life of a region's attempts: one machine per region.

Comes in: what its tasks and its stage say, claims, verdicts, the time. Goes out: what to
launch, tell and kill, and whether it runs, or should have by now. Never touches a task, a
stage or a clock.

Every pair of a phase and an event is in TRANSITIONS, with the phases that it may lead to,
or in IGNORED; any other is a violation. docs/machines.md is drawn from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weir.config import Settings
from weir.errors import ProtocolViolation
from weir.ids import AttemptId, TaskIndex
from weir.runtime.driver.phases import Claiming, Created, Deploying, Launching, Phase, Running, Stopping, Waiting
from weir.runtime.driver.verdicts import Finished, Stopped, Verdict
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot.messages import FromTask
from weir.snapshot.transitions import Transition

RESTORING_PATIENCE_MS = 1_000.0
"""Longest wait for tasks that restore their state to leave: they hear nothing meanwhile, and have done nothing yet."""

SILENT = (
    "task {task} was silent for {silent_ms} ms: it hangs, its host does, or a function takes longer for a batch than "
    "Settings.heartbeat_timeout"
)


# --- Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begins:
    """The job starts."""


@dataclass(frozen=True)
class Claimed:
    """An attempt is the region's."""

    claim: Claim


@dataclass(frozen=True)
class Registered:
    """A task is there, at an address."""

    task: TaskIndex
    address: str


@dataclass(frozen=True)
class Runs:
    """A task has restored its state, and runs."""

    task: TaskIndex


@dataclass(frozen=True)
class Heard:
    """A task is alive."""

    task: TaskIndex


@dataclass(frozen=True)
class Told:
    """A task says something that is for the coordinator."""

    message: FromTask


@dataclass(frozen=True)
class IsLeft:
    """The attempt is over, if there is one: its tasks shall go."""

    verdict: Verdict
    stage_runs: bool


@dataclass(frozen=True)
class StageOver:
    """The stage of the attempt that was left has ended."""


@dataclass(frozen=True)
class BeginsAgain:
    """The next attempt may begin at this time."""

    until_ms: float


@dataclass(frozen=True)
class ClockMoved:
    """The clock moved."""


RegionEvent: TypeAlias = (
    "Begins | Claimed | Registered | Runs | Heard | Told | IsLeft | StageOver | BeginsAgain | ClockMoved"
)
EVENTS: tuple[type[Any], ...] = (
    *(Begins, Claimed, Registered, Runs, Heard, Told, IsLeft, StageOver, BeginsAgain, ClockMoved),
)


# --- Effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchTasks:
    """Start the stage of the attempt."""

    claim: Claim


@dataclass(frozen=True)
class DeployTasks:
    """Tell every task where the others are, and what to restore."""

    claim: Claim
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class AllRun:
    """Every task runs; `early`: what they said before."""

    claim: Claim
    early: tuple[FromTask, ...]


@dataclass(frozen=True)
class Coordinate:
    """The coordinator hears this."""

    message: FromTask


@dataclass(frozen=True)
class StopTasks:
    """Tell every task to go."""

    attempt: AttemptId
    cancelled: bool


@dataclass(frozen=True)
class StopLate:
    """Tell a task to go that was not there when the others were told."""

    attempt: AttemptId
    task: TaskIndex


@dataclass(frozen=True)
class KillTasks:
    """They do not go by themselves."""

    attempt: AttemptId


@dataclass(frozen=True)
class Overdue:
    """The attempt has failed, as the time tells."""

    reason: str


RegionEffect: TypeAlias = "LaunchTasks | DeployTasks | AllRun | Coordinate | StopTasks | StopLate | KillTasks | Overdue"


# --- The machine --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegionSettings:
    """What the machine is told once."""

    tasks: tuple[TaskIndex, ...]
    launch_timeout_ms: float
    restore_timeout_ms: float
    heartbeat_timeout_ms: float
    stop_timeout_ms: float

    @classmethod
    def of(cls, settings: Settings, parallelism: int) -> RegionSettings:
        return cls(
            tuple(TaskIndex(index) for index in range(parallelism)),
            settings.launch_timeout_ms,
            settings.restore_timeout_ms,
            settings.heartbeat_timeout_ms,
            settings.stop_timeout_ms,
        )


Step: TypeAlias = "tuple[Phase, list[RegionEffect]]"


def step(phase: Phase, event: RegionEvent, settings: RegionSettings, now_ms: float) -> Step:
    """The one door: the next phase, and what to do, in this order."""
    pair = type(phase), type(event)
    if pair in IGNORED:
        return phase, []
    if pair not in TRANSITIONS:
        raise ProtocolViolation(f"region: {event!r:.200} in {phase!r:.200}")
    following: Phase
    following, effects = TRANSITIONS[pair].act(phase, event, settings, now_ms)
    if type(following) not in TRANSITIONS[pair].to:
        raise ProtocolViolation(f"region: {event!r:.200} in {phase!r:.200} does not lead to {following!r:.200}")
    return following, effects


def _begin(phase: Created, event: Begins, settings: RegionSettings, now_ms: float) -> Step:
    return Claiming(), []


def _launch(phase: Claiming, event: Claimed, settings: RegionSettings, now_ms: float) -> Step:
    return Launching(event.claim, {}, now_ms + settings.launch_timeout_ms), [LaunchTasks(event.claim)]


def _register(phase: Launching, event: Registered, settings: RegionSettings, now_ms: float) -> Step:
    addresses = {**phase.addresses, event.task: event.address}
    if len(addresses) < len(settings.tasks):
        return replace(phase, addresses=addresses), []
    # How long a restore takes depends on the state, and a start from nothing does not.
    wait_ms = settings.launch_timeout_ms if phase.claim.restore is None else settings.restore_timeout_ms
    deploying = Deploying(phase.claim, frozenset(), (), now_ms + wait_ms)
    return deploying, [DeployTasks(phase.claim, tuple(addresses[task] for task in settings.tasks))]


def _register_late(phase: Stopping, event: Registered, settings: RegionSettings, now_ms: float) -> Step:
    return phase, [StopLate(phase.attempt_left, event.task)]


def _run(phase: Deploying, event: Runs, settings: RegionSettings, now_ms: float) -> Step:
    running = phase.running | {event.task}
    if len(running) < len(settings.tasks):
        return replace(phase, running=running), []
    return Running(phase.claim, dict.fromkeys(settings.tasks, now_ms)), [AllRun(phase.claim, phase.early)]


def _keep_early(phase: Deploying, event: Told, settings: RegionSettings, now_ms: float) -> Step:
    """A task may be done with a short input before its peers have even restored."""
    return replace(phase, early=(*phase.early, event.message)), []


def _coordinate(phase: Running, event: Told, settings: RegionSettings, now_ms: float) -> Step:
    return phase, [Coordinate(event.message)]


def _hear(phase: Running, event: Heard, settings: RegionSettings, now_ms: float) -> Step:
    return replace(phase, heard_ms={**phase.heard_ms, event.task: now_ms}), []


def _leave(phase: Launching | Deploying | Running, event: IsLeft, settings: RegionSettings, now_ms: float) -> Step:
    patience_ms = settings.stop_timeout_ms
    if isinstance(phase, Launching):
        patience_ms = 0.0  # Tasks that have not registered cannot be told, and the others have done nothing yet.
    elif isinstance(phase, Deploying):
        patience_ms = min(patience_ms, RESTORING_PATIENCE_MS)
    kill_ms, attempt = now_ms + patience_ms, phase.claim.attempt
    left = Stopping(attempt, event.verdict, kill_ms, kill_ms + settings.stop_timeout_ms, ended=not event.stage_runs)
    if not event.stage_runs:
        return left, []
    is_good = isinstance(event.verdict, Finished | Stopped)
    following, effects = _hurry(left, ClockMoved(), settings, now_ms)
    return following, [StopTasks(attempt, cancelled=not is_good), *effects]


def _hurry(phase: Stopping, event: ClockMoved, settings: RegionSettings, now_ms: float) -> Step:
    if not phase.ended and not phase.killed and now_ms >= phase.kill_ms:
        return replace(phase, killed=True), [KillTasks(phase.attempt_left)]
    if not phase.ended and phase.killed and now_ms >= phase.leave_ms:
        # The old tasks are fenced: whatever they still do does not count. Go on without them.
        return replace(phase, ended=True), []
    return phase, []


def _over(phase: Stopping, event: StageOver, settings: RegionSettings, now_ms: float) -> Step:
    return replace(phase, ended=True), []


def _wait(phase: Phase, event: BeginsAgain, settings: RegionSettings, now_ms: float) -> Step:
    if isinstance(phase, Stopping) and not phase.ended:
        raise ProtocolViolation(f"region: {event!r} while its tasks may run: {phase!r:.200}")
    return Waiting(event.until_ms), []


def _wake(phase: Waiting, event: ClockMoved, settings: RegionSettings, now_ms: float) -> Step:
    return (Claiming(), []) if now_ms >= phase.until_ms else (phase, [])


def _look_late(phase: Launching | Deploying, event: ClockMoved, settings: RegionSettings, now_ms: float) -> Step:
    is_late = now_ms >= phase.deadline_ms
    return phase, [Overdue(phase.late_message(len(settings.tasks)))] if is_late else []


def _look_silent(phase: Running, event: ClockMoved, settings: RegionSettings, now_ms: float) -> Step:
    for task, heard_ms in phase.heard_ms.items():
        if now_ms - heard_ms >= settings.heartbeat_timeout_ms:
            return phase, [Overdue(SILENT.format(task=task, silent_ms=round(now_ms - heard_ms)))]
    return phase, []


TRANSITIONS: Mapping[tuple[type[Any], type[Any]], Transition] = {
    (Created, Begins): Transition(_begin, (Claiming,)),
    (Created, BeginsAgain): Transition(_wait, (Waiting,)),
    (Claiming, Claimed): Transition(_launch, (Launching,)),
    (Claiming, BeginsAgain): Transition(_wait, (Waiting,)),
    (Launching, Registered): Transition(_register, (Launching, Deploying)),
    (Launching, ClockMoved): Transition(_look_late, (Launching,)),
    (Launching, IsLeft): Transition(_leave, (Stopping,)),
    (Deploying, Runs): Transition(_run, (Deploying, Running)),
    (Deploying, Told): Transition(_keep_early, (Deploying,)),
    (Deploying, ClockMoved): Transition(_look_late, (Deploying,)),
    (Deploying, IsLeft): Transition(_leave, (Stopping,)),
    (Running, Heard): Transition(_hear, (Running,)),
    (Running, Told): Transition(_coordinate, (Running,)),
    (Running, ClockMoved): Transition(_look_silent, (Running,)),
    (Running, IsLeft): Transition(_leave, (Stopping,)),
    (Stopping, Registered): Transition(_register_late, (Stopping,)),
    (Stopping, StageOver): Transition(_over, (Stopping,)),
    (Stopping, ClockMoved): Transition(_hurry, (Stopping,)),
    (Stopping, BeginsAgain): Transition(_wait, (Waiting,)),
    (Waiting, ClockMoved): Transition(_wake, (Waiting, Claiming)),
    (Waiting, BeginsAgain): Transition(_wait, (Waiting,)),
}

PHASES: tuple[type[Any], ...] = (Created, Claiming, Launching, Deploying, Running, Stopping, Waiting)

IGNORED = frozenset(
    {
        # Without tasks there is nobody to leave, and the time changes nothing.
        *((phase, IsLeft) for phase in (Created, Claiming, Stopping, Waiting)),
        *((phase, ClockMoved) for phase in (Created, Claiming)),
        # What tasks of the attempt say too early, again, or on their way out.
        *((phase, Heard) for phase in (Launching, Deploying, Stopping)),
        *((phase, Told) for phase in (Launching, Stopping)),
        *((phase, Runs) for phase in (Launching, Running, Stopping)),
        *((phase, Registered) for phase in (Deploying, Running)),
    }
)
"""What may come, and changes nothing."""
