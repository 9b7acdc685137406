"""Rows as they came: batches are put together, whatever lay before them, and any row is found among many."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from weir.operators.windows.keyed import chunks
from weir.operators.windows.keyed.chunks import Chunks


def add(to: Chunks, rows: int, wide_bytes: int = 0) -> None:
    columns = [pa.array(range(len(to), len(to) + rows)), pa.array(["x" * wide_bytes] * rows)]
    to.add(pa.record_batch(columns, ["n", "wide"]))


def found(held: Chunks, places: list[int]) -> list[int]:
    batches, where = held.taken(np.array(places))
    rows = np.concatenate([batch.column("n").to_numpy() for batch in batches])
    return (rows if where is None else rows[where]).tolist()  # type: ignore[no-any-return]


def test_narrow_rows_are_put_together_also_behind_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES_MAX", 10_000)
    held = Chunks()
    for _ in range(chunks.LOOSE_MAX):
        add(held, 1, wide_bytes=5_000)
    wide = len(held._batches)
    for _ in range(20 * chunks.LOOSE_MAX):
        add(held, 10)
    assert len(held._batches) < wide + 3 * chunks.LOOSE_MAX
    assert max(batch.nbytes for batch in held._batches) <= 10_100
    assert found(held, [0, 7, 31, 32, 6_000, 33]) == [0, 7, 31, 32, 6_000, 33]


def test_rows_are_found_among_more_batches_than_sixteen_bits_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS_MAX", 1)
    monkeypatch.setattr(chunks, "SMALL_ROWS", 4)
    held, count = Chunks(), (1 << 16) + 3
    whole = pa.record_batch([pa.array(range(count))], ["n"])
    for row in range(count):
        held.add(whole.slice(row, 1))
    places = [1 << 16, 0, (1 << 16) + 2, 2, 5]
    assert found(held, places) == places
