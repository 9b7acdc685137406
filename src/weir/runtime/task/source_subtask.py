"""A subtask that reads a source: starts barriers, and polls its reader in between.

Comes in: rows of a reader, and the driver's triggers. Goes out: rows through the chain,
and in every snapshot the position of the reader. Never touches channels: what its chain
gives leaves through the gate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.ids import CheckpointId
from weir.operators.base import Frozen, OperatorContext
from weir.operators.source import SourceReader
from weir.runtime.task.chain import Counters
from weir.runtime.task.subtask import Equipment, Subtask
from weir.snapshot.elements import Barrier, BarrierCancelled
from weir.snapshot.parts import Position


@dataclass(frozen=True)
class _Trigger:
    barrier: Barrier
    pause: bool


class SourceSubtask(Subtask):
    """Starts barriers, and polls its reader in between."""

    def __init__(self, equipment: Equipment, *, context: OperatorContext, reader: SourceReader, rows_max: int) -> None:
        super().__init__(equipment)
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
        position = self.reader.position()
        frozen = Frozen(None if position is None else Position(position))
        self._snapshot(trigger.barrier, {self.context.uid: frozen})
        if trigger.pause:
            self._paused_by = checkpoint
