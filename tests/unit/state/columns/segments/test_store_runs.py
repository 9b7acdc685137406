"""How many runs there are, and how many rows each batch has merged, however many rows have come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from weir.state.columns.segments import merging, store
from weir.state.columns.segments.rows import SegmentLayout, places
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import hash_keys
from weir.state.place import StatePlace

ROWS = pa.schema([("key", pa.int64())])
BATCH_ROWS = 64


@pytest.mark.parametrize("batches", [300, 1_000])
def test_there_are_few_runs_and_a_batch_has_few_rows_merged_however_many_came(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 2 * BATCH_ROWS)
    monkeypatch.setattr(store, "STEP_ROWS", BATCH_ROWS // 2)
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", 16_000)
    merged: list[int] = []
    step = merging.Merge.step
    monkeypatch.setattr(
        merging.Merge, "step", lambda merge, rows: (merged.append(taken := step(merge, rows)), taken)[1]
    )
    table = pa.schema([(KEY_GROUP_COLUMN, pa.int32()), *ROWS])
    layout = SegmentLayout(ROWS, table, max_parallelism=128, by_time=True)
    segments = SegmentStore(layout, ShelfBudget(StatePlace()), name="rows")
    dice = np.random.default_rng(0)
    runs, rows = [], []
    for number in range(batches):
        keys = pa.array(dice.integers(0, 1 << 40, BATCH_ROWS))
        batch = pa.RecordBatch.from_arrays([keys], schema=ROWS)
        order = places(hash_keys([keys]), 128)
        segment = segments.new(0, layout.sorted(order, np.full(BATCH_ROWS, number), batch))
        segments.add([segment])
        segments.merge([segment])
        runs.append(len(segments.runs(0)))
        rows.append(sum(merged))
        merged.clear()
    assert len(segments) == batches * BATCH_ROWS
    sizes = np.log2(batches)
    assert max(runs) <= 3 * sizes
    assert max(rows) <= store.STEP_RATIO * sizes * BATCH_ROWS
