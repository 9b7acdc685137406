"""Functions with state: operator states in any function object, every keyed kind in process functions."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.states import as_restored, table_of
from tests.unit.operators.running import KeyedRun, context
from weir.errors import CheckpointError, PlanError, UserCodeError
from weir.operators.base import Operator, OperatorSpec, Restored
from weir.operators.batches.functions import MapBatches
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows
from weir.state.declared.kinds import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    ValueState,
)

SCHEMA = pa.schema([("x", pa.int64())])


class Seen:
    """Numbers rows by how many came before."""

    seen = OperatorListState("long", redistribute="union")
    names = BroadcastState("long", "string", name="known")

    def note(self, x: int) -> int:
        count = len(self.seen.get())
        self.seen.add(x)
        self.names[x] = f"row {count}"
        return count


class Mapped(Seen):
    def __call__(self, row: Any) -> Any:
        return (self.note(row.x),)


class FlatMapped(Seen):
    def __call__(self, row: Any) -> Any:
        yield (self.note(row.x),)


class Filtered(Seen):
    def __call__(self, row: Any) -> bool:
        return self.note(row.x) >= 0


class Batched(Seen):
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.array([self.note(x) for x in batch.column("x").to_pylist()])], ["x"])


SPECS: dict[str, Callable[[], OperatorSpec]] = {
    "map": lambda: MapRows(Mapped(), SCHEMA),
    "flat_map": lambda: FlatMapRows(FlatMapped(), SCHEMA),
    "filter": lambda: FilterRows(Filtered()),
    "map_batches": lambda: MapBatches(Batched(), SCHEMA),
}


def push(operator: Operator, *values: int) -> list[int]:
    emitted: list[pa.RecordBatch] = []
    operator.process(pa.record_batch([pa.array(values)], ["x"]), emitted.append)
    return [x for batch in emitted for x in batch.column("x").to_pylist()]


@pytest.mark.parametrize("kind", SPECS)
def test_any_function_object_may_hold_operator_state(kind: str) -> None:
    spec = pickle.loads(pickle.dumps(SPECS[kind]()))
    assert spec.states == ("seen", "known")
    first, second = spec.make(), spec.make()
    for operator in (first, second):
        operator.open(context(), None)
    push(first, 10, 20)
    frozen = first.freeze().states
    push(first, 30)
    tables = {name: [table_of(state)] for name, state in frozen.items()}
    assert tables["seen"][0].column("value").to_pylist() == [10, 20]
    assert tables["known"][0].to_pydict() == {"map_key": [10, 20], "value": ["row 0", "row 1"]}
    # Another subtask in the same process has a copy of its own.
    assert table_of(second.freeze().states["seen"]).num_rows == 0

    again = spec.make()
    again.open(context(), Restored(states=as_restored(tables)))
    assert push(again, 40) == ([40] if kind == "filter" else [2])
    assert table_of(again.freeze().states["seen"]).column("value").to_pylist() == [10, 20, 40]


def test_a_function_without_states_is_not_copied_and_freezes_to_nothing() -> None:
    calls: list[int] = []

    class Plain:
        def __call__(self, row: Any) -> Any:
            calls.append(row.x)
            return (row.x,)

    plain = Plain()
    spec = MapRows(plain, SCHEMA)
    operator = spec.make()
    operator.open(context(), None)
    assert push(operator, 1) == calls == [1]
    assert spec.states == () and operator.freeze().states == {}
    assert operator.stateful.function is plain  # type: ignore[attr-defined]


def test_keyed_state_where_there_is_no_key_is_refused_when_built() -> None:
    class Keyed:
        total = ValueState("long")

        def __call__(self, row: Any) -> Any:
            return (row.x,)

    for make in (lambda f: MapRows(f, SCHEMA), lambda f: FlatMapRows(f, SCHEMA), FilterRows):
        with pytest.raises(PlanError, match="state 'total' is a ValueState, which needs a key: use key_by"):
            make(Keyed())
    with pytest.raises(PlanError, match=r"map: pass an instance, Mapped\(…\), rather than the class"):
        MapRows(Mapped, SCHEMA)
    assert MapRows(int, SCHEMA).states == ()


def test_a_wrong_type_in_operator_state_is_an_error_of_the_users_code() -> None:
    class Wrong(Seen):
        def __call__(self, row: Any) -> Any:
            self.seen.add("x")

    operator = MapRows(Wrong(), SCHEMA).make()
    operator.open(context(), None)
    with pytest.raises(UserCodeError, match=r"state 'seen' holds a list of bigint, but was given 'x'"):
        push(operator, 1)


def test_state_that_the_function_no_longer_declares_is_refused() -> None:
    operator = MapRows(Mapped(), SCHEMA).make()
    table = pa.table({"index": pa.array([], pa.int32()), "value": pa.array([], pa.int64())})
    with pytest.raises(CheckpointError, match="'gone', which the function does not declare"):
        operator.open(context(), Restored(states=as_restored({"gone": [table]})))


# --- Process functions ----------------------------------------------------------------------------------


class Everything(ProcessFunction):
    """Holds one state of each kind."""

    last = ValueState("long")
    all = ListState("long")
    counts = MapState("long", "long", default=0)
    greatest = ReducingState("long", max)
    mean = AggregatingState(
        "struct<n:long,sum:double>",
        create=lambda: {"n": 0, "sum": 0.0},
        add=lambda so_far, value: {"n": so_far["n"] + 1, "sum": so_far["sum"] + value},
        result=lambda so_far: so_far["sum"] / so_far["n"],
    )
    rows_seen = OperatorListState("long")

    def process(self, row: Any, given: Any) -> Any:
        before = self.last.get()
        self.last.set(row.value)
        self.all.add(row.value)
        self.counts[row.value % 2] += 1
        self.greatest.add(row.value)
        self.mean.add(row.value)
        self.rows_seen.add(row.value)
        yield row.key, before, self.all.get(), self.counts.get(1), self.greatest.get(), self.mean.get()


OUTPUT = "key long, before long, all array<long>, odd long, greatest long, mean double"
BATCH = pa.record_batch({"key": pa.array([1, 2, 1, 1]), "value": pa.array([5, 7, 4, 9])})


def test_a_process_function_holds_states_of_every_kind_also_after_rescaling() -> None:
    made = ProcessRows(["key"], Everything(), OUTPUT)
    made.schema([BATCH.schema])
    assert made.states == ("last", "all", "counts", "greatest", "mean", "rows_seen")
    running = KeyedRun(made, ("key",), parallelism=2)
    assert sorted(running.process(BATCH), key=lambda row: (row[0], len(row[2]))) == [
        (1, None, [5], 1, 5, 5.0),
        (1, 5, [5, 4], 1, 5, 4.5),
        (1, 4, [5, 4, 9], 2, 9, 6.0),
        (2, None, [7], 1, 7, 7.0),
    ]
    tables = running.freeze()
    assert sorted(value for part in tables["rows_seen"] for value in part.column("value").to_pylist()) == [4, 5, 7, 9]
    keyed = {name: parts for name, parts in tables.items() if name != "rows_seen"}
    again = KeyedRun(made, ("key",), parallelism=3, tables=keyed)
    batch = pa.record_batch({"key": pa.array([1]), "value": pa.array([2])})
    assert again.process(batch) == [(1, 9, [5, 4, 9, 2], 2, 9, 5.0)]


def test_a_plain_process_function_may_be_given_any_kind() -> None:
    def count(row: Any, state: Any) -> Any:
        state.seen.put(row.value, True)
        return [(len(state.seen),)]

    made = ProcessRows(["key"], count, "n long", {"seen": MapState("long", "boolean")})
    made.schema([BATCH.schema])
    assert sorted(KeyedRun(made, ("key",), parallelism=1).process(BATCH)) == [(1,), (1,), (2,), (3,)]
