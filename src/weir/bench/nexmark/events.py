"""A stretch of the Nexmark stream as Polars frames, for batch answers; and a digest of rows to compare results by.

Comes in: numbers of events. Goes out: the rows of each table among them, any columns.
The same generator makes them as the jobs read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from weir.connectors.nexmark.source import BEGIN_US, NexmarkRows, Numbers, Table, rows_among

Digests = npt.NDArray[np.uint64]

CHUNK = 2_000_000


@dataclass(frozen=True)
class Events:
    """The events from `start` to before `stop`."""

    start: int
    stop: int
    per_second: int

    def bids(self, *columns: str) -> pl.DataFrame:
        return self.rows("bid", columns)

    def auctions(self, *columns: str) -> pl.DataFrame:
        return self.rows("auction", columns)

    def persons(self, *columns: str) -> pl.DataFrame:
        return self.rows("person", columns)

    def rows(self, table: Table, columns: Sequence[str], numbers: Numbers | None = None) -> pl.DataFrame:
        """The rows of a table. `numbers`: some of them only, counted from the first of this stretch."""
        first, last = rows_among(self.start, table), rows_among(self.stop, table)
        chosen = np.arange(first, last, dtype=np.int64) if numbers is None else numbers + first
        make = NexmarkRows(table, columns, self.per_second)
        return pl.DataFrame(make(chosen) if len(chosen) else make.schema.empty_table())

    def chunks(self) -> Iterator[Events]:
        """In pieces that are not too large."""
        for start in range(self.start, self.stop, CHUNK):
            yield replace(self, start=start, stop=min(start + CHUNK, self.stop))

    def stretches(self, seconds: int) -> Iterator[tuple[int, Events]]:
        """By windows of event time: the start of each, in microseconds, and its events."""
        size_us = seconds * 1_000_000
        first_us, last_us = (self._time_us(event) // size_us * size_us for event in (self.start, max(self.stop - 1, 0)))
        for start_us in range(first_us, last_us + 1, size_us):
            start, stop = (self._first_at(time_us) for time_us in (start_us, start_us + size_us))
            yield start_us, replace(self, start=max(start, self.start), stop=min(stop, self.stop))

    def _time_us(self, event: int) -> int:
        return event * 1_000_000 // self.per_second + BEGIN_US

    def _first_at(self, time_us: int) -> int:
        return max(0, -(-(time_us - BEGIN_US) * self.per_second // 1_000_000))


_FACTORS = np.random.default_rng(1).integers(1 << 62, 1 << 63, 64, dtype=np.uint64) | np.uint64(1)


def digests(frame: pl.DataFrame) -> Digests:
    """A pseudo-random number for each row; the sum over all rows tells two sets of rows apart."""
    mixed = np.zeros(len(frame), np.uint64)
    for series, factor in zip(frame, _FACTORS, strict=False):
        column = _numbers(series)
        mixed += column * factor
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _numbers(series: pl.Series) -> Digests:
    if isinstance(series.dtype, pl.List):
        return _of_lists(series)
    if series.dtype.is_float():
        return series.cast(pl.Float64).to_numpy().view(np.uint64)
    if series.dtype == pl.String:
        return series.hash().to_numpy()
    if series.dtype == pl.Int64 or isinstance(series.dtype, pl.Datetime):
        return series.to_physical().to_numpy().view(np.uint64)
    return series.to_physical().cast(pl.Int64).to_numpy().view(np.uint64)


def _of_lists(series: pl.Series) -> Digests:
    """Of lists of structs, in their order."""
    lengths = series.list.len().to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    inner = digests(series.explode(empty_as_null=False).struct.unnest())
    inner *= (2 * (np.arange(len(inner)) - np.repeat(ends - lengths, lengths)) + 1).astype(np.uint64)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(inner, dtype=np.uint64)))
    of_lists: Digests = sums[ends] - sums[ends - lengths]
    return of_lists
