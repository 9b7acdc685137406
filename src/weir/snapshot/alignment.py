"""When a subtask takes its snapshot: one machine per subtask that has inputs.

Comes in: barriers and cancel markers with the number of the channel that they
came on, and the driver's aborts. Goes out: which channels to block, when to
snapshot, when to pass a cancel marker on. Never touches a channel or a clock.

Laws, which every order of events keeps:
  1. Marker ids on one channel strictly grow, whether barrier or cancel marker.
     What this subtask passes on (a barrier after TakeSnapshot, or a cancel
     marker) strictly grows too, so the law holds for the whole dataflow.
  2. A marker with id n says that nothing with a smaller id will come on that
     channel any more. Whoever waits there for an older barrier stops waiting.
  3. Every id that was seen on an input is passed on, as one or the other, so
     that nobody downstream waits for a marker that was swallowed here.
  4. Exactly once: between the first and the last barrier of a checkpoint no
     row is taken from a channel whose barrier is in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId
from weir.snapshot.transitions import Transition

EVENTS_SHOWN = 20
"""How many of the last events an error shows."""

ABORTS_REMEMBERED_MAX = 128
"""Aborts that may wait for their barrier. The oldest is forgotten beyond that, which costs a needless snapshot
and nothing more: the driver does not count it, and whoever did remember passes a cancel marker on."""

CHECKPOINTS_PENDING_MAX = 16
"""Checkpoints that an at-least-once subtask counts barriers for at once; the oldest is dropped beyond that."""

NONE_DECIDED = CheckpointId(-1)


# --- Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BarrierArrived:
    """The barrier is the next element of the channel."""

    channel: int
    checkpoint: CheckpointId


@dataclass(frozen=True)
class BarrierCancelArrived:
    """An in-line BarrierCancelled is the next element of the channel."""

    channel: int
    checkpoint: CheckpointId


@dataclass(frozen=True)
class AbortArrived:
    """The driver says that the checkpoint is off. May come before, between or after the barriers."""

    checkpoint: CheckpointId


AlignmentEvent: TypeAlias = "BarrierArrived | BarrierCancelArrived | AbortArrived"


# --- Effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockChannel:
    """Take nothing more from the channel until UnblockChannels."""

    channel: int


@dataclass(frozen=True)
class UnblockChannels:
    """Take from all channels again."""


@dataclass(frozen=True)
class TakeSnapshot:
    """Freeze now, before any other element is taken, and pass the barrier on to all outputs."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class PassCancel:
    """Send BarrierCancelled on all outputs, and decline the checkpoint: the driver may not know yet."""

    checkpoint: CheckpointId


AlignmentEffect: TypeAlias = "BlockChannel | UnblockChannels | TakeSnapshot | PassCancel"


class Alignment(Protocol):
    """What the worker sees of either machine."""

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """The one door. Perform the effects in their order before the next event."""

    @property
    def blocked(self) -> frozenset[int]:
        """The channels that may deliver nothing now."""


# --- What both machines share -------------------------------------------------------------------------


_Handlers: TypeAlias = "Mapping[tuple[type[Any], type[Any]], Transition]"
"""What is done in each phase about each event."""


