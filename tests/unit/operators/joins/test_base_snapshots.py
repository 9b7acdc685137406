"""Snapshots of joins: restored at any parallelism they go on as uninterrupted ones, and write old rows only once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, split_by_owner
from tests.unit.operators.running import context, on_disk
from weir.errors import CheckpointError
from weir.operators.base import Frozen, Operator, OperatorSpec, Restored, RestoredInline
from weir.operators.joins.as_of import AsOfJoin
from weir.operators.joins.base import BufferedJoin
from weir.operators.joins.co_group import CoGroup
from weir.operators.joins.interval import IntervalJoin
from weir.operators.joins.output import JoinLayout
from weir.operators.joins.side import JoinSide
from weir.operators.joins.window import WindowJoin, window_fields
from weir.operators.windows.event_time import AlignedWindows
from weir.snapshot.parts import StatePart
from weir.snapshot.watermarks import END_US
from weir.state.columns.segments import merging, store
from weir.state.frozen import RestoredPart, RestoredParts

SECOND_US = 1_000_000
TIME = ("ts", pa.timestamp("us"))
LEFT = JoinSide("left", pa.schema([("value", pa.int64()), ("key", pa.string()), TIME]), ("key",), "ts")
RIGHT = JoinSide("right", pa.schema([("id", pa.string()), ("price", pa.int64()), TIME]), ("id",), "ts")


def counted(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"left": [left["value"].sum()], "right": [right["price"].sum()]})


def interval(how: Any) -> OperatorSpec:
    own = [pa.field("join_time", pa.timestamp("us"))]
    return IntervalJoin(JoinLayout(LEFT, RIGHT, how=how, own=own), -2 * SECOND_US, 5 * SECOND_US)


def window(how: Any) -> OperatorSpec:
    layout = JoinLayout(LEFT, RIGHT, how=how, own=window_fields(LEFT))
    return WindowJoin(layout, AlignedWindows(8 * SECOND_US, 4 * SECOND_US))


SPECS = {
    "interval": interval("inner"),
    "interval, full": interval("full"),
    "window, full": window("full"),
    "co_group": CoGroup(LEFT, RIGHT, AlignedWindows(8 * SECOND_US, 8 * SECOND_US), counted, "left long, right long"),
    "as_of": AsOfJoin(JoinLayout(LEFT, RIGHT, how="left")),
}


def batch_of(port: int, dice: random.Random, now_s: float, count: int) -> pa.RecordBatch:
    numbers = pa.array([dice.randrange(1 << 30) for _ in range(count)])
    keys = pa.array([dice.choice([None, *"abcdefghijklmnop"]) for _ in range(count)], pa.string())
    times = pa.array([round((now_s + dice.random()) * SECOND_US) for _ in range(count)], pa.timestamp("us"))
    columns = [numbers, keys, times] if port == 0 else [keys, numbers, times]
    return pa.RecordBatch.from_arrays(columns, schema=(LEFT if port == 0 else RIGHT).schema)


class Subtasks:
    """All subtasks of a join, as the engine would run them."""

    def __init__(
        self,
        spec: OperatorSpec,
        parallelism: int,
        before: tuple[Subtasks, Sequence[Frozen]] | None = None,
        directory: Path | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """`directory`: where the state lies, with hardly any memory; None: on heap. `shelf`: where its files lie."""
        spec.schema([LEFT.schema, RIGHT.schema])
        self.spec, self.parallelism = spec, parallelism
        self.out: list[pa.RecordBatch] = [] if before is None else before[0].out
        self.operators: list[Operator] = []
        shelf = shelf or Shelf()
        parts = [] if before is None else [self._written(shelf, i, frozen) for i, frozen in enumerate(before[1])]
        for index in range(parallelism):
            place = None if directory is None else on_disk(str(directory))
            operator, here = spec.make(), context(index, parallelism, place=place)
            restored = None
            if before is not None:
                inline = [RestoredInline(i, len(parts), frozen.inline) for i, frozen in enumerate(before[1])]
                old = [context(i, len(parts)).key_groups for i in range(len(parts))]
                states = {
                    name: RestoredParts(
                        [
                            RestoredPart(part[name], groups, shelf)
                            for part, groups in zip(parts, old, strict=True)
                            if groups.start < here.key_groups.stop and here.key_groups.start < groups.stop
                        ],
                        here.key_groups,
                    )
                    for name in spec.states
                }
                restored = Restored(inline, states)
            operator.open(here, restored)
            self.operators.append(operator)

    def _written(self, shelf: Shelf, index: int, frozen: Frozen) -> dict[str, StatePart]:
        parts = {}
        for name, state in frozen.states.items():
            shelf.prefix = f"{index}-{name}-"
            parts[name] = state.write(shelf)
        return parts

    def process(self, port: int, batch: pa.RecordBatch) -> None:
        keys = (LEFT if port == 0 else RIGHT).keys
        for owner, part in split_by_owner(batch, keys, parallelism=self.parallelism, max_parallelism=128):
            self.operators[owner].process_from(port, part, self.out.append)

    def watermark(self, time_us: int) -> None:
        for operator in self.operators:
            operator.flush(self.out.append)
            operator.watermark(time_us, self.out.append)

    def freeze(self) -> list[Frozen]:
        for operator in self.operators:
            operator.flush(self.out.append)
        return [operator.freeze() for operator in self.operators]


def outcome(
    spec: OperatorSpec, seed: int, parallelisms: Sequence[int | None], directory: Path | None = None
) -> list[str]:
    """What comes out, sorted, if the join is restored with each parallelism in turn; None: it just goes on."""
    dice, now_s = random.Random(seed), 0.0
    subtasks = Subtasks(spec, parallelisms[0] or 1, directory=directory)
    for parallelism in [*parallelisms[1:], None]:
        for _ in range(20):
            now_s += 0.5
            port = dice.randrange(2)
            subtasks.process(port, batch_of(port, dice, now_s, dice.randrange(1, 30)))
            if dice.random() < 0.5:
                subtasks.watermark(round((now_s - 1) * SECOND_US))
        if parallelism is not None:
            subtasks = Subtasks(spec, parallelism, (subtasks, subtasks.freeze()), directory)
    subtasks.watermark(END_US)
    assert all(operator.rows_late == 0 for operator in subtasks.operators)
    return sorted(str(row) for batch in subtasks.out for row in batch.to_pylist())


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", seeds(3))
def test_restored_at_another_parallelism_a_join_goes_on_as_if_uninterrupted(name: str, seed: int) -> None:
    expected = outcome(SPECS[name], seed, [1, None, None, None])
    assert outcome(SPECS[name], seed, [2, 3, 1, 2]) == expected
    assert len(expected) > 80


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_join_whose_rows_lie_on_disk_is_the_same(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "AT_ONCE_ROWS_MAX", 60)
    monkeypatch.setattr(store, "STEP_ROWS", 20)
    monkeypatch.setattr(merging, "SEGMENT_BYTES_MAX", 1_000)
    expected = outcome(SPECS[name], seed, [1, None, None, None])
    for parallelisms in ([2, 2, 2, 2], [2, 3, 1, 2], [1, None, 1, 1]):
        assert outcome(SPECS[name], seed, parallelisms, tmp_path) == expected


@pytest.mark.parametrize("name", ["interval", "window, full", "as_of"])
def test_what_a_completed_checkpoint_holds_is_not_written_again(name: str) -> None:
    subtasks, shelf, dice = Subtasks(SPECS[name], 1), Shelf(), random.Random(1)
    sizes = []
    for checkpoint in range(2):
        for port in (0, 1):
            subtasks.process(port, batch_of(port, dice, checkpoint, 3_000 if checkpoint == 0 else 30))
        (frozen,) = subtasks.freeze()
        before = shelf.put_bytes
        for state, part in frozen.states.items():
            shelf.prefix = f"{checkpoint}-{state}-"
            written = part.write(shelf)
            part.confirmed(written)
            assert sum(table.num_rows for table in shelf.tables(written)) == sum(t.num_rows for t in part.tables())
        sizes.append(shelf.put_bytes - before)
    assert sizes[1] * 10 < sizes[0]


def one_row(port: int, second: int) -> pa.RecordBatch:
    time = pa.array([second * SECOND_US], pa.int64()).view(pa.timestamp("us"))
    columns = [pa.array([second]), pa.array(["a"]), time] if port == 0 else [pa.array(["a"]), pa.array([second]), time]
    return pa.RecordBatch.from_arrays(columns, schema=(LEFT if port == 0 else RIGHT).schema)


def test_a_row_that_found_its_partner_after_one_snapshot_is_known_for_it_in_the_next() -> None:
    subtasks, shelf = Subtasks(SPECS["interval, full"], 1), Shelf()
    subtasks.process(0, one_row(0, 1))
    for state, part in subtasks.freeze()[0].states.items():
        shelf.prefix = state
        part.confirmed(part.write(shelf))
    subtasks.process(1, one_row(1, 2))
    subtasks = Subtasks(SPECS["interval, full"], 1, (subtasks, subtasks.freeze()), shelf=shelf)
    subtasks.watermark(END_US)
    assert [(row["value"], row["price"]) for batch in subtasks.out for row in batch.to_pylist()] == [(1, 2)]


@pytest.mark.parametrize("name", ["interval", "interval, full", "window, full"])
def test_keys_with_the_same_hash_are_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcome(SPECS[name], 1, [1])
    monkeypatch.setattr(JoinSide, "hashes", lambda self, batch: np.zeros(batch.num_rows, np.uint64))
    assert outcome(SPECS[name], 1, [1]) == expected


@pytest.mark.parametrize("name", ["interval", "interval, full", "window, full"])
def test_rows_are_gone_once_nobody_needs_them(name: str) -> None:
    subtasks, dice = Subtasks(SPECS[name], 1), random.Random(1)
    (join,) = subtasks.operators
    assert isinstance(join, BufferedJoin)
    kept = []
    for step in range(200):
        for port in (0, 1):
            subtasks.process(port, batch_of(port, dice, step * 0.5, 20))
        subtasks.watermark(round(step * 0.5 * SECOND_US))
        kept.append(sum(len(half.panes.store) for half in join._halves))
    assert max(kept[100:]) < 1.2 * max(kept[:100])
    subtasks.watermark(END_US)
    assert sum(len(half.panes.store) for half in join._halves) == 0


def test_a_state_of_other_columns_is_refused_with_their_names() -> None:
    spec = SPECS["interval"]
    assert spec.verdict("left", LEFT.stored) == "same"
    changed = LEFT.stored.set(2, pa.field("value", pa.string()))
    assert "'value' as string in the checkpoint and as int64 in the job" in spec.verdict("left", changed)
    subtasks = Subtasks(SPECS["interval"], 1)
    subtasks.process(0, batch_of(0, random.Random(1), 1.0, 10))
    with pytest.raises(CheckpointError, match="does not fit: the rows that wait to be joined"):
        Subtasks(SPECS["interval, full"], 1, (subtasks, subtasks.freeze()))


def test_hot_keys_of_a_long_interval_are_found_by_time_to_the_microsecond() -> None:
    """A pane of more than 2**32 microseconds: the order of a run has no room for all bits of the time."""
    day_us = 86_400 * SECOND_US
    own = [pa.field("join_time", pa.timestamp("us"))]
    subtasks = Subtasks(IntervalJoin(JoinLayout(LEFT, RIGHT, own=own), -day_us, day_us), 1)
    for port, times in ((0, [10 * day_us]), (1, [9 * day_us - 1, 9 * day_us, 11 * day_us, 11 * day_us + 1])):
        stamps = pa.array(np.array(times)).view(pa.timestamp("us"))
        numbers, keys = pa.array(range(len(times))), pa.array(["a"] * len(times))
        columns = [numbers, keys, stamps] if port == 0 else [keys, numbers, stamps]
        subtasks.process(port, pa.RecordBatch.from_arrays(columns, schema=(LEFT if port == 0 else RIGHT).schema))
    subtasks.watermark(END_US)
    assert sorted(row["price"] for batch in subtasks.out for row in batch.to_pylist()) == [1, 2]
