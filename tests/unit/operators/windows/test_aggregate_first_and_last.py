"""First and last are those that arrived first and last, wherever snapshots fall and whatever is merged and restored."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.seeds import seeds
from tests.states import split_by_owner
from tests.unit.operators.running import context
from tests.unit.operators.windows.subtasks import SCHEMA, Result, Row, Subtasks, batch_of, best_of
from tests.unit.operators.windows.test_aggregate import rows_of
from tests.unit.operators.windows.test_kept_panes import small_pieces
from weir import connectors as io
from weir.operators.aggregates import numbering
from weir.operators.aggregates.chosen import Chosen, NumberedChosen
from weir.operators.base import Restored, RestoredInline
from weir.operators.windows import panes
from weir.operators.windows.aggregate import PartialWindowAggregate, WindowAggregate
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import AlignedWindows, SessionWindows, TimeWindows
from weir.operators.windows.sessions.aggregate import SessionAggregate
from weir.snapshot.parts import Progress
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments.grouping import by_rules
from weir.state.columns.segments.rows import SortedRows
from weir.testing import run_local

KEYS = [None, "a", "b", "c"]
NAMED: list[Row] = [(key, 0, 0) for key in "abcdefgh"]
ENDS = {
    "n": weir.count(),
    "first": weir.first("value"),
    "last": weir.last("value"),
    "first_text": weir.first(pl.col("value").cast(pl.String)),
    "last_text": weir.last(pl.col("value").cast(pl.String)),
    "best": weir.top(2, by="key", columns=["value"]),  # all are equal: those that came first
}
TUMBLING, SLIDING, UNEVEN = AlignedWindows(30, 30), AlignedWindows(30, 10), AlignedWindows(25, 10)


def spec_of(windows: TimeWindows, *, lateness_us: int = 0, late: str | None = None) -> WindowAggregate:
    return WindowAggregate(WindowDefinition(windows, ["key"], ENDS, SCHEMA, "ts"), lateness_us, late)


class Model:
    """Every window of every key as a list of its values, as they arrived."""

    def __init__(self, windows: TimeWindows, lateness_us: int) -> None:
        self._windows, self._lateness_us = windows, lateness_us
        self._watermark_us = -(1 << 62)
        self._values: dict[tuple[str | None, int, int], list[int | None]] = defaultdict(list)
        self._changed: set[tuple[str | None, int, int]] = set()

    def process(self, rows: list[Row]) -> None:
        for key, value, time_us in rows:
            for start_us, end_us in self._windows.windows(self._windows.pane_of(time_us)):
                if end_us + self._lateness_us > self._watermark_us:
                    self._values[key, start_us, end_us].append(value)
                    if end_us <= self._watermark_us:
                        self._changed.add((key, start_us, end_us))

    def flush(self) -> list[Result]:
        changed, self._changed = self._changed, set()
        return [self._result(window) for window in changed]

    def watermark(self, time_us: int) -> list[Result]:
        before_us, self._watermark_us = self._watermark_us, max(self._watermark_us, time_us)
        return [self._result(window) for window in self._values if before_us < window[2] <= self._watermark_us]

    def _result(self, window: tuple[str | None, int, int]) -> Result:
        values = self._values[window]
        texts = [None if value is None else str(value) for value in values]
        return (*window, len(values), values[0], values[-1], texts[0], texts[-1], best_of(values))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[random.Random], None]:
    """Everything that happens to many rows happens to few."""

    def shrink(dice: random.Random) -> None:
        small_pieces(dice, monkeypatch)
        monkeypatch.setattr(numbering, "BATCH_ROWS_MAX", dice.choice([2, 65_536]))

    return shrink


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["heap", "disk"])
@pytest.mark.parametrize("lateness_us", [0, 40])
@pytest.mark.parametrize("windows", [TUMBLING, SLIDING, UNEVEN], ids=["tumbling", "sliding", "uneven"])
@pytest.mark.parametrize("seed", seeds(3))
def test_of_a_window_they_are_the_same_wherever_snapshots_and_restores_fall(
    seed: int,
    windows: TimeWindows,
    lateness_us: int,
    is_on_disk: bool,
    small: Callable[[random.Random], None],
    tmp_path: Path,
) -> None:
    dice = random.Random(seed)
    small(dice)
    spec, model = (
        spec_of(windows, lateness_us=lateness_us, late=dice.choice([None, "late"])),
        Model(windows, lateness_us),
    )
    subtasks = Subtasks(spec, 1, directory=tmp_path if is_on_disk else None)
    now_us, number, count, frozen = 1_000, 0, 0, []
    for _ in range(90):
        now_us += dice.choice([0, 1, 2, 8])
        what = dice.random()
        if what < 0.6:
            values = [dice.choice([number + i, number + i, None]) for i in range(dice.randint(1, 25))]
            rows = [(dice.choice(KEYS), value, now_us - dice.randrange(60)) for value in values]
            number += len(rows)
            model.process(rows)
            assert not subtasks.process(rows)
            continue
        assert Counter(subtasks.flush()) == Counter(model.flush())
        if what < 0.75:
            expected = model.watermark(now_us - dice.randrange(40))
            count += len(expected)
            assert Counter(subtasks.watermark(model._watermark_us)) == Counter(expected)
        elif what < 0.92:
            frozen += enumerate(subtasks.freeze())
        else:
            subtasks, frozen = Subtasks(spec, dice.randint(1, 3), directory=subtasks.directory, before=subtasks), []
        if frozen and dice.random() < 0.4:  # the thread that writes snapshots has come so far
            index, part = frozen.pop(0)
            part.states[subtasks.state].confirmed(subtasks.written(index, part))
    assert Counter(subtasks.flush()) == Counter(model.flush())
    assert Counter(subtasks.watermark(END_US)) == Counter(model.watermark(END_US))
    assert count > 10


def test_a_pane_that_has_become_large_elsewhere_keeps_its_first_rows_first_when_subtasks_become_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One subtask has the pane in a bucket of its own only, the other had some of it in one that is shared before."""
    monkeypatch.setattr(panes, "OWN_ROWS_MIN", 2)
    subtasks = Subtasks(spec_of(TUMBLING, late="late"), 2, directory=None)
    owned = {owner: part.column("key")[0].as_py() for owner, part in split_by_owner(batch_of(NAMED), ["key"], 2, 128)}
    subtasks.process([(owned[1], 0, 5)])
    subtasks.freeze()
    subtasks.process([(owned[owner], value, 5) for owner in (0, 1) for value in (1, 2)])
    together = Subtasks(subtasks.spec, 1, directory=None, before=subtasks)
    found = {key: values[:3] for key, _, _, *values in together.watermark(END_US)}
    assert found == {owned[0]: [2, 1, 2], owned[1]: [3, 0, 2]}


