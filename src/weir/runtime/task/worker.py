"""The worker loop: every subtask that one task hosts, stepped in turn by one thread.

Comes in: the plan, the driver's orders, elements of channels. Goes out: elements,
acknowledgements, metrics. Touches the world only through its ports, so the same
loop runs on Spark and in the simulation; it never waits, and holds no lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from weir.config import Mode, Settings
from weir.errors import ProtocolViolation
from weir.graph.plan import Plan, PlannedOperator
from weir.ids import AttemptId, CheckpointId, Lineage, SubtaskId, TaskIndex, Uid
from weir.operators.base import OperatorContext, OperatorSpec, Restored
from weir.operators.calls import MakeCalls
from weir.operators.functions.stateful import kept_by_end
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.runtime.ports import Background, Chance, Clock, Control, Copies, Opener, Storage, Transport
from weir.runtime.storage.beginning import Beginning
from weir.runtime.storage.local_copies import NO_COPIES
from weir.runtime.task.backlog import Backlog
from weir.runtime.task.chain import Chain, Link
from weir.runtime.task.gate import Gate
from weir.runtime.task.inner_subtask import InnerSubtask, Inputs
from weir.runtime.task.intake import DirectIntake, Intake, ReservingIntake
from weir.runtime.task.loop_head import LoopHeadSubtask
from weir.runtime.task.metrics import TimeSpent
from weir.runtime.task.sink_end import SinkEnd
from weir.runtime.task.snapshots import Snapshotter
from weir.runtime.task.source_subtask import SourceSubtask
from weir.runtime.task.subtask import Activity, Equipment, Subtask
from weir.snapshot.alignment import AtLeastOnceAlignment, ExactlyOnceAlignment
from weir.snapshot.backoff import Backoff
from weir.snapshot.elements import Barrier
from weir.snapshot.messages import (
    AbortCheckpoint,
    AlignSources,
    CheckpointCompleted,
    DrainSources,
    EpochsCommitted,
    Heartbeat,
    PositionReached,
    PositionReserved,
    ResumeSources,
    SourceReached,
    SourcesReached,
    StopTask,
    SubtaskFinished,
    TaskRunning,
    ToTask,
    TriggerCheckpoint,
)
from weir.snapshot.parts import NOT_READ, Json
from weir.state.aside import Aside, AtOnce
from weir.state.place import StatePlace


@dataclass(frozen=True)
class WorkerPorts:
    """How one worker touches the world."""

    clock: Clock
    transport: Transport
    control: Control
    background: Background
    storage: Storage
    opener: Opener
    copies: Copies = NO_COPIES
    """Of what goes to `storage`, on this host."""
    directory: str | None = None
    """A local directory for state, of this task's own; None: there is none."""
    calls: MakeCalls | None = None
    """Makes calls of users' async functions; None: nobody does."""
    chance: Chance = random.random
    """Spreads what would otherwise happen in many tasks at once."""
    aside: Aside = field(default_factory=AtOnce)
    """Writes and removes local files while the loop goes on."""


@dataclass(frozen=True)
class WorkerConfig:
    """What one worker has to do."""

    job: str
    plan: Plan
    task: TaskIndex
    attempt: AttemptId
    mode: Mode
    settings: Settings
    lineage: Lineage
    may_drop_state: bool = False


