"""A head that takes no more rows, on its way into segments.

Comes in: a way to make sorted rows out of what was sealed. Goes out: segments, made once, by
whichever thread wants them first: mostly the one that writes a snapshot, behind the stream's
back. Their rows are in memory; the stream's thread takes them into the store.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.rows import SortedRows
from weir.state.columns.segments.segment import Segment

Make = Callable[[], Iterable[tuple[int, SortedRows]]]
"""The rows of each bucket, sorted; none without rows, and no bucket twice. It reads only what does not change.
Called once, and once more where it failed."""


@dataclass(frozen=True)
class FrozenLot:
    """What was left of a lot when it was looked at."""

    lot: Lot
    gone: frozenset[int]
    before_us: int

    def segments(self, breathe: Callable[[], None] = lambda: None) -> Sequence[Segment]:
        """Those that are left."""
        made = self.lot.segments(breathe)
        return [s for s in made if s.bucket_us not in self.gone and s.last_us >= self.before_us]


class Lot:
    """Rows that were sealed together."""

    def __init__(self, make: Make, segment: Callable[[int, SortedRows], Segment]) -> None:
        """`segment`: makes one out of the rows of a bucket; called by any thread."""
        self._make: Make | None = make
        self._segment = segment
        self._pieces: Iterator[tuple[int, SortedRows]] | None = None
        self._made: list[Segment] = []
        self._lock = threading.Lock()
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
        """Whether `segments` answers at once."""
        return self._make is None

    def segments(self, breathe: Callable[[], None] = lambda: None) -> Sequence[Segment]:
        """What all rows have become. `breathe`: called between buckets, where it holds up nobody."""
        while self._step():
            breathe()
        return self._made

    def _step(self) -> bool:
        """Make one segment; False: all are made."""
        with self._lock:
            if self._make is None:
                return False
            if self._pieces is None:
                self._pieces, self._made = iter(self._make()), []
            try:
                self._made += [self._segment(*piece) for piece in itertools.islice(self._pieces, 1)] or self._end()
            except BaseException:
                self._pieces = None  # whoever asks next begins anew
                raise
            return True

    def _end(self) -> list[Segment]:
        self._make = self._pieces = None
        return []
