"""The Nexmark benchmark's stream of an auction house: persons, auctions and bids, as 1, 3 and 46 of 50 events.

Comes in: how many events of the whole stream. Goes out: the rows of one of the three
tables, each made from its number alone, so that they are the same wherever and whenever
they are made. NumPy only; texts are slices of a pool that is made once for each task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.connectors.generator import Generator
from weir.connectors.nexmark.texts import PoolSlices
from weir.errors import ConfigError

Numbers: TypeAlias = "npt.NDArray[np.int64]"
Bits: TypeAlias = "npt.NDArray[np.uint64]"
Table: TypeAlias = Literal["person", "auction", "bid"]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
"""Events come in rounds of 50: one person, then three auctions, then 46 bids."""

FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1_000, 1_000, 10
CATEGORIES = 5
AUCTIONS_OPEN = 100
"""A bid that is not for the hot auction is for one of the last so many, or one of those that come next."""
PERSONS_ACTIVE = 1_000
AHEAD = 10
"""So many ids that do not exist yet are among those that are drawn."""
HOT_EVERY = 100
"""One in so many auctions and persons is the hot one, until the next is."""

BEGIN_US = 1_767_225_600_000_000
"""The time of the first event: 2026-01-01."""

_US = pa.timestamp("us")
_TEXT = pa.string()
_LONG = pa.int64()
SCHEMAS: Mapping[str, pa.Schema] = {
    "person": pa.schema(
        [
            ("id", _LONG),
            ("name", _TEXT),
            ("email_address", _TEXT),
            ("credit_card", _TEXT),
            ("city", _TEXT),
            ("state", _TEXT),
            ("date_time", _US),
            ("extra", _TEXT),
        ]
    ),
    "auction": pa.schema(
        [
            ("id", _LONG),
            ("item_name", _TEXT),
            ("description", _TEXT),
            ("initial_bid", _LONG),
            ("reserve", _LONG),
            ("date_time", _US),
            ("expires", _US),
            ("seller", _LONG),
            ("category", _LONG),
            ("extra", _TEXT),
        ]
    ),
    "bid": pa.schema(
        [
            ("auction", _LONG),
            ("bidder", _LONG),
            ("price", _LONG),
            ("channel", _TEXT),
            ("url", _TEXT),
            ("date_time", _US),
            ("extra", _TEXT),
        ]
    ),
}


class Nexmark(Generator):
    """One table of the Nexmark stream: "person", "auction" or "bid".

    events:            of the whole stream, all three tables together: of 1,000 events, 920 are bids; None: without end
    columns:           which columns to make; None: all
    events_per_second: how many events of the whole stream there are in a second of event time, which begins in 2026 and
                       is in order
    rate:              events of the whole stream a second by the wall clock; None: as fast as they are taken
    splits:            as for Generator

    >>> Nexmark(1_000, "bid", columns=["auction", "price"])
    Nexmark('bid', 1000 events)
    """

    def __init__(
        self,
        events: int | None,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        events_per_second: int = 1_000_000,
        rate: float | None = None,
        splits: int | None = None,
    ) -> None:
        if table not in SCHEMAS:
            raise ConfigError(f"Nexmark.table: {table!r} is not one of {', '.join(get_args(Table))}")
        if events is not None and events < 0:
            raise ConfigError(f"Nexmark.events: {events} is negative; write None for events without end")
        if not isinstance(events_per_second, int) or events_per_second < 1:
            raise ConfigError(f"Nexmark.events_per_second: {events_per_second} is not a whole number of at least 1")
        whole = SCHEMAS[table]
        chosen = whole.names if columns is None else list(columns)
        if not chosen or (missing := [name for name in chosen if name not in whole.names]):
            found = missing[0] if chosen else columns
            raise ConfigError(f"Nexmark.columns: {found!r}; the columns of {table!r} are {', '.join(whole.names)}")
        self.events = events
        self.table = table
        share = {"person": PERSONS, "auction": AUCTIONS, "bid": BIDS}[table] / EPOCH
        super().__init__(
            None if events is None else rows_among(events, table),
            NexmarkRows(table, tuple(chosen), events_per_second),
            pa.schema([whole.field(name) for name in chosen]),
            rate=None if rate is None else rate * share,
            splits=splits,
        )

    def __repr__(self) -> str:
        count = "without end" if self.events is None else f"{self.events} events"
        return f"Nexmark({self.table!r}, {count})"


def rows_among(events: int, table: Table) -> int:
    """How many of the first events are of a table.

    >>> [rows_among(1_010, table) for table in ("person", "auction", "bid")]
    [21, 63, 926]
    """
    rounds, left = divmod(events, EPOCH)
    if table == "person":
        return rounds + min(left, PERSONS)
    if table == "auction":
        return rounds * AUCTIONS + min(max(left - PERSONS, 0), AUCTIONS)
    return rounds * BIDS + max(left - PERSONS - AUCTIONS, 0)


class NexmarkRows:
    """For a Generator: the rows of a table from their numbers among those of the table."""

    def __init__(self, table: Table, columns: Sequence[str], events_per_second: int) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([SCHEMAS[table].field(name) for name in columns])
        self._make = {"person": _Person, "auction": _Auction, "bid": _Bid}[table]
        self._event_times = _EventTimes(events_per_second)
        texts = [field.name for field in self.schema if field.type == _TEXT]
        self._texts = PoolSlices(table, texts) if texts else None

    def __call__(self, numbers: Numbers) -> pa.RecordBatch:
        rows = self._make(numbers, self._event_times)
        texts = {} if self._texts is None else self._texts(numbers)
        arrays = [texts[field.name] if field.name in texts else _column(rows, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def prepare(self) -> None:
        """Make the pool of texts, unless it is there or none is needed."""
        if self._texts is not None:
            self._texts.prepare()


def _column(rows: Any, field: pa.Field) -> pa.Array:
    values: Numbers = getattr(rows, field.name)
    return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(values)])


@dataclass(frozen=True)
class _EventTimes:
    """How event time follows from the number of an event."""

    events_per_second: int

    def times(self, events: Numbers) -> Numbers:
        per_second = self.events_per_second
        if 1_000_000 % per_second == 0:
            times = events * (1_000_000 // per_second)
        elif per_second % 1_000_000 == 0:
            times = events // (per_second // 1_000_000)
        else:
            times = events * 1_000_000 // per_second
        times += BEGIN_US
        return times

    @property
    def auction_us_max(self) -> int:
        """How long an auction is open at most: twice as long as it takes until AUCTIONS_OPEN more have begun."""
        return max(2 * (AUCTIONS_OPEN * EPOCH // AUCTIONS) * 1_000_000 // self.events_per_second, 1)


class _Columns:
    """Columns as properties, so that only what is asked for is made."""

    salt = 0

    def __init__(self, numbers: Numbers, event_times: _EventTimes) -> None:
        self._numbers = numbers
        self._event_times = event_times
        self._drawn: dict[int, Bits] = {}

    def _bits(self, which: int) -> Bits:
        """64 pseudo-random bits for each row: multiply, shift, multiply."""
        bits = self._drawn.get(which)
        if bits is None:
            bits = self._numbers.view(np.uint64) + np.uint64((self.salt + which) << 44)
            bits *= np.uint64(0x9E3779B97F4A7C15)
            bits ^= bits >> np.uint64(29)
            bits *= np.uint64(0xBF58476D1CE4E5B9)
            bits ^= bits >> np.uint64(32)
            self._drawn[which] = bits
        return bits


class _Person(_Columns):
    salt = 1

    @property
    def id(self) -> Numbers:
        return self._numbers + FIRST_PERSON

    @property
    def date_time(self) -> Numbers:
        return self._event_times.times(self._numbers * EPOCH)


class _Auction(_Columns):
    salt = 11

    @property
    def id(self) -> Numbers:
        return self._numbers + FIRST_AUCTION

    @property
    def date_time(self) -> Numbers:
        rounds = self._numbers // AUCTIONS
        # r // 3 * 50 + 1 + r % 3
        return self._event_times.times(rounds * (EPOCH - AUCTIONS) + self._numbers + PERSONS)

    @property
    def expires(self) -> Numbers:
        return self.date_time + (_below(self._bits(0) >> np.uint64(32), self._event_times.auction_us_max) + 1)

    @property
    def initial_bid(self) -> Numbers:
        return _prices(self._bits(1) >> np.uint64(32))

    @property
    def reserve(self) -> Numbers:
        return self.initial_bid + _prices(self._bits(1) & _LOW)

    @property
    def seller(self) -> Numbers:
        return _persons(self._numbers // AUCTIONS, self._bits(2), hot=0)

    @property
    def category(self) -> Numbers:
        return _below(self._bits(0) & _LOW, CATEGORIES) + FIRST_CATEGORY


class _Bid(_Columns):
    salt = 21

    def __init__(self, numbers: Numbers, event_times: _EventTimes) -> None:
        super().__init__(numbers, event_times)
        self._rounds = numbers // BIDS

    @property
    def date_time(self) -> Numbers:
        # r // 46 * 50 + 4 + r % 46
        events = self._rounds * (EPOCH - BIDS)
        events += self._numbers
        events += PERSONS + AUCTIONS
        return self._event_times.times(events)

    @property
    def auction(self) -> Numbers:
        """Every other bid is for the hot auction, the others for one of those that are open."""
        newest = self._rounds * AUCTIONS
        newest += AUCTIONS - 1
        bits = self._bits(0) >> np.uint64(32)
        open_now = _up_to(newest, AUCTIONS_OPEN)
        drawn = bits >> np.uint64(1)
        drawn *= _unsigned(open_now + (1 + AHEAD))
        drawn >>= np.uint64(31)
        chosen = drawn.view(np.int64)
        chosen += newest
        chosen -= open_now
        newest //= HOT_EVERY
        newest *= HOT_EVERY
        _replace(chosen, newest, where=bits & np.uint64(1))
        chosen += FIRST_AUCTION
        return chosen

    @property
    def bidder(self) -> Numbers:
        return _persons(self._rounds, self._bits(1), hot=1)

    @property
    def price(self) -> Numbers:
        return _prices(self._bits(0) & _LOW)


_LOW = np.uint64(0xFFFFFFFF)


def _below(bits: Bits, limit: int) -> Numbers:
    """32 bits to a number from 0 to below the limit, which must be below 2**32."""
    return (bits * np.uint64(limit) >> np.uint64(32)).view(np.int64)


def _persons(rounds: Numbers, bits: Bits, *, hot: int) -> Numbers:
    """Three of four are the hot person, the others any of those that are active. `hot`: bidders are another than
    sellers."""
    others = _up_to(rounds, PERSONS_ACTIVE - 1)
    drawn = bits >> np.uint64(32)
    drawn *= _unsigned(others + (1 + AHEAD))
    drawn >>= np.uint64(32)
    chosen = drawn.view(np.int64)
    chosen += rounds
    chosen -= others
    hottest = rounds // HOT_EVERY
    hottest *= HOT_EVERY
    hottest += hot
    _replace(chosen, hottest, where=((bits & np.uint64(3)) + np.uint64(3)) >> np.uint64(2))
    chosen += FIRST_PERSON
    return chosen


def _up_to(numbers: Numbers, limit: int) -> Any:
    """The lesser of each number and a limit; but for the first rows of all that is the limit, and no array."""
    return np.minimum(numbers, limit) if int(numbers.min()) < limit else limit


def _unsigned(numbers: Any) -> Any:
    return np.uint64(numbers) if isinstance(numbers, int) else numbers.view(np.uint64)


def _replace(numbers: Numbers, others: Numbers, *, where: Bits) -> None:
    """Put others in the place of numbers where a row has 1 rather than 0. Twice as fast as np.copyto."""
    mask = where.view(np.int64)
    np.negative(mask, out=mask)
    others ^= numbers
    others &= mask
    numbers ^= others


_PRICE_BITS = 12


@cache
def _known_prices() -> tuple[Numbers, Numbers]:
    """Prices from 100 to 100,000,000 whose logarithms are uniform: where each stretch begins, and how far it goes."""
    places = np.arange((1 << _PRICE_BITS) + 1) / (1 << _PRICE_BITS)
    known: Numbers = np.round(100.0 * 10.0 ** (6.0 * places)).astype(np.int64)
    return known[:-1].copy(), np.diff(known)


def _prices(bits: Bits) -> Numbers:
    """32 bits to a price, in straight lines between known ones: whole numbers only, the same on every machine."""
    starts, steps = _known_prices()
    fine = 32 - _PRICE_BITS
    places = (bits >> np.uint64(fine)).view(np.int64)
    within = (bits & np.uint64((1 << fine) - 1)).view(np.int64)
    within *= steps.take(places)
    within >>= fine
    within += starts.take(places)
    return within