class Worker:
    """One task of one attempt."""

    def __init__(self, config: WorkerConfig, ports: WorkerPorts) -> None:
        self.config = config
        self.ports = ports
        self._subtasks: list[Subtask] = []
        self._finished: set[SubtaskId] = set()
        self._spent: dict[SubtaskId, TimeSpent] = {}
        self._aligned: list[SourceSubtask] = []
        """Sources that are to stay close to others in event time."""
        self._reached: tuple[SourceReached, ...] = ()
        self._report_ms = 0.0
        self.stopped: StopTask | None = None

    def open(self, beginning: Beginning) -> None:
        """Build every subtask, with its state from the checkpoint to restore, if there is one."""
        if beginning.manifest is not None:
            self.ports.clock.not_before(beginning.manifest.created_ms)
        for subtask in self.config.plan.hosted_by(self.config.task):
            self._subtasks.append(_Builder(self.config, self.ports, subtask, beginning).build())
            self._spent[subtask] = TimeSpent(self.ports.clock.now_ms())
        self._aligned = [s for s in self._subtasks if isinstance(s, SourceSubtask) and s.is_aligned]
        self.ports.control.send(TaskRunning(self.config.attempt, self.config.task))
        self._report_reached()

    def step(self) -> bool:
        """One step of every subtask; False when none of them could do anything."""
        progressed = False
        started_ms = self.ports.clock.now_ms()
        for subtask in self._subtasks:
            if subtask.sink is not None:
                subtask.sink.tick()  # also when its input has ended: commits are what it still waits for
            activity = subtask.step()
            progressed = progressed or activity is Activity.BUSY
            ended_ms = self.ports.clock.now_ms()
            self._spent[subtask.id].stepped(activity.value, started_ms, ended_ms)
            started_ms = ended_ms
            if subtask.finished and subtask.id not in self._finished:
                self._finished.add(subtask.id)
                self.ports.control.send(SubtaskFinished(self.config.attempt, subtask.id))
        if self._aligned and started_ms >= self._report_ms:
            self._report_reached()
        return progressed

    def handle(self, message: ToTask) -> None:
        """An order of the driver. Those of another attempt are not for us."""
        if message.attempt != self.config.attempt:
            return
        if isinstance(message, TriggerCheckpoint):
            about = message.checkpoint, message.savepoint, message.base, message.is_stateless
            barrier, pause = Barrier(*about), message.pause
            self._each(lambda subtask: subtask.trigger(barrier, pause=pause))
        elif isinstance(message, AbortCheckpoint):
            self._each(lambda subtask: subtask.abort(message.checkpoint))
        elif isinstance(message, CheckpointCompleted):
            self.ports.copies.completed(message.checkpoint)
            self._each(lambda subtask: subtask.completed(message.checkpoint))
            self._tell_loops(message)
        elif isinstance(message, ResumeSources):
            self._each(lambda subtask: subtask.resume())
        elif isinstance(message, DrainSources):
            self._each(lambda subtask: subtask.drain())
        elif isinstance(message, AlignSources):
            self._each(lambda subtask: subtask.align(message.slowest_us))
        elif isinstance(message, PositionReserved):
            for subtask in (subtask for subtask in self._subtasks if subtask.id == message.subtask):
                subtask.reserved(message.number)
        elif isinstance(message, StopTask):
            self.stopped = message
        else:
            raise ProtocolViolation(f"task {self.config.task}: unexpected {message!r}")

    @property
    def wake_ms(self) -> float | None:
        """When a subtask wants a step, if nothing else happens before."""
        sinks = [subtask.sink for subtask in self._subtasks if subtask.sink is not None]
        wakes_ms = [*(subtask.wake_ms for subtask in self._subtasks), *(sink.wake_ms for sink in sinks)]
        return min((wake_ms for wake_ms in wakes_ms if wake_ms is not None), default=None)

    def heartbeat(self) -> None:
        """Tell the driver that this task is alive and what it has done."""
        self.ports.control.send(Heartbeat(self.config.attempt, self.config.task, self.metrics()))

    def metrics(self) -> Json:
        """Counters per operator, and how each subtask spent its time."""
        return {"subtasks": [self._subtask_metrics(subtask) for subtask in self._subtasks]}

    def close(self) -> None:
        """Close every subtask, also when one fails to; the first error is raised at the end."""
        error: BaseException | None = None
        for subtask in self._subtasks:
            try:
                subtask.close()
            except Exception as caught:
                error = error or caught
        self._subtasks = []
        if error is not None:
            raise error

    def _report_reached(self) -> None:
        """Tell how far the sources are that others wait for, if that has changed."""
        self._report_ms = self.ports.clock.now_ms() + self.config.settings.watermark_interval_ms
        reached = tuple(SourceReached(subtask.id, subtask.reached_us) for subtask in self._aligned)
        if reached != self._reached:
            self._reached = reached
            self.ports.control.send(SourcesReached(self.config.attempt, self.config.task, reached))

    def _each(self, act: Callable[[Subtask], None]) -> None:
        for subtask in self._subtasks:
            act(subtask)

    def _tell_loops(self, message: CheckpointCompleted) -> None:
        for subtask in self._subtasks:
            time_over, ended = subtask.id.vertex in message.time_over, subtask.id.vertex in message.ended
            if time_over or ended:
                subtask.loop_empty(time_over=time_over, ended=ended)

    def _subtask_metrics(self, subtask: Subtask) -> dict[str, Any]:
        operators: list[tuple[str, str, Any]] = []
        spent_ms = self._spent[subtask.id].totals_ms
        if isinstance(subtask, SourceSubtask):
            operators.append((subtask.context.uid, subtask.context.name, subtask.counters))
        for link in subtask.chain.links:
            link.counters.rows_late = link.operator.rows_late
            operators.append((link.uid, link.name, link.counters))
        if subtask.sink is not None:
            operators.append((subtask.sink.uid, subtask.sink.name, subtask.sink.counters))
        return {
            "vertex": subtask.id.vertex,
            "index": subtask.id.index,
            "finished": subtask.finished,
            "lag": subtask.reader.lag if isinstance(subtask, SourceSubtask) else None,
            "spent_ms": {a.value: round(spent_ms.get(a.value, 0.0), 1) for a in Activity},
            "operators": [{"uid": uid, "name": name, **vars(counters)} for uid, name, counters in operators],
        }


