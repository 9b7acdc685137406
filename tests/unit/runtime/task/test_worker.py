"""One task: every subtask that it hosts, the driver's orders, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sim.ports import SimClock, SimControl
from tests.states import FrozenTable
from tests.unit.runtime.fakes import (
    FaultyStorage,
    KeptCopies,
    Pass,
    Pipes,
    QueuedBackground,
    Recording,
    Script,
    Shelf,
    operator,
    plan_of,
    rows,
    run_all,
)
from tests.unit.runtime.stores import LIFE
from weir.config import Mode, Settings
from weir.errors import ProtocolViolation
from weir.graph.plan import Forward, Plan, Rebalance
from weir.ids import AttemptId, CheckpointId, SubtaskId, TaskIndex, VertexId
from weir.operators.base import KEY_GROUP_COLUMN, Frozen, Operator, OperatorSpec, Restored
from weir.runtime.ports import Storage
from weir.runtime.storage.beginning import Beginning
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import Origin, publish_savepoint
from weir.runtime.task.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.manifest import Manifest, build
from weir.snapshot.messages import (
    AbortCheckpoint,
    CheckpointCompleted,
    DeployTask,
    EpochsCommitted,
    Heartbeat,
    SnapshotTaken,
    StopTask,
    SubtaskFinished,
    TaskRunning,
    TriggerCheckpoint,
)

A, C = AttemptId(5), CheckpointId(1)


class Shop:
    """One worker of parallelism one: a source with an operator, then a sink."""

    def __init__(
        self,
        *,
        plan: Plan | None = None,
        mode: Mode = "exactly_once",
        manifest: Manifest | None = None,
        origin: Storage | None = None,
    ):
        self.shelf = Shelf()
        self.plan = plan or plan_of(
            (1, [operator("source", Script(rows(1, 2), rows(3))), operator("op", Pass())]),
            (1, [operator("sink", self.shelf)]),
            edges=[(0, 1, Forward())],
        )
        self.clock, self.control, self.background = SimClock(), SimControl(), QueuedBackground()
        self.pipes = Pipes()
        self.copies = KeptCopies()
        ports = WorkerPorts(
            self.clock, self.pipes, self.control, self.background, FaultyStorage(), open_storage, self.copies
        )
        self.worker = Worker(
            WorkerConfig("job", self.plan, TaskIndex(0), A, mode, Settings(max_parallelism=8), LIFE), ports
        )
        self.worker.open(Beginning(manifest, origin))

    def steps(self) -> None:
        while self.worker.step():
            pass

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.control.to_driver if isinstance(message, kind)]


def test_a_task_says_that_it_runs_once_it_has_built_everything() -> None:
    assert list(Shop().control.to_driver) == [TaskRunning(A, TaskIndex(0))]


def test_rows_flow_from_source_to_sink_and_every_end_is_reported_once() -> None:
    shop = Shop()
    shop.steps()
    shop.steps()
    assert shop.shelf.writers[0].rows == [1, 2, 3]
    ends = [SubtaskFinished(A, SubtaskId(VertexId(v), 0)) for v in (0, 1)]
    assert shop.heard(SubtaskFinished) == ends


def test_a_step_that_does_nothing_says_so() -> None:
    shop = Shop()
    shop.steps()
    assert shop.worker.step() is False
    assert shop.worker.wake_ms is None


def test_a_checkpoint_goes_through_all_subtasks_and_its_epoch_is_committed_when_it_is_complete() -> None:
    shop = Shop()
    shop.steps()
    shop.worker.handle(TriggerCheckpoint(A, C))
    shop.steps()
    run_all(shop.background)
    assert {m.subtask for m in shop.heard(SnapshotTaken)} == shop.plan.subtasks
    assert shop.shelf.writers[0].commits == []
    shop.worker.handle(CheckpointCompleted(A, C))
    run_all(shop.background)
    assert shop.shelf.writers[0].commits == [[[1, 2, 3]]]
    assert shop.heard(EpochsCommitted) == [EpochsCommitted(A, C, SubtaskId(VertexId(1), 0))]


def test_who_keeps_copies_hears_which_checkpoint_is_complete_if_it_is_of_this_attempt() -> None:
    shop = Shop()
    shop.worker.handle(TriggerCheckpoint(A, C))
    shop.steps()
    run_all(shop.background)
    for attempt in (AttemptId(A - 1), A):
        shop.worker.handle(CheckpointCompleted(attempt, C))
    assert shop.copies.heard == [C]


def test_an_abort_reaches_every_subtask() -> None:
    shop = Shop()
    shop.worker.handle(TriggerCheckpoint(A, C))
    shop.worker.handle(AbortCheckpoint(A, C))
    shop.steps()
    run_all(shop.background)
    assert shop.heard(SnapshotTaken) == []


@pytest.mark.parametrize(
    "order", [TriggerCheckpoint(AttemptId(4), C), CheckpointCompleted(AttemptId(4), C), StopTask(AttemptId(4), True)]
)
def test_orders_of_another_attempt_are_not_for_us(order: Any) -> None:
    shop = Shop()
    shop.worker.handle(order)
    shop.steps()
    run_all(shop.background)
    assert shop.heard(SnapshotTaken) == []
    assert shop.worker.stopped is None


def test_the_task_remembers_that_it_was_told_to_leave() -> None:
    shop = Shop()
    shop.worker.handle(StopTask(A, cancelled=False))
    assert shop.worker.stopped == StopTask(A, cancelled=False)


def test_an_order_that_is_not_known_is_our_bug() -> None:
    with pytest.raises(ProtocolViolation, match="task 0: unexpected"):
        Shop().worker.handle(DeployTask(A, (), None))


def manifest_of(shop: Shop) -> Manifest:
    """What the driver would publish."""
    return build(
        job="job",
        checkpoint=C,
        attempt=A,
        max_parallelism=8,
        created_ms=0,
        parts={m.subtask: m.parts for m in shop.heard(SnapshotTaken)},
        parallelism={vertex.id: vertex.parallelism for vertex in shop.plan.vertices},
    )


def test_a_restored_task_goes_on_where_the_snapshot_was_taken_and_commits_what_was_pending() -> None:
    first = Shop()
    first.worker.step()
    first.worker.handle(TriggerCheckpoint(A, C))
    first.steps()
    run_all(first.background)
    second = Shop(manifest=manifest_of(first))
    second.steps()
    run_all(second.background)
    assert second.shelf.writers[0].commits == [[[1, 2]]]
    assert second.shelf.writers[0].rows == [3]
    assert second.heard(EpochsCommitted) == [EpochsCommitted(A, C, SubtaskId(VertexId(1), 0))]


def test_a_heartbeat_tells_what_each_operator_has_done_and_how_subtasks_spent_their_time() -> None:
    shop = Shop()
    shop.clock.time_ms = 4.0
    shop.steps()
    shop.worker.heartbeat()
    (beat,) = shop.heard(Heartbeat)
    first, second = beat.metrics["subtasks"]
    assert [(op["uid"], op["rows_in"], op["rows_out"]) for op in first["operators"]] == [
        ("source", 0, 3),
        ("op", 3, 3),
    ]
    assert [(op["uid"], op["rows_in"]) for op in second["operators"]] == [("sink", 3)]
    assert first["finished"] and second["finished"]
    assert first["spent_ms"] == second["spent_ms"] == {"busy": 0.0, "blocked": 0.0, "idle": 4.0}


def test_a_task_hosts_only_the_subtasks_of_its_index() -> None:
    shelf = Shelf()
    plan = plan_of((1, [operator("source", Script())]), (2, [operator("sink", shelf)]), edges=[(0, 1, Rebalance())])
    ports = WorkerPorts(SimClock(), Pipes(), SimControl(), QueuedBackground(), FaultyStorage(), open_storage)
    worker = Worker(
        WorkerConfig("job", plan, TaskIndex(1), A, "exactly_once", Settings(max_parallelism=8), LIFE), ports
    )
    worker.open(Beginning())
    assert [(s["vertex"], s["index"]) for s in worker.metrics()["subtasks"]] == [(1, 1)]


def test_closing_closes_everything_and_raises_the_first_error_at_the_end() -> None:
    shop = Shop()
    writer = shop.shelf.writers[0]
    shop.worker._subtasks[0].chain.links[0].operator.close_error = ValueError("stuck")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="stuck"):
        shop.worker.close()
    assert writer.closed
    shop.worker.close()


class Opened(OperatorSpec):
    """Has one state, and keeps what it is opened with."""

    def __init__(self, states: tuple[str, ...]) -> None:
        self._states = states
        self.restored: list[Restored | None] = []

    @property
    def states(self) -> tuple[str, ...]:
        return self._states

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def make(self) -> Operator:
        operator, opened = Recording("opened", []), self.restored
        table = pa.table({KEY_GROUP_COLUMN: pa.array([0, 5], pa.int32()), "n": [1, 2]})
        operator.frozen = Frozen(None, {name: FrozenTable(lambda: table) for name in self._states})
        operator.open = lambda context, restored: opened.append(restored)  # type: ignore[method-assign]
        return operator


def test_a_task_starts_from_a_savepoint_with_nothing_pending_and_refers_to_none_of_its_files(tmp_path: Path) -> None:
    def plan(spec: Opened, shelf: Shelf) -> Plan:
        source = operator("source", Script(rows(1, 2), rows(3)))
        return plan_of((1, [source, operator("op", spec)]), (1, [operator("sink", shelf)]), edges=[(0, 1, Forward())])

    first = Shop(plan=plan(Opened(("kept", "gone")), Shelf()))
    first.worker.step()
    first.worker.handle(TriggerCheckpoint(A, C, savepoint=str(tmp_path)))
    first.steps()
    run_all(first.background)
    exported = {m.subtask: m.exported for m in first.heard(SnapshotTaken)}
    manifest = build(
        job="job",
        checkpoint=C,
        attempt=A,
        max_parallelism=8,
        created_ms=0,
        parts=exported,
        parallelism={vertex.id: 1 for vertex in first.plan.vertices},
        kind="savepoint",
    )
    publish_savepoint(open_storage(str(tmp_path)), manifest)

    spec, shelf, origin = Opened(("kept",)), Shelf(), Origin(str(tmp_path))
    second = Shop(
        plan=plan(spec, shelf), manifest=origin.read(origin.open(open_storage)), origin=origin.open(open_storage)
    )
    second.steps()
    run_all(second.background)
    (restored,) = spec.restored
    assert restored is not None and set(restored.states) == {"kept"}, "what is no longer declared is dropped"
    assert [table.column("n").to_pylist() for table in restored.tables("kept")] == [[1, 2]]
    assert restored.states["kept"].whole is None, "its files lie elsewhere, and are not this job's to refer to"
    assert shelf.writers[0].commits == [] and shelf.writers[0].rows == [3]
