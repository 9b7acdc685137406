"""A subtask with everything around it in the hands of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.sim.ports import SimChannel, SimClock, SimControl
from tests.unit.runtime.fakes import (
    Pass,
    Pipes,
    QueuedBackground,
    Recording,
    ScriptReader,
    context,
    operator,
    plan_of,
    rows,
    run_all,
)
from weir.graph.plan import Forward
from weir.ids import AttemptId, ChannelId, CheckpointId, EdgeId, SubtaskId, Uid, VertexId
from weir.runtime.storage.stores.memory import MemoryStorage
from weir.runtime.task.chain import Chain, Link
from weir.runtime.task.gate import Gate
from weir.runtime.task.inner_subtask import InnerSubtask, Inputs
from weir.runtime.task.intake import ReservingIntake
from weir.runtime.task.snapshots import Snapshotter
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.subtask import Activity, Equipment, Subtask
from weir.snapshot.alignment import AtLeastOnceAlignment, ExactlyOnceAlignment
from weir.snapshot.elements import Barrier
from weir.snapshot.messages import SnapshotDeclined, SnapshotTaken

HERE = SubtaskId(VertexId(0), 0)


def checkpoint(number: int) -> CheckpointId:
    return CheckpointId(number)


def barrier(number: int, savepoint: str | None = None) -> Barrier:
    return Barrier(checkpoint(number), savepoint)


@dataclass
class Bench:
    """A subtask with everything around it in the test's hands."""

    subtask: Subtask
    pipes: Pipes
    clock: SimClock
    control: SimControl
    background: QueuedBackground
    operator: Recording
    inputs: list[SimChannel]

    @property
    def output(self) -> list[Any]:
        return self.pipes.sent(0, 0, 0)

    @property
    def out_channel(self) -> SimChannel:
        return self.pipes.out(ChannelId(EdgeId(0), 0, 0))

    def steps(self, count: int = 100) -> None:
        """Step until nothing more happens."""
        for _ in range(count):
            if self.subtask.step() is not Activity.BUSY:
                return

    @property
    def answers(self) -> list[tuple[str, int]]:
        run_all(self.background)
        kinds = {SnapshotTaken: "taken", SnapshotDeclined: "declined"}
        return [(kinds[type(m)], m.checkpoint) for m in self.control.to_driver]  # type: ignore[union-attr]


def bench(
    *,
    inputs: int = 0,
    reader: ScriptReader | None = None,
    holds: bool = False,
    capacity: int = 100,
    rows_max: int = 100,
    bytes_max: int = 1 << 20,
    buffer_timeout_ms: float = 10.0,
    exactly_once: bool = True,
    told: list[tuple[int, Any, int]] | None = None,
) -> Bench:
    """`told`: rows of the source wait until what it tells there is noted."""
    plan = plan_of((1, [operator("up", Pass())]), (1, [operator("down", Pass())]), edges=[(0, 1, Forward())])
    pipes, clock, control, background = Pipes(capacity), SimClock(), SimControl(), QueuedBackground()
    recording = Recording("op", [], holds=holds)
    gate = Gate(plan, HERE, pipes)
    equipment = Equipment(
        id=HERE,
        chain=Chain([Link(Uid("op"), "op", recording)], gate.emit),
        gate=gate,
        sink=None,
        snapshotter=Snapshotter(
            HERE,
            AttemptId(1),
            storage=MemoryStorage(1 << 20),
            background=background,
            control=control,
            clock=clock,
            sink=None,
            opener=lambda uri, create=True: MemoryStorage(1 << 20),
        ),
        clock=clock,
        buffer_timeout_ms=buffer_timeout_ms,
        watermark_interval_ms=100.0,
    )
    channels = [SimChannel(100, local=True) for _ in range(inputs)]
    subtask: Subtask
    if reader is not None:
        intake = None if told is None else ReservingIntake(reader, lambda *position: told.append(position))
        subtask = SourceSubtask(equipment, context=context("source"), reader=reader, rows_max=rows_max, intake=intake)
    else:
        alignment = (ExactlyOnceAlignment if exactly_once else AtLeastOnceAlignment)(inputs)
        limits = {"rows_max": rows_max, "bytes_max": bytes_max}
        subtask = InnerSubtask(equipment, Inputs(channels, [0] * inputs, alignment, **limits))
    return Bench(subtask, pipes, clock, control, background, recording, channels)


def feed(channel: SimChannel, *elements: Any) -> None:
    for element in elements:
        assert channel.offer(rows(*element) if isinstance(element, list) else element)


def source(*batches: Sequence[int] | None, **settings: Any) -> Bench:
    return bench(reader=ScriptReader([None if batch is None else rows(*batch) for batch in batches]), **settings)