@pytest.mark.parametrize("late", [None, "late"])
@pytest.mark.parametrize("windows", [SLIDING, SessionWindows(30)], ids=["sliding", "session"])
@pytest.mark.parametrize("snapshots", [(), (0, 1, 2, 3), (1,), (0, 2)])
def test_a_row_that_comes_late_is_the_last_and_never_the_first(
    snapshots: tuple[int, ...], windows: Any, late: str | None
) -> None:
    kind = SessionAggregate if isinstance(windows, SessionWindows) else WindowAggregate
    subtasks = Subtasks(kind(WindowDefinition(windows, ["key"], ENDS, SCHEMA, "ts"), 0, late), 1, directory=None)
    for number, time_us in enumerate([25, 12, 28, 3, 17]):
        subtasks.process([("a", number, time_us)])
        if number in snapshots:
            subtasks = Subtasks(subtasks.spec, 1, directory=None, before=subtasks)
    found = {start: values for _, start, _, *values in subtasks.watermark(END_US)}
    whole = found[0] if windows is SLIDING else found[3]
    assert whole == [5, 0, 4, "0", "4", best_of([0, 1])]


@pytest.mark.parametrize("batch_rows", [1, 3, 1_000])
def test_rows_of_a_key_that_are_sent_together_keep_their_order(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "BATCH_ROWS_MAX", batch_rows)
    spec = spec_of(AlignedWindows(100, 10))
    half = PartialWindowAggregate(spec.of).make()
    half.open(context(), None)
    dice, found = random.Random(1), []
    rows: list[Row] = [(dice.choice("abcdefgh"), number, dice.randrange(100)) for number in range(500)]
    for start in range(0, 500, 50):
        half.process(batch_of(rows[start : start + 50]), found.append)
    half.flush(found.append)
    keys = [set(batch.column("key").to_pylist()) for batch in found]
    assert sum(map(len, keys)) == 8
    assert len(found) == {1: 8, 3: 8, 1_000: 1}[batch_rows]
    operator, out = spec.make(), []
    operator.open(context(), None)
    for batch in found:
        operator.process(batch, out.append)
    operator.watermark(END_US, out.append)
    results = {row["key"]: row for batch in out for row in batch.to_pylist() if row["n"] and row["first"] < 20}
    for key, row in results.items():
        start = pa.scalar(row["window_start"], pa.timestamp("us")).value
        values = [value for k, value, time_us in rows if k == key and start <= time_us < start + 100]
        assert (row["n"], row["first"], row["last"]) == (len(values), values[0], values[-1])


