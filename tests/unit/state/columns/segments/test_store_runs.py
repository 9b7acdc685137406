"""How many runs there are, and how many rows each batch has merged, however many rows have come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from weir.state.columns.segments import merging, store
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, places
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import hash_keys
from weir.state.place import StatePlace

ROWS = pa.schema([("key", pa.int64())])
BATCH_ROWS = 64
TABLE = pa.schema([(KEY_GROUP_COLUMN, pa.int32()), *ROWS])
LAYOUT = SegmentLayout(ROWS, TABLE, max_parallelism=128, by_time=True)


def small_store(monkeypatch: pytest.MonkeyPatch) -> tuple[SegmentStore, list[int]]:
    """A store in which all is a thousand times smaller; and how many rows each step of a merge takes."""
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 2 * BATCH_ROWS)
    monkeypatch.setattr(store, "STEP_ROWS", BATCH_ROWS // 2)
    monkeypatch.setattr(store, "TENDED_ROWS", BATCH_ROWS // 16)
    monkeypatch.setattr(store, "TENDED_AT_ONCE_ROWS_MAX", BATCH_ROWS // 2)
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", 16_000)
    merged: list[int] = []
    step = merging.Merge.step
    monkeypatch.setattr(
        merging.Merge, "step", lambda merge, rows: (merged.append(taken := step(merge, rows)), taken)[1]
    )
    return SegmentStore(LAYOUT, ShelfBudget(StatePlace()), name="rows"), merged


def rows_of(dice: np.random.Generator, count: int, time_us: int) -> SortedRows:
    keys = pa.array(dice.integers(0, 1 << 40, count))
    batch = pa.RecordBatch.from_arrays([keys], schema=ROWS)
    return LAYOUT.sorted(places(hash_keys([keys]), 128), np.full(count, time_us), batch)


@pytest.mark.parametrize("batches", [300, 1_000])
def test_there_are_few_runs_and_a_batch_has_few_rows_merged_however_many_came(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, merged = small_store(monkeypatch)
    dice = np.random.default_rng(0)
    runs, rows = [], []
    for number in range(batches):
        segment = segments.new(0, rows_of(dice, BATCH_ROWS, number))
        segments.add([segment])
        segments.merge([segment])
        runs.append(len(segments.runs(0)))
        rows.append(sum(merged))
        merged.clear()
    assert len(segments) == batches * BATCH_ROWS
    sizes = np.log2(batches)
    assert max(runs) <= 3 * sizes
    assert max(rows) <= store.STEP_RATIO * sizes * BATCH_ROWS


@pytest.mark.parametrize("batches_per_lot", [1, 4])
@pytest.mark.parametrize("batches", [300, 2_000])
def test_so_it_is_where_rows_come_by_lots(batches: int, batches_per_lot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, merged = small_store(monkeypatch)
    dice = np.random.default_rng(0)
    runs, rows = [], []
    for number in range(batches):
        if number % batches_per_lot == 0:
            sealed = rows_of(dice, batches_per_lot * BATCH_ROWS, number)
            segments.seal(lambda sealed=sealed: [(0, sealed)]).runs()  # type: ignore[misc]
        segments.tend(BATCH_ROWS)
        runs.append(len(segments.runs(0)))
        rows.append(sum(merged))
        merged.clear()
    assert len(segments) == batches * BATCH_ROWS
    assert max(runs) <= 3 * np.log2(batches)
    limit = store.TENDED_BEHIND_MAX * store.TENDED_RATIO * BATCH_ROWS + store.TENDED_ROWS
    assert max(rows) <= 1.1 * limit
