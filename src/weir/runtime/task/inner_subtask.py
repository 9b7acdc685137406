"""A subtask that takes from channels: in turn, aligning barriers and merging watermarks.

Comes in: elements of its input channels. Goes out: rows through the chain; barriers and
watermarks once all channels have brought them. Never asks a channel for more than is
there, and takes nothing from one that is blocked by alignment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId
from weir.runtime.ports import InChannel
from weir.runtime.task.arrivals import Arrivals
from weir.runtime.task.subtask import Equipment, Subtask
from weir.runtime.task.turns import Turns, TurnSize
from weir.snapshot.alignment import (
    AbortArrived,
    Alignment,
    AlignmentEvent,
    BarrierArrived,
    BarrierCancelArrived,
    BlockChannel,
    PassCancel,
    TakeSnapshot,
    UnblockChannels,
)
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput, StreamIdle, Watermark
from weir.snapshot.watermarks import WatermarkMerge

FAVOURED_TURNS = 3
"""How often channels that hold event time back go before one that is ahead of them."""

TURN_MS = 20.0
"""Batches are put together, or cut, so that one takes about so long: the other subtasks of the task wait for it."""


@dataclass(frozen=True)
class Inputs:
    """What an inner subtask takes from."""

    channels: Sequence[InChannel]
    operator_inputs: Sequence[int]
    """By channel: which input of the first operator it belongs to."""
    alignment: Alignment
    rows_max: int
    bytes_max: int
    """How much of what waits on a channel is taken as one batch."""
    timeless: Collection[int] = ()
    """Channels on which no watermarks come."""


class InnerSubtask(Subtask):
    """Takes from its input channels in turn, aligning barriers.

    Those that are ahead in event time have fewer turns: what they bring would only wait in state for the others.
    """

    def __init__(self, equipment: Equipment, inputs: Inputs) -> None:
        super().__init__(equipment)
        self._inputs = inputs.channels
        self._operator_inputs = inputs.operator_inputs
        self._watermarks = WatermarkMerge(len(inputs.channels), inputs.timeless)
        self._alignment = inputs.alignment
        self._rows_max = inputs.rows_max
        self._turn = TurnSize(inputs.rows_max, TURN_MS)
        self._rest: tuple[int, pa.RecordBatch] | None = None
        """Rows that were taken from a channel, and have not had their turn: before all that follows them there."""
        self._bytes_max = inputs.bytes_max
        self._arrivals = Arrivals(inputs.channels)
        self._blocked = 0
        """A bit for each channel that alignment holds back."""
        self._ended: set[int] = set()
        self._aborted: deque[CheckpointId] = deque()
        """Checkpoints that the driver has given up while the chain was busy."""
        self._behind, self._ahead = Turns(), Turns()
        self._favoured = 0
        """Turns since a channel that was ahead had one, although it had something."""
        self._barriers: dict[CheckpointId, Barrier] = {}
        """Those that have come in on some channel, until their snapshot is taken or overtaken."""

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self.chain.is_busy or self._rest is not None:
            self._aborted.append(checkpoint)  # to give one up may let the snapshot of another be taken
        else:
            self._align(AbortArrived(checkpoint))

    def _work(self) -> bool:
        if self._rest is not None and self._has_room:
            rest, self._rest = self._rest, None
            self._process(*rest)
            return True
        while self._aborted and self._rest is None:
            self._align(AbortArrived(self._aborted.popleft()))
        if self._left_to_end and self._go_on_ending():
            return True
        channel = self._next_channel()
        if channel is None:
            return False
        self._take(channel)
        return True

    def _next_channel(self) -> int | None:
        """Whose turn it is, of those that have something."""
        self._arrivals.hear()
        ready = self._arrivals.filled & ~self._blocked
        if ready & self._arrivals.rows and not self._has_room:
            # Markers pass also where there is no room for rows: these are part of the snapshot.
            ready &= ~self._arrivals.rows
        if self._rest is not None:
            ready &= ~(1 << self._rest[0])
        ahead = ready & self._watermarks.ahead
        behind = ready & ~ahead
        if not ahead:
            return self._behind.next_of(behind)
        if behind and self._favoured < FAVOURED_TURNS:
            self._favoured += 1
            return self._behind.next_of(behind)
        self._favoured = 0
        return self._ahead.next_of(ahead)

    @property
    def _has_room(self) -> bool:
        """Whether rows may be taken."""
        return not self.chain.is_full

    def _take(self, channel: int) -> None:
        element = self._inputs[channel].pop()
        self._arrivals.taken(channel)
        if isinstance(element, pa.RecordBatch):
            self._watermarks.resumed(channel)
            self._holds_idle = False
            self._process(channel, self._merged(channel, element))
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
            self._follow(self.chain.watermark(time_us))

    def _merged(self, channel: int, first: pa.RecordBatch) -> pa.RecordBatch:
        # A slow operator finds several batches waiting and takes them as one: large batches under load, and
        # no waiting without.
        queue, rows_max = self._inputs[channel], self._turn.rows_max
        batches, rows, size = [first], first.num_rows, first.nbytes
        while isinstance(following := queue.peek(), pa.RecordBatch):
            rows += following.num_rows
            size += following.nbytes
            if rows > rows_max or size > self._bytes_max:
                break
            batches.append(following)
            queue.pop()
        return first if len(batches) == 1 else pa.concat_batches(batches)

    def _process(self, channel: int, rows: pa.RecordBatch) -> None:
        """As many of these rows as are a turn; the rest is for the next ones."""
        turns = -(-rows.num_rows // self._turn.rows_max)
        if turns > 1:
            now = -(-rows.num_rows // turns)
            self._rest = channel, rows.slice(now)
            rows = rows.slice(0, now)
        started_ms = self._clock.now_ms()
        self.chain.process_from(self._operator_inputs[channel], rows)
        self._turn.took(rows.num_rows, self._clock.now_ms() - started_ms)

    def _align(self, event: AlignmentEvent) -> None:
        for effect in self._alignment.handle(event):
            if isinstance(effect, BlockChannel):
                self._blocked |= 1 << effect.channel
            elif isinstance(effect, UnblockChannels):
                self._blocked = 0
            elif isinstance(effect, TakeSnapshot):
                self._snapshot(self._barriers[effect.checkpoint])
                self._barriers = {n: barrier for n, barrier in self._barriers.items() if n > effect.checkpoint}
            elif isinstance(effect, PassCancel):
                self._gate.mark(BarrierCancelled(effect.checkpoint))
                self._snapshotter.decline(effect.checkpoint, "its barrier was overtaken or cancelled")
            else:
                raise ProtocolViolation(f"subtask {self.id}: unknown effect {effect!r}")
