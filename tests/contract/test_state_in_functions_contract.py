"""Every kind of state, on every backend, in every function that has a key: a snapshot loses nothing, also when it is
restored at another parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.contract.functions import KINDS, Checkpoint, Kind, Subtasks, known
from tests.contract.state_backends import backends
from weir.config import StateBackend
from weir.errors import CheckpointError, PlanError, UserCodeError
from weir.operators.base import OperatorSpec
from weir.operators.batches.by_key import ByKey
from weir.operators.batches.keyed import KeyedBatches, KeyedBatchFunction
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.reduce import ReduceRows
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows
from weir.state.declared.kinds import BroadcastState, ListState, MapState, OperatorListState, ReducingState, ValueState

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64())])
OUTPUT = "key long, x long, sum long"


class Sums:
    """Adds up what comes, by key."""

    state: Any

    def __init__(self, kind: Kind) -> None:
        # As if the class had declared it.
        self.state, self._add = kind.state, kind.add

    def sum(self, row: Any) -> int:
        return self._add(self.state, row.x)


class Mapped(Sums):
    def __call__(self, row: Any) -> Any:
        return row.key, row.x, self.sum(row)


class FlatMapped(Sums):
    def __call__(self, row: Any) -> Any:
        yield row.key, row.x, self.sum(row)


class Passing(Sums):
    """Passes rows until the sum at their key is even, which tells what the state is."""

    def __call__(self, row: Any) -> bool:
        return self.sum(row) % 2 == 1


class Processed(Sums, ProcessFunction):
    def process(self, row: Any, context: Any) -> Any:
        yield row.key, row.x, self.sum(row)


class Batched(KeyedBatchFunction):
    """The same for whole batches, where a state is a column."""

    state: Any

    def __init__(self, kind: Kind) -> None:
        self.state = kind.state

    def process(self, rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        keys, held = ByKey(rows, state), state["state"]
        new: Any
        if isinstance(self.state, ValueState):
            before, new = held, keys.sum("x", start="state")
        elif isinstance(self.state, ListState):
            before = held.list.sum()
            new = state.select(pl.concat_list("state", _by_key(rows)))["state"]
        elif isinstance(self.state, MapState):
            before = state.select(pl.col("state").list.eval(pl.element().struct.field("value")).list.sum())["state"]
            # Entries of one map key are not merged here: what is looked at is that they come back.
            entries = rows.select("key_row", e=pl.struct(map_key=pl.col("x"), value=pl.col("x")))
            new = state.select(pl.concat_list("state", _by_key(entries, "e")))["state"]
        else:
            new = keys.fold(self.state, "x")
            before = held if isinstance(self.state, ReducingState) else keys.results(self.state, held)
        sums = keys.running_sum("x", start=before.fill_null(0).cast(pl.Int64))
        return rows.select("key", "x", sum=sums), {"state": new}


def _by_key(rows: pl.DataFrame, column: str = "x") -> pl.Series:
    return rows.group_by("key_row", maintain_order=True).agg(pl.col(column))[column]


def plain(kind: Kind) -> Callable[[Any, Any], Any]:
    add = kind.add
    return lambda row, state: (row.key, row.x, add(state.state, row.x))


FUNCTIONS: dict[str, Callable[[Kind], OperatorSpec]] = {
    "map": lambda kind: MapRows(Mapped(kind), OUTPUT, keys=["key"]),
    "map, plain": lambda kind: MapRows(plain(kind), OUTPUT, keys=["key"], state={"state": kind.state}),
    "flat_map": lambda kind: FlatMapRows(FlatMapped(kind), OUTPUT, keys=["key"]),
    "filter": lambda kind: FilterRows(Passing(kind), keys=["key"]),
    "process": lambda kind: ProcessRows(["key"], Processed(kind), OUTPUT),
    "process_batches": lambda kind: KeyedBatches(["key"], Batched(kind), OUTPUT),
}


@pytest.fixture(params=backends())
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return backends()[request.param]


def batch(start: int, stop: int) -> pa.RecordBatch:
    numbers = range(start, stop)
    return pa.record_batch([pa.array([n % 7 for n in numbers]), pa.array(numbers)], schema=SCHEMA)


def expected(function: str, sums: Counter[int], given: pa.RecordBatch) -> list[tuple[int, ...]]:
    """What comes out, sorted; `sums` goes on."""
    found = []
    for row in given.to_pylist():
        sums[row["key"]] += row["x"]
        found.append((row["key"], row["x"], sums[row["key"]]))
    return sorted(row[:2] for row in found if row[2] % 2 == 1) if function == "filter" else sorted(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_kind_of_state_survives_a_snapshot_and_rescaling(
    function: str, kind: str, backend: StateBackend, tmp_path: Path
) -> None:
    spec = known(FUNCTIONS[function](KINDS[kind]), SCHEMA)
    assert spec.states[0] == "state"
    sums: Counter[int] = Counter()
    checkpoint: Checkpoint | None = None
    for start, parallelism in ((0, 2), (40, 3), (80, 1), (120, 1)):
        running = Subtasks(
            spec, ["key"], backend=backend, directory=tmp_path, parallelism=parallelism, checkpoint=checkpoint
        )
        given = batch(start, start + 40)
        assert sorted(running.process(given)) == expected(function, sums, given)
        checkpoint = running.checkpoint()
        # What comes behind the barrier is in no snapshot.
        running.process(batch(0, 40))
        running.close()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_state_of_another_type_is_refused_with_operator_and_both_types(
    function: str, backend: StateBackend, tmp_path: Path
) -> None:
    long, text = KINDS["value"], Kind(ValueState("string"), lambda handle, x: 0)
    running = Subtasks(
        known(FUNCTIONS[function](long), SCHEMA), ["key"], backend=backend, directory=tmp_path, parallelism=1
    )
    running.process(batch(0, 10))
    checkpoint = running.checkpoint()
    running.close()
    spec = known(FUNCTIONS[function](text), SCHEMA)
    if function != "process_batches":
        assert "bigint" in (verdict := spec.verdict("state", pa.schema([*_keyed(long)]))) and "string" in verdict
    with pytest.raises(CheckpointError, match=r"^operator 'the-name'.*'state': stored as bigint, declared as string"):
        Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)


def _keyed(kind: Kind) -> Iterator[pa.Field]:
    yield pa.field("__key_group", pa.int32())
    yield pa.field("key", pa.int64())
    yield pa.field("value", kind.state.type, metadata={b"weir.form": b"value"})


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "process_batches"])
def test_a_failure_names_operator_row_and_key(function: str, backend: StateBackend, tmp_path: Path) -> None:
    def fails(handle: Any, x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    spec = known(FUNCTIONS[function](Kind(ListState("long"), fails)), SCHEMA)
    running = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1)
    with pytest.raises(UserCodeError) as caught:
        running.process(batch(0, 6))
    running.close()
    text = str(caught.value)
    assert "operator 'the-name' (uid 'the-uid') failed: ValueError: three" in text
    assert "row: Row(key=3, x=3)" in text and "key: 3" in text


class Numbering(Sums):
    """With state of the subtask beside that of the key."""

    numbers = OperatorListState("long", redistribute="union")
    names = BroadcastState("string", "long", default=0)

    def __call__(self, row: Any) -> Any:
        self.numbers.add(row.x)
        self.names["rows"] += 1
        return row.key, row.x, self.sum(row)


def test_state_of_the_subtask_stands_beside_that_of_the_key(backend: StateBackend, tmp_path: Path) -> None:
    spec = known(MapRows(Numbering(KINDS["map"]), OUTPUT, keys=["key"]), SCHEMA)
    assert set(spec.states) == {"state", "numbers", "names"}
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2)
    first.process(batch(0, 20))
    checkpoint = first.checkpoint()
    first.close()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)
    held = again.operators[0].stateful.function  # type: ignore[attr-defined]
    assert sorted(held.numbers.get()) == list(range(20)) and 0 < held.names["rows"] < 20
    sums: Counter[int] = Counter()
    expected("map", sums, batch(0, 20))
    assert sorted(again.process(batch(20, 40))) == expected("map", sums, batch(20, 40))
    again.close()


@pytest.mark.parametrize("make", [MapRows, FlatMapRows])
def test_mistakes_are_told_when_the_job_is_written(make: Any) -> None:
    value = ValueState("long")
    with pytest.raises(
        PlanError, match=r"state 'state' is a ValueState, which needs a key: use key_by\(…\)\.(flat_)?map"
    ):
        make(Mapped(KINDS["value"]), OUTPUT)
    with pytest.raises(PlanError, match="Mapped declares its states as attributes; leave out state="):
        make(Mapped(KINDS["value"]), OUTPUT, keys=["key"], state={"other": value})
    with pytest.raises(PlanError, match="two states are called 'a'"):
        make(lambda row, state: row, OUTPUT, keys=["key"], state={"a": value, "b": ListState("long", name="a")})
    with pytest.raises(PlanError, match="state 'a' must be a ValueState or another state, found 'long'"):
        make(lambda row, state: row, OUTPUT, keys=["key"], state={"a": "long"})


class Reduced(Sums):
    """Its rows tell the state's sum; a key's first row is taken as it is."""

    def __call__(self, so_far: Any, row: Any) -> Any:
        return row.key, self.sum(row)


def reduced_plainly(kind: Kind) -> Callable[..., Any]:
    return lambda so_far, row, state: (row.key, kind.add(state.state, row.x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_reduce_has_state_beside_its_row(kind: str, is_plain: bool, backend: StateBackend, tmp_path: Path) -> None:
    of = KINDS[kind]
    spec = (
        ReduceRows(["key"], reduced_plainly(of), {"state": of.state}) if is_plain else ReduceRows(["key"], Reduced(of))
    )
    known(spec, SCHEMA)
    assert spec.states == ("reduced", "state")
    sums: Counter[int] = Counter()
    checkpoint: Checkpoint | None = None
    for start, parallelism in ((0, 2), (40, 3), (80, 1)):
        running = Subtasks(
            spec, ["key"], backend=backend, directory=tmp_path, parallelism=parallelism, checkpoint=checkpoint
        )
        found = running.process(batch(start, start + 40))
        last: dict[int, int] = {}
        for n in range(start, start + 40):
            sums[n % 7] += n if n >= 7 else 0
            last[n % 7] = sums[n % 7]
        assert {key: max(total for k, total in found if k == key) for key in range(7)} == last
        checkpoint = running.checkpoint(checkpoint)
        running.close()


def test_a_reduce_opens_and_keeps_plain_attributes(backend: StateBackend, tmp_path: Path) -> None:
    class Counted(Reduced):
        calls = 0

        def open(self, context: Any) -> None:
            self.more = context.state("more", ListState("long"))

        def __call__(self, so_far: Any, row: Any) -> Any:
            self.calls += 1
            self.more.add(row.x)
            return row.key, len(self.more.get())

        def snapshot_state(self) -> Any:
            return self.calls

        def restore_state(self, values: Any) -> None:
            self.calls = sum(values)

    spec = known(ReduceRows(["key"], Counted(KINDS["value"])), SCHEMA)
    assert spec.declares_in_open and spec.states == ("reduced", "state", "snapshot_state")
    first = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=2)
    first.process(batch(0, 14))
    checkpoint = first.checkpoint()
    again = Subtasks(spec, ["key"], backend=backend, directory=tmp_path, parallelism=1, checkpoint=checkpoint)
    assert again.operators[0].stateful.function.calls == 7  # type: ignore[attr-defined]
    assert sorted(again.process(batch(14, 21))) == [(key, 2) for key in range(7)]
    for each in (first, again):
        each.close()
    with pytest.raises(PlanError, match="'reduced' is what the operator calls a state of its own"):
        ReduceRows(["key"], reduced_plainly(KINDS["value"]), {"reduced": ValueState("long")})
