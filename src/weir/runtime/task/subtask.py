"""One subtask: takes from its inputs or its source, runs its chain, fills its outputs.

Comes in: elements of input channels, or rows of a source, and the driver's orders.
Goes out: elements through the gate, snapshots through the snapshotter. A step does
one bounded piece of work and never waits: a full output or an empty input only
means that the next step belongs to somebody else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId, SubtaskId, Uid
from weir.operators.base import Frozen, OperatorContext
from weir.operators.source import SourceReader
from weir.operators.time.watermarks import AssigningWatermarks
from weir.runtime.ports import Clock, Element, InChannel
from weir.runtime.task.chain import Chain, Counters
from weir.runtime.task.gate import Gate
from weir.runtime.task.sink_end import SinkEnd
from weir.runtime.task.snapshots import Said, Snapshot, Snapshotter
from weir.runtime.task.turns import Turns
from weir.snapshot.alignment import (
    Alignment,
    AlignmentEvent,
    BarrierArrived,
    BarrierCancelArrived,
    BlockChannel,
    CheckpointAborted,
    PassCancel,
    TakeSnapshot,
    UnblockChannels,
)
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput, StreamIdle, Watermark
from weir.snapshot.watermarks import END_US, WatermarkMerge


class Activity(Enum):
    """What a step came to."""

    BUSY = "busy"
    BLOCKED = "blocked"
    """An output is full: backpressure."""
    IDLE = "idle"


class Subtask(ABC):
    """What sources and inner subtasks have in common."""

    def __init__(
        self,
        subtask: SubtaskId,
        *,
        chain: Chain,
        gate: Gate,
        sink: SinkEnd | None,
        snapshotter: Snapshotter,
        clock: Clock,
        buffer_timeout_ms: float,
        watermark_interval_ms: float,
    ) -> None:
        self.id = subtask
        self.chain = chain
        self.sink = sink
        self.finished = False
        self._gate = gate
        self._snapshotter = snapshotter
        self._clock = clock
        self._buffer_timeout_ms = buffer_timeout_ms
        self._flushed_ms = clock.now_ms()
        self._generators = [
            (index, link.operator)
            for index, link in enumerate(chain.links)
            if isinstance(link.operator, AssigningWatermarks)
        ]
        self._watermark_interval_ms = watermark_interval_ms
        self._generate_ms = self._flushed_ms + watermark_interval_ms
        self._is_starved = True
        """Since watermarks were made, there was always room for more rows."""
        self.watermark_us: int | None = None
        """The last watermark that went on."""
        self._left_to_end: deque[Callable[[], None]] = deque()
        """Once the input has ended."""
        self._holds_idle = False

    @property
    def wake_ms(self) -> float | None:
        """When this subtask wants a step although nothing comes in. None while an output is full: room is made by
        others, who then wake the loop. Asking for an early wake-up would only keep it spinning until then."""
        if self.finished or self._gate.full:
            return None
        wakes_ms = [self._generate_ms] if self._generators else []
        if (wanted_ms := self.chain.wake_ms) is not None:
            # Operators go by the wall clock, the loop by one that never jumps.
            wakes_ms.append(self._clock.now_ms() + max(0.0, wanted_ms - self._clock.wall_ms()))
        return min(wakes_ms, default=None)

    def step(self) -> Activity:
        """One bounded piece of work."""
        if not self._gate.drain():
            self._is_starved = False
            return Activity.BLOCKED
        self._keep_time()
        if self._work():
            now_ms = self._clock.now_ms()
            if self.chain.holding and now_ms - self._flushed_ms >= self._buffer_timeout_ms:
                self._flush(now_ms)
            return Activity.BUSY
        if self.chain.holding:
            self._flush(self._clock.now_ms())
            return Activity.BUSY
        return Activity.IDLE

    def _keep_time(self) -> None:
        """Make watermarks, and wake operators that wait for the wall clock, when it is time to."""
        if self.finished:
            return
        if self._generators and not self._left_to_end and (now_ms := self._clock.now_ms()) >= self._generate_ms:
            self._generate_ms = now_ms + self._watermark_interval_ms
            for index, generator in self._generators:
                made = generator.generated(now_ms, is_starved=self._is_starved)
                if isinstance(made, Watermark):
                    self._pass_watermark(self.chain.watermark(made.time_us, behind=index))
                elif made is not None:
                    self._pass_idle()
            self._is_starved = True
        wake_ms = self.chain.wake_ms
        if wake_ms is not None and (now_ms := self._clock.wall_ms()) >= wake_ms:
            self._pass_watermark(self.chain.tick(now_ms))
            if self._holds_idle:
                self._pass_idle()

    def _pass_watermark(self, time_us: int | None) -> None:
        if time_us is not None:
            self.watermark_us = time_us
            self._gate.mark(Watermark(time_us))

    def _pass_idle(self) -> None:
        """No rows come for now, once there is nothing left to come of those before."""
        self._holds_idle = self.chain.is_waiting
        if not self._holds_idle:
            self._gate.mark(StreamIdle())

    @abstractmethod
    def _work(self) -> bool:
        """Take what comes next; False when there is nothing to take."""

    def trigger(self, barrier: Barrier, *, pause: bool = False) -> None:
        """The driver starts a checkpoint; only sources act on it, the others wait for barriers."""

    def resume(self) -> None:
        """Sources that paused behind a barrier go on."""

    def align(self, slowest_us: Mapping[str, int]) -> None:
        """Sources that are too far ahead of the slowest of their group wait."""

    def drain(self) -> None:
        """Sources end their input now; the others when they have taken what comes from there."""

    def abort(self, checkpoint: CheckpointId) -> None:
        """The driver has given a checkpoint up."""
        self._snapshotter.abort(checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        """A checkpoint exists: the sink may commit it, and later snapshots may build on it."""
        self._snapshotter.completed(checkpoint)
        if self.sink is not None:
            self.sink.completed(checkpoint)

    def loop_empty(self, *, time_over: bool, ended: bool) -> None:
        """A checkpoint has found the loop empty that this subtask is the head of; only such heads are told."""

    def close(self) -> None:
        """Release everything, also when one part fails to."""
        try:
            self.chain.close()
        finally:
            if self.sink is not None:
                self.sink.close()

    def _flush(self, now_ms: float) -> None:
        self._flushed_ms = now_ms
        self.chain.flush()

    def _snapshot(self, barrier: Barrier, source: dict[Uid, Frozen] | None = None) -> None:
        if barrier.base is not None:
            self._snapshotter.completed(barrier.base)
        # The order is the guarantee: everything held back goes out before the barrier, the state is frozen between
        # the last row before and the first row after it, and only then does the barrier go on.
        self.chain.flush()
        frozen = dict(source or {})
        frozen.update({link.uid: link.operator.freeze() for link in self.chain.links})
        prepare = self.sink.prepare(barrier.checkpoint) if self.sink is not None else None
        self._gate.mark(barrier)
        said = Said(in_flight=self.chain.is_waiting)
        started_ms = self._clock.now_ms()
        self._snapshotter.begin(
            Snapshot(barrier.checkpoint, frozen, prepare, started_ms, savepoint=barrier.savepoint, said=said)
        )

    def _end(self) -> None:
        # Event time ends with the rows, for those behind a generator of watermarks, too.
        for behind in [*(index for index, _ in self._generators), -1]:
            if self.chain.watermark(END_US, behind=behind) is not None:
                self.watermark_us = END_US
        self._left_to_end = deque([*self.chain.ending(), self._finish])
        self._go_on_ending()

    def _go_on_ending(self) -> bool:
        """What is left to do at the end of the input, as soon as no operator waits any more."""
        progressed = False
        while self._left_to_end and not self.chain.is_waiting:
            self._left_to_end.popleft()()
            progressed = True
        return progressed

    def _finish(self) -> None:
        self._gate.mark(EndOfInput())
        self.finished = True


@dataclass(frozen=True)
class _Trigger:
    barrier: Barrier
    pause: bool


class SourceSubtask(Subtask):
    """Starts barriers, and polls its reader in between."""

    def __init__(
        self, subtask: SubtaskId, *, context: OperatorContext, reader: SourceReader, rows_max: int, **common: object
    ) -> None:
        super().__init__(subtask, **common)  # type: ignore[arg-type]
        self.context = context
        self.reader = reader
        self.counters = Counters()
        self._rows_max = rows_max
        self._triggers: deque[_Trigger] = deque()
        self._cancelled: set[CheckpointId] = set()
        """Triggers that wait and were aborted meanwhile."""
        self._tracker = self._generators[0][1] if self._generators else None
        """Whom the splits of this source concern."""
        self._aligned = next((generator for _, generator in self._generators if generator.is_aligned), None)
        self._poll_after_ms = 0.0
        self._paused_by: CheckpointId | None = None
        self._owes_rows = False
        """A barrier was the last to leave: rows, if there are any, go before the next, however fast those follow."""
        self._draining = False

    @property
    def wake_ms(self) -> float | None:
        """The same, and when the reader wants to be asked again."""
        wake_ms = super().wake_ms
        if self.finished or self._paused_by is not None or self._gate.full or self._left_to_end or self.chain.is_full:
            return wake_ms
        if self._is_ahead:
            return wake_ms
        return self._poll_after_ms if wake_ms is None else min(wake_ms, self._poll_after_ms)

    @property
    def is_aligned(self) -> bool:
        """Whether it stays close to other sources in event time."""
        return self._aligned is not None

    @property
    def reached_us(self) -> int | None:
        """Where it is aligned: how far it has come; None: it is idle, or has ended."""
        if self._aligned is None or self.finished or self._left_to_end:
            return None
        return self._aligned.reached_us

    @property
    def _is_ahead(self) -> bool:
        return self._aligned is not None and self._aligned.is_ahead

    def align(self, slowest_us: Mapping[str, int]) -> None:
        if self._aligned is not None:
            self._aligned.align(slowest_us)

    def trigger(self, barrier: Barrier, *, pause: bool = False) -> None:
        self._triggers.append(_Trigger(barrier, pause))

    def resume(self) -> None:
        self._paused_by = None
        # One that is full may not have begun yet what it should have paused behind.
        self._triggers = deque(replace(trigger, pause=False) for trigger in self._triggers)

    def drain(self) -> None:
        self._draining = True
        self._poll_after_ms = 0.0

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self._paused_by == checkpoint:
            self._paused_by = None
        if any(trigger.barrier.checkpoint == checkpoint for trigger in self._triggers):
            # Markers leave in the order of their ids, so the cancel marker takes the barrier's place in the queue.
            self._cancelled.add(checkpoint)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.reader.close()

    def _work(self) -> bool:
        if self._triggers and not (self._owes_rows and self._can_read):
            self._owes_rows = True
            self._begin(self._triggers.popleft())
            return True
        if self.finished or self._paused_by is not None or self._clock.now_ms() < self._poll_after_ms:
            return False
        if self._left_to_end:
            return self._go_on_ending()
        if self._draining:
            self._end()
            return True
        if self.chain.is_full or self._is_ahead:
            self._is_starved = False  # to have no room for rows, or to wait for other sources, is no idleness
            return False
        self._owes_rows = False
        batch = self.reader.poll(self._rows_max)
        if batch is not None and batch.num_rows:
            self.counters.gave(batch)
            self._holds_idle = False
            if self._tracker is not None:
                self._tracker.reading(self.reader.split, self.reader.open_splits)
            self.chain.process(batch)
            return True
        if self.reader.finished:
            self._end()
            return True
        self._poll_after_ms = self._clock.now_ms() + self.reader.wait_ms
        return False

    @property
    def _can_read(self) -> bool:
        """Whether there may be rows to read, be there room for them now or not."""
        is_over = self.finished or self._draining or bool(self._left_to_end) or self._paused_by is not None
        return not is_over and not self._is_ahead and self._clock.now_ms() >= self._poll_after_ms

    def _begin(self, trigger: _Trigger) -> None:
        checkpoint = trigger.barrier.checkpoint
        if checkpoint in self._cancelled:
            self._cancelled.remove(checkpoint)
            self._gate.mark(BarrierCancelled(checkpoint))
            return
        self._snapshot(trigger.barrier, {self.context.uid: Frozen(self.reader.position())})
        if trigger.pause:
            self._paused_by = checkpoint


FAVOURED_TURNS = 3
"""How often channels that hold event time back go before one that is ahead of them."""


class InnerSubtask(Subtask):
    """Takes from its input channels in turn, aligning barriers.

    Those that are ahead in event time have fewer turns: what they bring would only wait in state for the others.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        *,
        inputs: Sequence[InChannel],
        ports: Sequence[int],
        timeless: Sequence[int] = (),
        alignment: Alignment,
        rows_max: int,
        bytes_max: int,
        **common: object,
    ) -> None:
        super().__init__(subtask, **common)  # type: ignore[arg-type]
        self._inputs = list(inputs)
        self._ports = list(ports)
        """By channel: which input of the first operator it belongs to."""
        self._watermarks = WatermarkMerge(len(self._inputs), timeless)
        self._alignment = alignment
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._blocked: set[int] = set()
        self._ended: set[int] = set()
        self._behind, self._ahead = Turns(), Turns()
        self._favoured = 0
        """Turns since a channel that was ahead had one, although it had something."""
        self._barriers: dict[CheckpointId, Barrier] = {}
        """Those that have come in on some channel, until their snapshot is taken or overtaken."""

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        self._align(CheckpointAborted(checkpoint))

    def _work(self) -> bool:
        if self._left_to_end and self._go_on_ending():
            return True
        channel = self._next_channel()
        if channel is None:
            return False
        self._take(channel)
        return True

    def _next_channel(self) -> int | None:
        """Whose turn it is, of those that have something."""
        ready = [
            channel
            for channel, queue in enumerate(self._inputs)
            if channel not in self._blocked and (element := queue.peek()) is not None and self._may_take(element)
        ]
        behind = [channel for channel in ready if not self._watermarks.is_ahead(channel)]
        if len(behind) == len(ready):
            return self._behind.next_of(behind)
        if behind and self._favoured < FAVOURED_TURNS:
            self._favoured += 1
            return self._behind.next_of(behind)
        self._favoured = 0
        return self._ahead.next_of([channel for channel in ready if channel not in behind])

    def _may_take(self, element: Element) -> bool:
        # Markers pass also where there is no room for rows: these are part of the snapshot.
        return not (isinstance(element, pa.RecordBatch) and self.chain.is_full)

    def _take(self, channel: int) -> None:
        element = self._inputs[channel].peek()
        self._inputs[channel].pop()
        if isinstance(element, pa.RecordBatch):
            self._watermarks.resumed(channel)
            self._holds_idle = False
            self.chain.process_from(self._ports[channel], self._merged(channel, element))
            return
        if isinstance(element, Barrier):
            self._barriers[element.checkpoint] = element
            self._align(BarrierArrived(channel, element.checkpoint))
        elif isinstance(element, BarrierCancelled):
            self._align(BarrierCancelArrived(channel, element.checkpoint))
        elif isinstance(element, Watermark):
            self._advance(self._watermarks.advanced(channel, element.time_us))
        elif isinstance(element, StreamIdle):
            self._advance(self._watermarks.idle(channel))
            if self._watermarks.is_idle:
                self._pass_idle()
        elif isinstance(element, EndOfInput):
            self._ended.add(channel)
            if len(self._ended) == len(self._inputs):
                self._inputs_over()
            else:
                self._advance(self._watermarks.ended(channel))
        else:
            raise ProtocolViolation(f"subtask {self.id}: unknown element {element!r}")

    def _inputs_over(self) -> None:
        """All channels have ended."""
        self._end()

    def _advance(self, time_us: int | None) -> None:
        if time_us is not None:
            self._pass_watermark(self.chain.watermark(time_us))

    def _merged(self, channel: int, first: pa.RecordBatch) -> pa.RecordBatch:
        # A slow operator finds several batches waiting and takes them as one: large batches under load, and
        # no waiting without.
        queue = self._inputs[channel]
        batches, rows, size = [first], first.num_rows, first.nbytes
        while isinstance(following := queue.peek(), pa.RecordBatch):
            rows += following.num_rows
            size += following.nbytes
            if rows > self._rows_max or size > self._bytes_max:
                break
            batches.append(following)
            queue.pop()
        return first if len(batches) == 1 else pa.concat_batches(batches)

    def _align(self, event: AlignmentEvent) -> None:
        for effect in self._alignment.handle(event):
            if isinstance(effect, BlockChannel):
                self._blocked.add(effect.channel)
            elif isinstance(effect, UnblockChannels):
                self._blocked.clear()
            elif isinstance(effect, TakeSnapshot):
                self._snapshot(self._barriers[effect.checkpoint])
                self._barriers = {n: barrier for n, barrier in self._barriers.items() if n > effect.checkpoint}
            elif isinstance(effect, PassCancel):
                self._gate.mark(BarrierCancelled(effect.checkpoint))
                self._snapshotter.decline(effect.checkpoint, "its barrier was overtaken or cancelled")
            else:
                raise ProtocolViolation(f"subtask {self.id}: unknown effect {effect!r}")
