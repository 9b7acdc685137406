"""A subtask that reads a source: starts barriers, and polls its reader in between.

Comes in: rows of a reader, and the driver's triggers. Goes out: rows through the chain,
and in every snapshot the position of the reader. Never touches channels: what its chain
gives leaves through the gate. Whether rows go on as they are read, or wait for the driver's
word, is its intake's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.ids import CheckpointId
from weir.operators.base import Frozen, OperatorContext
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.source import SourceReader
from weir.runtime.task.chain import Counters
from weir.runtime.task.intake import DirectIntake, Intake, ReadRows
from weir.runtime.task.subtask import Equipment, Subtask
from weir.runtime.task.turns import TurnSize
from weir.snapshot.elements import Barrier, BarrierCancelled
from weir.snapshot.parts import Position

TURN_MS = 100.0
"""A source is asked for as many rows as its chain takes so long for: large batches pay for all behind it, but a user's
function may be slow."""


@dataclass(frozen=True)
class _Trigger:
    barrier: Barrier
    pause: bool


class SourceSubtask(Subtask):
    """Starts barriers, and polls its reader in between."""

    def __init__(
        self,
        equipment: Equipment,
        *,
        context: OperatorContext,
        reader: SourceReader,
        rows_max: int,
        intake: Intake | None = None,
        kept: StatefulFunction | None = None,
    ) -> None:
        """`kept`: the reader, where it has states of its own."""
        super().__init__(equipment)
        self._kept = kept
        self.context = context
        self.reader = reader
        self._intake: Intake = intake or DirectIntake()
        self._is_read_to_end = False
        self.counters = Counters()
        self._turn = TurnSize(rows_max, TURN_MS)
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
        if self._is_ahead or self._is_closing or not self._intake.has_room:
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

    def reserved(self, number: int) -> None:
        self._intake.reserved(number)

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
        begins = bool(self._triggers) and not (self._owes_rows and self._can_read)
        if begins and self._intake.is_settled:
            self._owes_rows = True
            self._begin(self._triggers.popleft())
            return True
        is_due = self._clock.now_ms() >= self._poll_after_ms
        if self.finished or self._paused_by is not None or (self._intake.is_settled and not is_due):
            return False
        if self._left_to_end:
            return self._go_on_ending()
        if self._draining and self._intake.is_settled:
            self._end()
            return True
        # Rows that were read go before a barrier that waits for them, also when others are slow: those may be waiting
        # for the same barrier.
        if self.chain.is_full or (self._is_ahead and not begins):
            self._is_starved = False  # to have no room for rows, or to wait for other sources, is no idleness
            return False
        reads = is_due and not begins and not self._is_closing and self._intake.has_room
        progressed = reads and self._read()
        if (rows := self._intake.take()) is not None:
            self._pass_on(rows)
            return True
        if not self._intake.is_settled:
            self._is_starved = False
        elif self._is_read_to_end and not begins:
            self._end()
            return True
        return progressed

    def _read(self) -> bool:
        """Poll once. False: there is nothing for now."""
        self._owes_rows = False
        batch = self.reader.poll(self._turn.rows_max)
        if batch is not None and batch.num_rows:
            self._intake.put(ReadRows(batch, *self._splits))
            return True
        self._is_read_to_end = self.reader.finished
        if not self._is_read_to_end:
            self._poll_after_ms = self._clock.now_ms() + self.reader.wait_ms
        return self._is_read_to_end

    @property
    def _splits(self) -> tuple[str, frozenset[str] | None]:
        return ("", None) if self._tracker is None else (self.reader.split, self.reader.open_splits)

    def _pass_on(self, rows: ReadRows) -> None:
        self.counters.gave(rows.batch)
        self._holds_idle = False
        if self._tracker is not None:
            self._tracker.reading(rows.split, rows.open_splits)
        started_ms = self._clock.now_ms()
        self.chain.process(rows.batch)
        self._turn.took(rows.batch.num_rows, self._clock.now_ms() - started_ms)

    @property
    def _is_closing(self) -> bool:
        """Nothing more is read: there is no more, or none is wanted."""
        return self._draining or self._is_read_to_end

    @property
    def _can_read(self) -> bool:
        """Whether there may be rows to read, be there room for them now or not."""
        is_over = self.finished or self._is_closing or bool(self._left_to_end) or self._paused_by is not None
        return not is_over and not self._is_ahead and self._clock.now_ms() >= self._poll_after_ms

    def _begin(self, trigger: _Trigger) -> None:
        checkpoint = trigger.barrier.checkpoint
        if checkpoint in self._cancelled:
            self._cancelled.remove(checkpoint)
            self._gate.mark(BarrierCancelled(checkpoint))
            return
        self._intake.begun(checkpoint)
        position = self.reader.position()
        states = {} if self._kept is None else self._kept.freeze()
        frozen = Frozen(None if position is None else Position(position), states)
        self._snapshot(trigger.barrier, {self.context.uid: frozen})
        if trigger.pause:
            self._paused_by = checkpoint
