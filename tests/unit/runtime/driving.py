"""A driver whose tasks, clock, storage and Spark are the test's own hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.sim.ports import SimClock
from tests.unit.runtime.fakes import (
    FaultyStorage,
    Pass,
    QueuedBackground,
    Script,
    Shelf,
    operator,
    plan_of,
    run_all,
    run_one,
)
from tests.unit.runtime.stores import LIFE, store_of
from weir.config import Checkpoints, FixedDelay, JobConfig, Mode, Restart, Settings
from weir.graph.plan import Forward, Plan
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.runtime.driver import phases
from weir.runtime.driver.loop import Driver
from weir.runtime.driver.notices import Notice
from weir.runtime.storage.attempts import current_lineage
from weir.runtime.storage.opening import open_storage
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.manifest import Manifest
from weir.snapshot.messages import (
    EpochsCommitted,
    FromTask,
    SnapshotTaken,
    SubtaskFinished,
    TaskFailed,
    TaskRegistered,
    TaskRunning,
    ToTask,
)
from weir.snapshot.parts import Inline, OperatorPart, PendingEpochs, Position

N = TypeVar("N")

TASKS = 2
LAUNCH_MS, STOP_MS, HEARTBEAT_MS, INTERVAL_MS, DELAY_MS = 60_000, 10_000, 5_000, 1_000, 100
SETTINGS = Settings(launch_timeout="60s", stop_timeout="10s", heartbeat_timeout="5s")


def two_tasks(source: str = "source") -> Plan:
    """A source with an operator, and a sink, in two tasks."""
    return plan_of(
        (TASKS, [operator(source, Script()), operator("op", Pass())]),
        (TASKS, [operator("sink", Shelf())]),
        edges=[(0, 1, Forward())],
    )


def _inline(spec: object) -> Inline | None:
    if isinstance(spec, Sink):
        return PendingEpochs(())
    return Position(0) if isinstance(spec, Source) else None


class FakeCluster:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.killed: list[int] = []
        self.sent: list[tuple[int, ToTask]] = []

    def launch(self, attempt: AttemptId, plan: Plan) -> None:
        self.launched.append(attempt)

    def send(self, attempt: AttemptId, task: TaskIndex, message: ToTask) -> None:
        assert message.attempt == attempt
        self.sent.append((task, message))

    def kill(self, attempt: AttemptId) -> None:
        self.killed.append(attempt)

    def told(self, kind: type) -> list[Any]:
        """What was sent of one kind, to the first task; the others were told the same."""
        by_task = [[m for to, m in self.sent if to == task and isinstance(m, kind)] for task in range(TASKS)]
        assert all(messages == by_task[0] for messages in by_task)
        return by_task[0]


class Stage:
    """The driver, and everything that it can see."""

    def __init__(
        self,
        *,
        restart: Restart | None = None,
        resume: bool = False,
        storage: FaultyStorage | None = None,
        run: str = "run-1",
        plan: Plan | None = None,
        every: str | None = "1s",
        tolerable_failures: int = 0,
        lineage: str = LIFE,
        mode: Mode = "exactly_once",
    ) -> None:
        self.clock, self.background, self.cluster = SimClock(), QueuedBackground(), FakeCluster()
        self.storage = storage or FaultyStorage()
        self.notices: list[Notice] = []
        self.plan = plan or two_tasks()
        checkpoints = Checkpoints(every=every, tolerable_failures=tolerable_failures, mode=mode)
        config = JobConfig(
            "job", checkpoints, restart or FixedDelay(attempts=100, delay="100ms"), SETTINGS, resume=resume
        )
        self.driver = Driver(
            config,
            self.plan,
            run=run,
            clock=self.clock,
            background=self.background,
            cluster=self.cluster,
            store=store_of(self.storage, current_lineage(self.storage) or LIFE if resume else lineage),
            opener=open_storage,
            settings=CoordinatorSettings.from_config(checkpoints, is_at_most_once=config.is_at_most_once),
            notify=self.notices.append,
            chance=lambda: 1.0,
        )

    # --- What the world does ---

    def begin(self) -> Stage:
        """As far as Launching."""
        self.driver.start()
        run_all(self.background)
        return self

    def register(self, *tasks: int, attempt: int | None = None) -> Stage:
        for task in tasks or range(TASKS):
            self.hear(TaskRegistered(self.at(attempt), TaskIndex(task), f"host:{task}", 1000 + task))
        return self

    def run(self, *tasks: int, attempt: int | None = None) -> Stage:
        for task in tasks or range(TASKS):
            self.hear(TaskRunning(self.at(attempt), TaskIndex(task)))
        return self

    def up(self) -> Stage:
        """As far as Running, from the start or from a wait."""
        if isinstance(self.driver.phase, phases.Created):
            self.begin()
        elif isinstance(self.driver.phase, phases.Waiting):
            self.pass_ms(DELAY_MS)
            run_all(self.background)
        return self.register().run()

    def fail(self, error: str = "boom", *, code: str = "X", fatal: bool = False, attempt: int | None = None) -> Stage:
        self.hear(TaskFailed(self.at(attempt), TaskIndex(0), error, code, fatal))
        return self

    def hear(self, message: FromTask) -> None:
        self.driver.hear(message)

    def stage_ends(self, error: str | None = None, *, attempt: int | None = None) -> Stage:
        self.driver.stage_ended(self.at(attempt), error)
        return self

    def pass_ms(self, ms: float) -> Stage:
        self.clock.time_ms += ms
        self.driver.tick()
        return self

    def acknowledge(self, checkpoint: int, *, but: SubtaskId | None = None) -> Stage:
        """Every subtask has taken its snapshot."""
        for taken in self.snapshots(checkpoint, but=but):
            self.hear(taken)
        return self

    def snapshots(self, checkpoint: int, *, but: SubtaskId | None = None) -> list[SnapshotTaken]:
        """What the subtasks say when they have taken them."""
        found = []
        for subtask in sorted(self.plan.subtasks - {but}):
            parts = tuple(OperatorPart(op.uid, _inline(op.spec)) for op in self.plan.vertices[subtask.vertex].operators)
            found.append(SnapshotTaken(self.at(None), CheckpointId(checkpoint), subtask, parts))
        return found

    def commit(self, checkpoint: int) -> Stage:
        for subtask in sorted(self.plan.committers):
            self.hear(EpochsCommitted(self.at(None), CheckpointId(checkpoint), subtask))
        return self

    def finish_subtasks(self, attempt: int | None = None) -> Stage:
        for subtask in sorted(self.plan.subtasks):
            self.hear(SubtaskFinished(self.at(attempt), subtask))
        return self

    def complete(self, checkpoint: int) -> Stage:
        """A checkpoint that was triggered goes all the way."""
        self.acknowledge(checkpoint)
        run_all(self.background)
        return self

    def at(self, attempt: int | None) -> AttemptId:
        if attempt is not None:
            return AttemptId(attempt)
        assert self.driver.attempt is not None
        return self.driver.attempt

    # --- What can be seen ---

    @property
    def phase(self) -> phases.Phase:
        return self.driver.phase

    @property
    def ended(self) -> phases.Ended:
        assert isinstance(self.driver.phase, phases.Ended), self.driver.phase
        return self.driver.phase

    def manifest(self, checkpoint: int) -> Manifest:
        """What was published."""
        return store_of(self.storage).read(CheckpointId(checkpoint))

    def said(self, kind: type[N]) -> list[N]:
        return [notice for notice in self.notices if isinstance(notice, kind)]


# --- How each phase is reached --------------------------------------------------------------------------


def created() -> Stage:
    return Stage()


def adopting() -> Stage:
    stage = Stage()
    stage.driver.start()
    return stage


def claiming() -> Stage:
    stage = adopting()
    run_one(stage.background)
    return stage


def launching() -> Stage:
    return Stage().begin()


def deploying() -> Stage:
    return launching().register()


def running(**settings: Any) -> Stage:
    return Stage(**settings).begin().register().run()


def stopping() -> Stage:
    return running().fail()


def waiting() -> Stage:
    return stopping().stage_ends()


def cancelling() -> Stage:
    stage = running()
    stage.driver.cancel()
    return stage


def finishing(**settings: Any) -> Stage:
    """Everything is committed; tasks have been told to leave."""
    return running(**settings).finish_subtasks().complete(1).commit(1)


def noting(**settings: Any) -> Stage:
    """… and have left: only the last note in storage is missing."""
    return finishing(**settings).stage_ends()


def ended() -> Stage:
    stage = noting()
    run_all(stage.background)
    return stage


PHASES: dict[Callable[[], Stage], type] = {
    created: phases.Created,
    adopting: phases.Claiming,
    claiming: phases.Claiming,
    launching: phases.Launching,
    deploying: phases.Deploying,
    running: phases.Running,
    stopping: phases.Stopping,
    waiting: phases.Waiting,
    cancelling: phases.Stopping,
    finishing: phases.Stopping,
    noting: phases.Stopping,
    ended: phases.Ended,
}
each_phase = pytest.mark.parametrize("reach", PHASES, ids=lambda reach: reach.__name__)


def phases_named(*names: str) -> pytest.MarkDecorator:
    chosen = [reach for reach in PHASES if reach.__name__ in names]
    assert len(chosen) == len(names)
    return pytest.mark.parametrize("reach", chosen, ids=lambda reach: reach.__name__)
