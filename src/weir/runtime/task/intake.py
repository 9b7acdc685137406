"""Between a source's reader and its chain: rows go on at once, or when it is noted that they were read.

Comes in: what a reader has handed out. Goes out: the same, in the same order. The second kind is what makes "at most
once" true: a later attempt begins behind all that has gone on, whatever dies at whatever moment, since rows wait here
until the driver has noted a position behind them. Never touches a channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from weir.ids import CheckpointId
from weir.operators.source import SourceReader
from weir.snapshot.parts import NOT_READ, Json

HELD_BATCHES_MAX = 256
HELD_BYTES_MAX = 32 << 20
"""The most that one reader reads ahead of what is noted; what a failure can cost at most, besides the state."""


@dataclass(frozen=True)
class ReadRows:
    """What one poll has brought, and what the reader said then of its splits."""

    batch: pa.RecordBatch
    split: str
    open_splits: frozenset[str] | None


class Intake(Protocol):
    """What was read, and has not gone on yet."""

    @property
    def has_room(self) -> bool:
        """The reader may be polled."""

    @property
    def is_settled(self) -> bool:
        """All that was read has gone on, and what may not be read again is noted."""

    def put(self, rows: ReadRows) -> None:
        """These were read."""

    def take(self) -> ReadRows | None:
        """The next that may go on."""

    def reserved(self, number: int) -> None:
        """The driver has noted what it was told with this number."""

    def begun(self, checkpoint: CheckpointId) -> None:
        """The barrier of this checkpoint leaves."""


class DirectIntake:
    """Rows go on as they are read."""

    def __init__(self) -> None:
        self._rows: ReadRows | None = None

    @property
    def has_room(self) -> bool:
        return self._rows is None

    @property
    def is_settled(self) -> bool:
        return self._rows is None

    def put(self, rows: ReadRows) -> None:
        self._rows = rows

    def take(self) -> ReadRows | None:
        rows, self._rows = self._rows, None
        return rows

    def reserved(self, number: int) -> None:
        """Nobody is asked."""

    def begun(self, checkpoint: CheckpointId) -> None:
        """Nobody wants to know."""


class ReservingIntake:
    """Rows go on when the driver has noted how far the reader was behind them. It is told of one position at a time;
    what is read meanwhile makes up the next.

    tell:     a number, the position, and behind which checkpoint it was read; the driver answers with the number
    restored: the checkpoint that the attempt begins with
    """

    def __init__(
        self,
        reader: SourceReader,
        tell: Callable[[int, Json, CheckpointId], None],
        restored: CheckpointId = NOT_READ,
    ) -> None:
        self._reader = reader
        self._tell = tell
        self._behind = restored
        self._free: deque[ReadRows] = deque()
        self._told: deque[ReadRows] = deque()
        self._read: deque[ReadRows] = deque()
        self._held_bytes = 0
        self._number = 0
        self._awaits_answer = False
        # Where this reader begins: the driver notes nothing of a source before it knows that of all readers.
        self._reserve()

    @property
    def has_room(self) -> bool:
        held = len(self._free) + len(self._told) + len(self._read)
        return held < HELD_BATCHES_MAX and self._held_bytes < HELD_BYTES_MAX

    @property
    def is_settled(self) -> bool:
        return not (self._free or self._read or self._awaits_answer)

    def put(self, rows: ReadRows) -> None:
        self._held_bytes += rows.batch.nbytes
        self._read.append(rows)
        if not self._awaits_answer:
            self._reserve()

    def take(self) -> ReadRows | None:
        if not self._free:
            return None
        rows = self._free.popleft()
        self._held_bytes -= rows.batch.nbytes
        return rows

    def reserved(self, number: int) -> None:
        if number != self._number or not self._awaits_answer:
            return
        self._awaits_answer = False
        self._free.extend(self._told)
        self._told.clear()
        if self._read:
            self._reserve()

    def begun(self, checkpoint: CheckpointId) -> None:
        self._behind = checkpoint

    def _reserve(self) -> None:
        # The reader's position covers exactly what it has handed out: all that is in `_read`, and nothing behind it.
        self._told, self._read = self._read, deque()
        self._number += 1
        self._awaits_answer = True
        self._tell(self._number, self._reader.position(), self._behind if self._told else NOT_READ)
