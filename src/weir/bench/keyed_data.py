"""The keyed workloads' data: int64 or string keys, 100,000 unless more are wanted, and int64 values, both drawn from
the row's number.

Comes in: row numbers. Goes out: columns, and the sums that are true. NumPy only, no
state: row n is the same wherever and whenever it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.bench import string_keys
from weir.bench.epochs import Arrays, Epoch
from weir.errors import ConfigError

KEYS = 100_000
VALUE_BITS = 10
SCHEMA = "key long, value long"
NUMBERED_SCHEMA = "key long, value long, number long"
CHUNK = 1 << 20

Numbers = npt.NDArray[np.int64]

_ARROW_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_STRING_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])


@dataclass(frozen=True)
class Keys:
    """How many keys there are, and whether they are strings."""

    count: int = KEYS
    strings: bool = False

    def __post_init__(self) -> None:
        most = string_keys.KEYS_MAX if self.strings else np.iinfo(np.int32).max
        if not 1 <= self.count <= most:
            raise ConfigError(f"there can be 1 to {most:,} keys; found {self.count:,}")

    @property
    def schema(self) -> str:
        return "key string, value long" if self.strings else SCHEMA

    @property
    def make_rows(self) -> Callable[[Numbers], pa.RecordBatch]:
        """For a Generator of `schema`."""
        return partial(make_rows, of=self)

    def last_sums(self) -> LastSums:
        """For a sink."""
        return LastSums(self)


LONGS = Keys()


def keys_of(kind: str, count: int) -> Keys:
    """So many keys of a kind that was typed."""
    if kind not in ("long", "string"):
        raise ConfigError(f"keys are of type long or string; found {kind!r}")
    return Keys(count, strings=kind == "string")


def keys_and_values(numbers: Numbers, count: int = KEYS) -> tuple[Numbers, Numbers]:
    """Multiply, then take high bits: every key is about as frequent as any other, in no order."""
    mixed = numbers.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    values = (mixed & np.uint64((1 << VALUE_BITS) - 1)).view(np.int64)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(count)
    mixed >>= np.uint64(32)
    return mixed.view(np.int64), values


def make_rows(numbers: Numbers, *, of: Keys = LONGS) -> pa.RecordBatch:
    """For a Generator: SCHEMA, unless keys are strings."""
    keys, values = keys_and_values(numbers, of.count)
    if of.strings:
        return pa.RecordBatch.from_arrays([string_keys.strings_of(keys), pa.array(values)], schema=_STRING_SCHEMA)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=_ARROW_SCHEMA)


def make_numbered_rows(numbers: Numbers) -> dict[str, Any]:
    """For a Generator: NUMBERED_SCHEMA."""
    keys, values = keys_and_values(numbers)
    return {"key": keys, "value": values, "number": numbers}


def true_sums(events: int, count: int = KEYS) -> Numbers:
    """The sum of each key's values over the first `events` rows; -1 for a key that does not occur."""
    sums = np.zeros(count, dtype=np.int64)
    seen = np.zeros(count, dtype=bool)
    for start in range(0, events, CHUNK):
        keys, values = keys_and_values(np.arange(start, min(start + CHUNK, events), dtype=np.int64), count)
        np.add.at(sums, keys, values)
        seen[keys] = True
    sums[~seen] = -1
    return sums


class LastSums:
    """Keeps each key's newest sum, and counts the rows."""

    def __init__(self, of: Keys = LONGS) -> None:
        self._of = of
        self._start()

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        keys = string_keys.numbers_of(batch.column(0)) if self._of.strings else batch.column(0).to_numpy()
        # Where a key occurs more than once in a batch, NumPy keeps what comes last, which is the newest.
        self._last[keys] = batch.column(1).to_numpy()
        self._rows += batch.num_rows

    def take(self) -> Arrays:
        arrays: Arrays = {"last": self._last, "rows": np.array([self._rows])}
        self._start()
        return arrays

    def _start(self) -> None:
        self._last, self._rows = np.full(self._of.count, -1, dtype=np.int64), 0


def committed_sums(epochs: list[Epoch], count: int = KEYS) -> Numbers:
    """Each key's newest committed sum; -1 for a key without one. Epochs come by checkpoint, a key from one subtask."""
    sums = np.full(count, -1, dtype=np.int64)
    for epoch in epochs:
        last = epoch.arrays["last"]
        np.copyto(sums, last, where=last >= 0)
    return sums
