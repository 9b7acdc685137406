"""Where the rows of each key are: for each key a stretch of one array, in the order in which its rows came.

Comes in: keys by slot, and the places of new rows. Goes out: the places of a key's rows. Each
operation costs the rows and keys that it is about, now and then all that are held. NumPy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weir.operators.windows.pieces import expanded
from weir.state.columns.growing import grown
from weir.state.keys.xxhash64 import Ints

ROOM_MIN = 4
"""A stretch has room for so many rows at least."""

PLACES_MIN = 1_024


class Stretches:
    """Rows of a key are numbered without a gap: from `begin` on, `held` of them."""

    def __init__(self) -> None:
        self._places: npt.NDArray[np.uint32] = np.empty(PLACES_MIN, np.uint32)
        self._end = 0
        """Stretches take up the array so far."""
        self._start = np.zeros(0, np.int64)
        self._room = np.zeros(0, np.int64)
        self._skip = np.zeros(0, np.int64)
        """By slot: how far behind the start of its stretch the first row is."""
        self.held = np.zeros(0, np.int64)
        self.begin = np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        return self._places.nbytes + 5 * self.held.nbytes

    def grow(self, count: int) -> None:
        """There are so many slots by now."""
        if count > len(self.held):
            self._start, self._room, self._skip, self.held, self.begin = (
                grown(column, count, 0) for column in (self._start, self._room, self._skip, self.held, self.begin)
            )

    def append(self, slots: Ints, counts: Ints, numbers: Ints, places: Ints) -> None:
        """New rows of keys, each of which is there once: `counts` of them, from `numbers` on. Their places are by
        key, in the order of the slots given."""
        held = self.held[slots]
        needed = held + counts
        self._make_room(slots, needed)
        self._places[expanded(self._start[slots] + self._skip[slots] + held, counts)] = places
        self.held[slots] = needed
        self.begin[slots] = numbers - held

    def drop(self, slots: Ints, left: Ints) -> None:
        """Forget rows of keys but for the last, of which so many are left."""
        gone = self.held[slots] - left
        self.held[slots] = left
        self.begin[slots] += gone
        # An empty stretch is filled from its start.
        self._skip[slots] = (self._skip[slots] + gone) * (left > 0)

    def counted(self, slots: Ints, first: Ints) -> Ints:
        """How many rows keys have from these numbers on."""
        if len(self.held) == 0:
            return np.zeros(len(slots), np.int64)
        held, begin = self.held.take(slots, mode="clip"), self.begin.take(slots, mode="clip")
        counts: Ints = np.minimum(np.maximum(begin + held - first, 0), held)
        # Keys that are younger than all of this.
        counts[slots >= len(self.held)] = 0
        return counts

    def places(self, slots: Ints, counts: Ints) -> Ints:
        """The places of the last rows of keys, so many of each."""
        stops = self._start[slots] + self._skip[slots] + self.held[slots]
        return self._places[expanded(stops - counts, counts)].astype(np.int64)

    def slots(self) -> Ints:
        """The keys that have rows."""
        return np.flatnonzero(self.held)

    def moved(self, slots: Ints) -> None:
        """From now on slots are others: by slot, the one that it was. The keys that are not among them have no rows."""
        self._start, self._room, self._skip, self.held, self.begin = (
            column[slots] for column in (self._start, self._room, self._skip, self.held, self.begin)
        )

    def renumber(self, slots: Ints, held: Ints, places: Ints) -> None:
        """The rows of keys have other places, given by key."""
        self._places[expanded(self._start[slots] + self._skip[slots], held)] = places

    def _make_room(self, slots: Ints, needed: Ints) -> None:
        """A longer stretch for each key that has no room for so many rows; or the front of the same one, where half of
        it is free then."""
        full = (self._skip[slots] + needed > self._room[slots]).nonzero()[0]
        if not len(full):
            return
        longer = full[2 * needed[full] > self._room[slots[full]]]
        wide, rooms = slots[longer], room_for(needed[longer])
        total = int(np.add.reduce(rooms))
        if self._end + total > len(self._places):
            # Keys that have no rows lose their stretches: others may have no room, too.
            self._spread(int(np.add.reduce(room_for(needed))))
            self._make_room(slots, needed)
            return
        some = slots[full]
        held = self.held[some]
        moved = self._places[expanded(self._start[some] + self._skip[some], held)]
        if total:
            self._start[wide] = self._end + rooms.cumsum() - rooms
            self._room[wide] = rooms
            self._end += total
        self._skip[some] = 0
        self._places[expanded(self._start[some], held)] = moved

    def _spread(self, more: int) -> None:
        """A new array with room for `more`; what nobody uses any more is left out."""
        slots = self.slots()
        held, rooms = self.held[slots], self._room[slots]
        places = self.places(slots, held)
        starts = rooms.cumsum() - rooms
        self._room[:], self._skip[:] = 0, 0
        self._start[slots], self._room[slots] = starts, rooms
        self._end = int(rooms.sum())
        self._places = np.empty(2 * (self._end + more), np.uint32)
        self._places[expanded(starts, held)] = places


def room_for(rows: Ints) -> Ints:
    """The least power of two that is twice as much, or ROOM_MIN.

    >>> room_for(np.array([1, 3, 4, 5])).tolist()
    [4, 8, 8, 16]
    """
    exponents = np.frexp((2 * rows - 1).astype(np.float64))[1]
    return np.maximum(np.left_shift(1, exponents.astype(np.int64)), ROOM_MIN)
