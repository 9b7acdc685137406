"""Windows whose panes are sealed, merged, on disk and restored: they are what a batch query says, and cost what they
should."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from tests import states
from tests.seeds import seeds
from tests.unit.operators.running import context, on_disk
from tests.unit.operators.windows.test_aggregate import batch_answer, rows_of, windowed
from weir.operators.base import Restored, RestoredInline
from weir.operators.windows import aggregate, kept_panes, panes, partials
from weir.operators.windows.aggregate import STATE, WindowAggregate, WindowAggregateOperator
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import AlignedWindows, TimeWindows
from weir.snapshot.parts import StatePart
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments import grouping, store
from weir.state.frozen import ARROW, RestoredPart, RestoredParts, encode_table
from weir.state.place import StatePlace

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("value", pa.int64()), ("ts", pa.timestamp("us"))])
GROUPS = range(128)
EPOCH, MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)


def small_pieces(dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are many pieces."""
    monkeypatch.setattr(panes, "OWN_ROWS_MIN", dice.choice([2, 8, 1_000]))
    monkeypatch.setattr(panes, "SHARED_SLOTS_MAX", dice.choice([3, 20, 1_000]))
    monkeypatch.setattr(partials, "STRETCH_PANES", dice.choice([1, 3, 64]))
    monkeypatch.setattr(kept_panes, "STRETCH_PANES", partials.STRETCH_PANES)
    monkeypatch.setattr(kept_panes, "SHARED_ROWS_MAX", dice.choice([10, 1_000_000]))
    monkeypatch.setattr(kept_panes, "HEAD_SLOTS_MAX", dice.choice([5, 50, 1_000_000]))
    monkeypatch.setattr(aggregate, "MERGED_SLOTS_MAX", dice.choice([10, 1_000_000]))
    monkeypatch.setattr(grouping, "PIECE_ROWS", dice.choice([3, 50, 1_000_000]))
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", dice.choice([4, 30, 1_000_000]))
    monkeypatch.setattr(store, "TENDED_ROWS", dice.choice([2, 4_096]))


@pytest.mark.parametrize("backend", ["heap", "1KB", "1MB"])
@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize(("size_s", "slide_s"), [(1, 1), (10, 10), (6, 2), (5, 3)])
def test_windows_are_what_a_batch_query_says_wherever_their_panes_lie(
    seed: int, size_s: int, slide_s: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    small_pieces(dice, monkeypatch)
    rows = rows_of(seed)
    crashes = tuple(dice.sample(range(5, 120), 3)) if seed % 2 else ()
    windows, place = weir.sliding(size_s, slide_s), "heap" if backend == "heap" else weir.RocksDb(memory_max=backend)
    found = windowed(rows, windows, seed=seed, crash_at=crashes, late="x" if seed % 3 else None, backend=place)
    assert found.equals(batch_answer(rows, size_s, slide_s))


@pytest.mark.parametrize("backend", ["heap", "1KB"])
@pytest.mark.parametrize("seed", seeds(8))
def test_refinements_of_sealed_windows_come_to_the_same_in_the_end(
    seed: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(random.Random(seed), monkeypatch)
    rows = rows_of(seed, disorder_s=20.0)  # the watermark expects 3 s only
    place = "heap" if backend == "heap" else weir.RocksDb(memory_max=backend)
    found = windowed(rows, weir.sliding("6s", "3s"), seed=seed, crash_at=(30, 50), lateness="30s", backend=place)
    last = found.group_by("key", "window_start", "window_end").agg(pl.col("n", "total").sort_by("n").last())
    assert len(found) > len(last)
    assert last.sort("window_start", "key").equals(batch_answer(rows, 6, 3))


class One:
    """One operator by hand, and what it must hold: by pane and key the number of rows, their sum and the last text."""

    def __init__(
        self, windows: TimeWindows, *, place: StatePlace | None = None, lateness_us: int = 0, restored: Any = None
    ) -> None:
        aggregates = {"n": weir.count(), "total": weir.sum("value"), "text": weir.last("text")}
        of = WindowDefinition(windows, ["key"], aggregates, SCHEMA, "ts")
        self.operator = WindowAggregate(of, lateness_us, late="late").make()
        self.operator.open(context(place=place), restored)
        self.out: list[pa.RecordBatch] = []
        self.files = states.Shelf()
        self.number = 0

    def add(self, keys: Sequence[int] | np.ndarray, times_us: Sequence[int] | np.ndarray, value: int = 1) -> None:
        self.number += 1
        keys = pa.array(keys, pa.int64())
        columns = [keys, pa.array([str(self.number)]).take(pa.array(np.zeros(len(keys), np.int64)))]
        columns += [pa.array(np.full(len(keys), value)), pa.array(np.asarray(times_us)).view(pa.timestamp("us"))]
        self.operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), self.out.append)

    def checkpoint(self) -> tuple[StatePart, int]:
        """A completed one, and how many bytes it wrote."""
        before = self.files.put_bytes
        self.operator.flush(self.out.append)
        frozen = self.operator.freeze()
        self.number += 1
        self.files.prefix = f"{self.number}-"
        part = frozen.states[STATE].write(self.files)
        frozen.states[STATE].confirmed(part)
        return part, self.files.put_bytes - before

    def rows(self) -> list[dict[str, Any]]:
        rows = [row for batch in self.out for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: (row["window_start"], row["key"]))


