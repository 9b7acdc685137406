"""The texts of Nexmark's tables: pools of rows that are made once, and handed out as slices.

Comes in: row numbers. Goes out: columns of texts, those of row n being those of the
pool's row n modulo its size; a batch of evenly spaced rows is a slice, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROWS = {"person": 1 << 12, "auction": 1 << 12, "bid": 1 << 16}
"""Rows of a pool. Those of bids take 10 MB, so that to read them costs what it would."""

_FIRST_NAMES = "Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split()
_LAST_NAMES = "Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split()
_CITIES = "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne".split(",")
_STATES = "AZ CA ID OR WA WY".split()
_HOT_CHANNELS = "Google Facebook Baidu Apple".split()
_CHANNELS = 10_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)

_Random = np.random.Generator
_SPREAD = 0.2
"""Sizes differ by so much from their mean, to either side."""


class PoolSlices:
    """Some of the columns of a table's texts."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._pool: pa.RecordBatch | None = None
        self._spaced: dict[tuple[int, int], pa.RecordBatch] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Each task makes its own: that is quicker than to send it.
        return {"_table": self._table, "_columns": self._columns, "_pool": None, "_spaced": {}}

    def __call__(self, numbers: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        first, count, size = int(numbers[0]), len(numbers), ROWS[self._table]
        step = int(numbers[1]) - first if count > 1 else 1
        if step < 1 or int(numbers[-1]) != first + step * (count - 1):
            rows = self.prepare().take(pa.array(numbers % size))
        else:
            period = size // np.gcd(step, size)
            spaced = self._spaced.get((step, first % step))
            if spaced is None or spaced.num_rows < period + count:
                wanted = (first % step + step * np.arange(period + count, dtype=np.int64)) % size
                spaced = self._spaced[(step, first % step)] = self.prepare().take(pa.array(wanted))
            rows = spaced.slice((first // step) % period, count)
        return dict(zip(self._columns, rows.columns, strict=True))

    def prepare(self) -> pa.RecordBatch:
        """Make the pool, unless it is there."""
        if self._pool is None:
            self._pool = texts_of(self._table, self._columns)
        return self._pool


def texts_of(table: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The pool: each column depends on its own name only, except that a bid's url goes with its channel."""
    return pa.record_batch([_text(table, name) for name in columns], names=list(columns))


@cache
def _text(table: str, name: str) -> pa.Array:
    makers = {
        "name": _names,
        "email_address": _addresses,
        "credit_card": _cards,
        "city": partial(_any_of, words=_CITIES),
        "state": partial(_any_of, words=_STATES),
        "item_name": partial(_lines, shortest=3, longest=20),
        "description": partial(_lines, shortest=3, longest=100),
        "channel": _channels,
        "url": _urls,
        "extra": {"person": _extra(200 - 100), "auction": _extra(500 - 110), "bid": _extra(100 - 32)}[table],
    }
    return makers[name](np.random.default_rng(list(f"{table} {name}".encode())), ROWS[table])


def _extra(mean: int) -> Any:
    """What fills a row up to its usual size."""
    return partial(_lines, shortest=int(mean * (1 - _SPREAD)), longest=int(mean * (1 + _SPREAD)))


def _lines(random: _Random, count: int, *, shortest: int, longest: int) -> pa.Array:
    """Lower-case letters and spaces at random."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(random.integers(shortest, longest + 1, count), out=ends[1:])
    letters = _LETTERS[random.integers(0, len(_LETTERS), int(ends[-1]))]
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


def _any_of(random: _Random, count: int, *, words: Sequence[str]) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), count)))


def _names(random: _Random, count: int) -> pa.Array:
    chosen = random.integers(0, (len(_FIRST_NAMES), len(_LAST_NAMES)), (count, 2)).tolist()
    return pa.array([f"{_FIRST_NAMES[first]} {_LAST_NAMES[last]}" for first, last in chosen])


def _addresses(random: _Random, count: int) -> pa.Array:
    words = [line.replace(" ", "x") for line in _lines(random, 2 * count, shortest=3, longest=7).to_pylist()]
    return pa.array([f"{user}@{host}.com" for user, host in zip(words[::2], words[1::2], strict=True)])


def _cards(random: _Random, count: int) -> pa.Array:
    return pa.array([" ".join(f"{part:04d}" for part in parts) for parts in random.integers(0, 10_000, (count, 4))])


def _channel_numbers(count: int) -> list[int]:
    """Half of all bids come through one of four channels, here -4 to -1; the others through any of many."""
    random = np.random.default_rng(7)
    hot = random.random(count) < 0.5
    drawn = np.where(hot, random.integers(-len(_HOT_CHANNELS), 0, count), random.integers(0, _CHANNELS, count))
    numbers: list[int] = drawn.tolist()
    return numbers


def _channels(random: _Random, count: int) -> pa.Array:
    return pa.array([_HOT_CHANNELS[n] if n < 0 else f"channel-{n}" for n in _channel_numbers(count)])


def _urls(random: _Random, count: int) -> pa.Array:
    words = [line.replace(" ", "_") for line in _lines(random, 3 * _CHANNELS, shortest=5, longest=5).to_pylist()]
    base = ["https://www.nexmark.com/" + "/".join(words[i : i + 3]) + "/item.htm?query=1" for i in range(_CHANNELS)]
    return pa.array([base[n] if n < 0 else f"{base[n]}&channel_id={n}" for n in _channel_numbers(count)])
