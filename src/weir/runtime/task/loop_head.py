"""The head of a loop: takes rows from outside and rows that come back, and logs the latter.

Comes in: elements of forward channels, which are aligned as everywhere, and of back-edges,
which always find room here. Goes out: rows, barriers, and snapshots that hold what was on
its way round. Ends when the driver says that the loop is empty, never by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import DataError, JobError, ProtocolViolation
from weir.ids import CheckpointId, Uid
from weir.operators.base import Frozen
from weir.operators.loop import LOG, LoopHeadOperator
from weir.runtime.ports import Element, InChannel
from weir.runtime.task.arrivals import Arrivals
from weir.runtime.task.backlog import Backlog, WaitingBatch
from weir.runtime.task.inner_subtask import InnerSubtask, Inputs
from weir.runtime.task.snapshots import Said, Snapshot
from weir.runtime.task.subtask import Activity, Equipment
from weir.runtime.task.turns import members
from weir.snapshot.elements import Barrier, BarrierCancelled, EndOfInput
from weir.snapshot.loop_log import (
    NONE_BEGUN,
    BarrierReturned,
    CancelReturned,
    CloseLog,
    Decline,
    DropLog,
    LogAborted,
    LogRows,
    LoopLog,
    LoopLogEvent,
    OpenLog,
    RowsReturned,
    SnapshotBegun,
)
from weir.snapshot.watermarks import END_US
from weir.state.waiting import FrozenWaiting, WaitingRows


@dataclass
class _Log:
    """What one checkpoint must hold of the loop, and what was so when its barrier went out."""

    barrier: Barrier
    waiting: list[WaitingBatch]
    started_ms: float
    inputs_ended: bool
    time_ended: bool


class LoopHeadSubtask(InnerSubtask):
    """An inner subtask whose `inputs` are those from outside the loop; `back` are its back-edges."""

    def __init__(self, equipment: Equipment, inputs: Inputs, *, back: Sequence[InChannel], backlog: Backlog) -> None:
        super().__init__(equipment, inputs)
        operator = self.chain.links[0].operator
        if len(self.chain.links) != 1 or not isinstance(operator, LoopHeadOperator):
            raise ProtocolViolation(f"subtask {self.id}: the head of a loop is chained to something")
        self._head = operator
        self._uid = self.chain.links[0].uid
        self._back = list(back)
        self._returned = Arrivals(self._back)
        self._backlog = backlog
        self._files = itertools.count()
        self._log = LoopLog(len(self._back))
        self._logs: dict[CheckpointId, _Log] = {}
        self._awaited: CheckpointId | None = None
        """A checkpoint whose barrier is somewhere in the inputs, behind rows."""
        self._taken = NONE_BEGUN
        """The newest snapshot."""
        self._inputs_ended = False
        self._time_ended = False
        for batch in operator.replayed:
            self._backlog.put(batch)
        operator.replayed = []

    def step(self) -> Activity:
        # First of all, and also when an output is full: whoever sends over a back-edge never waits for long.
        received = self._receive()
        activity = super().step()
        return Activity.BUSY if received else activity

    def trigger(self, barrier: Barrier, *, pause: bool = False) -> None:
        # The barrier may be faster than the driver's word.
        if barrier.checkpoint > self._taken:
            self._awaited = barrier.checkpoint

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self._awaited == checkpoint:
            self._awaited = None
        self._keep(LogAborted(checkpoint))

    def loop_empty(self, *, time_over: bool, ended: bool) -> None:
        if self.finished or not self._inputs_ended:
            return
        if not self._time_ended:
            self._time_ended = True
            self._advance(END_US)
        elif ended:
            self._end()

    # --- Rows -----------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """One batch of each: those that came back are not to wait for ever, nor are barriers from outside."""
        went_round = bool(self._backlog)
        if went_round:
            self._holds_idle = False
            self.chain.process(self._next())
        return super()._work() or went_round

    @property
    def _has_room(self) -> bool:
        # No more rows while too many are in the loop. A barrier behind them must get in all the same.
        is_closed = self._backlog.is_over and self._awaited is None
        return super()._has_room and not is_closed

    def _next(self) -> pa.RecordBatch:
        batches = [self._backlog.pop()]
        rows, size = batches[0].num_rows, batches[0].nbytes
        while self._backlog and rows < self._rows_max and size + self._backlog.peek_bytes() <= self._bytes_max:
            batches.append(self._backlog.pop())
            rows += batches[-1].num_rows
            size += batches[-1].nbytes
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _receive(self) -> bool:
        """Take everything that has come back."""
        received = False
        self._returned.hear()
        for channel in members(self._returned.filled):
            while self._back[channel].peek() is not None:
                self._take_back(channel, self._back[channel].pop())
                received = True
            self._returned.taken(channel)
        return received

    def _take_back(self, channel: int, element: Element) -> None:
        if isinstance(element, pa.RecordBatch):
            if self.finished or self._left_to_end:
                raise DataError(
                    f"{self._head.label}: {element.num_rows} rows were fed back after the loop had ended. Something in "
                    "it emits rows only when its input ends; put that behind the loop"
                )
            columns = element.columns
            waiting = self._backlog.put(pa.RecordBatch.from_arrays(columns, schema=self._head.rows))
            if self._backlog.is_hopeless:
                raise JobError(
                    f"{self._head.label}: {self._backlog.size_bytes / 1e6:,.1f} MB of rows that were fed back wait at "
                    "the head of the loop, more than Settings.loop_disk_max allows in local files. A step that feeds "
                    "back more rows than it lets go never ends; if this one does, raise the setting"
                )
            self._keep(RowsReturned(channel), waiting)
        elif isinstance(element, Barrier):
            self._keep(BarrierReturned(channel, element.checkpoint))
        elif isinstance(element, BarrierCancelled):
            self._keep(CancelReturned(channel, element.checkpoint))
        elif isinstance(element, EndOfInput) and not self.finished:
            raise ProtocolViolation(f"subtask {self.id}: a back-edge has ended before the loop did")
        # Event time goes round with nobody: it comes from outside.

    # --- Snapshots ------------------------------------------------------------------------------------

    def _snapshot(self, barrier: Barrier, source: dict[Uid, Frozen] | None = None) -> None:
        self._taken = barrier.checkpoint
        if self._awaited is not None and self._awaited <= self._taken:
            self._awaited = None
        if barrier.base is not None:
            self._snapshotter.completed(barrier.base)
        self.chain.flush()
        self._gate.mark(barrier)
        now_ms = self._clock.now_ms()
        self._logs[barrier.checkpoint] = _Log(barrier, [], now_ms, self._inputs_ended, self._time_ended)
        self._keep(SnapshotBegun(barrier.checkpoint))

    def _keep(self, event: LoopLogEvent, waiting: WaitingBatch | None = None) -> None:
        for effect in self._log.handle(event):
            if isinstance(effect, OpenLog):
                self._logs[effect.checkpoint].waiting = self._backlog.all()
            elif isinstance(effect, LogRows) and waiting is not None:
                for checkpoint in effect.checkpoints:
                    self._logs[checkpoint].waiting.append(waiting)
            elif isinstance(effect, CloseLog):
                self._close(effect.checkpoint, self._logs.pop(effect.checkpoint))
            elif isinstance(effect, DropLog):
                del self._logs[effect.checkpoint]
            elif isinstance(effect, Decline):
                self._snapshotter.decline(effect.checkpoint, effect.reason)
            else:
                raise ProtocolViolation(f"subtask {self.id}: unknown effect {effect!r}")

    def _close(self, checkpoint: CheckpointId, log: _Log) -> None:
        """The log is complete: write it. An empty one is no state, so that a loop may be taken out of a job."""
        waiting = [WaitingRows(batch) for batch in log.waiting]
        states = {LOG: FrozenWaiting(self._head.rows, waiting, self._files)} if waiting else {}
        said = Said(in_flight=bool(waiting), inputs_ended=log.inputs_ended, time_ended=log.time_ended)
        frozen, barrier = {self._uid: Frozen(states=states)}, log.barrier
        about = barrier.savepoint, barrier.is_stateless, said
        self._snapshotter.begin(Snapshot(checkpoint, frozen, None, log.started_ms, *about))

    # --- The end --------------------------------------------------------------------------------------

    def _inputs_over(self) -> None:
        # What goes round may come for long. The driver finds out when nothing does any more.
        self._inputs_ended = True
