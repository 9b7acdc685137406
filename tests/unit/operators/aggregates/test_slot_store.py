"""Columnar state that spills to a database: the same answers as in memory, whatever fits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, table_of
from tests.unit.operators.running import context
from weir.config import RocksDb
from weir.operators.aggregates import named as of
from weir.operators.aggregates import slot_store
from weir.operators.aggregates.running import STATE, RunningAggregate
from weir.operators.base import OperatorContext, OperatorSpec, Restored
from weir.operators.batches.keyed import KeyedBatches
from weir.state.declared.kinds import ValueState
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace

SCHEMA = pa.schema([("key", pa.string()), ("part", pa.int32()), ("value", pa.int64()), ("word", pa.string())])
AGGREGATES = {
    "n": of.count(),
    "total": of.sum("value"),
    "least": of.min("value"),
    "mean": of.avg("value"),
    "first": of.first("word"),
    "last": of.last("value"),
}


def words(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """Keeps a text by key; forgets it when it gets long."""
    added = rows.group_by("key_row").agg(pl.col("word").first().fill_null("-")).sort("key_row")["word"]
    text = state["text"].fill_null("") + added
    new = pl.DataFrame({"text": text}).select(pl.when(pl.col("text").str.len_bytes() < 9).then(pl.col("text")))
    return state.select("key", "part", text=text), new


def aggregate(*, combined: bool = False) -> OperatorSpec:
    return RunningAggregate(["key", "part"], AGGREGATES, SCHEMA, combined=combined)


def batches() -> OperatorSpec:
    spec = KeyedBatches(
        ["key", "part"], words, "key string, part int, text string", state={"text": ValueState("string")}
    )
    spec.schema([SCHEMA])
    return spec


def random_batch(dice: random.Random) -> pa.RecordBatch:
    count = dice.randrange(1, 20)
    columns = {
        "key": [dice.choice([None, *"abcdefgh"]) for _ in range(count)],
        "part": [dice.choice([None, 1, 2]) for _ in range(count)],
        "value": [dice.choice([None, dice.randrange(-50, 50)]) for _ in range(count)],
        "word": [dice.choice([None, "x", "yes", ""]) for _ in range(count)],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def run(operator: Any, batch: pa.RecordBatch) -> set[str]:
    emitted: list[pa.RecordBatch] = []
    operator.process(batch, emitted.append)
    operator.flush(emitted.append)
    return {str(row) for out in emitted for row in out.to_pylist()}


def on_disk(directory: Path) -> OperatorContext:
    return replace(context(), place=StatePlace(RocksDb("4MB"), str(directory)))


@pytest.mark.parametrize("make", [aggregate, batches])
@pytest.mark.parametrize("seed", seeds(6))
def test_what_spills_comes_back_and_gives_the_same_answers_as_in_memory(
    make: Any, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(slot_store, "BYTES_PER_SLOT", 1 << 40)
    monkeypatch.setattr(slot_store, "SLOTS_MAX_LEAST", dice.choice([0, 3, 10]))
    monkeypatch.setattr(slot_store, "DIRTY_SLOTS_MAX", dice.choice([1, 4, 1_000]))
    spec, shelf = make(), Shelf()
    memory, disk = spec.make(), spec.make()
    memory.open(context(), None)
    disk.open(on_disk(tmp_path / "0"), None)
    name = spec.states[0]
    for step in range(80):
        batch = random_batch(dice)
        assert run(disk, batch) == run(memory, batch)
        if dice.random() < 0.2:
            frozen, other = disk.freeze().states[name], memory.freeze().states[name]
            run_later = random_batch(dice)
            answers = run(disk, run_later), run(memory, run_later)
            assert answers[0] == answers[1]
            assert sorted_rows(table_of(frozen)) == sorted_rows(table_of(other))
            shelf.prefix = f"{step}-"
            part = frozen.write(shelf)
            frozen.released()
            other.released()
            if dice.random() < 0.7:
                frozen.confirmed(part)
            if dice.random() < 0.5:
                disk.close()
                memory, disk = spec.make(), spec.make()
                own = context().key_groups
                state = Restored(states={name: RestoredParts([RestoredPart(part, own, shelf)], own)})
                memory.open(context(), state)
                disk.open(on_disk(tmp_path / str(step)), state)
    disk.close()


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def test_only_a_bounded_number_of_keys_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_store, "BYTES_PER_SLOT", 1 << 40)
    monkeypatch.setattr(slot_store, "SLOTS_MAX_LEAST", 100)
    operator: Any = aggregate().make()
    operator.open(on_disk(tmp_path), None)
    for start in range(0, 5_000, 50):
        keys = [f"key {i}" for i in range(start, start + 50)]
        batch = pa.RecordBatch.from_pydict(
            {"key": keys, "part": [1] * 50, "value": [1] * 50, "word": ["x"] * 50}, schema=SCHEMA
        )
        run(operator, batch)
        assert len(operator._state) <= 150
    assert table_of(operator.freeze().states[STATE]).num_rows == 5_000
    operator.close()
