"""Where rows lie: what of local files is in memory, and when they go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
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
    leaving = kept.leave()
    assert leaving is not None
    leaving.perform()
    leaving.arrive()
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


class LaterAside:
    """Does an errand when it is told to, or when somebody waits."""

    def __init__(self) -> None:
        self.errands: list[LaterErrand] = []
        self.waits = 0

    def run(self, work: Callable[[], None]) -> LaterErrand:
        self.errands.append(LaterErrand(self, work))
        return self.errands[-1]

    def do_all(self) -> None:
        for errand in self.errands:
            errand.do()


class LaterErrand:
    def __init__(self, aside: LaterAside, work: Callable[[], None]) -> None:
        self.aside = aside
        self.work: Callable[[], None] | None = work

    def do(self) -> None:
        if self.work is not None:
            work, self.work = self.work, None
            work()

    def is_over(self, wait_s: float = 0.0) -> bool:
        if wait_s and self.work is not None:
            self.aside.waits += 1
            self.do()
        return self.work is None


class BusyAside(LaterAside):
    """Does an errand when so many others wait behind it."""

    def run(self, work: Callable[[], None]) -> LaterErrand:
        errand = super().run(work)
        for earlier in self.errands[:-5]:
            earlier.do()
        del self.errands[:-5]
        return errand


def later_shelf(directory: Path, memory: str, aside: LaterAside) -> tuple[LaterAside, ShelfBudget, Shelf]:
    budget = ShelfBudget(replace(on_disk(str(directory), memory=memory), aside=aside))
    return aside, budget, Shelf(budget, SegmentLayout(COLUMNS, STORED, max_parallelism=128, by_time=False), "state")


def held(shelf: Shelf, number: int) -> KeptRows:
    order = np.arange(ROWS, dtype=np.uint64)
    batch = pa.RecordBatch.from_arrays([pa.array(np.full(ROWS, number))], schema=COLUMNS)
    return shelf.keep(SortedRows(order, np.zeros(ROWS, np.int64), batch))


def in_memory(kept: list[KeptRows]) -> int:
    return sum(one.holding.path is None for one in kept)


def test_the_stream_goes_on_while_files_are_written_until_memory_is_short(tmp_path: Path) -> None:
    aside, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())  # 0.8 MB may be held, 98 kB each
    kept = []
    for number in range(8):
        kept.append(held(shelf, number))
        budget.settle()
    assert aside.errands and not aside.waits and in_memory(kept) == 8
    kept.append(held(shelf, 8))
    budget.settle()
    assert aside.waits == 1 and in_memory(kept) == 8, "no longer than until memory suffices"
    aside.do_all()
    budget.settle()
    assert in_memory(kept) < 8
    assert [one.rows().batch.column(0).to_numpy()[-1] for one in kept] == list(range(9))


def test_memory_is_bounded_however_slow_the_disk_is(tmp_path: Path) -> None:
    _, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())
    kept, most = [], 0
    for number in range(60):
        kept.append(held(shelf, number))
        budget.settle()
        most = max(most, in_memory(kept))
    assert most * kept[0].rows().size_bytes <= 0.4 * 2_000_000
    assert [one.rows().batch.column(0).to_numpy()[-1] for one in kept] == list(range(60))


def test_rows_that_nobody_refers_to_any_more_are_not_written(tmp_path: Path) -> None:
    aside, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())
    kept = [held(shelf, number) for number in range(8)]
    budget.settle()
    assert aside.errands
    del kept
    gc.collect()
    aside.do_all()
    budget.settle()
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_file_that_arrives_behind_its_rows_end_is_removed(tmp_path: Path) -> None:
    aside, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())
    kept = [held(shelf, number) for number in range(8)]
    budget.settle()
    aside.do_all()
    assert list(tmp_path.rglob("*.arrow"))
    del kept
    gc.collect()
    for _ in range(20):
        budget.settle()
        aside.do_all()
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_disk_that_fails_aside_fails_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())
    kept = [held(shelf, number) for number in range(9)]

    def full(path: str, mode: str) -> pa.OSFile:
        raise OSError("[Errno 28] No space left on device")

    monkeypatch.setattr(shelves.pa, "OSFile", full)
    with pytest.raises(LocalDiskFailed, match="No space left"):
        budget.settle()
    assert aside.waits == 1 and in_memory(kept) == 9


def test_files_go_as_fast_as_they_come_also_where_errands_wait_for_each_other(tmp_path: Path) -> None:
    _, budget, shelf = later_shelf(tmp_path, "2MB", BusyAside())
    kept: list[KeptRows] = []
    most = 0
    for number in range(400):
        kept = [*kept[-15:], held(shelf, number)]
        budget.settle()
        most = max(most, len(list(tmp_path.rglob("*.arrow"))))
    assert most <= 60 and len(budget.useless) <= 40
    assert [one.rows().batch.column(0).to_numpy()[-1] for one in kept] == list(range(384, 400))


def test_a_shelf_that_is_let_go_of_while_files_are_on_their_way_leaves_none(tmp_path: Path) -> None:
    aside, budget, shelf = later_shelf(tmp_path, "2MB", LaterAside())
    kept = [held(shelf, number) for number in range(8)]
    budget.settle()
    aside.do_all()
    aside.errands.clear()
    assert list(tmp_path.rglob("*.arrow"))
    del kept, budget, shelf
    gc.collect()
    assert not list(tmp_path.rglob("*.arrow"))


def test_rows_that_could_not_be_written_can_be_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget, shelf = shelf_in(tmp_path, "2MB")
    kept = [held(shelf, number) for number in range(9)]
    os_file = pa.OSFile

    def full(path: str, mode: str) -> pa.OSFile:
        raise OSError("[Errno 28] No space left on device")

    monkeypatch.setattr(shelves.pa, "OSFile", full)
    with pytest.raises(LocalDiskFailed):
        budget.settle()
    monkeypatch.setattr(shelves.pa, "OSFile", os_file)
    budget.settle()
    assert in_memory(kept) < 9
    assert [one.rows().batch.column(0).to_numpy()[-1] for one in kept] == list(range(9))
