"""Where rows lie: what of local files is in memory, and when they go."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.operators.running import on_disk
from weir.errors import LocalDiskFailed
from weir.state.columns.segments import shelf as shelves
from weir.state.columns.segments.rows import SegmentLayout, SortedRows
from weir.state.columns.segments.shelf import REMOVED_AT_ONCE, KeptRows, Shelf, ShelfBudget

COLUMNS = pa.schema([("key", pa.int64())])
STORED = pa.schema([("key_group", pa.int32()), *COLUMNS])
ROWS = 4_096


def shelf_in(directory: Path, memory: str) -> tuple[ShelfBudget, Shelf]:
    budget = ShelfBudget(on_disk(str(directory), memory=memory))
    return budget, Shelf(budget, SegmentLayout(COLUMNS, STORED, max_parallelism=128, by_time=False), "state")


def filed(shelf: Shelf, number: int) -> KeptRows:
    order = np.arange(ROWS, dtype=np.uint64)
    batch = pa.RecordBatch.from_arrays([pa.array(np.full(ROWS, number))], schema=COLUMNS)
    kept = shelf.keep(SortedRows(order, np.zeros(ROWS, np.int64), batch))
    kept.put_into_file()
    return kept


def test_a_look_at_all_of_many_files_has_few_of_them_in_memory(tmp_path: Path) -> None:
    _, shelf = shelf_in(tmp_path, "1MB")
    kept = [filed(shelf, number) for number in range(50)]
    size_bytes = kept[0].holding.size_bytes
    most_bytes = 0
    for number, rows in enumerate(kept):
        assert rows.rows().batch.column(0).to_numpy()[-1] == number
        most_bytes = max(most_bytes, size_bytes * sum(bool(one.holding.touched) for one in kept))  # type: ignore[attr-defined]
    assert size_bytes <= most_bytes <= 0.4 * 1_000_000 + size_bytes < 50 * size_bytes
    assert [rows.rows().batch.column(0).to_numpy()[0] for rows in kept] == list(range(50))


def test_files_go_a_few_at_a_time_and_all_of_them_with_the_shelf(tmp_path: Path) -> None:
    budget, shelf = shelf_in(tmp_path, "1MB")
    kept = [filed(shelf, number) for number in range(20)]

    def left() -> int:
        return len(list(tmp_path.rglob("*.arrow")))

    del kept[10:]
    gc.collect()
    assert left() == 20
    budget.settle()
    assert left() == 20 - REMOVED_AT_ONCE
    filed(shelf, 20)
    assert left() == 20 - 2 * REMOVED_AT_ONCE + 1
    for _ in range(10):
        budget.settle()
    assert left() == 10
    del kept, budget, shelf
    gc.collect()
    assert left() == 0


def test_files_that_nobody_needs_go_before_a_disk_counts_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shelf = shelf_in(tmp_path, "1MB")
    kept = [filed(shelf, number) for number in range(20)]

    def taken_bytes() -> int:
        return sum(file.stat().st_size for file in tmp_path.rglob("*.arrow"))

    room_bytes, os_file = taken_bytes(), pa.OSFile

    def opened(path: str, mode: str) -> pa.OSFile:
        if taken_bytes() > room_bytes // 2:
            raise OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device")
        return os_file(path, mode)

    monkeypatch.setattr(shelves.pa, "OSFile", opened)
    with pytest.raises(LocalDiskFailed):
        filed(shelf, 20)
    del kept[5:]
    gc.collect()
    kept.append(filed(shelf, 21))
    assert kept[-1].rows().batch.column(0).to_numpy()[0] == 21
    assert len(list(tmp_path.rglob("*.arrow"))) == 6
