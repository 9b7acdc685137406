"""What travels in line with the batches of a channel.

Batches, and these markers, keep their order in every channel; nothing ever
overtakes. Ended channels still carry barriers: end of input only says that no
more rows will come (docs/adr/0003-ended-channels-carry-barriers.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.ids import CheckpointId


@dataclass(frozen=True)
class Barrier:
    """All rows before this belong to the checkpoint; all rows after do not."""

    checkpoint: CheckpointId
    savepoint: str | None = field(default=None, repr=False)
    """Where to export the states to, besides: the checkpoint was asked for as a savepoint."""
    base: CheckpointId | None = None
    """The newest that was complete when this one began. A subtask may hear of that from here first, since barriers come
    another way than the driver's word; its snapshot builds on this one or a newer, for older ones may be gone."""
    is_stateless: bool = False
    """Only positions and what sinks have to commit belong to the checkpoint; state goes into the savepoint, if there is
    one, and nowhere else."""


@dataclass(frozen=True)
class BarrierCancelled:
    """The barrier of this checkpoint will not come on this channel: the checkpoint was aborted."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class EndOfInput:
    """No more rows will come on this channel."""


@dataclass(frozen=True)
class Watermark:
    """Event time has come this far, in microseconds since 1970: earlier rows that still come are late."""

    time_us: int


@dataclass(frozen=True)
class StreamIdle:
    """No rows for now: until something else comes, this channel does not hold event time back."""


Marker: TypeAlias = "Barrier | BarrierCancelled | EndOfInput | Watermark | StreamIdle"
