"""The keyed workloads' data: 100,000 int64 keys and int64 values, both drawn from the row's number.

Comes in: row numbers. Goes out: columns, and the sums that are true. NumPy only, no
state: row n is the same wherever and whenever it is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.bench.epochs import Arrays, Epoch

KEYS = 100_000
VALUE_BITS = 10
SCHEMA = "key long, value long"
NUMBERED_SCHEMA = "key long, value long, number long"
CHUNK = 1 << 20

Numbers = npt.NDArray[np.int64]

_ARROW_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])


def keys_and_values(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Multiply, then take high bits: every key is about as frequent as any other, in no order."""
    mixed = numbers.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    values = (mixed & np.uint64((1 << VALUE_BITS) - 1)).view(np.int64)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(KEYS)
    mixed >>= np.uint64(32)
    return mixed.view(np.int64), values


def make_rows(numbers: Numbers) -> pa.RecordBatch:
    """For a Generator: SCHEMA."""
    keys, values = keys_and_values(numbers)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=_ARROW_SCHEMA)


def make_numbered_rows(numbers: Numbers) -> dict[str, Any]:
    """For a Generator: NUMBERED_SCHEMA."""
    keys, values = keys_and_values(numbers)
    return {"key": keys, "value": values, "number": numbers}


def true_sums(events: int) -> Numbers:
    """The sum of each key's values over the first `events` rows; -1 for a key that does not occur."""
    sums = np.zeros(KEYS, dtype=np.int64)
    seen = np.zeros(KEYS, dtype=bool)
    for start in range(0, events, CHUNK):
        keys, values = keys_and_values(np.arange(start, min(start + CHUNK, events), dtype=np.int64))
        # Exact: a chunk's sum is far below 2**53, the last whole number that a float tells from its neighbour.
        sums += np.bincount(keys, weights=values, minlength=KEYS).astype(np.int64)
        seen[keys] = True
    sums[~seen] = -1
    return sums


class LastSums:
    """Keeps each key's newest sum, and counts the rows."""

    def __init__(self) -> None:
        self._last = np.full(KEYS, -1, dtype=np.int64)
        self._rows = 0

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        # Where a key occurs more than once in a batch, NumPy keeps what comes last, which is the newest.
        self._last[batch.column(0).to_numpy()] = batch.column(1).to_numpy()
        self._rows += batch.num_rows

    def take(self) -> Arrays:
        arrays: Arrays = {"last": self._last, "rows": np.array([self._rows])}
        self._last, self._rows = np.full(KEYS, -1, dtype=np.int64), 0
        return arrays


def committed_sums(epochs: list[Epoch]) -> Numbers:
    """Each key's newest committed sum; -1 for a key without one. Epochs come by checkpoint, a key from one subtask."""
    sums = np.full(KEYS, -1, dtype=np.int64)
    for epoch in epochs:
        last = epoch.arrays["last"]
        np.copyto(sums, last, where=last >= 0)
    return sums
