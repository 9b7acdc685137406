"""Open sessions by key, in NumPy arrays, and the accumulators of each.

Comes in: rows, or pieces of sessions, of many keys at once. Goes out: the session that
each belongs to; sessions that touch are merged. Knows neither watermarks nor emission.
Two pieces belong to one session when they are less than the gap apart.

A store that takes no more rows may be read by another thread, as far as `alive`, `starts`,
`lasts`, `hashes`, `keys` and the accumulators' `read` go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import DataError
from weir.operators.aggregates.frames import distinct
from weir.operators.aggregates.layout import AggregateLayout
from weir.operators.aggregates.state import Accumulators
from weir.operators.base import OperatorContext
from weir.state.keys.index import KeyIndex
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints, Words

COMPACTED_SLOTS_MIN = 8_192
"""Below so many slots it does not matter how many of them are of sessions that are gone."""

_SUM_MAX = 1 << 62
"""Key and time are sorted as one number below this."""

_SLOT_BYTES, _KEY_BYTES = 42, 48
"""Of the arrays here, for each slot and for each key; half of it is room to grow."""


class SessionStore:
    """Slots of sessions. A session that is merged into another, or removed, leaves a dead slot until `compact`."""

    def __init__(self, layout: AggregateLayout, context: OperatorContext, gap_us: int) -> None:
        self._layout = layout
        self._context = context
        self._gap_us = gap_us
        self._start_over()

    def successor(self) -> SessionStore:
        """An empty store with room for as many sessions, which takes no memory until it is used: to grow to where this
        one was would hold up the stream."""
        empty = SessionStore(self._layout, self._context, self._gap_us)
        empty._start_over(keys=len(self._index), sessions=self._count)
        return empty

    def __len__(self) -> int:
        """How many sessions are open."""
        return self._live

    @property
    def slots(self) -> int:
        """How many there are, dead ones included."""
        return self._count

    @property
    def remembered(self) -> int:
        """Keys that take up room."""
        return len(self._index)

    def add_rows(self, batch: pa.RecordBatch, times: Ints) -> Ints:
        """Take rows of the user; the session of each."""
        keys = self._index.slots([batch.column(key) for key in self._layout.keys])
        slots = self._place(keys, times, times)
        self.accumulators.add_rows(batch, slots, count=self._count)
        self._filled = self._count
        return slots

    def combine_rows(self, batch: pa.RecordBatch, times: Ints) -> bool:
        """Take rows of the user before they are sent on, unless they have to be seen one by one: whether it did."""
        if not self.accumulators.can_combine(batch):
            return False
        self.add_rows(batch, times)
        return True

    def merge(self, keys: Sequence[pa.Array], starts: Ints, lasts: Ints, *, columns: Sequence[pa.Array]) -> Ints:
        """Take pieces of sessions, with accumulators; the session of each."""
        slots = self._place(self._index.slots(keys), starts, lasts)
        self.accumulators.merge(columns, slots, count=self._count)
        self._filled = self._count
        return slots

    # --- Looking at sessions ---

    @property
    def alive(self) -> Ints:
        """The slots of all open sessions."""
        return np.flatnonzero(self._alive[: self._count])

    def still_alive(self, slots: Ints) -> Ints:
        """Each of these slots once, those that are still open."""
        once = distinct(slots, self._count)
        return once[self._alive[once]]

    def ended_by(self, last_us: int) -> Ints:
        """Sessions whose last row is not behind this time."""
        count = self._count
        return np.flatnonzero(self._alive[:count] & (self._last[:count] <= last_us))

    def starts(self, slots: Ints) -> Ints:
        return self._start[slots]

    def lasts(self, slots: Ints) -> Ints:
        return self._last[slots]

    def keys(self, slots: Ints) -> list[pa.Array]:
        return self._index.keys(self._key[slots].astype(np.int64))

    def hashes(self, slots: Ints) -> Words:
        """Of the keys."""
        return self._index.hashes[self._key[slots]]

    def numbers(self, slots: Ints) -> Ints:
        """The numbers of the keys."""
        return self._key[slots].astype(np.int64)

    def numbers_of(self, keys: Sequence[pa.Array], hashes: Words | None = None) -> Ints:
        """The number of each key; keys that are new get one."""
        return self._index.slots(keys, hashes)

    def of_keys(self, keys: Sequence[pa.Array], hashes: Words) -> tuple[Ints, Ints]:
        """All open sessions of keys: which of the keys each has, and its slot. Changes nothing."""
        numbers = self._index.known(keys, hashes)
        rows = np.flatnonzero((numbers >= 0) & (numbers < len(self._sessions)))
        rows = rows[self._sessions[numbers[rows]] > 0]
        alone = self._only[numbers[rows]].astype(np.int64)
        if (alone >= 0).all():
            return rows, alone
        concerned = np.zeros(len(self._index), np.bool_)
        concerned[numbers[rows]] = True
        known = self._sessions_of(concerned)
        known = known[np.argsort(self._key[known], kind="stable")]
        held = self._key[known]
        starts = np.searchsorted(held, numbers[rows])
        counts = np.searchsorted(held, numbers[rows], side="right") - starts
        which, places = expanded(starts, counts)
        return rows[which], known[places]

    def extend(self, slots: Ints, lasts: Ints) -> None:
        """Sessions are known to go on until then, whatever their rows here say."""
        np.maximum.at(self._last, slots, lasts)

    @property
    def size_bytes(self) -> int:
        """About so much memory is in use."""
        slots = self._count * _SLOT_BYTES + self.accumulators.size_bytes
        return slots + len(self._index) * _KEY_BYTES + self._index.size_bytes

    # --- Letting go of sessions ---

    def parts(self) -> list[object]:
        """What takes up memory, to be freed one after the other. The store is of no use any more."""
        parts: list[object] = [self._index, self.accumulators, self._start, self._last, self._key, self._alive]
        parts += [self._sessions, self._only, self._low, self._high]
        self.__dict__.clear()
        return parts

    def remove(self, slots: Ints) -> None:
        """Forget sessions; none comes twice among the slots."""
        self._alive[slots] = False
        self._live -= len(slots)
        keys = self._key[slots]
        np.subtract.at(self._sessions, keys, 1)
        # Where one session is left of several, nobody knows which: it is looked for when it is needed.
        self._only[keys] = -1

    def forget_sessions(self) -> None:
        """Forget all sessions, but not the keys."""
        self.accumulators.clear()
        self._count = self._live = 0
        self._filled = 0
        self._sessions[:] = 0

    def forget_keys(self) -> None:
        """Forget everything."""
        self._start_over()

    @property
    def is_mostly_dead(self) -> bool:
        """Whether it would pay to leave dead slots behind."""
        return self._count > COMPACTED_SLOTS_MIN and 2 * self._live < self._count

    def compact(self) -> None:
        """Give open sessions new slots, and forget the keys of all others. Slots from before mean nothing then."""
        old, slots = self.accumulators, self.alive
        keys, starts, lasts = self.keys(slots), self._start[slots], self._last[slots]
        self._start_over()
        if len(slots):
            found = self._index.slots(keys)
            self._grow_keys()
            placed = self._new_slots(found, starts, lasts)
            np.add.at(self._sessions, found, 1)
            self._only[found] = np.where(self._sessions[found] == 1, placed, -1)
            old.pour(slots, self.accumulators, placed, count=self._count)
            self._filled = self._count

    def _start_over(self, *, keys: int = 0, sessions: int = 0) -> None:
        """`keys`, `sessions`: room for so many."""
        self._index = KeyIndex(self._layout.key_schema, room=keys)
        self.accumulators = Accumulators(self._layout, self._context)
        self.accumulators.make_room(sessions)
        self._count = self._live = 0
        self._filled = 0
        """So many slots have accumulators; those behind them are new."""
        self._start: Ints = np.zeros(sessions, np.int64)
        self._last: Ints = np.zeros(sessions, np.int64)
        self._key: npt.NDArray[np.int32] = np.zeros(sessions, np.int32)
        self._alive: npt.NDArray[np.bool_] = np.zeros(sessions, np.bool_)
        # By key: how many sessions are open; the slot if it is one, -1 where it is not known; room to compute.
        self._sessions: npt.NDArray[np.int32] = np.zeros(keys, np.int32)
        self._only: npt.NDArray[np.int32] = np.zeros(keys, np.int32)
        self._low: Ints = np.zeros(keys, np.int64)
        self._high: Ints = np.zeros(keys, np.int64)

    # --- Where pieces belong ---

    def _place(self, keys: Ints, starts: Ints, lasts: Ints) -> Ints:
        self._grow_keys()
        gap_us, low, high = self._gap_us, self._low, self._high
        touched = distinct(keys, len(self._index))
        low[touched], high[touched] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        np.minimum.at(low, keys, starts)
        np.maximum.at(high, keys, lasts)
        lows, highs = low[touched], high[touched]
        sessions, only = self._sessions[touched], self._only[touched].astype(np.int64)
        # Pieces that all lie within the gap are one session, whatever their order.
        simple = (highs - lows < gap_us) & ((sessions == 0) | ((sessions == 1) & (only >= 0)))
        with_one = np.flatnonzero(simple & (sessions == 1))
        near = (lows[with_one] - self._last[only[with_one]] < gap_us) & (
            self._start[only[with_one]] - highs[with_one] < gap_us
        )
        joined = with_one[near]
        found = only[joined]
        self._start[found] = np.minimum(self._start[found], lows[joined])
        self._last[found] = np.maximum(self._last[found], highs[joined])
        fresh = simple.copy()
        fresh[joined] = False
        fresh = np.flatnonzero(fresh)
        placed = only
        placed[fresh] = self._new_slots(touched[fresh], lows[fresh], highs[fresh])
        self._sessions[touched[fresh]] += 1
        self._only[touched[fresh]] = np.where(self._sessions[touched[fresh]] == 1, placed[fresh], -1)
        # `low` now tells rows where they belong; -1: not known yet.
        placed[~simple] = -1
        low[touched] = placed
        slots: Ints = low[keys]
        rows = np.flatnonzero(slots < 0)
        if len(rows):
            self._regroup(keys[rows], starts[rows], lasts[rows], rows=rows, slots=slots)
        return slots

    def _regroup(self, keys: Ints, starts: Ints, lasts: Ints, *, rows: Ints, slots: Ints) -> None:
        """Sort pieces and the open sessions of their keys by time, cut them where a gap is, and note the session of
        each piece in `slots`, at its row."""
        concerned = np.zeros(len(self._index), np.bool_)
        concerned[keys] = True
        known = self._sessions_of(concerned)
        keys = np.concatenate((self._key[known].astype(np.int64), keys))
        starts, lasts = np.concatenate((self._start[known], starts)), np.concatenate((self._last[known], lasts))
        first_us = int(starts.min())
        width = int(lasts.max()) - first_us + self._gap_us + 1
        numbers = np.cumsum(concerned)[keys] - 1
        keys_max = _SUM_MAX // width
        if keys_max < 1:
            raise DataError("session: the times of open sessions are too far apart to be compared")
        for first in range(0, int(numbers.max()) + 1, keys_max):
            some: Any = slice(None)
            if numbers.max() >= keys_max:
                some = np.flatnonzero((numbers >= first) & (numbers < first + keys_max))
            base = (numbers[some] - first) * width
            order, groups, tops = _cut(base + (starts[some] - first_us), base + (lasts[some] - first_us), self._gap_us)
            pieces = order if isinstance(some, slice) else some[order]
            self._settle(pieces, groups, keys=keys, starts=starts, lasts=tops % width + first_us, known=known)
            target = self._group_slots[groups]
            incoming = np.flatnonzero(pieces >= len(known))
            slots[rows[pieces[incoming] - len(known)]] = target[incoming]

    def _sessions_of(self, concerned: Mask) -> Ints:
        """The open sessions of some keys, by a mask."""
        return np.flatnonzero(self._alive[: self._count] & concerned[self._key[: self._count]])

    def _settle(self, pieces: Ints, groups: Ints, *, keys: Ints, starts: Ints, lasts: Ints, known: Ints) -> None:
        """Each group becomes one session: an open one of its own if it has one, else a new one. `pieces` are in order,
        and each has its group; `lasts` is the last row up to each."""
        count = int(groups[-1]) + 1
        heads = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
        tails = np.concatenate((heads[1:] - 1, [len(groups) - 1]))
        begin, end, key = starts[pieces[heads]], lasts[tails], keys[pieces[heads]]
        own = np.flatnonzero(pieces < len(known))[::-1]
        held = known[pieces[own]]
        into = np.full(count, -1, np.int64)
        into[groups[own]] = held  # backwards, so that the earliest stays
        gone = np.flatnonzero(into[groups[own]] != held)[::-1]
        if len(gone):
            merged, targets = held[gone], into[groups[own[gone]]]
            # New slots get theirs later: kernels would take them for old ones, if they were told of them now.
            self.accumulators.pour(merged, self.accumulators, targets, count=self._filled)
            self._alive[merged] = False
            self._live -= len(merged)
        old, new = np.flatnonzero(into >= 0), np.flatnonzero(into < 0)
        self._start[into[old]], self._last[into[old]] = begin[old], end[old]
        into[new] = self._new_slots(key[new], begin[new], end[new])
        self._sessions[key] = 0
        np.add.at(self._sessions, key, 1)
        self._only[key] = np.where(self._sessions[key] == 1, into, -1)
        self._group_slots = into

    def _new_slots(self, keys: Ints, starts: Ints, lasts: Ints) -> Ints:
        count = self._count + len(keys)
        if count > len(self._start):
            size = max(1_024, 2 * count)
            self._start, self._last = _grown(self._start, size), _grown(self._last, size)
            self._key, self._alive = _grown(self._key, size), _grown(self._alive, size)
        slots = np.arange(self._count, count)
        self._start[slots], self._last[slots], self._key[slots], self._alive[slots] = starts, lasts, keys, True
        self._count = count
        self._live += len(keys)
        return slots

    def _grow_keys(self) -> None:
        if (count := len(self._index)) > len(self._sessions):
            size = max(1_024, 2 * count)
            self._sessions, self._only = _grown(self._sessions, size), _grown(self._only, size)
            self._low, self._high = _grown(self._low, size), _grown(self._high, size)


def _cut(starts: Ints, lasts: Ints, gap: int) -> tuple[Ints, Ints, Ints]:
    """The order of pieces by their start; in that order the group of each, and the last end up to it."""
    order = np.argsort(starts)
    tops = np.maximum.accumulate(lasts[order])
    groups = np.zeros(len(order), np.int64)
    np.cumsum(starts[order[1:]] - tops[:-1] >= gap, out=groups[1:])
    return order, groups, tops


def are_near(firsts: Ints, lasts: Ints, other_firsts: Ints, other_lasts: Ints, gap_us: int) -> Mask:
    """Whether pieces belong to one session, side by side."""
    near: Mask = (other_firsts - lasts < gap_us) & (firsts - other_lasts < gap_us)
    return near


def expanded(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Stretches of numbers, from each start on so many: which stretch each number is of, and the number.

    >>> expanded(np.array([7, 0, 3]), np.array([2, 0, 1]))
    (array([0, 0, 2]), array([7, 8, 3]))
    """
    which = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + offsets


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