@pytest.mark.parametrize("windows", [SLIDING, SessionWindows(30)], ids=["sliding", "session"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_was_written_without_numbers_counts_by_time_and_before_what_comes_now(
    parallelism: int, windows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = SessionAggregate if isinstance(windows, SessionWindows) else WindowAggregate
    definition = WindowDefinition(windows, ["key"], ENDS, SCHEMA, "ts")
    with monkeypatch.context() as patch:
        patch.setattr(WindowDefinition, "_mixes_order", False)
        before = Subtasks(kind(definition, 0, "late"), 1, directory=None)
        assert "last#1" not in before.spec.stored.names
    for number, time_us in enumerate([25, 11]):
        before.process([("a", number, time_us)])
        before.freeze()
    spec = kind(WindowDefinition(windows, ["key"], ENDS, SCHEMA, "ts"), 0, "late")
    assert spec.verdict(before.state, before.spec.stored) == "evolved"
    after = Subtasks(spec, parallelism, directory=None, before=before)
    after.process([("a", 7, 1)])
    found = {start: values for _, start, _, *values in after.watermark(END_US)}
    assert (found[0] if windows is SLIDING else found[1]) == [3, 1, 7, "1", "7", best_of([1, 0])]


def test_numbers_go_on_above_those_of_all_subtasks_before() -> None:
    layout = spec_of(SLIDING).of.layout
    inline = [RestoredInline(i, 3, Progress(0, rows_numbered=numbered)) for i, numbered in enumerate([5, 90, 7])]
    numbers = numbering.RowNumbers(layout, Restored(inline, {}))
    batch = numbers.of_rows(batch_of([("a", 1, 1), ("b", 2, 2)]))
    assert batch.column("__arrival").to_pylist() == [90, 91] and numbers.numbered == 92


def test_where_nobody_asks_nothing_is_numbered() -> None:
    for windows, aggregates in [(TUMBLING, ENDS), (SLIDING, {"n": weir.count(), "low": weir.min("value")})]:
        layout = WindowDefinition(windows, ["key"], aggregates, SCHEMA, "ts").layout
        assert not layout.arrivals and not any("#1" in name for name in layout.combined.names)
        batch = batch_of([("a", 1, 1)])
        assert numbering.RowNumbers(layout).of_rows(batch) is batch
        assert numbering.RowNumbers(layout).of_accumulators(batch) is batch
    schema = pa.schema([("x", pa.int64())])
    assert type(weir.first("x")) is Chosen and len(weir.first("x").accumulators(schema)) == 1


@pytest.mark.parametrize("rule", ["first", "last"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.int64())], ids=str)
@pytest.mark.parametrize("seed", seeds(5))
def test_whoever_reads_a_checkpoint_chooses_as_the_operator_does(seed: int, kind: pa.DataType, rule: Any) -> None:
    dice = np.random.default_rng(seed)
    count, groups = 200, 20
    slots, numbers = np.sort(dice.integers(0, groups, count)), dice.permutation(count)
    values = pa.array([[n] for n in numbers]) if pa.types.is_list(kind) else pa.array(numbers).cast(kind)
    values = pa.array([None if n % 7 == 0 else v for n, v in zip(numbers, values.to_pylist())], kind)
    kernel = NumberedChosen("x", rule).kernel(pa.schema([("x", kind)]), "x")
    for rows in np.array_split(dice.permutation(count), 7):
        kernel.merge(np.arange(groups), [pa.nulls(groups, kind), far(rule, groups)], count=groups)
        kernel.merge(slots[rows], [values.take(pa.array(rows)), pa.array(numbers[rows])], count=groups)
    present = np.unique(slots)
    chosen, of = kernel.read(present)
    best = [(min if rule == "first" else max)(numbers[slots == slot]) for slot in present]
    assert of.to_pylist() == best
    batch = pa.record_batch([pa.array(slots), values, pa.array(numbers)], ["key", "x#0", "x#1"])
    rules = dict(zip(["x#0", "x#1"], kernel.rules or [], strict=True))
    found = by_rules(rules)(SortedRows(slots.astype(np.uint64), np.zeros(count, np.int64), batch)).batch
    assert found.column("x#0").to_pylist() == chosen.to_pylist()
    assert found.column("x#1").to_pylist() == best


def far(rule: str, count: int) -> pa.Array:
    """Numbers that count for less than any other."""
    return pa.array(np.full(count, 1 << 40 if rule == "first" else -1))


@pytest.mark.parametrize("backend", ["heap", "1KB"])
@pytest.mark.parametrize("windows", [weir.sliding("6s", "2s"), weir.session("3s")], ids=["sliding", "session"])
@pytest.mark.parametrize("seed", seeds(4))
def test_a_job_that_crashes_gives_those_that_arrived_first_and_last(
    seed: int, windows: Any, backend: str, small: Callable[[random.Random], None]
) -> None:
    dice = random.Random(seed)
    small(dice)
    rows = rows_of(seed).with_columns(value=pl.int_range(pl.len()))
    place = "heap" if backend == "heap" else weir.RocksDb(memory_max=backend)
    settings = weir.Settings(batch_rows_max=dice.choice([1, 7, 64]), watermark_interval="1ms")
    env = weir.Environment(parallelism=dice.randint(1, 3), settings=settings, backend=place)
    watermark = weir.bounded_disorder("ts", "3s")
    stream = env.from_collection(rows, watermark=watermark, uid="rows", parallelism=1)
    results = stream.key_by("key").window(windows, late="late" if seed % 2 else None).agg(ENDS, uid="window")
    results.write(io.Discard(), uid="out")
    crashes = tuple(dice.sample(range(5, 120), 3))
    found = pl.DataFrame(run_local(env, seed=seed, crash_at=crashes, checkpoint_every=4)["out"])
    assert len(found) > 10
    for row in found.iter_rows(named=True):
        inside = pl.col("key").eq_missing(pl.lit(row["key"], pl.Int64))
        inside &= (pl.col("ts") >= row["window_start"]) & (pl.col("ts") < row["window_end"])
        values = rows.filter(inside)["value"].to_list()
        assert (row["n"], row["first"], row["last"]) == (len(values), values[0], values[-1])
        assert (row["first_text"], row["last_text"]) == (str(values[0]), str(values[-1]))
        assert row["best"] == [{"value": value} for value in values[:2]]
