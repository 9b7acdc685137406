"""A segment: sorted rows that never change, and one mark for each that may be set.

Comes in: rows that were kept. Goes out: the same, with their bounds, so that they need not
be looked at by those who want nothing of them. Marks are frozen without a copy: the first
that is set behind that copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.snapshot.parts import FileRef
from weir.snapshot.watermarks import NEVER_US
from weir.state.columns.segments.rows import Mask, SortedRows
from weir.state.columns.segments.shelf import KeptRows
from weir.state.keys.xxhash64 import Ints, Words


class Marks:
    """A bit for each row, once there is one."""

    def __init__(self, count: int, bits: Mask | None = None) -> None:
        self._count = count
        self._bits = bits
        self._is_frozen = False
        self.log: list[Ints] | None = None
        """While it is a list: which rows were marked since."""

    @property
    def bits(self) -> Mask | None:
        """Not to be changed; None: no row is marked."""
        return self._bits

    def set(self, rows: Ints) -> bool:
        """Mark rows; whether that changed anything."""
        if self._bits is None:
            if not len(rows):
                return False
            self._bits = np.zeros(self._count, np.bool_)
        elif self._bits[rows].all():
            return False
        elif self._is_frozen:
            self._bits = self._bits.copy()
        self._is_frozen = False
        self._bits[rows] = True
        if self.log is not None:
            self.log.append(rows)
        return True

    def freeze(self) -> Mask | None:
        """The marks as they are now."""
        self._is_frozen = True
        return self._bits


@dataclass(frozen=True)
class Bounds:
    """What is known of a segment's rows without looking at them."""

    rows: int
    low: int
    """The lowest order."""
    high: int
    first_us: int
    last_us: int

    @staticmethod
    def of(rows: SortedRows) -> Bounds:
        times = rows.times
        return Bounds(len(rows), int(rows.order[0]), int(rows.order[-1]), int(times.min()), int(times.max()))


def segment_name(number: int) -> str:
    """Of its file."""
    return f"s{number:012d}"


def segment_number(name: str) -> int:
    """The opposite.

    >>> segment_number(segment_name(7))
    7
    """
    return int(name[1:])


class Segment:
    """Rows of one bucket of time."""

    def __init__(self, number: int, bucket_us: int, kept: KeptRows, *, bounds: Bounds, marks: Mask | None = None):
        self.number = number
        """Names its file; the later made, the higher."""
        self.bucket_us = bucket_us
        self.kept = kept
        self.bounds = bounds
        self.marks = Marks(bounds.rows, marks)
        self.file: FileRef | None = None
        """What the newest completed checkpoint names."""

    def __len__(self) -> int:
        return self.bounds.rows

    @property
    def name(self) -> str:
        return segment_name(self.number)

    @property
    def first_us(self) -> int:
        return self.bounds.first_us

    @property
    def last_us(self) -> int:
        return self.bounds.last_us

    @property
    def order(self) -> Words:
        return self.kept.rows().order

    @property
    def times(self) -> Ints:
        return self.kept.rows().times

    @property
    def batch(self) -> pa.RecordBatch:
        return self.kept.rows().batch


@dataclass
class Run:
    """Segments of which each begins behind where the one before ends."""

    segments: Sequence[Segment]
    made_us: int = NEVER_US
    """How far event time had come then."""
    is_merging: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def first_us(self) -> int:
        return min(segment.first_us for segment in self.segments)

    @property
    def last_us(self) -> int:
        return max(segment.last_us for segment in self.segments)
