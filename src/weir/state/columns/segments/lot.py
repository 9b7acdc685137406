"""A head that takes no more rows, on its way into segments.

Comes in: a way to make sorted rows out of what was sealed, a piece at a time. Goes out: runs of
segments, one for each bucket, made once, by whichever thread wants them first: mostly the one that
writes a snapshot, behind the stream's back. Their rows are in memory; the stream's thread takes
them into the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.rows import SEGMENT_BYTES_MAX, SortedRows, joined
from weir.state.columns.segments.segment import Segment
from weir.state.pieces import Pieces

Make = Callable[[], Iterable[tuple[int, SortedRows]]]
"""The rows of each bucket, sorted, in pieces: those of a bucket follow each other, and no key is in two of them. None
is without rows. It reads only what does not change. Called once, and once more where it failed."""


@dataclass(frozen=True)
class FrozenLot:
    """What was left of a lot when it was looked at."""

    lot: Lot
    gone: frozenset[int]
    before_us: int

    def runs(self, breathe: Callable[[], None] = lambda: None) -> list[Sequence[Segment]]:
        """The segments that are left, by bucket."""
        made = [run for run in self.lot.runs(breathe) if run[0].bucket_us not in self.gone]
        left = ([segment for segment in run if segment.last_us >= self.before_us] for run in made)
        return [run for run in left if run]


class Lot:
    """Rows that were sealed together."""

    def __init__(self, make: Make, segment: Callable[[int, SortedRows], Segment]) -> None:
        """`segment`: makes one out of the rows of a bucket; called by any thread."""
        self._make: Make | None = make
        self._segment: Callable[[int, SortedRows], Segment] | None = segment
        """None, when all are made: who is told of segments may refer to this lot, and to much memory."""
        self._pieces: Iterator[tuple[int, SortedRows]] | None = None
        self._loose: list[SortedRows] = []
        """Pieces on their way into one segment, of the bucket of the last run."""
        self._loose_bytes = 0
        self._bucket_us = 0
        self._made: list[list[Segment]] = []
        self._lock = threading.Lock()
        self.is_adopted = False
        """Whether its segments are among the others: nobody needs what it was made of."""
        self._gone: frozenset[int] = frozenset()
        self._before_us = NEVER_US

    def drop(self, bucket_us: int) -> None:
        """Forget a bucket. For the thread that sealed, as are `drop_before` and `freeze`."""
        self._gone |= {bucket_us}

    def drop_before(self, time_us: int) -> None:
        """Forget the segments whose rows are all from before this time."""
        self._before_us = max(self._before_us, time_us)

    def freeze(self) -> FrozenLot:
        """The lot as it is now: what is dropped later is still there."""
        return FrozenLot(self, self._gone, self._before_us)

    @property
    def is_made(self) -> bool:
        """Whether `runs` answers at once."""
        return self._make is None

    def runs(self, breathe: Callable[[], None] = lambda: None) -> Sequence[Sequence[Segment]]:
        """What all rows have become. `breathe`: called between pieces, where it holds up nobody."""
        while self._step():
            breathe()
        return self._made

    def making(self) -> Pieces:
        """The same, in pieces."""
        while self._step():
            yield

    def _step(self) -> bool:
        """Take one piece; False: there are no more."""
        with self._lock:
            if self._make is None:
                return False
            try:
                if self._pieces is None:
                    self._pieces, self._made = iter(self._make()), []
                    self._loose, self._loose_bytes = [], 0
                piece = next(self._pieces, None)
                if piece is None:
                    self._put_together()
                    self._make = self._pieces = self._segment = None
                else:
                    self._take(*piece)
            except BaseException:
                self._pieces = None  # whoever asks next begins anew
                raise
            return True

    def _take(self, bucket_us: int, rows: SortedRows) -> None:
        is_other = not self._made or bucket_us != self._bucket_us
        if is_other or self._loose_bytes >= SEGMENT_BYTES_MAX:
            self._put_together()
        if is_other:
            self._bucket_us = bucket_us
            self._made.append([])
        self._loose.append(rows)
        self._loose_bytes += rows.size_bytes

    def _put_together(self) -> None:
        if self._loose and self._segment is not None:
            self._made[-1].append(self._segment(self._bucket_us, joined(self._loose)))
        self._loose, self._loose_bytes = [], 0
