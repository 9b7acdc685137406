"""Functions of batches with state by key, against the same in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.seeds import seeds
from tests.states import Shelf
from tests.unit.operators.running import context
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.base import Restored
from weir.operators.batches import table as slot_table
from weir.operators.batches.keyed import STATE, KeyedBatches, KeyedBatchFunction
from weir.state.declared.kinds import Ttl, ValueState
from weir.state.frozen import RestoredPart, RestoredParts

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
VALUES = {"total": ValueState("long", default=0), "names": ValueState("string")}


def totals(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """The running sum of each key, and the letters that it was made of; a key whose sum is a multiple of 7 goes."""
    added = rows.group_by("key_row").agg(pl.col("value").sum()).sort("key_row")["value"]
    sums = state["total"] + added
    named = state["names"].fill_null("") + "+" + added.cast(pl.String)
    gone = sums % 7 == 0
    new = pl.DataFrame({"total": sums, "names": named}).with_columns(pl.when(~gone).then(pl.all()))
    return state.select("key", total=sums, names=named), new


def opened(
    function: Any = totals, state: Any = VALUES, schema: str = "key string, total long, names string", **options: Any
) -> Any:
    spec = KeyedBatches(["key"], function, schema, state=state, **options)
    spec.schema([SCHEMA])
    operator = spec.make()
    operator.open(context(), None)
    return operator


def run(operator: Any, rows: Sequence[tuple[str | None, int]]) -> list[tuple[Any, ...]]:
    emitted: list[pa.RecordBatch] = []
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), emitted.append)
    return [tuple(row.values()) for batch in emitted for row in batch.to_pylist()]


class Model:
    """What `totals` does, one key at a time."""

    def __init__(self) -> None:
        self.values: dict[str | None, tuple[int, str | None]] = {}

    def run(self, rows: Sequence[tuple[str | None, int]]) -> set[tuple[Any, ...]]:
        added: dict[str | None, int] = {}
        for key, value in rows:
            added[key] = added.get(key, 0) + value
        out = set()
        for key, value in added.items():
            total, names = self.values.get(key, (0, None))
            total, names = total + value, (names or "") + f"+{value}"
            out.add((key, total, names))
            if total % 7:
                self.values[key] = (total, names)
            else:
                self.values.pop(key, None)
        return out


@pytest.mark.parametrize("seed", seeds(8))
def test_random_batches_restores_and_rescales_give_what_plain_python_gives(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(slot_table, "REBUILD_KEYS_MIN", dice.choice([1, 10, 1_000]))
    operator, model, shelf = opened(), Model(), Shelf()
    for step in range(60):
        rows = [(dice.choice([None, *"abcdefghij"]), dice.randrange(20)) for _ in range(dice.randrange(1, 30))]
        assert set(run(operator, rows)) == model.run(rows)
        if dice.random() < 0.3:
            shelf.prefix = f"{step}-"
            frozen = operator.freeze().states[STATE]
            part = frozen.write(shelf)
            frozen.released()
            if dice.random() < 0.5:
                frozen.confirmed(part)
            if dice.random() < 0.5:
                operator = restored(shelf, part)
                assert len(operator._table) == len(model.values)


def restored(shelf: Shelf, part: Any) -> Any:
    spec = KeyedBatches(["key"], totals, "key string, total long, names string", state=VALUES)
    spec.schema([SCHEMA])
    operator = spec.make()
    own = context().key_groups
    operator.open(context(), Restored(states={STATE: RestoredParts([RestoredPart(part, own, shelf)], own)}))
    return operator


def test_rows_know_the_row_of_their_key() -> None:
    def look(rows: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        assert state["key"][rows["key_row"].to_list()].to_list() == rows["key"].to_list()
        assert state["total"].to_list() == [0] * len(state)
        return rows.select("key", total="value")

    operator = opened(look, {"total": ValueState("long", default=0)}, "key string, total long")
    assert sorted(run(operator, [("a", 1), ("b", 2), ("a", 3)])) == [("a", 1), ("a", 3), ("b", 2)]


def test_the_rows_of_a_key_come_together_and_in_their_order() -> None:
    def look(rows: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        assert rows["key_row"].is_sorted() and rows["key_row"].flags["SORTED_ASC"]
        assert rows["key_row"].unique().to_list() == list(range(len(state)))
        return rows.select("key", total="value")

    operator = opened(look, {"total": ValueState("long", default=0)}, "key string, total long")
    dice = random.Random(3)
    for _ in range(20):
        rows = [(dice.choice([None, *"abcdef"]), n) for n in range(dice.randrange(1, 40))]
        found = run(operator, rows)
        assert sorted(found, key=lambda row: row[1]) == rows
        for key in {key for key, _ in rows}:
            assert [row for row in found if row[0] == key] == [row for row in rows if row[0] == key]


def test_state_that_is_not_returned_stays_and_no_rows_need_come_out() -> None:
    def remember_first(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        if state["total"].sum():
            return state.select("key", "total")
        return None, state.with_columns(total=pl.lit(5, pl.Int64))

    operator = opened(remember_first, {"total": ValueState("long", default=0)}, "key string, total long")
    assert run(operator, [("a", 1)]) == []
    assert run(operator, [("a", 1)]) == [("a", 5)]
    assert run(operator, [("a", 1), ("b", 1)]) == [("a", 5), ("b", 0)]


def test_columns_may_be_returned_as_they_are() -> None:
    def add(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        sums = state["total"].to_numpy() + np.bincount(rows["key_row"].to_numpy(), rows["value"].to_numpy())
        return {"total": sums.astype(np.int64), "key": state["key"]}, {"total": pa.array(sums.astype(np.int64)), "x": 5}

    operator = opened(add, {"total": ValueState("long", default=0)}, "key string, total long")
    assert sorted(run(operator, [("a", 1), ("b", 2), ("a", 3)])) == [("a", 4), ("b", 2)]
    assert run(operator, [("a", 1)]) == [("a", 5)]


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_batches_come_in_the_kind_that_was_asked_for(kind: Any) -> None:
    def add(rows: Any, state: Any) -> Any:
        if kind == "pandas":
            state["total"] += rows.groupby("key_row")["value"].sum()
            return state[["key", "total"]], state
        sums = pa.table(rows).group_by("key_row").aggregate([("value", "sum")])
        sums = sums.sort_by("key_row")["value_sum"].combine_chunks()
        new = pa.table({"key": state["key"], "total": pc.add(state["total"], sums)})
        return new, new

    operator = opened(add, {"total": ValueState("long", default=0)}, "key string, total long", kind=kind)
    run(operator, [("a", 1), ("b", 2), ("a", 3)])
    assert sorted(run(operator, [("b", 10), ("a", 1)])) == [("a", 5), ("b", 12)]


def test_a_class_declares_its_values_and_is_opened_and_closed_once_in_a_copy_of_its_own() -> None:
    class Counting(KeyedBatchFunction):
        seen = ValueState("long", default=0)

        def __init__(self) -> None:
            self.log: list[str] = []

        def open(self, context: Any) -> None:
            self.log.append(f"open {context.index}")

        def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
            added = rows.group_by("key_row").len().sort("key_row")["len"]
            counted = state.with_columns(seen=pl.col("seen") + added.cast(pl.Int64))
            return counted, counted

        def close(self) -> None:
            self.log.append("close")

    function = Counting()
    operator = opened(function, None, "key string, seen long")
    assert run(operator, [("a", 1), ("a", 1)]) == [("a", 2)]
    operator.close()
    assert operator._stateful.function.log == ["open 0", "close"]
    assert function.log == []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda rows, state: (None, state.head(1)), "the new state has 1 rows, expected 2"),
        (lambda rows, state: (None, state.with_columns(total=pl.lit("x"))), "the new state.*column 'total'"),
        (lambda rows, state: rows, "expected a result with .*found columns key, value, key_row"),
        (lambda rows, state: 5, "found a int"),
        (lambda rows, state: (None, state.select("key")), "the new state.*found columns key"),
        (
            lambda rows, state: {"key": rows["key"], "total": [1, 2, 3]},
            "'total' of type list, not a Series or an array",
        ),
        (
            lambda rows, state: {"key": rows["key"], "total": state["total"].head(1)},
            "different lengths: key 2, total 1",
        ),
        (lambda rows, state: {"key": rows["key"]}, "found columns key"),
    ],
)
def test_what_does_not_fit_is_named(result: Any, message: str) -> None:
    operator = opened(result, {"total": ValueState("long", default=0)}, "key string, total long")
    with pytest.raises(SchemaError, match=message):
        run(operator, [("a", 1), ("b", 2)])


def test_an_error_of_the_function_shows_its_traceback_and_the_operator() -> None:
    def broken(rows: Any, state: Any) -> Any:
        return state["no such column"]

    operator = opened(broken, {"total": ValueState("long", default=0)}, "key string, total long")
    with pytest.raises(UserCodeError, match=r"uid 'the-uid'[\s\S]*2 rows[\s\S]*no such column"):
        run(operator, [("a", 1), ("b", 2)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": None}, "declare at least one value"),
        ({"state": {"key": ValueState("long")}}, "'key' is a key and a state"),
        ({"state": {"x": 5}}, "state 'x' must be a ValueState or another state, found 5"),
        (
            {"state": {"a": ValueState("long", ttl=Ttl("1s")), "b": ValueState("long", ttl=Ttl("1s", "read"))}},
            "some values have .*refresh='read'",
        ),
        ({"function": 5}, "expected a KeyedBatchFunction"),
        ({"kind": "cudf"}, "kind 'cudf' is not one of"),
    ],
)
def test_what_cannot_work_is_refused_when_the_job_is_built(arguments: Any, message: str) -> None:
    with pytest.raises((PlanError, SchemaError), match=message):
        opened(**{"state": {"total": ValueState("long")}, **arguments})