def panes_of(one: One) -> kept_panes.KeptPanes:
    assert isinstance(one.operator, WindowAggregateOperator)
    return one.operator._kept


def test_a_checkpoint_writes_what_changed_and_not_the_panes_that_changed() -> None:
    one, count, dice = One(AlignedWindows(10_000, 10_000)), 400_000, np.random.default_rng(1)
    for start in range(0, count, 50_000):
        one.add(np.arange(start, start + 50_000), np.full(50_000, 5))
    _, whole = one.checkpoint()
    written = []
    for _ in range(12):
        some = dice.integers(0, count, count // 100)
        one.add(some, np.full(len(some), 6))
        one.operator.process(one_row(), one.out.append)
        written.append(one.checkpoint()[1])
    assert written[0] <= 0.012 * whole
    assert sum(written) / len(written) <= 0.05 * whole
    one.operator.watermark(END_US, one.out.append)
    out = pl.concat([pl.DataFrame(batch) for batch in one.out])
    assert len(out) == count and out["n"].sum() == count + 12 * (count // 100 + 1)


def one_row() -> pa.RecordBatch:
    columns = [pa.array([7]), pa.array(["x"]), pa.array([1]), pa.array([7]).view(pa.timestamp("us"))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_thousands_of_small_panes_are_few_files() -> None:
    one = One(AlignedWindows(10, 10))
    for number in range(4):
        times = 10 * np.repeat(np.arange(5_000), 2)
        one.add(np.tile([number, -1], 5_000), times)
        part, _ = one.checkpoint()
    assert len(part.files) <= 4 * 5_000 / partials.STRETCH_PANES
    one.operator.watermark(END_US, one.out.append)
    assert [row["n"] for row in one.rows()[:5]] == [4, 1, 1, 1, 1]
    assert sum(batch.num_rows for batch in one.out) == 25_000


def test_a_bucket_of_small_panes_that_has_become_large_takes_no_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_panes, "SHARED_ROWS_MAX", 3_000)
    one = One(AlignedWindows(10, 10))
    for number in range(10):
        one.add(np.arange(1_000) + 1_000 * number, np.tile([5, 15], 500))
        one.checkpoint()
        one.add([-1], [5])  # which is adopted what the snapshot has sorted
    shared = [bucket for bucket in panes_of(one)._store if partials.is_shared(bucket)]
    assert sum(len(run) for bucket in shared for run in panes_of(one)._store.runs(bucket)) <= 4_000
    assert {0, 10} <= set(panes_of(one)._store)
    one.operator.watermark(END_US, one.out.append)
    out = one.rows()
    assert len(out) == 10_001 and [row["n"] for row in out if row["key"] < 0] == [10]


def test_freezing_looks_at_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    one = One(AlignedWindows(10, 10))
    one.add(np.arange(1_000), np.full(1_000, 5))
    sorted_groups: list[object] = []
    original = partials.sorted_pieces
    monkeypatch.setattr(partials, "sorted_pieces", lambda *given: (sorted_groups.append(given[0]), original(*given))[1])
    frozen = one.operator.freeze()
    one.add(np.arange(1_000), np.full(1_000, 6))
    assert not sorted_groups
    part = frozen.states[STATE].write(one.files)
    assert sorted_groups
    counts = [n for table in one.files.tables(part) for n in table.column("n#0").to_pylist()]
    assert counts == [1] * 1_000


def test_memory_on_disk_is_bounded_also_by_one_pane_that_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "PIECE_ROWS", 10_000)
    one = One(AlignedWindows(10, 10), place=on_disk(str(tmp_path), "2MB"))
    pieces: list[int] = []
    original = kept_panes.KeptPanes.combined

    def combined(self: kept_panes.KeptPanes, rows: Any) -> Any:
        pieces.append(len(rows))
        return original(self, rows)

    monkeypatch.setattr(kept_panes.KeptPanes, "combined", combined)
    held = []
    for start in range(0, 200_000, 10_000):
        one.add(np.arange(start, start + 10_000), np.full(10_000, 5))
        one.add(np.arange(0, 10_000), np.full(10_000, 6), value=2)
        state = panes_of(one)
        memory = [s.kept.holding.size_bytes for s in state._store.between(0, 10) if s.kept.holding.path is None]
        held.append(state.head.size_bytes + sum(memory))
    assert max(held) <= 2 << 20
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.arrow")) > 4 << 20
    one.operator.watermark(END_US, one.out.append)
    out = pl.concat([pl.DataFrame(batch) for batch in one.out])
    assert len(pieces) > 10 and max(pieces) <= 15_000
    assert len(out) == 200_000 and out["total"].sum() == 200_000 + 2 * 200_000
    assert out.filter(pl.col("key") == 3)["n"].to_list() == [21]
    state = panes_of(one)
    assert not len(state._store)
    for _ in range(len(list(tmp_path.rglob("*.arrow")))):
        state._store.relax()
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize("place", ["heap", "disk"])
@pytest.mark.parametrize("seed", seeds(10))
def test_what_a_checkpoint_and_a_savepoint_show_is_one_row_for_each_key_in_a_pane(
    seed: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    small_pieces(dice, monkeypatch)
    windows = AlignedWindows(30, 10)
    one = One(windows, place=on_disk(str(tmp_path), "20KB") if place == "disk" else None, lateness_us=10)
    expected: dict[tuple[int, int], list[Any]] = {}
    time_us = 0
    for number in range(1, 60):
        pairs = [(dice.randrange(20), time_us + dice.randrange(60)) for _ in range(dice.choice([1, 30]))]
        one.add([key for key, _ in pairs], [time for _, time in pairs], value=number)
        for key, time in pairs:
            held = expected.setdefault((time - time % 10, key), [0, 0, ""])
            held[:] = [held[0] + 1, held[1] + number, str(one.number)]
        if dice.random() < 0.3:
            time_us += dice.choice([5, 20])
            one.operator.watermark(time_us, one.out.append)
            expected = {
                (pane, key): held for (pane, key), held in expected.items() if windows.last_end(pane) + 10 > time_us
            }
        if dice.random() < 0.3:
            one.operator.flush(one.out.append)
            whole = one.operator.freeze()
            frozen = whole.states[STATE]
            one.number += 1
            one.files.prefix = f"{number}-"
            part = frozen.write(one.files)
            assert shown(list(frozen.tables())) == expected
            assert shown(one.files.tables(part, GROUPS)) == expected
            frozen.confirmed(part)
            if dice.random() < 0.3:
                found = RestoredParts([RestoredPart(part, GROUPS, one.files)], GROUPS)
                restored = Restored([RestoredInline(0, 1, whole.inline)], {STATE: found})
                again = on_disk(str(tmp_path), "20KB") if place == "disk" else None
                one.operator = WindowAggregate(one.operator._spec.of, 10, late="late").make()  # type: ignore[attr-defined]
                one.operator.open(context(place=again), restored)
                one.operator.watermark(time_us, lambda batch: None)


def shown(tables: Sequence[pa.Table]) -> dict[tuple[int, int], list[Any]]:
    found: dict[tuple[int, int], list[Any]] = {}
    for table in tables:
        for row in table.to_pylist():
            assert (row["__pane"], row["key"]) not in found
            found[(row["__pane"], row["key"])] = [row["n#0"], row["total#0"], row["text#0"]]
    return found


def test_a_pane_that_is_gone_does_not_come_back_with_the_segment_that_it_shared() -> None:
    one = One(AlignedWindows(10, 10))
    one.add([1, 1], [5, 15])
    one.checkpoint()
    one.operator.watermark(10, one.out.append)
    part, _ = one.checkpoint()
    restored = Restored(states={STATE: RestoredParts([RestoredPart(part, GROUPS, one.files)], GROUPS)})
    again = One(AlignedWindows(10, 10), restored=restored)
    again.operator.watermark(END_US, again.out.append)
    assert [(row["key"], row["n"]) for row in again.rows()] == [(1, 1)]
    assert [row["window_start"].microsecond for row in again.rows()] == [10]


def test_a_pane_that_goes_takes_none_with_it_that_a_snapshot_is_still_writing() -> None:
    """They share a bucket: of the earlier one it has a segment, of the later one it will have one."""
    one = One(AlignedWindows(10, 10), lateness_us=5)
    one.add([1], [5])
    one.checkpoint()
    one.operator.watermark(10, one.out.append)
    one.add([1], [15])
    frozen = one.operator.freeze().states[STATE]
    one.operator.watermark(15, one.out.append)
    after = one.operator.freeze().states[STATE]
    one.operator.watermark(END_US, one.out.append)
    assert [(row["window_start"].microsecond, row["n"]) for row in one.rows()] == [(0, 1), (10, 1)]
    assert states.table_of(frozen).column("__pane").to_pylist() == [0, 10]
    assert states.table_of(after).column("__pane").to_pylist() == [10]


def test_behind_a_drain_a_pane_that_was_gone_may_come_again() -> None:
    one = One(AlignedWindows(10, 10))
    one.add([1, 1, 1], [5, 15, 25])
    one.checkpoint()
    one.operator.watermark(20, one.out.append)
    part, _ = one.checkpoint()
    restored = Restored(states={STATE: RestoredParts([RestoredPart(part, GROUPS, one.files)], GROUPS)})
    again = One(AlignedWindows(10, 10), restored=restored)
    for _ in range(6):
        again.add([1, 2], [5, 25])
        again.checkpoint()
    again.operator.watermark(END_US, again.out.append)
    found = [(row["window_start"].microsecond, row["key"], row["n"]) for row in again.rows()]
    assert found == [(0, 1, 6), (20, 1, 1), (20, 2, 6)]


@pytest.mark.parametrize("place", ["heap", "disk"])
def test_panes_that_earlier_versions_have_written_are_restored_at_any_parallelism(place: str, tmp_path: Path) -> None:
    """A file for each pane, sorted by key group."""
    one = One(AlignedWindows(20, 10))
    for number in range(3):
        one.add(np.arange(300), np.full(300, 10 * number), value=number)
    (schema, *tables) = one.operator.freeze().states[STATE].tables()
    assert not schema.num_rows
    whole = pa.concat_tables(tables)
    files = {}
    for pane in range(0, 30, 10):
        rows = whole.filter(pc.equal(whole.column("__pane"), pane)).sort_by("__key_group").combine_chunks()
        files[f"p{pane:08d}"] = one.files.put(f"p{pane:08d}", encode_table(rows), shared=True)
    out: list[pa.RecordBatch] = []
    for own in (range(40), range(40, 128)):
        found = RestoredParts([RestoredPart(StatePart(ARROW, files), GROUPS, one.files)], own)
        here = on_disk(str(tmp_path), "20KB") if place == "disk" else None
        subtask = One(AlignedWindows(20, 10), place=here, restored=Restored(states={STATE: found}))
        subtask.operator.watermark(END_US, out.append)
    counts = pl.concat([pl.DataFrame(batch) for batch in out]).group_by("window_start").agg(pl.len(), pl.sum("total"))
    assert counts.sort("window_start").select("len", "total").rows() == [(300, 0), (300, 300), (300, 900), (300, 600)]


@pytest.mark.parametrize("seals", [False, True], ids=["head", "segments"])
def test_of_late_rows_only_the_windows_of_their_keys_come_out_again(seals: bool) -> None:
    one = One(AlignedWindows(20, 10), lateness_us=100)
    one.add([1, 2, 3, 1, 2, 3], [5, 5, 5, 15, 15, 15])
    if seals:
        one.checkpoint()
    one.operator.watermark(50, one.out.append)
    one.out.clear()
    one.add([1, 2], [5, 15], value=7)
    one.operator.flush(one.out.append)
    found = [((row["window_end"] - EPOCH) // MICROSECOND, row["key"], row["total"]) for row in one.rows()]
    assert found == [(10, 1, 8), (20, 1, 9), (20, 2, 9), (30, 2, 8)]
