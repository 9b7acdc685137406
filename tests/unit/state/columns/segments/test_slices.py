"""Segments restored at another parallelism: each row falls to its subtask, a segment at a time; nothing is merged."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf
from weir.config import RocksDb
from weir.operators.base import key_group_range
from weir.snapshot.parts import FileRef, StatePart
from weir.state.columns.segments import snapshot, tables
from weir.state.columns.segments.rows import SegmentLayout, places
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN, RestoredPart, RestoredParts
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.place import StatePlace

ROWS = pa.schema([("key", pa.int64()), ("text", pa.string()), ("ts", pa.int64())])
TABLE = pa.schema([(KEY_GROUP_COLUMN, pa.int32()), *ROWS])
GROUPS = 128
MEMORY_BYTES = 16 << 10

Rows = list[tuple[int, str, int]]


def layout_of(mark: str | None = None) -> SegmentLayout:
    shown = TABLE if mark is None else TABLE.append(pa.field(mark, pa.bool_()))
    return SegmentLayout(ROWS, shown, max_parallelism=GROUPS, mark=mark, by_time=True)


def store_of(layout: SegmentLayout, directory: Path | None) -> SegmentStore:
    place = StatePlace() if directory is None else StatePlace(RocksDb(memory_max=f"{MEMORY_BYTES}B"), str(directory))
    return SegmentStore(layout, ShelfBudget(place), name="rows")


class Counted(Shelf):
    """Counts which files are wanted, and how much the store holds in memory by then."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[str] = []
        self.held_bytes: list[int] = []
        self.budget: ShelfBudget | None = None

    def read(self, file: FileRef) -> pa.Buffer:
        self._note(file)
        return super().read(file)

    def fetch(self, file: FileRef, local_path: str) -> None:
        self._note(file)
        super().fetch(file, local_path)

    def _note(self, file: FileRef) -> None:
        if "marks" not in file.path:
            self.wanted.append(file.path)
            if self.budget is not None:
                self.held_bytes.append(sum(kept.holding.size_bytes for kept in self.budget._held))


def written(
    parallelism: int, files: Counted, layout: SegmentLayout, dice: random.Random
) -> tuple[list[StatePart], Rows]:
    """The parts of so many subtasks with rows in several runs of several buckets, some marked, some from before."""
    parts, whole = [], []
    since_us = dice.choice([0, 30])
    for index in range(parallelism):
        own = key_group_range(index, parallelism, GROUPS)
        store = store_of(layout, None)
        for number in range(dice.randint(0, 6)):
            keys = [key for key in dice.choices(range(400), k=200) if _group(key) in own]
            if not keys:
                continue
            bucket_us = dice.choice([0, 100])
            batch = pa.record_batch(
                [
                    pa.array(keys),
                    pa.array([f"{index}.{number}.{i}" for i in range(len(keys))]),
                    pa.array([bucket_us + i % 90 for i in range(len(keys))]),
                ],
                schema=ROWS,
            )
            times = batch.column("ts").to_numpy()
            rows = layout.sorted(places(hash_keys([batch.column("key")]), GROUPS), times, batch)
            segment = store.new(bucket_us, rows)
            store.add([segment])
            if dice.random() < 0.5:
                store.mark(segment, np.flatnonzero(np.arange(len(rows)) % 5 == 0))
        store.since_us = since_us
        files.prefix = f"{index}/"
        frozen = store.freeze()
        parts.append(frozen.write(files))
        for table in frozen.tables():
            whole += [tuple(row.values())[1:] for row in table.to_pylist()]
    return parts, whole


def _group(key: int) -> int:
    return int(key_groups(hash_keys([pa.array([key], pa.int64())]), GROUPS)[0])