class _Machine(ABC):
    """Checks each event, finds the handler for the phase, and remembers what is decided."""

    handlers: ClassVar[_Handlers]

    def __init__(self, channel_count: int) -> None:
        if channel_count < 1:
            raise ProtocolViolation(f"alignment: a subtask with {channel_count} input channels has nothing to align")
        self._channel_count = channel_count
        self._newest = [NONE_DECIDED] * channel_count
        """By channel: the newest marker that came on it."""
        self._decided = NONE_DECIDED
        """The newest checkpoint that was passed on, as a barrier or as a cancel marker."""
        self._aborted: set[CheckpointId] = set()
        """Aborted by the driver before any marker came; all newer than `_decided`."""
        self._recent: deque[AlignmentEvent] = deque(maxlen=EVENTS_SHOWN)

    @property
    @abstractmethod
    def phase(self) -> object:
        """A frozen value that holds only what is valid now."""

    @property
    @abstractmethod
    def blocked(self) -> frozenset[int]: ...

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        self._recent.append(event)
        handler = self.handlers.get((type(self.phase), type(event)))
        if handler is None:
            raise self._violation(f"no such event: {event!r}")
        if not isinstance(event, AbortArrived):
            self._check_marker(event.channel, event.checkpoint)
        effects: list[AlignmentEffect] = handler.act(self, event)
        if type(self.phase) not in handler.to:
            raise self._violation(f"{event!r} does not lead here")
        return effects

    def _check_marker(self, channel: int, checkpoint: CheckpointId) -> None:
        if not 0 <= channel < self._channel_count:
            raise self._violation(f"channel {channel} is not one of the {self._channel_count} inputs")
        if channel in self.blocked:
            raise self._violation(f"channel {channel} is blocked and yet delivered a marker of checkpoint {checkpoint}")
        if checkpoint <= self._newest[channel]:
            raise self._violation(
                f"channel {channel} delivered a marker of checkpoint {checkpoint} after one of {self._newest[channel]}"
            )
        self._newest[channel] = checkpoint

    def _decide(self, checkpoint: CheckpointId) -> None:
        """What is passed on strictly grows; aborts up to here have done their work."""
        if checkpoint <= self._decided:
            raise self._violation(f"checkpoint {checkpoint} would be passed on after {self._decided}")
        self._decided = checkpoint
        self._aborted = {aborted for aborted in self._aborted if aborted > checkpoint}

    def _cancel(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        self._decide(checkpoint)
        return [PassCancel(checkpoint)]

    def _remember_abort(self, checkpoint: CheckpointId) -> None:
        if checkpoint > self._decided:
            self._aborted.add(checkpoint)
        if len(self._aborted) > ABORTS_REMEMBERED_MAX:
            self._aborted.remove(min(self._aborted))

    def _violation(self, found: str) -> ProtocolViolation:
        events = "\n  ".join(repr(event) for event in self._recent)
        return ProtocolViolation(
            f"alignment: {found}; phase {self.phase!r}, last passed on {self._decided}; last events:\n  {events}"
        )


# --- Exactly once: aligned ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Flowing:
    """No barrier is waiting for another."""


@dataclass(frozen=True)
class Aligning:
    """The barrier is in on `arrived`, which are blocked, and awaited on the others."""

    checkpoint: CheckpointId
    arrived: frozenset[int]


ExactlyOncePhase: TypeAlias = "Flowing | Aligning"


class ExactlyOnceAlignment(_Machine):
    """Blocks each channel from its barrier on until the barrier is in on all of them."""

    def __init__(self, channel_count: int) -> None:
        super().__init__(channel_count)
        self._phase: ExactlyOncePhase = Flowing()

    @property
    def phase(self) -> ExactlyOncePhase:
        return self._phase

    @property
    def blocked(self) -> frozenset[int]:
        return self._phase.arrived if isinstance(self._phase, Aligning) else frozenset()

    def _flowing_barrier(self, event: BarrierArrived) -> list[AlignmentEffect]:
        return [] if event.checkpoint <= self._decided else self._begin(event)

    def _flowing_cancel(self, event: BarrierCancelArrived) -> list[AlignmentEffect]:
        return [] if event.checkpoint <= self._decided else self._cancel(event.checkpoint)

    def _flowing_abort(self, event: AbortArrived) -> list[AlignmentEffect]:
        # The abort has overtaken the barrier. The cancel marker goes on in the barrier's stead and place, not now:
        # an older barrier may still be on its way, and law 2 would make the receivers give that one up.
        self._remember_abort(event.checkpoint)
        return []

    def _aligning_barrier(self, event: BarrierArrived) -> list[AlignmentEffect]:
        phase = self._aligning
        if event.checkpoint < phase.checkpoint:
            return self._outdated(event.checkpoint)
        if event.checkpoint > phase.checkpoint:
            return self._drop() + self._begin(event)
        arrived = phase.arrived | {event.channel}
        if len(arrived) < self._channel_count:
            self._phase = replace(phase, arrived=arrived)
            return [BlockChannel(event.channel)]
        self._phase = Flowing()
        self._decide(event.checkpoint)
        return [TakeSnapshot(event.checkpoint), UnblockChannels()]

    def _aligning_cancel(self, event: BarrierCancelArrived) -> list[AlignmentEffect]:
        phase = self._aligning
        if event.checkpoint < phase.checkpoint:
            return self._outdated(event.checkpoint)
        effects = self._drop()
        if event.checkpoint > phase.checkpoint:
            effects += self._cancel(event.checkpoint)
        return effects

    def _aligning_abort(self, event: AbortArrived) -> list[AlignmentEffect]:
        phase = self._aligning
        if event.checkpoint == phase.checkpoint:
            return self._drop()
        if event.checkpoint > phase.checkpoint:
            self._remember_abort(event.checkpoint)
        return []

    @property
    def _aligning(self) -> Aligning:
        if not isinstance(self._phase, Aligning):
            raise self._violation("no alignment is under way")
        return self._phase

    def _begin(self, event: BarrierArrived) -> list[AlignmentEffect]:
        """The first barrier of a checkpoint."""
        if event.checkpoint in self._aborted:
            return self._cancel(event.checkpoint)
        if self._channel_count == 1:
            self._decide(event.checkpoint)
            return [TakeSnapshot(event.checkpoint)]
        self._phase = Aligning(event.checkpoint, frozenset({event.channel}))
        return [BlockChannel(event.channel)]

    def _drop(self) -> list[AlignmentEffect]:
        """Give the alignment up: let the rows flow, and let nobody downstream wait."""
        checkpoint = self._aligning.checkpoint
        self._phase = Flowing()
        return [UnblockChannels(), *self._cancel(checkpoint)]

    def _outdated(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        """A marker older than the alignment, which another channel had left out. Law 3: it is passed on at once, for
        a receiver may hold channels blocked that feed, through backpressure, the barriers that we wait for."""
        return [] if checkpoint <= self._decided else self._cancel(checkpoint)

    handlers: ClassVar[_Handlers] = {
        (Flowing, BarrierArrived): Transition(_flowing_barrier, (Flowing, Aligning)),
        (Flowing, BarrierCancelArrived): Transition(_flowing_cancel, (Flowing,)),
        (Flowing, AbortArrived): Transition(_flowing_abort, (Flowing,)),
        (Aligning, BarrierArrived): Transition(_aligning_barrier, (Aligning, Flowing)),
        (Aligning, BarrierCancelArrived): Transition(_aligning_cancel, (Aligning, Flowing)),
        (Aligning, AbortArrived): Transition(_aligning_abort, (Aligning, Flowing)),
    }


# --- At least once: counted ---------------------------------------------------------------------------


@dataclass(frozen=True)
class CountedBarriers:
    """One checkpoint whose barriers are being counted. `cancelled`: it waits only for its turn to be passed on."""

    checkpoint: CheckpointId
    arrived: frozenset[int]
    cancelled: bool = False


@dataclass(frozen=True)
class Counting:
    """The checkpoints under way, oldest first."""

    pending: tuple[CountedBarriers, ...] = field(default=())


class AtLeastOnceAlignment(_Machine):
    """Never blocks: counts barriers, and snapshots when the last one is in. Rows behind the earlier barriers are
    then in the snapshot and are replayed as well."""

    def __init__(self, channel_count: int) -> None:
        super().__init__(channel_count)
        self._phase = Counting()

    @property
    def phase(self) -> Counting:
        return self._phase

    @property
    def blocked(self) -> frozenset[int]:
        return frozenset()

    def _barrier(self, event: BarrierArrived) -> list[AlignmentEffect]:
        return self._marker(event.channel, event.checkpoint, cancelled=event.checkpoint in self._aborted)

    def _cancel_marker(self, event: BarrierCancelArrived) -> list[AlignmentEffect]:
        return self._marker(event.channel, event.checkpoint, cancelled=True)

    def _abort(self, event: AbortArrived) -> list[AlignmentEffect]:
        known = {pending.checkpoint: pending for pending in self._phase.pending}
        if event.checkpoint not in known:
            self._remember_abort(event.checkpoint)
            return []
        known[event.checkpoint] = replace(known[event.checkpoint], cancelled=True)
        return self._settle(known)

    def _marker(self, channel: int, checkpoint: CheckpointId, *, cancelled: bool) -> list[AlignmentEffect]:
        known = {pending.checkpoint: pending for pending in self._phase.pending}
        if checkpoint > self._decided:
            before = known.get(checkpoint, CountedBarriers(checkpoint, frozenset()))
            known[checkpoint] = replace(
                before, arrived=before.arrived | {channel}, cancelled=before.cancelled or cancelled
            )
        return self._settle(known)

    def _settle(self, known: dict[CheckpointId, CountedBarriers]) -> list[AlignmentEffect]:
        """Pass on whatever is decided, strictly in order of id (law 1)."""
        pending = [known[checkpoint] for checkpoint in sorted(known)]
        pending = [replace(p, cancelled=True) if self._is_hopeless(p) else p for p in pending]
        if len(pending) > CHECKPOINTS_PENDING_MAX:
            pending[0] = replace(pending[0], cancelled=True)
        effects: list[AlignmentEffect] = []
        while pending and (pending[0].cancelled or len(pending[0].arrived) == self._channel_count):
            oldest = pending.pop(0)
            self._decide(oldest.checkpoint)
            effects.append(PassCancel(oldest.checkpoint) if oldest.cancelled else TakeSnapshot(oldest.checkpoint))
        self._phase = Counting(tuple(pending))
        return effects

    def _is_hopeless(self, pending: CountedBarriers) -> bool:
        """Law 2: a channel that has gone on to a newer marker will not deliver this barrier."""
        return any(
            newest > pending.checkpoint and channel not in pending.arrived
            for channel, newest in enumerate(self._newest)
        )

    handlers: ClassVar[_Handlers] = {
        (Counting, BarrierArrived): Transition(_barrier, (Counting,)),
        (Counting, BarrierCancelArrived): Transition(_cancel_marker, (Counting,)),
        (Counting, AbortArrived): Transition(_abort, (Counting,)),
    }
