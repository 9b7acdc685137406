"""Segments of partial aggregates against a dictionary: a key and time comes once, wherever a table is looked at."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests import states
from tests.seeds import seeds
from weir.config import RocksDb
from weir.state.columns.segments import grouping, store
from weir.state.columns.segments.grouping import by_rules
from weir.state.columns.segments.rows import SegmentLayout, SortedRows, places
from weir.state.columns.segments.shelf import ShelfBudget
from weir.state.columns.segments.store import SegmentStore
from weir.state.frozen import KEY_GROUP_COLUMN, RestoredPart, RestoredParts
from weir.state.keys.hashing import hash_keys
from weir.state.place import StatePlace

KEYS = pa.schema([("word", pa.string()), ("number", pa.float64())])
ROWS = pa.schema([*KEYS, ("n", pa.int64()), ("top", pa.string()), ("first", pa.int64()), ("last", pa.string())])
TABLE = pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *KEYS, pa.field("pane", pa.int64()), *list(ROWS)[2:]])
LAYOUT = SegmentLayout(
    ROWS,
    TABLE,
    max_parallelism=128,
    by_time=True,
    time="pane",
    rules={"n": "add", "top": "max", "first": "first", "last": "last"},
)
GROUPS = range(128)
BUCKET_US = 50

Key = tuple[str | None, float | None, int]
Values = tuple[int | None, str | None, int, str | None]


class Sums:
    """A store of sums by key and pane, and what they must be."""

    def __init__(self, directory: Path | None, dice: random.Random) -> None:
        place = StatePlace() if directory is None else StatePlace(RocksDb(memory_max="16KB"), str(directory))
        combine = by_rules(LAYOUT.rules or {})
        self.store = SegmentStore(LAYOUT, ShelfBudget(place), name="sums", combine=combine, shown=combine)
        self.dice = dice
        self.collide = dice.random() < 0.3
        self.expected: dict[Key, Values] = {}

    def add(self) -> None:
        lots = {}
        for bucket in self.dice.sample(range(3), self.dice.randint(1, 3)):
            rows = {self.key(bucket * BUCKET_US): self.values() for _ in range(self.dice.choice([1, 5, 60]))}
            for key, values in rows.items():
                self.expected[key] = merged(self.expected.get(key), values)
            lots[bucket * BUCKET_US] = self.sorted(rows)
        self.store.seal(lambda: list(lots.items()))

    def key(self, bucket_us: int) -> Key:
        dice = self.dice
        return (
            dice.choice(["", "a", "b", None, "a longer word"]),
            dice.choice([1.5, None, 0.0]),
            bucket_us + 10 * dice.randrange(5),
        )

    def values(self) -> Values:
        return self.dice.choice([None, 1, -3]), self.dice.choice([None, "x", "y"]), self.dice.randrange(9), "z"

    def sorted(self, rows: dict[Key, Values]) -> SortedRows:
        words, numbers, panes = (pa.array(column) for column in zip(*rows, strict=True))
        columns = [words.cast(pa.string()), numbers.cast(pa.float64())]
        for field, values in zip(list(ROWS)[2:], zip(*rows.values(), strict=True), strict=True):
            columns.append(pa.array(values, field.type))
        hashes = hash_keys(columns[:2])
        if self.collide:
            hashes = hashes & np.uint64(127)
        batch = pa.RecordBatch.from_arrays(columns, schema=ROWS)
        return LAYOUT.sorted(places(hashes, 128), panes.to_numpy(), batch)


def merged(old: Values | None, new: Values) -> Values:
    if old is None:
        return new
    numbers = [value for value in (old[0], new[0]) if value is not None]
    tops = [value for value in (old[1], new[1]) if value is not None]
    return sum(numbers) if numbers else None, max(tops, default=None), old[2], new[3]


def shown(tables: list[pa.Table]) -> dict[Key, Values]:
    found: dict[Key, Values] = {}
    for table in tables:
        groups = table.column(0).to_numpy()
        assert bool((groups[1:] >= groups[:-1]).all())
        for _, word, number, pane, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
            assert (word, number, pane) not in found
            found[(word, number, pane)] = tuple(values)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("seed", seeds(15))
def test_sums_are_shown_once_for_each_key_and_time_by_whoever_reads_them(
    seed: int, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", dice.choice([10, 300]))
    monkeypatch.setattr(store, "TENDED_ROWS", dice.choice([5, 4_096]))
    monkeypatch.setattr(grouping, "PIECE_ROWS", dice.choice([7, 100, 100_000]))
    sums, files = Sums(tmp_path if on_disk else None, dice), states.Shelf()
    since_us = 0
    for number in range(60):
        sums.add()
        sums.store.tend(dice.choice([0, 100]))
        if dice.random() < 0.2:
            sums.store.adopt(wait=True)
        if dice.random() < 0.03:
            since_us = sums.store.since_us = since_us + 10
        if dice.random() < 0.2:
            files.prefix = f"{number}-"
            frozen = sums.store.freeze()
            expected = {key: values for key, values in sums.expected.items() if key[2] >= since_us}
            part = frozen.write(files)
            assert shown(list(frozen.tables())) == expected
            assert shown(files.tables(part, GROUPS)) == expected
            frozen.confirmed(part)
    restored = Sums(tmp_path / "again" if on_disk else None, dice)
    files.prefix = "last-"
    part = sums.store.freeze().write(files)
    assert restored.store.restore(RestoredParts([RestoredPart(part, GROUPS, files)], GROUPS))
    assert restored.store.since_us == sums.store.since_us
    expected = {key: values for key, values in sums.expected.items() if key[2] >= since_us}
    assert shown(list(restored.store.freeze().tables())) == expected


def test_merging_goes_on_in_proportion_to_the_rows_that_come() -> None:
    sums = Sums(None, random.Random(1))
    order = np.arange(1_000_000, dtype=np.uint64)
    columns = [pa.array(["w"]).take(pa.array(np.zeros(len(order), np.int64))), pa.array(order.astype(np.float64))]
    columns += [
        pa.array(np.ones(len(order), np.int64)),
        columns[0],
        pa.array(np.ones(len(order), np.int64)),
        columns[0],
    ]
    rows = SortedRows(order, np.zeros(len(order), np.int64), pa.RecordBatch.from_arrays(columns, schema=ROWS))
    for _ in range(2):
        sums.store.seal(lambda: [(0, rows)])
    sums.store.adopt(wait=True)
    assert len(sums.store.runs(0)) == 2
    calls = 0
    while len(sums.store.runs(0)) == 2:
        sums.store.tend(10_000)
        calls += 1
    assert 2_000_000 / (10_000 * store.TENDED_RATIO + store.TENDED_ROWS) <= calls <= 80
    assert len(sums.store) == len(order)
