"""Kinds of state of two streams: rows that wait for a partner, and versions.

Comes in: row numbers, which are microseconds of event time, too. Goes out: rows of both sides in the order of time,
each with at most one partner, and the sums of what must come of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pyarrow as pa

import weir
from weir.bench.state.kinds import PADDING, STATE, Answer, KnownResults, Made, Read, SourceRows, numbers_of
from weir.bench.state.numbers import Given, Numbers, drawn, shuffled
from weir.bench.state.timed import MS, SCHEMA, added, padding, timed_rows, weighed

PADDED = f"{SCHEMA}, more binary"
MORE = PADDING[:76]
LEFT, RIGHT = "left", "right"


def value_of(numbers: Numbers) -> Numbers:
    """What a row brings with it."""
    return drawn(numbers, 1 << 20)


class JoinedRows(KnownResults):
    """An interval join: each row of the right side belongs to one of the left, of a key of its own."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self._block = max(MS, entries // 4)
        self._reach_us = -(-2 * self._block // MS) * MS

    @property
    def sources(self) -> Mapping[str, SourceRows]:
        return {LEFT: SourceRows(self._left, PADDED), RIGHT: SourceRows(self._right, PADDED)}

    @property
    def fill_rows(self) -> int:
        return self._reach_us + self._block

    def _left(self, numbers: Numbers) -> Made:
        return timed_rows(numbers, numbers, value_of(numbers), ("more", padding(len(numbers), MORE)))

    def _right(self, numbers: Numbers) -> Made:
        more = ("more", padding(len(numbers), MORE))
        return timed_rows(self._partners(numbers), numbers, value_of(numbers), more)

    def _partners(self, numbers: Numbers) -> Numbers:
        """The rows of the left side that those of the right belong to: of the block before, in another order."""
        found = (numbers // self._block - 1) * self._block + shuffled(numbers, self._block)
        return np.where(numbers < self._block, -1 - numbers, found)

    def build(self, read: Read) -> weir.Stream:
        sides = (read(side).with_watermarks(weir.monotonic("ts"), uid=f"{side}-time") for side in (LEFT, RIGHT))
        left, right = (side.key_by("key") for side in sides)
        reach = timedelta(microseconds=self._reach_us)
        return left.interval_join(right, lower=-reach, upper=reach, uid=STATE)

    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        values = numbers_of(batch, "one") + numbers_of(batch, "one_right")
        keys = numbers_of(batch, "key")
        return added([(batch.num_rows, int(values.sum()), weighed(keys, np.zeros_like(keys), values))])

    def answer(self, given: Mapping[str, Given]) -> Answer:
        found = []
        for numbers in given[RIGHT].chunks():
            partners = self._partners(numbers)
            met = given[LEFT].has(partners)
            keys = partners[met]
            values = value_of(numbers[met]) + value_of(keys)
            found.append((len(keys), int(values.sum()), weighed(keys, np.zeros_like(keys), values)))
        return added(found)


class KeyVersions(KnownResults):
    """A join as of: each row of the left side meets the newest version of its key, which the right side renews one
    after the other."""

    @property
    def sources(self) -> Mapping[str, SourceRows]:
        return {LEFT: SourceRows(self._left, SCHEMA), RIGHT: SourceRows(self._right, PADDED)}

    @property
    def fill_rows(self) -> int:
        return self.entries

    def _left(self, numbers: Numbers) -> Made:
        return timed_rows(self._keys(numbers), 2 * numbers + 1, numbers)

    def _right(self, numbers: Numbers) -> Made:
        keys = numbers % self.entries
        return timed_rows(keys, 2 * numbers, value_of(numbers), ("more", padding(len(numbers), MORE)))

    def _keys(self, numbers: Numbers) -> Numbers:
        return drawn(numbers, self.entries)

    def build(self, read: Read) -> weir.Stream:
        sides = (read(side).with_watermarks(weir.monotonic("ts"), uid=f"{side}-time") for side in (LEFT, RIGHT))
        left, right = (side.key_by("key") for side in sides)
        return left.as_of(right, how="inner", uid=STATE)

    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        numbers, values = numbers_of(batch, "one"), numbers_of(batch, "one_right")
        return added([(batch.num_rows, int(values.sum()), weighed(numbers, np.zeros_like(numbers), values))])

    def answer(self, given: Mapping[str, Given]) -> Answer:
        found = []
        for numbers in given[LEFT].chunks():
            keys = self._keys(numbers)
            versions = keys + (numbers - keys) // self.entries * self.entries
            # Where the right side had not come so far, the version before counts.
            while (missing := (versions >= 0) & ~given[RIGHT].has(versions)).any():
                versions[missing] -= self.entries
            known = versions >= 0
            values = value_of(versions[known])
            own = numbers[known]
            found.append((len(own), int(values.sum()), weighed(own, np.zeros_like(own), values)))
        return added(found)