def restored(parts: list[StatePart], files: Shelf, index: int, parallelism: int) -> RestoredParts:
    own = key_group_range(index, parallelism, GROUPS)
    held = [RestoredPart(p, key_group_range(i, len(parts), GROUPS), files) for i, p in enumerate(parts)]
    touched = [p for p in held if p.key_groups.start < own.stop and own.start < p.key_groups.stop]
    return RestoredParts(touched, own)


@pytest.mark.parametrize("mark", [None, "__done"])
@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_each_row_falls_to_the_subtask_of_its_key_group_in_the_order_of_age(
    seed: int, is_on_disk: bool, mark: str | None, tmp_path: Path
) -> None:
    dice, files, layout = random.Random(seed), Counted(), layout_of(mark)
    before = dice.randint(1, 5)
    parts, wanted = written(before, files, layout, dice)
    now = dice.choice([n for n in range(1, 6) if n != before])
    found: Rows = []
    for index in range(now):
        store = store_of(layout, tmp_path / str(index) if is_on_disk else None)
        given = restored(parts, files, index, now)
        assert given.whole is None and store.restore(given)
        for table in store.freeze().tables():
            groups = set(table.column(0).to_pylist())
            assert groups <= set(key_group_range(index, now, GROUPS))
            found += [tuple(row.values())[1:] for row in table.to_pylist()]
        for bucket_us in store:
            # What a key's rows came in is told by their texts: runs are the older, the earlier they stand.
            ages: dict[int, list[int]] = {}
            for run in store.runs(bucket_us):
                orders = np.concatenate([segment.order for segment in run.segments])
                assert (orders[1:] >= orders[:-1]).all()
                for key, text in zip(
                    (k for s in run.segments for k in s.batch.column("key").to_pylist()),
                    (t for s in run.segments for t in s.batch.column("text").to_pylist()),
                ):
                    ages.setdefault(key, []).append(int(text.split(".")[1]))
            assert all(numbers == sorted(numbers) for numbers in ages.values())
    assert sorted(found) == sorted(wanted)


def test_one_segment_is_in_memory_at_a_time_and_those_of_others_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tables, snapshot):
        monkeypatch.setattr(module, "tables_of", _merges)
    files, layout = Counted(), layout_of()
    store, count = store_of(layout, None), 40
    for number in range(count):
        # Each has the keys of a stretch of groups, and there are ten times as many of them as memory may hold.
        keys = [key for key in range(20_000) if _groups_of()[key] * count // GROUPS == number][:150]
        batch = pa.record_batch(
            [pa.array(keys), pa.array(["x" * 20] * len(keys)), pa.array([0] * len(keys))], schema=ROWS
        )
        rows = layout.sorted(places(hash_keys([batch.column("key")]), GROUPS), np.zeros(len(keys), np.int64), batch)
        store.add([store.new(0, rows)])
    part = store.freeze().write(files)
    largest = max(len(content) for content in files.content.values())
    again = store_of(layout, tmp_path)
    files.budget = again._budget
    assert again.restore(restored([part], files, 1, 4))
    assert 9 <= len(files.wanted) <= 12, "a quarter of the segments, and those that are cut"
    assert max(files.held_bytes) <= again._budget.held_bytes_max + largest
    assert sum(len(segment) for segment in again.at(0)) > 1_000


def _groups_of() -> list[int]:
    if not _KNOWN:
        _KNOWN.extend(key_groups(hash_keys([pa.array(range(20_000), pa.int64())]), GROUPS).tolist())
    return _KNOWN


_KNOWN: list[int] = []


def _merges(*args: object, **options: object) -> None:
    raise AssertionError("segments are put together")


def test_parts_of_another_layout_are_read_as_tables(tmp_path: Path) -> None:
    files = Counted()
    parts, _ = written(2, files, layout_of(), random.Random(3))
    given = restored(parts, files, 0, 1)
    assert not store_of(layout_of("__done"), None).restore(given)
    empty = RestoredParts([], range(GROUPS))
    assert not store_of(layout_of(), None).restore(empty)
