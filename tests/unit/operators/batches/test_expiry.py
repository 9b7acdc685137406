"""Values of batch functions that expire, against the same in plain Python."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, as_restored, table_of
from tests.unit.operators.running import context
from weir.config import Heap, RocksDb
from weir.operators.aggregates import slot_store
from weir.operators.base import OperatorContext, Restored
from weir.operators.batches import table as slot_table
from weir.operators.batches.keyed import STATE, KeyedBatches
from weir.state.declared.cursor import TOUCHED_COLUMN
from weir.state.declared.kinds import Ttl, ValueState
from weir.state.frozen import RestoredPart, RestoredParts
from weir.state.place import StatePlace

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
OUTPUT = "key long, total long, last long"
TOTAL_MS, LAST_MS = 100, 300


def totals(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """Two values, of which one lives longer. Where a batch sums up to an odd number, nothing is written."""
    news = rows.group_by("key_row").agg(pl.col("value").sum().alias("sum"), pl.col("value").last()).sort("key_row")
    out = state.select("key", total=state["total"] + news["sum"], last="last")
    if int(rows["value"].sum()) % 2:
        return out
    return out, state.with_columns(total=out["total"], last=news["value"])


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Model:
    """The same, one key at a time: total, last, and when they were touched."""

    def __init__(self, clock: Clock, refresh: str) -> None:
        self.clock, self.refresh = clock, refresh
        self.values: dict[int, tuple[int, int | None, int]] = {}

    def read(self, key: int) -> tuple[int, int | None] | None:
        if key not in self.values or self.values[key][2] + LAST_MS <= self.clock.now_ms:
            return None
        total, last, touched_ms = self.values[key]
        return (total if touched_ms + TOTAL_MS > self.clock.now_ms else 0), last

    def run(self, rows: list[tuple[int, int]]) -> set[tuple[Any, ...]]:
        writes, out = sum(value for _, value in rows) % 2 == 0, set()
        for key in {key for key, _ in rows}:
            own = [value for other, value in rows if other == key]
            held = self.read(key)
            total, last = held or (0, None)
            out.add((key, total + sum(own), last))
            if writes:
                self.values[key] = (total + sum(own), own[-1], self.clock.now_ms)
            elif held is not None and self.refresh == "read":
                self.values[key] = (total, last, self.clock.now_ms)
        return out

    @property
    def alive(self) -> set[int]:
        return {key for key in self.values if self.read(key) is not None}


def spec_of(refresh: Any = "write", ttl: bool = True) -> KeyedBatches:
    values = {
        "total": ValueState("long", default=0, ttl=Ttl(f"{TOTAL_MS}ms", refresh) if ttl else None),
        "last": ValueState("long", ttl=Ttl(f"{LAST_MS}ms", refresh) if ttl else None),
    }
    spec = KeyedBatches(["key"], totals, OUTPUT, state=values)
    spec.schema([SCHEMA])
    return spec


def place(kind: str, directory: Path, clock: Clock) -> OperatorContext:
    backend = Heap() if kind == "heap" else RocksDb("4MB")
    return replace(context(), place=StatePlace(backend, str(directory), now_ms=clock))


def run(operator: Any, rows: list[tuple[int, int]]) -> set[tuple[Any, ...]]:
    emitted: list[pa.RecordBatch] = []
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(2)]
    operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), emitted.append)
    return {tuple(row.values()) for batch in emitted for row in batch.to_pylist()}


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
@pytest.mark.parametrize("refresh", ["write", "read"])
@pytest.mark.parametrize("seed", seeds(4))
def test_random_batches_pauses_and_restores_give_what_plain_python_gives(
    kind: str, refresh: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, clock, shelf = random.Random(seed), Clock(), Shelf()
    monkeypatch.setattr(slot_table, "REBUILD_KEYS_MIN", dice.choice([1, 1_000]))
    monkeypatch.setattr(slot_table, "SWEPT_SLOTS_LEAST", dice.choice([1, 4_096]))
    monkeypatch.setattr(slot_store, "BYTES_PER_SLOT", 1 << 40)
    monkeypatch.setattr(slot_store, "SLOTS_MAX_LEAST", dice.choice([0, 3, 100]))
    spec, model = spec_of(refresh), Model(clock, refresh)
    operator = spec.make()
    operator.open(place(kind, tmp_path / "0", clock), None)
    for step in range(120):
        clock.now_ms += dice.choice([0, 1, 20, 60, 110, 350])
        rows = [(dice.randrange(12), dice.randrange(9)) for _ in range(dice.randrange(1, 12))]
        assert run(operator, rows) == model.run(rows)
        if dice.random() < 0.2:
            frozen = operator.freeze().states[STATE]
            assert set(table_of(frozen).column("key").to_pylist()) == model.alive, "what has expired is left out"
            shelf.prefix = f"{step}-"
            part = frozen.write(shelf)
            frozen.released()
            frozen.confirmed(part)
            if dice.random() < 0.5:
                clock.now_ms += dice.choice([0, 110])
                operator.close()
                operator = spec.make()
                own = context().key_groups
                state = Restored(states={STATE: RestoredParts([RestoredPart(part, own, shelf)], own)})
                operator.open(place(kind, tmp_path / str(step), clock), state)
    operator.close()


def test_keys_that_have_expired_are_forgotten_while_others_come(tmp_path: Path) -> None:
    clock = Clock()
    operator: Any = spec_of().make()
    operator.open(place("heap", tmp_path, clock), None)
    run(operator, [(key, 2) for key in range(1_000)])
    assert len(operator._table) == 1_000
    clock.now_ms += LAST_MS
    run(operator, [(5_000, 2)])
    assert len(operator._table) == 1


def test_keys_that_have_expired_are_swept_out_of_the_database_while_others_come(tmp_path: Path) -> None:
    clock = Clock()
    operator: Any = spec_of().make()
    operator.open(place("rocksdb", tmp_path, clock), None)
    run(operator, [(key, 2) for key in range(500)])
    operator.freeze().states[STATE].write(Shelf())
    clock.now_ms += LAST_MS
    for _ in range(500 // slot_store.SWEPT_ROWS_LEAST + 2):
        run(operator, [(5_000, 2)])
    part = operator.freeze().states[STATE].write(shelf := Shelf())
    assert [row for table in shelf.tables(part) for row in table.column("key").to_pylist()] == [5_000]
    operator.close()


def test_a_time_to_live_that_is_added_starts_with_the_restore_and_one_that_is_removed_ends_there() -> None:
    clock = Clock()
    before: Any = spec_of(ttl=False).make()
    before.open(place("heap", Path(), clock), None)
    run(before, [(1, 2)])
    tables = {STATE: list(before.freeze().states[STATE].tables())}
    assert spec_of().verdict(STATE, tables[STATE][0].schema) == "same"

    clock.now_ms += 10 * LAST_MS
    timed: Any = spec_of().make()
    timed.open(place("heap", Path(), clock), Restored(states=as_restored(tables)))
    tables = {STATE: list(timed.freeze().states[STATE].tables())}
    assert tables[STATE][0].column(TOUCHED_COLUMN).to_pylist() == [clock.now_ms]
    assert spec_of(ttl=False).verdict(STATE, tables[STATE][0].schema) == "same"
    assert spec_of(ttl=False).dropped(STATE, lambda: tables[STATE][0].schema) == ()

    clock.now_ms += 10 * LAST_MS
    after: Any = spec_of(ttl=False).make()
    after.open(place("heap", Path(), clock), Restored(states=as_restored(tables)))
    assert run(after, [(1, 3)]) == {(1, 5, 2)}
    clock.now_ms -= 10 * LAST_MS
    assert run(timed, [(1, 3)]) == {(1, 5, 2)}
    clock.now_ms += LAST_MS
    assert run(timed, [(1, 3)]) == {(1, 3, None)}
