"""What a loop's head logs for its snapshots: one machine per subtask of a head.

Comes in: that a snapshot was taken and its barrier sent into the loop, and what comes
back over the back-edges. Goes out: to which logs rows belong, and when a log is closed
or given up. Never touches a row, a channel or a clock.

Laws, which every order of events keeps:
  1. Between the barrier that was sent and the same barrier that comes back, a channel's
     rows were on their way at the cut: they are in that log, and only they.
  2. A log is closed when its barrier is back on every channel, and only then may the
     snapshot be acknowledged. Logs close in the order of their ids.
  3. Marker ids on one channel strictly grow. A marker with id n says that nothing with a
     smaller id will come there: a log that waits for it is given up.
  4. Every log ends: closed, or given up. Giving up is told to the driver, unless it was
     the driver who said so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId

EVENTS_SHOWN = 20
"""How many of the last events an error shows."""

LOGS_OPEN_MAX = 16
"""Logs that are kept at once; beyond that the oldest is given up."""

NONE_BEGUN = CheckpointId(-1)


# --- Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SnapshotBegun:
    """The head was frozen, and its barrier sent into the loop."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class RowsReturned:
    """A batch came back over a back-edge."""

    channel: int


@dataclass(frozen=True)
class BarrierReturned:
    """A barrier came back over a back-edge."""

    channel: int
    checkpoint: CheckpointId


@dataclass(frozen=True)
class CancelReturned:
    """In the loop, or here, somebody has cancelled the barrier."""

    channel: int
    checkpoint: CheckpointId


@dataclass(frozen=True)
class LogAborted:
    """The driver says that the checkpoint is off. May come before, between or after the markers."""

    checkpoint: CheckpointId


LoopLogEvent: TypeAlias = "SnapshotBegun | RowsReturned | BarrierReturned | CancelReturned | LogAborted"


# --- Effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenLog:
    """Begin a log with what has come back and was not sent on yet."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class LogRows:
    """The batch belongs to these logs."""

    checkpoints: tuple[CheckpointId, ...]


@dataclass(frozen=True)
class CloseLog:
    """The log is complete: write it, and acknowledge."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class DropLog:
    """Forget the log."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class Decline:
    """Tell the driver that nothing comes of this snapshot."""

    checkpoint: CheckpointId
    reason: str


LoopLogEffect: TypeAlias = "OpenLog | LogRows | CloseLog | DropLog | Decline"

_Handlers: TypeAlias = "Mapping[type, Callable[[Any, Any], list[LoopLogEffect]]]"


class LoopLog:
    """The logs of one subtask of a loop's head; several may be open at once."""

    def __init__(self, channel_count: int) -> None:
        """`channel_count`: back-edge channels that lead to this subtask."""
        if channel_count < 1:
            raise ProtocolViolation("loop log: a head without back-edges has nothing to log")
        self._channel_count = channel_count
        self._newest = [NONE_BEGUN] * channel_count
        """By channel: the newest marker that came back."""
        self._begun = NONE_BEGUN
        self._awaited: dict[CheckpointId, set[int]] = {}
        """By open log, oldest first: the channels whose barrier is not back yet."""
        self._recent: deque[LoopLogEvent] = deque(maxlen=EVENTS_SHOWN)

    @property
    def open_logs(self) -> tuple[CheckpointId, ...]:
        """Oldest first."""
        return tuple(self._awaited)

    def handle(self, event: LoopLogEvent) -> list[LoopLogEffect]:
        """The one door. Perform the effects in their order before the next event."""
        self._recent.append(event)
        handler = self.handlers.get(type(event))
        if handler is None:
            raise self._violation(f"no such event: {event!r}")
        if isinstance(event, RowsReturned | BarrierReturned | CancelReturned):
            self._check_channel(event.channel)
        if isinstance(event, BarrierReturned | CancelReturned):
            self._check_marker(event.channel, event.checkpoint)
        return handler(self, event)

    def _snapshot_begun(self, event: SnapshotBegun) -> list[LoopLogEffect]:
        if event.checkpoint <= self._begun:
            raise self._violation(f"snapshot {event.checkpoint} began after {self._begun}")
        self._begun = event.checkpoint
        self._awaited[event.checkpoint] = set(range(self._channel_count))
        effects: list[LoopLogEffect] = [OpenLog(event.checkpoint)]
        if len(self._awaited) > LOGS_OPEN_MAX:
            effects += self._give_up(min(self._awaited), f"more than {LOGS_OPEN_MAX} barriers are in the loop")
        return effects

    def _rows_returned(self, event: RowsReturned) -> list[LoopLogEffect]:
        logs = tuple(checkpoint for checkpoint, channels in self._awaited.items() if event.channel in channels)
        return [LogRows(logs)] if logs else []

    def _barrier_returned(self, event: BarrierReturned) -> list[LoopLogEffect]:
        if event.checkpoint > self._begun:
            raise self._violation(f"barrier {event.checkpoint} came back, which was never sent")
        effects = self._overtaken(event.channel, event.checkpoint)
        channels = self._awaited.get(event.checkpoint)
        if channels is None:
            return effects  # aborted meanwhile
        channels.discard(event.channel)
        if channels:
            return effects
        del self._awaited[event.checkpoint]
        return [*effects, CloseLog(event.checkpoint)]

    def _cancel_returned(self, event: CancelReturned) -> list[LoopLogEffect]:
        effects = self._overtaken(event.channel, event.checkpoint)
        if event.checkpoint in self._awaited:
            effects += self._give_up(event.checkpoint, "its barrier was cancelled in the loop")
        return effects

    def _aborted(self, event: LogAborted) -> list[LoopLogEffect]:
        if self._awaited.pop(event.checkpoint, None) is None:
            return []
        return [DropLog(event.checkpoint)]

    def _overtaken(self, channel: int, checkpoint: CheckpointId) -> list[LoopLogEffect]:
        """Law 3."""
        hopeless = [n for n, channels in self._awaited.items() if n < checkpoint and channel in channels]
        return [effect for n in hopeless for effect in self._give_up(n, "its barrier was overtaken in the loop")]

    def _give_up(self, checkpoint: CheckpointId, reason: str) -> list[LoopLogEffect]:
        del self._awaited[checkpoint]
        return [DropLog(checkpoint), Decline(checkpoint, reason)]

    def _check_channel(self, channel: int) -> None:
        if not 0 <= channel < self._channel_count:
            raise self._violation(f"channel {channel} is not one of the {self._channel_count} back-edges")

    def _check_marker(self, channel: int, checkpoint: CheckpointId) -> None:
        if checkpoint <= self._newest[channel]:
            raise self._violation(
                f"channel {channel} brought a marker of checkpoint {checkpoint} after one of {self._newest[channel]}"
            )
        self._newest[channel] = checkpoint

    def _violation(self, found: str) -> ProtocolViolation:
        events = "\n  ".join(repr(event) for event in self._recent)
        return ProtocolViolation(f"loop log: {found}; open {list(self._awaited)}; last events:\n  {events}")

    handlers: ClassVar[_Handlers] = {
        SnapshotBegun: _snapshot_begun,
        RowsReturned: _rows_returned,
        BarrierReturned: _barrier_returned,
        CancelReturned: _cancel_returned,
        LogAborted: _aborted,
    }
