"""Keys that have rows waiting, whether or not some have just come.

Comes in: where the rows of some keys are. Goes out: how many each has, and those of the keys that
are asked for, which are forgotten with that. Knows no triggers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from weir.operators.windows.buffer import RowBuffer
from weir.operators.windows.keyed.gathering import Gathered
from weir.operators.windows.pieces import Piece, expanded
from weir.state.keys.xxhash64 import Ints


class WaitingKeys(ABC):
    """Some keys. `counts`: by key, how many rows it has."""

    counts: Ints

    @abstractmethod
    def taken(self, which: Ints) -> Gathered:
        """All rows of some of the keys, which are forgotten. To be called once at most."""


class KnownWaiting(WaitingKeys):
    """Keys of an index."""

    def __init__(self, counts: Ints, take: Callable[[Ints], Gathered]) -> None:
        self.counts = counts
        self._take = take

    def taken(self, which: Ints) -> Gathered:
        return self._take(which)


class PieceOfWaiting(WaitingKeys):
    """Keys whose rows all lie in segments."""

    def __init__(self, buffer: RowBuffer, piece: Piece) -> None:
        self._buffer = buffer
        self._piece = piece
        slots = piece.slots
        self._starts = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), slots[1:] != slots[:-1])))
        self.counts = np.diff(self._starts, append=len(piece))

    def taken(self, which: Ints) -> Gathered:
        starts = self._starts[which]
        self._buffer.forget(self._piece, expanded(starts, self.counts[which]))
        return Gathered(self._piece.rows, np.arange(len(self._piece)), starts, np.zeros(len(which), np.int64))