class _Builder:
    """Puts one subtask together."""

    def __init__(
        self,
        config: WorkerConfig,
        ports: WorkerPorts,
        subtask: SubtaskId,
        beginning: Beginning,
    ) -> None:
        self._config = config
        self._ports = ports
        self._subtask = subtask
        self._beginning = beginning
        self._vertex = config.plan.vertices[subtask.vertex]
        self._opened: list[Callable[[], None]] = []

    def build(self) -> Subtask:
        """The subtask; when that fails half-way, what was opened before is closed again."""
        try:
            return self._build()
        except BaseException:
            for close in reversed(self._opened):
                with suppress(Exception):
                    close()
            raise

    def _build(self) -> Subtask:
        operators = self._vertex.operators
        gate = Gate(self._config.plan, self._subtask, self._ports.transport)
        sink = self._sink(operators[-1])
        snapshotter = Snapshotter(
            self._subtask,
            self._config.attempt,
            storage=self._ports.storage,
            background=self._ports.background,
            control=self._ports.control,
            clock=self._ports.clock,
            sink=sink,
            opener=self._ports.opener,
            copies=self._ports.copies,
            builds_on_others=not self._beginning.reserves,
        )
        inner = [operator for operator in operators if isinstance(operator.spec, OperatorSpec)]
        chain = Chain([self._link(operator, gate) for operator in inner], sink.write if sink else gate.emit)
        equipment = Equipment(
            id=self._subtask,
            chain=chain,
            gate=gate,
            sink=sink,
            snapshotter=snapshotter,
            clock=self._ports.clock,
            buffer_timeout_ms=self._config.settings.buffer_timeout_ms,
            watermark_interval_ms=self._config.settings.watermark_interval_ms,
        )
        if isinstance(operators[0].spec, Source):
            return self._source(operators[0], operators[0].spec, equipment)
        return self._inner(equipment)

    def _source(self, operator: PlannedOperator, source: Source, equipment: Equipment) -> Subtask:
        context = self._context(operator)
        reader = source.reader()
        self._opened.append(reader.close)
        found = self._restored(context)
        kept = kept_by_end(reader.keeper, source.reader_class, context, found)
        reader.open(context, self._beginning.positions_of(context.uid, found))
        intake: Intake = DirectIntake()
        if self._beginning.reserves:
            restored = self._beginning.checkpoint or NOT_READ
            intake = ReservingIntake(reader, partial(self._tell, context.uid), restored)
        rows_max = self._config.settings.batch_rows_max
        return SourceSubtask(equipment, context=context, reader=reader, rows_max=rows_max, intake=intake, kept=kept)

    def _tell(self, uid: Uid, number: int, position: Json, read_behind: CheckpointId) -> None:
        whose = self._config.attempt, self._config.task, self._subtask, uid
        self._ports.control.send(PositionReached(*whose, number, position, read_behind))

    def _inner(self, equipment: Equipment) -> Subtask:
        plan, settings = self._config.plan, self._config.settings
        edges = plan.in_edges(self._subtask.vertex)
        lines = [(edge, channel) for edge in edges for channel in plan.in_channels(edge, self._subtask.index)]
        back = [self._ports.transport.into(channel) for edge, channel in lines if edge.is_back]
        laid = [(edge, channel) for edge, channel in lines if not edge.is_back]
        at_least_once = self._config.mode == "at_least_once"
        inputs = Inputs(
            channels=[self._ports.transport.into(channel) for _, channel in laid],
            operator_inputs=[edge.input_number for edge, _ in laid],
            alignment=AtLeastOnceAlignment(len(laid)) if at_least_once else ExactlyOnceAlignment(len(laid)),
            rows_max=settings.batch_rows_max,
            bytes_max=settings.batch_max_bytes,
            timeless=[i for i, (edge, _) in enumerate(laid) if not edge.has_watermarks],
        )
        if not back:
            return InnerSubtask(equipment, inputs)
        limits = settings.loop_memory_max_bytes, settings.loop_disk_max_bytes
        return LoopHeadSubtask(equipment, inputs, back=back, backlog=Backlog(*limits, self._ports.directory))

    def _sink(self, operator: PlannedOperator) -> SinkEnd | None:
        if not isinstance(operator.spec, Sink):
            return None
        context = self._context(operator)
        writer, found = operator.spec.writer(), self._restored(context)
        send, attempt = self._ports.control.send, self._config.attempt
        sink = SinkEnd(
            context,
            writer,
            background=self._ports.background,
            clock=self._ports.clock,
            chance=self._ports.chance,
            report=lambda checkpoint: send(EpochsCommitted(attempt, checkpoint, self._subtask)),
            retries_max=self._config.settings.commit_retries_max,
            backoff=Backoff.for_commits(self._config.settings),
            kept=kept_by_end(writer, operator.spec.writer_class, context, found),
        )
        self._opened.append(sink.close)
        sink.open(found, self._beginning.checkpoint)
        return sink

    def _link(self, operator: PlannedOperator, gate: Gate) -> Link:
        assert isinstance(operator.spec, OperatorSpec)
        context = self._context(operator)
        instance = operator.spec.make()
        self._opened.append(instance.close)
        restored = None if self._beginning.loses_state else self._restored(context)
        if restored is not None and not operator.spec.declares_in_open:
            # State that the operator no longer declares may be dropped; if it may not, the driver has refused it.
            declared = {name: state for name, state in restored.states.items() if name in operator.spec.states}
            restored = replace(restored, states=declared)
        instance.sides = gate.sides(operator.uid)
        instance.open(context, restored)
        return Link(operator.uid, operator.name, instance)

    def _context(self, operator: PlannedOperator) -> OperatorContext:
        return OperatorContext(
            job=self._config.job,
            uid=operator.uid,
            name=operator.name,
            index=self._subtask.index,
            parallelism=self._vertex.parallelism,
            max_parallelism=self._config.plan.max_parallelism,
            attempt=self._config.attempt,
            lineage=self._config.lineage,
            place=StatePlace(
                backend=self._config.settings.backend,
                directory=self._directory(operator.uid),
                tables_per_task=self._config.plan.stateful_per_task,
                now_ms=self._ports.clock.wall_ms,
                aside=self._ports.aside,
            ),
            calls=self._ports.calls,
            settings=self._config.settings,
            may_drop_state=self._config.may_drop_state,
        )

    def _directory(self, uid: Uid) -> str | None:
        below = self._ports.directory
        return None if below is None else f"{below}/{quote(uid, safe='')}-{self._subtask.index}"

    def _restored(self, context: OperatorContext) -> Restored | None:
        return self._beginning.restored(context, self._ports.storage, self._ports.copies)
