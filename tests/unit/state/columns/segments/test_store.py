"""Segments against a list of rows: whatever is merged, marked, filed, frozen and restored, the rows are the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests import states
from tests.seeds import seeds
from weir.config import RocksDb
from weir.errors import LocalDiskFailed
from weir.snapshot.parts import StatePart
from weir.state.columns.segments import merging, store
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, by_order_and_time, places
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN, RestoredPart, RestoredParts, only
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.place import StatePlace

ROWS = pa.schema([("key", pa.int64()), ("text", pa.string()), ("ts", pa.int64())])
TABLE = pa.schema([(KEY_GROUP_COLUMN, pa.int32()), *ROWS])
SHOWN = TABLE.append(pa.field("__done", pa.bool_()))
GROUPS = range(128)
BUCKET_US = 100

Row = tuple[Any, ...]


def layout_of(*, mark: str | None = None, by_time: bool = True) -> SegmentLayout:
    return SegmentLayout(ROWS, SHOWN if mark else TABLE, max_parallelism=128, mark=mark, by_time=by_time)


class World:
    """A store, and what must be in it: rows by bucket, and whether each is marked."""

    def __init__(self, layout: SegmentLayout, directory: Path | None) -> None:
        self.layout, self.directory = layout, directory
        self.opened = 0
        self.store = self._empty()
        self.rows: dict[Row, bool] = {}
        self.files = states.Shelf()
        self.checkpoints = 0
        self.complete: tuple[StatePart, dict[Row, bool]] | None = None

    def _empty(self) -> SegmentStore:
        place = StatePlace()
        if self.directory is not None:
            self.opened += 1
            place = StatePlace(RocksDb(memory_max="16KB"), str(self.directory / str(self.opened)))
        return SegmentStore(self.layout, ShelfBudget(place), name="rows")

    def add(self, dice: random.Random, number: int) -> None:
        bucket, rows = self.drawn(dice, number)
        segment = self.store.new(bucket, rows)
        self.store.add([segment])
        self.expect(rows)
        self.store.merge([segment])

    def seal(self, dice: random.Random, number: int) -> None:
        """Rows that become segments when somebody wants them."""
        pieces = dict(self.drawn(dice, f"{number}.{piece}") for piece in range(dice.randrange(4)))
        for rows in pieces.values():
            self.expect(rows)
        lot = self.store.seal(lambda: iter(pieces.items()))
        if dice.random() < 0.3:
            lot.runs()

    def expect(self, rows: SortedRows) -> None:
        self.rows |= {tuple(row.values()): False for row in rows.batch.to_pylist()}

    def drawn(self, dice: random.Random, number: object) -> tuple[int, SortedRows]:
        bucket = dice.randrange(5) * BUCKET_US
        count = dice.choice([1, 3, 40, 200])
        keys = pa.array([dice.randrange(30) for _ in range(count)])
        times = np.array([bucket + dice.randrange(BUCKET_US) for _ in range(count)])
        texts = pa.array([f"{number}-{row}" for row in range(count)])
        batch = pa.RecordBatch.from_arrays([keys, texts, pa.array(times)], schema=ROWS)
        order = places(hash_keys([keys]), 128)
        return bucket, self.layout.sorted(order, times, batch)

    def mark(self, dice: random.Random) -> None:
        for segment in self.store.between(0, 10**9):
            if dice.random() < 0.5:
                rows = np.array(sorted({dice.randrange(len(segment)) for _ in range(3)}))
                self.store.mark(segment, rows)
                self.rows |= {tuple(row.values()): True for row in segment.batch.take(pa.array(rows)).to_pylist()}

    def drop(self, dice: random.Random) -> None:
        bucket = dice.randrange(5) * BUCKET_US
        self.store.drop(bucket)
        self.rows = {row: done for row, done in self.rows.items() if row[2] // BUCKET_US * BUCKET_US != bucket}

    def checkpoint(self, *, completes: bool) -> None:
        frozen, expected = self.store.freeze(), dict(self.rows)
        self.checkpoints += 1
        self.files.prefix = f"{self.checkpoints}-"
        part = frozen.write(self.files)
        if completes:
            frozen.confirmed(part)
            self.complete = (part, expected)
        frozen.released()

    def restore(self) -> None:
        if self.complete is None:
            return
        part, self.rows = self.complete[0], dict(self.complete[1])
        self.store = self._empty()
        assert self.store.restore(RestoredParts([RestoredPart(part, GROUPS, self.files)], GROUPS))

    def check(self) -> None:
        self.store.adopt(wait=True)
        found: Counter[Row] = Counter()
        for segment in self.store.between(-(10**9), 10**9):
            assert bool((segment.order[1:] >= segment.order[:-1]).all())
            if self.layout.by_time:
                same = segment.order[1:] == segment.order[:-1]
                assert bool((segment.times[1:] >= segment.times[:-1])[same].all())
            bits = segment.marks.bits
            marks = np.zeros(len(segment), np.bool_) if bits is None else bits
            for row, done in zip(segment.batch.to_pylist(), marks.tolist(), strict=True):
                if self.layout.mark is not None or not done:
                    found[(*row.values(), done)] += 1
        assert found == Counter(self.expected(self.rows))

    def expected(self, rows: dict[Row, bool]) -> list[Row]:
        return [(*row, done) for row, done in rows.items() if self.layout.mark is not None or not done]

    def check_tables(self) -> None:
        """What a state table shows of the last complete checkpoint, to all subtasks of another parallelism together."""
        if self.complete is None:
            return
        part, rows = self.complete
        shown: list[Row] = []
        for own in (range(50), range(50, 128)):
            for table in RestoredParts([RestoredPart(part, GROUPS, self.files)], own).tables():
                groups = table.column(0).to_numpy()
                assert (
                    groups.tolist() == key_groups(hash_keys(table["key"].chunks), 128).tolist() if len(table) else True
                )
                shown += [tuple(row.values())[1:] for row in only(table, own).to_pylist()]
        expected = self.expected(rows)
        assert Counter(shown) == Counter(row if self.layout.mark else row[:-1] for row in expected)


@pytest.mark.parametrize("on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("mark", [None, "__done"], ids=["gone", "shown"])
@pytest.mark.parametrize("seed", seeds(12))
def test_rows_are_what_came_whatever_happens_to_their_segments(
    seed: int, mark: str | None, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", dice.choice([10, 300]))
    monkeypatch.setattr(store, "STEP_ROWS", 16)
    monkeypatch.setattr(store, "STEP_RATIO", dice.choice([0, 1]))
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", dice.choice([500, 5_000]))
    world = World(layout_of(mark=mark, by_time=dice.random() < 0.5), tmp_path if on_disk else None)
    for number in range(120):
        world.add(dice, number)
        if dice.random() < 0.2:
            world.seal(dice, number)
        if dice.random() < 0.2:
            world.store.adopt()
        if dice.random() < 0.4:
            world.mark(dice)
        if dice.random() < 0.05:
            world.drop(dice)
        if dice.random() < 0.15:
            world.checkpoint(completes=dice.random() < 0.6)
        if dice.random() < 0.04:
            world.restore()
        if dice.random() < 0.2:
            world.check()
    world.store.settle()
    world.check()
    world.check_tables()
    if on_disk:
        del world.store
        assert list(tmp_path.rglob("*.arrow")) == []


def test_a_checkpoint_writes_new_segments_only_and_the_marks_only_when_some_were_set() -> None:
    dice, world = random.Random(1), World(layout_of(mark="__done"), None)
    for number in range(30):
        world.add(dice, number)
    world.checkpoint(completes=True)
    before = world.files.put_bytes
    world.checkpoint(completes=True)
    assert world.files.put_bytes == before
    world.store.mark(next(iter(world.store.between(0, 10**9))), np.array([0]))
    world.checkpoint(completes=True)
    assert 0 < world.files.put_bytes - before < before / 10


@pytest.mark.parametrize("directory", [False, True], ids=["heap", "disk"])
def test_rows_behind_a_restore_do_not_inherit_the_marks_of_segments_that_were_dropped_before(
    directory: bool, tmp_path: Path
) -> None:
    """The file of marks still has those: as none was set since, it was not written anew."""
    dice, world = random.Random(1), World(layout_of(), tmp_path if directory else None)
    world.add(dice, 0)
    (segment,) = world.store.between(0, 10**9)
    world.store.mark(segment, np.arange(len(segment)))
    world.checkpoint(completes=True)
    world.store.drop(segment.bucket_us)
    world.rows.clear()
    world.checkpoint(completes=True)
    world.restore()
    world.add(dice, 1)
    world.checkpoint(completes=True)
    world.restore()
    world.check()


def test_what_a_frozen_state_shows_does_not_change_with_the_marks_that_are_set_behind_it() -> None:
    dice, world = random.Random(1), World(layout_of(), None)
    world.add(dice, 0)
    frozen = world.store.freeze()
    rows = sum(table.num_rows for table in frozen.tables())
    (segment,) = world.store.between(0, 10**9)
    world.store.mark(segment, np.arange(len(segment)))
    assert sum(table.num_rows for table in frozen.tables()) == rows
    assert sum(table.num_rows for table in world.store.freeze().tables()) == 0


def test_what_is_not_looked_at_goes_into_files_and_comes_back(tmp_path: Path) -> None:
    dice, world = random.Random(1), World(layout_of(), tmp_path)
    for number in range(100):
        world.add(dice, number)
    files = list(tmp_path.rglob("*.arrow"))
    assert len(files) > 3
    held_bytes = sum(s.kept.holding.size_bytes for s in world.store.between(0, 10**9) if s.kept.holding.path is None)
    assert held_bytes <= 16_000
    world.check()


def test_a_full_local_disk_is_told_with_the_directory_and_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, mode: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa, "OSFile", full)
    dice, world = random.Random(1), World(layout_of(), tmp_path)
    with pytest.raises(LocalDiskFailed, match=r"local directory .*segments: .*No space left.* bytes are free there"):
        for number in range(100):
            world.add(dice, number)


def test_what_was_sealed_is_sorted_by_the_snapshot_and_not_by_the_stream() -> None:
    dice, world = random.Random(1), World(layout_of(), None)
    (bucket, rows), made = world.drawn(dice, 0), []

    def make() -> Iterator[tuple[int, SortedRows]]:
        made.append(True)
        yield bucket, rows

    world.store.seal(make)
    frozen = world.store.freeze()
    assert not made and not world.store.adopt()
    frozen.write(world.files)
    assert made == [True]
    (lot,) = world.store.adopt()
    assert lot.is_made and len(world.store) == len(rows) and made == [True]


def test_rows_that_could_not_be_sorted_once_are_not_lost() -> None:
    dice, world = random.Random(1), World(layout_of(), None)
    (first, one), (second, other) = (0, world.drawn(dice, 0)[1]), (100, world.drawn(dice, 1)[1])
    fails = [True]

    def make() -> Iterator[tuple[int, SortedRows]]:
        yield first, one
        if fails:
            raise MemoryError
        yield second, other

    world.store.seal(make)
    with pytest.raises(MemoryError):
        world.store.freeze().write(world.files)
    fails.clear()
    world.store.adopt(wait=True)
    assert len(world.store) == len(one) + len(other)


def test_a_bucket_that_is_dropped_does_not_come_back_with_what_was_sealed_before() -> None:
    dice, world = random.Random(1), World(layout_of(), None)
    bucket, rows = world.drawn(dice, 0)
    world.store.seal(lambda: [(bucket, rows)])
    before = world.store.freeze()
    world.store.drop(bucket)
    assert sum(table.num_rows for table in before.tables()) == len(rows)
    assert sum(table.num_rows for table in world.store.freeze().tables()) == 0
    world.store.adopt(wait=True)
    assert len(world.store) == 0


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_of_one_order_are_sorted_by_time_then_by_age(seed: int) -> None:
    dice = np.random.default_rng(seed)
    order = dice.integers(0, 8, 60).astype(np.uint64)
    times = dice.integers(0, 5, 60)
    assert by_order_and_time(order, times).tolist() == np.lexsort((times, order)).tolist()


@pytest.mark.parametrize("rows", [0, 1, 2, 100, 5_000])
@pytest.mark.parametrize("are_runs", [False, True])
@pytest.mark.parametrize("spread", [1, 3, 0.5, 10, 1 << 40])
def test_rows_of_one_order_and_time_keep_their_order_however_many_there_are(
    rows: int, are_runs: bool, spread: float
) -> None:
    dice = np.random.default_rng(rows)
    order = dice.integers(0, int(spread if spread > 1 else spread * rows) + 1, rows, dtype=np.uint64)
    if are_runs:
        order = np.concatenate([np.sort(part) for part in np.array_split(order, 2)])
    times = dice.integers(0, 4, rows)
    assert by_order_and_time(order, times).tolist() == np.lexsort((times, order)).tolist()
