"""Stores of sessions that take no more rows, until their sessions lie in segments, or have all ended.

Comes in: stores, and how far event time has come. Goes out: pieces that are due, or that touch others; and the rows of
segments, for the thread that writes a snapshot. A session that was taken out is never seen again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.operators.windows.sessions.key_filter import KeyFilter
from weir.operators.windows.sessions.pieces import PieceLayout, SessionPieces
from weir.operators.windows.sessions.store import SessionStore, are_near
from weir.state.columns.segments.lot import Lot
from weir.state.columns.segments.rows import SortedRows
from weir.state.columns.segments.segment import Segment
from weir.state.columns.segments.store import SegmentStore
from weir.state.keys.store import Mask
from weir.state.keys.xxhash64 import Ints, Words

FREED_SLOTS_MAX = 262_144
"""Heads of so many sessions are freed by the stream's thread."""


@dataclass(frozen=True)
class Asked:
    """Sessions that may go on in pieces here, and the numbers of their keys."""

    numbers: Ints
    keys: list[pa.Array]
    hashes: Words
    firsts: Ints
    lasts: Ints
    number_of: Callable[[Sequence[pa.Array]], Ints]


@dataclass
class Touching:
    """What touches the sessions that were asked for."""

    rows: list[Ints] = field(default_factory=list)
    """Sessions that go on …"""
    lasts: list[Ints] = field(default_factory=list)
    """… until then at least."""
    pieces: list[SessionPieces] = field(default_factory=list)
    """What was taken out of here."""

    def goes_on(self, rows: Ints, lasts: Ints) -> None:
        self.rows.append(rows)
        self.lasts.append(lasts)


class RetiredHead:
    """A store that takes no more rows, as fast to look at as before. A snapshot *seals* it: its sessions go into
    segments, which are made by the thread that writes."""

    def __init__(self, store: SessionStore, layout: PieceLayout) -> None:
        self._store = store
        self._layout = layout
        self.lot: Lot | None = None
        """Once it is sealed."""
        self._left = len(store)
        # Neither costs anything until it is touched.
        self._taken: Mask = np.zeros(store.slots, np.bool_)
        self._rows: npt.NDArray[np.int32] = np.empty(store.slots, np.int32)
        """By session: which row of its bucket it is, once there is one."""
        self._taken_slots: list[Ints] = [np.empty(0, np.int64)]
        self.filters: dict[Segment, KeyFilter] = {}
        """Made together with the segments."""

    @property
    def is_empty(self) -> bool:
        """Whether all its sessions were taken out."""
        return not self._left

    def seal(self, segments: SegmentStore) -> None:
        """What is left goes into segments; looks at none of it."""
        left_out = self._taken.copy() if self._left < len(self._store) else self._taken[:0]
        self._taken_slots = [np.empty(0, np.int64)]
        self.lot = segments.seal(partial(self._sorted_rows, left_out), self._made)

    def _sorted_rows(self, left_out: Mask) -> Iterator[tuple[int, SortedRows]]:
        """For the thread that writes a snapshot, and for any."""
        alive = self._store.alive
        done, of = 0, None
        for bucket_us, slots, rows in self._layout.rows_in(
            self._store, alive[~left_out[alive]] if len(left_out) else alive
        ):
            done, of = done if bucket_us == of else 0, bucket_us
            self._rows[slots] = np.arange(done, done + len(slots))
            done += len(slots)
            yield bucket_us, rows

    def _made(self, segment: Segment) -> None:
        """The same."""
        self.filters[segment] = KeyFilter(segment.kept.holding.rows().order)

    def taken(self, run: Sequence[Segment]) -> Iterator[tuple[Segment, Ints]]:
        """Of one of the lot's runs the rows that were taken out since it was sealed."""
        slots = np.concatenate(self._taken_slots)
        slots = slots[self._layout.buckets(self._store.lasts(slots)) == run[0].bucket_us]
        rows = self._rows[slots].astype(np.int64)
        first = 0
        for segment in run:
            yield segment, rows[(rows >= first) & (rows < first + len(segment))] - first
            first += len(segment)

    def due(self, after_us: int, until_us: int) -> SessionPieces | None:
        """Take out what ends in between."""
        slots = self._slots_between(after_us, until_us)
        return self._take(slots) if len(slots) else None

    def lasts_between(self, after_us: int, until_us: int) -> Ints:
        """The last rows of what ends in between."""
        return self._store.lasts(self._slots_between(after_us, until_us))

    def _slots_between(self, after_us: int, until_us: int) -> Ints:
        slots = self._store.ended_by(until_us)
        return slots[~self._taken[slots] & (self._store.lasts(slots) > after_us)]

    def touching(self, asked: Asked, gap_us: int, taken_until_us: int, found: Touching) -> None:
        rows, slots = self._store.of_keys(asked.keys, asked.hashes)
        firsts, lasts = self._store.starts(slots), self._store.lasts(slots)
        near = are_near(asked.firsts[rows], asked.lasts[rows], firsts, lasts, gap_us) & ~self._taken[slots]
        rows, slots, lasts = rows[near], slots[near], lasts[near]
        over = lasts <= taken_until_us
        found.goes_on(rows[~over], lasts[~over])
        if over.any():
            found.pieces.append(self._take(np.unique(slots[over])))

    def parts(self) -> list[object]:
        """What is to be freed later: small heads are gone at once."""
        return self._store.parts() if self._store.slots > FREED_SLOTS_MAX else []

    def _take(self, slots: Ints) -> SessionPieces:
        self._taken[slots] = True
        self._taken_slots.append(slots)
        self._left -= len(slots)
        return self._layout.open_in(self._store, slots)
