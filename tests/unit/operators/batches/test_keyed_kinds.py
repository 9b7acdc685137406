"""Batch functions with states of every kind, of the key and of the subtask, in the class and in open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.contract.functions import Subtasks, known
from tests.contract.state_backends import backends
from weir.config import StateBackend
from weir.errors import CheckpointError, PlanError, SchemaError
from weir.operators.base import OperatorSpec
from weir.operators.batches.by_key import ByKey
from weir.operators.batches.keyed import KeyedBatches, KeyedBatchFunction
from weir.state.declared.kinds import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    ValueState,
)

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64())])
BATCH = pa.record_batch([pa.array([1, 2, 1]), pa.array([5, 7, 4])], schema=SCHEMA)


@pytest.fixture(params=backends())
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return backends()[request.param]


def made(function: KeyedBatchFunction, output: str = "key long") -> OperatorSpec:
    return known(KeyedBatches(["key"], function, output), SCHEMA)


class Everything(KeyedBatchFunction):
    """A list and a map by key, a list and a map of the subtask, a plain attribute with hooks, and a state of open."""

    trail = ListState("long")
    counts = MapState("string", "long")
    seen = OperatorListState("long", redistribute="union")
    names = BroadcastState("string", "long", default=0)

    def __init__(self) -> None:
        self.batches = 0

    def open(self, context: Any) -> None:
        self.best = context.state("best", ReducingState("long", max))
        self.label = f"{context.uid} {context.index}"

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        self.batches += 1
        self.seen.add(rows.height)
        self.names["rows"] += rows.height
        keys = ByKey(rows, state)
        more = rows.group_by("key_row", maintain_order=True).agg("x")["x"]
        counts = pl.Series([[{"map_key": "n", "value": n}] for n in keys.count().to_list()])
        trail = state.select(pl.concat_list("trail", more))["trail"]
        return state.select("key"), {"trail": trail, "counts": counts, "best": keys.fold(self.best, "x")}

    def snapshot_state(self) -> Any:
        return self.batches

    def restore_state(self, values: list[Any]) -> None:
        self.batches = sum(values)


def test_all_kinds_at_once_survive_a_restore(backend: StateBackend, tmp_path: Path) -> None:
    spec = made(Everything())
    assert spec.states == ("state", "seen", "names", "snapshot_state") and spec.declares_in_open
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1)
    first.process(BATCH)
    checkpoint = first.checkpoint()
    first.close()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)
    again.process(BATCH)
    function = again.operators[0]._stateful.function  # type: ignore[attr-defined]
    assert (function.batches, function.seen.get(), function.names["rows"]) == (2, [3, 3], 6)
    assert function.label == "the-uid 0"
    stored = again.checkpoint(checkpoint)
    (table,) = (pa.concat_tables(stored.files.tables(part["state"])) for part in stored.parts)
    assert sorted(table.select(["key", "trail", "counts", "best"]).to_pylist(), key=lambda row: row["key"]) == [
        {"key": 1, "trail": [5, 4, 5, 4], "counts": [{"map_key": "n", "value": 2}], "best": 5},
        {"key": 2, "trail": [7, 7], "counts": [{"map_key": "n", "value": 1}], "best": 7},
    ]
    again.close()


class Emptied(KeyedBatchFunction):
    trail = ListState("long")

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        assert state["trail"].null_count() == 0
        return None, state.with_columns(trail=pl.Series([[] for _ in range(state.height)], dtype=pl.List(pl.Int64)))


def test_a_key_whose_lists_are_empty_is_forgotten(backend: StateBackend, tmp_path: Path) -> None:
    running = Subtasks(made(Emptied()), ["key"], backend=backend, directory=tmp_path, parallelism=1)
    running.process(BATCH)
    checkpoint = running.checkpoint()
    assert sum(table.num_rows for table in checkpoint.files.tables(checkpoint.parts[0]["state"])) == 0
    running.close()


class Beginning(KeyedBatchFunction):
    trail = ListState("long", default=[1])

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        none = pl.Series([[] for _ in range(state.height)], dtype=pl.List(pl.Int64))
        return {"key": state["key"], "trail": state["trail"]}, {"trail": none}


def test_a_list_with_a_default_may_be_empty(backend: StateBackend, tmp_path: Path) -> None:
    spec = made(Beginning(), "key long, trail array<long>")
    running = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1)
    assert sorted(running.process(BATCH)) == [(1, [1]), (2, [1])]
    assert sorted(running.process(BATCH)) == [(1, []), (2, [])]
    running.close()


def test_wrong_maps_and_folds_are_told(backend: StateBackend, tmp_path: Path) -> None:
    class Nameless(KeyedBatchFunction):
        counts = MapState("string", "long")

        def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
            kind = pl.List(pl.Struct({"map_key": pl.String, "value": pl.Int64}))
            return None, {"counts": pl.Series([[{"map_key": None, "value": 1}]] * state.height, dtype=kind)}

    class Wrong(KeyedBatchFunction):
        best = ReducingState("long", lambda so_far, value: "best")

        def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
            return None, {"best": ByKey(rows, state).fold(self.best, "x")}

    running = Subtasks(made(Nameless()), ["key"], backend=backend, directory=tmp_path, parallelism=1)
    with pytest.raises(SchemaError, match="a map key in the new state 'counts' is null"):
        running.process(BATCH)
    running.close()
    running = Subtasks(made(Wrong()), ["key"], backend=backend, directory=tmp_path, parallelism=1)
    with pytest.raises(Exception, match=r"state 'best' holds bigint, but became 'best' \(str\)"):
        running.process(BATCH)
    running.close()


def test_fold_and_results_go_over_the_rows_of_a_key_in_their_order() -> None:
    rows = pl.DataFrame({"key_row": [1, 0, 1], "x": [1, 2, 3]})
    state = pl.DataFrame({"text": [None, 7], "mean": [None, {"n": 1, "sum": 5.0}]})
    keys = ByKey(rows, state)
    text = ReducingState("long", lambda so_far, x: so_far * 10 + x, name="text")
    assert keys.fold(text, "x").to_list() == [2, 713]
    mean = AggregatingState(
        "struct<n:long,sum:double>",
        create=lambda: {"n": 0, "sum": 0.0},
        add=lambda so_far, x: {"n": so_far["n"] + 1, "sum": so_far["sum"] + x},
        result=lambda so_far: so_far["sum"] / so_far["n"],
        name="mean",
    )
    assert keys.results(mean, "mean").to_list() == [None, 5.0]
    assert keys.results(mean, keys.fold(mean, "x")).to_list() == [2.0, 3.0]
    for state_of in (ValueState("long", name="text"), ReducingState("long", max)):
        with pytest.raises(TypeError, match="expected a reducing or aggregating state with a name"):
            keys.fold(state_of, "x")  # type: ignore[arg-type]


class Chosen(KeyedBatchFunction):
    def __init__(self, **states: Any) -> None:
        self.states = states

    def open(self, context: Any) -> None:
        for name, state in self.states.items():
            context.state(name, state)

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        return None, state.with_columns(pl.lit(1).cast(pl.Int64).alias(name) for name in self.states)


def test_values_declared_in_open_are_restored_refused_or_dropped(backend: StateBackend, tmp_path: Path) -> None:
    def run(checkpoint: Any = None, **states: Any) -> Any:
        running = Subtasks(
            made(Chosen(**states)), ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint
        )
        running.process(BATCH)
        made_now = running.checkpoint()
        running.close()
        return made_now

    before = run(a=ValueState("long"), b=ValueState("long"))
    run(before, a=ValueState("long"), b=ValueState("long"), c=ValueState("long"))
    with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*holds state 'b', which the function does not"):
        run(before, a=ValueState("long"))
    with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*value 'b': stored as bigint, declared as string"):
        run(before, a=ValueState("long"), b=ValueState("string"))


def test_mistakes_are_told(backend: StateBackend, tmp_path: Path) -> None:
    def opened(**states: Any) -> None:
        Subtasks(made(Chosen(**states)), ["key"], backend=backend, directory=tmp_path, parallelism=1)

    with pytest.raises(PlanError, match=r"neither the class nor open\(\) declares a state by key"):
        opened()
    with pytest.raises(PlanError, match="'key' is a key and a state"):
        opened(key=ValueState("long"))
    with pytest.raises(PlanError, match="state 'seen' belongs to the subtask; write a KeyedBatchFunction"):
        KeyedBatches(["key"], lambda rows, state: None, "key long", state={"seen": OperatorListState("long")})
    with pytest.raises(PlanError, match="state 'x' must be a ValueState or another state, found 5"):
        KeyedBatches(["key"], lambda rows, state: None, "key long", state={"x": 5})  # type: ignore[dict-item]
    with pytest.raises(PlanError, match="'state' is what the values by key are kept as"):
        made(type("Bad", (Emptied,), {"state": OperatorListState("long")})())
