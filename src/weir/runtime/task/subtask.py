"""What every subtask does, wherever its rows come from: runs its chain, keeps time, snapshots, ends.

Comes in: steps of the worker loop, and the driver's orders. Goes out: elements through
the gate, snapshots through the snapshotter. A step does one bounded piece of work and
never waits: a full output or an empty input only means that the next step belongs to
somebody else. Where rows come from is the business of source_subtask.py, inner_subtask.py
and loop_head.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId, SubtaskId, Uid
from weir.operators.base import Frozen
from weir.operators.time.watermarks import AssigningWatermarks
from weir.runtime.ports import Clock
from weir.runtime.task.chain import Chain
from weir.runtime.task.gate import Gate
from weir.runtime.task.sink_end import SinkEnd
from weir.runtime.task.snapshots import Said, Snapshot, Snapshotter
from weir.snapshot.elements import Barrier, EndOfInput, StreamIdle, Watermark
from weir.snapshot.watermarks import END_US

COURSE_MS = 5.0
"""How long a subtask goes on with what time has set off, before it is the turn of the others in its task."""


class Activity(Enum):
    """What a step came to."""

    BUSY = "busy"
    BLOCKED = "blocked"
    """An output is full: backpressure."""
    IDLE = "idle"


@dataclass(frozen=True)
class Equipment:
    """What every subtask is made of, whether it reads a source or channels."""

    id: SubtaskId
    chain: Chain
    gate: Gate
    sink: SinkEnd | None
    snapshotter: Snapshotter
    clock: Clock
    buffer_timeout_ms: float
    watermark_interval_ms: float


class Subtask(ABC):
    """What sources and inner subtasks have in common."""

    def __init__(self, equipment: Equipment) -> None:
        self.id = equipment.id
        self.chain = equipment.chain
        self.sink = equipment.sink
        self.finished = False
        self._gate = equipment.gate
        self._snapshotter = equipment.snapshotter
        self._clock = equipment.clock
        self._buffer_timeout_ms = equipment.buffer_timeout_ms
        self._flushed_ms = self._clock.now_ms()
        self._generators = [
            (index, link.operator)
            for index, link in enumerate(self.chain.links)
            if isinstance(link.operator, AssigningWatermarks)
        ]
        self._watermark_interval_ms = equipment.watermark_interval_ms
        self._generate_ms = self._flushed_ms + self._watermark_interval_ms
        self._is_starved = True
        """Since watermarks were made, there was always room for more rows."""
        self.watermark_us: int | None = None
        """The last watermark that went on."""
        self._left_to_end: deque[Callable[[], object]] = deque()
        """Once the input has ended."""
        self._holds_idle = False
        self._owes_work = False
        """What was due by the clock took more than one step: rows and barriers have their turn before it is looked at
        again."""

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
        if self.chain.is_busy:
            self._is_starved = False
            self._follow(self.chain.go_on())
            if self._holds_idle:
                self._pass_idle()
            return Activity.BUSY
        if self._owes_work:
            self._owes_work = False
        else:
            self._keep_time()
            if self.chain.is_busy:
                self._owes_work = True
                return Activity.BUSY
        if self._work():
            now_ms = self._clock.now_ms()
            is_due = now_ms - self._flushed_ms >= self._buffer_timeout_ms
            if is_due and self.chain.holding and not self.chain.is_busy:
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
                    self._follow(self.chain.watermark(made.time_us, behind=index))
                    if self.chain.is_busy:
                        return
                elif made is not None:
                    self._pass_idle()
            self._is_starved = True
        wake_ms = self.chain.wake_ms
        if wake_ms is not None and (now_ms := self._clock.wall_ms()) >= wake_ms:
            self._follow(self.chain.tick(now_ms))
            if self._holds_idle:
                self._pass_idle()

    def _follow(self, passed_us: int | None) -> None:
        """Go on with what time has set off: until it is done, an output is full, or others have waited for long enough.
        No marker goes in or out before it is done: a snapshot sees all that a watermark does, or nothing. `passed_us`:
        the watermark that goes on, where it is done already."""
        until_ms = self._clock.now_ms() + COURSE_MS
        while self.chain.is_busy and not self._gate.full and self._clock.now_ms() < until_ms:
            passed_us = self.chain.go_on()
        if passed_us == END_US and self._left_to_end:
            self.watermark_us = END_US  # the end of the input says it to the others
        else:
            self._pass_watermark(passed_us)

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

    def reserved(self, number: int) -> None:
        """The driver has noted how far a source has read, as that has told it with this number."""

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
        self.chain.begin_flush()
        self._follow(None)

    def _snapshot(self, barrier: Barrier, source: dict[Uid, Frozen] | None = None) -> None:
        if self.chain.is_busy:
            raise ProtocolViolation(f"subtask {self.id}: a snapshot while a watermark is under way")
        if barrier.base is not None:
            self._snapshotter.completed(barrier.base)
        # The order is the guarantee: everything held back goes out before the barrier, the state is frozen between
        # the last row before and the first row after it, and only then does the barrier go on.
        self.chain.flush()
        frozen = dict(source or {})
        is_bare = barrier.is_stateless and barrier.savepoint is None
        if not is_bare:
            frozen.update({link.uid: link.operator.freeze() for link in self.chain.links})
        prepare = None
        if self.sink is not None:
            prepare = self.sink.prepare(barrier.checkpoint)
            if (kept := self.sink.freeze()) is not None:
                frozen[self.sink.uid] = kept
        self._gate.mark(barrier)
        said = Said(in_flight=self.chain.is_waiting)
        started_ms = self._clock.now_ms()
        self._snapshotter.begin(
            Snapshot(
                barrier.checkpoint,
                frozen,
                prepare,
                started_ms,
                savepoint=barrier.savepoint,
                is_stateless=barrier.is_stateless,
                said=said,
            )
        )

    def _end(self) -> None:
        # Event time ends with the rows, for those behind a generator of watermarks, too.
        times = [partial(self._end_time, index) for index in [*(index for index, _ in self._generators), -1]]
        self._left_to_end = deque([*times, *self.chain.ending(), self._finish])
        self._go_on_ending()

    def _end_time(self, behind: int) -> None:
        self._follow(self.chain.watermark(END_US, behind=behind))

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
