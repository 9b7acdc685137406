"""A worker is opened by its order: with nothing, from a checkpoint, from a savepoint; or it fails half-way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.ports import SimClock, SimControl
from tests.unit.runtime.fakes import FaultyStorage, Pipes, QueuedBackground, Script, Shelf, operator, plan_of, rows
from tests.unit.runtime.stores import LIFE
from weir.config import Settings
from weir.errors import CheckpointError, StorageUnavailable
from weir.graph.plan import Forward
from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.operators.source import SourceReader
from weir.runtime.storage import layout
from weir.runtime.storage.opening import open_storage
from weir.runtime.task.deploy import PROGRESS_INTERVAL_MS, RestoreProgress, deploy
from weir.runtime.task.worker import Worker, WorkerConfig, WorkerPorts
from weir.snapshot.manifest import build, encode
from weir.snapshot.messages import DeployTask, TaskRestoring, TaskRunning

A, C = AttemptId(5), CheckpointId(3)
RUNNING = TaskRunning(A, TaskIndex(0))


class Clock(SimClock):
    """Remembers how late it was said to be at least."""

    bound_ms = 0.0

    def not_before(self, wall_ms: float) -> None:
        self.bound_ms = wall_ms


class Broken(Script):
    """A source without readers."""

    def reader(self) -> SourceReader:
        raise StorageUnavailable("no reader today")


class Bench:
    """A worker that nobody has opened, of a sink and, hosted behind it, a source."""

    def __init__(self, source: Script | None = None) -> None:
        self.clock, self.control, self.storage, self.shelf = Clock(), SimControl(), FaultyStorage(), Shelf()
        first, last = operator("sink", self.shelf), operator("second", source or Script(rows(1)))
        plan = plan_of(
            (1, [operator("source", Script(rows(1)))]),
            (1, [first]),
            (1, [last]),
            (1, [operator("other", Shelf())]),
            edges=[(0, 1, Forward()), (2, 3, Forward())],
        )
        config = WorkerConfig("job", plan, TaskIndex(0), A, "exactly_once", Settings(max_parallelism=8), LIFE)
        ports = WorkerPorts(self.clock, Pipes(), self.control, QueuedBackground(), self.storage, open_storage)
        self.worker = Worker(config, ports)

    def deploy(self, restore: CheckpointId | None = None, origin: str | None = None) -> None:
        deploy(self.worker, DeployTask(A, {}, restore, origin))


def manifest(created_ms: float) -> bytes:
    return encode(
        build(job="job", checkpoint=C, attempt=A, max_parallelism=8, created_ms=created_ms, parts={}, parallelism={})
    )


def test_without_a_checkpoint_the_task_begins_with_nothing() -> None:
    bench = Bench()
    bench.deploy()
    assert list(bench.control.to_driver) == [RUNNING]
    assert bench.clock.bound_ms == 0
    assert bench.storage.calls == []


def test_a_checkpoint_of_the_job_is_read_from_its_own_storage() -> None:
    bench = Bench()
    bench.storage.write(layout.manifest_path(C), manifest(created_ms=77))
    bench.deploy(C)
    assert list(bench.control.to_driver) == [RUNNING]
    assert bench.clock.bound_ms == 77


def test_a_savepoint_is_read_from_where_the_order_says(tmp_path: Path) -> None:
    bench = Bench()
    bench.storage.write(layout.manifest_path(C), manifest(created_ms=77))
    (tmp_path / layout.MANIFEST).write_bytes(manifest(created_ms=88))
    bench.deploy(C, str(tmp_path))
    assert bench.clock.bound_ms == 88


def test_a_savepoint_that_is_not_there_is_said_to_be_none(tmp_path: Path) -> None:
    bench = Bench()
    with pytest.raises(CheckpointError, match="is no savepoint"):
        bench.deploy(C, str(tmp_path))
    assert not bench.control.to_driver


def test_a_checkpoint_that_is_gone_opens_nothing() -> None:
    bench = Bench()
    with pytest.raises(FileNotFoundError):
        bench.deploy(C)
    assert bench.shelf.writers == []


def test_what_was_open_when_it_failed_is_left_for_the_close_behind_the_background() -> None:
    bench = Bench(Broken())
    with pytest.raises(StorageUnavailable, match="no reader today"):
        bench.deploy()
    assert not bench.control.to_driver
    (writer,) = bench.shelf.writers
    assert not writer.closed
    bench.worker.close()
    assert writer.closed


def test_a_restore_that_takes_long_is_told_of_twice_a_second_and_one_that_does_not_is_not() -> None:
    bench = Bench()
    progress = RestoreProgress(bench.worker, 900)
    progress.was_read(100)
    assert not bench.control.to_driver
    bench.clock.time_ms += PROGRESS_INTERVAL_MS
    for _ in range(3):
        progress.was_read(200)
    assert list(bench.control.to_driver) == [TaskRestoring(A, TaskIndex(0), 300, 900)]
