"""States that are declared in `open(context)`, and what becomes of them when they are restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.states import as_restored, table_of
from tests.unit.operators.running import context, rows
from weir.errors import CheckpointError, JobError, PlanError, SchemaError, UserCodeError
from weir.operators.base import Operator, OperatorSpec, Restored
from weir.operators.batches.functions import MapBatches
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows
from weir.state.declared.kinds import BroadcastState, MapState, OperatorListState, ValueState

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64())])
BATCH = pa.record_batch([pa.array([1, 2, 1]), pa.array([5, 7, 4])], schema=SCHEMA)


class Opened:
    """Declares one state in its class, and what it is given in open."""

    total = ValueState("long", default=0)

    def __init__(self, **more: Any) -> None:
        self.more = more
        self.closed = 0

    def open(self, context: Any) -> None:
        self.uid = context.uid
        for name, state in self.more.items():
            setattr(self, f"its_{name}", context.state(name, state))

    def take(self, row: Any) -> tuple[int, int]:
        self.total.value += row.x
        return row.key, self.total.value

    def close(self) -> None:
        self.closed += 1


class Mapped(Opened):
    def __call__(self, row: Any) -> Any:
        return self.take(row)


class FlatMapped(Opened):
    def __call__(self, row: Any) -> Any:
        yield self.take(row)


class Passing(Opened):
    def __call__(self, row: Any) -> Any:
        return bool(self.take(row))


class Processed(Opened, ProcessFunction):  # type: ignore[misc]
    def process(self, row: Any, context: Any) -> Any:
        yield self.take(row)


MAKES: dict[str, Callable[..., OperatorSpec]] = {
    "map": lambda **more: MapRows(Mapped(**more), "key long, total long", keys=["key"]),
    "flat_map": lambda **more: FlatMapRows(FlatMapped(**more), "key long, total long", keys=["key"]),
    "filter": lambda **more: FilterRows(Passing(**more), keys=["key"]),
    "process": lambda **more: ProcessRows(["key"], Processed(**more), "key long, total long"),
}


def opened(spec: OperatorSpec, tables: dict[str, list[pa.Table]] | None = None, *, may_drop: bool = False) -> Operator:
    spec.schema([SCHEMA])
    operator = spec.make()
    here = replace(context(), may_drop_state=may_drop)
    operator.open(here, None if tables is None else Restored(states=as_restored(tables)))
    return operator


def function_of(operator: Any) -> Any:
    return operator.stateful.function


def frozen(operator: Operator) -> dict[str, list[pa.Table]]:
    return {name: [table_of(state)] for name, state in operator.freeze().states.items()}


def push(operator: Operator) -> list[tuple[Any, ...]]:
    emitted: list[pa.RecordBatch] = []
    operator.process(BATCH, emitted.append)
    return rows(emitted)


@pytest.mark.parametrize("kind", MAKES)
def test_a_state_declared_in_open_is_as_one_of_the_class(kind: str) -> None:
    spec = MAKES[kind](pages=MapState("long", "long"), seen=OperatorListState("long"))
    assert spec.states[0] == "total" and spec.declares_in_open and "pages" not in spec.states
    operator = opened(spec)
    function = function_of(operator)
    assert function.uid == "the-uid"
    push(operator)
    function.its_seen.add(3)
    operator.backend.cursor.key = operator.backend.keys([pa.array([1])])[0]  # type: ignore[attr-defined]
    function.its_pages[8] = 9
    tables = frozen(operator)
    assert {"total", "pages", "seen"} <= set(tables)
    again = opened(spec, tables)
    restored = function_of(again)
    assert restored is not function and restored.its_seen.get() == [3]
    again.backend.cursor.key = again.backend.keys([pa.array([1])])[0]  # type: ignore[attr-defined]
    assert restored.its_pages.items() == [(8, 9)] and restored.total.value == 9
    for one in (operator, again):
        one.close()
    assert (function.closed, restored.closed) == (1, 1)


@pytest.mark.parametrize("kind", MAKES)
def test_a_state_that_open_no_longer_declares_is_refused_unless_it_may_be_dropped(kind: str) -> None:
    tables = frozen(opened(MAKES[kind](seen=ValueState("long"))))
    renamed = MAKES[kind](visits=ValueState("long"))
    with pytest.raises(CheckpointError) as caught:
        opened(renamed, tables)
    text = str(caught.value)
    assert text.startswith("operator 'the-name' (uid 'the-uid'): the checkpoint holds state 'seen'")
    assert "(total, visits)" in text and "name='seen'" in text and "--allow-dropped-state" in text
    assert "seen" not in frozen(opened(renamed, tables, may_drop=True))


@pytest.mark.parametrize("kind", MAKES)
def test_a_state_declared_otherwise_in_open_is_refused_with_both_forms(kind: str) -> None:
    tables = frozen(opened(MAKES[kind](seen=ValueState("long"))))
    for state, found in (
        (ValueState("string"), "state 'seen': stored as bigint, declared as string"),
        (MapState("long", "long"), "holds it as a value state, the function declares a map state"),
    ):
        with pytest.raises(CheckpointError, match=f"^operator 'the-name'.*{found}"):
            opened(MAKES[kind](seen=state), tables)


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize(
    ("more", "error", "found"),
    [
        ({"total": ValueState("long")}, PlanError, "state 'total' is declared twice"),
        ({"snapshot_state": ValueState("long")}, PlanError, "a state of the operator's own"),
        ({"seen": ValueState("long", name="other")}, PlanError, "two names, 'seen' and 'other'"),
        ({"seen": "long"}, PlanError, "'seen' must be a ValueState or another state, found 'long'"),
        ({"": ValueState("long")}, PlanError, "a string that is not empty"),
    ],
)
def test_mistakes_in_open_end_the_job_with_the_operators_name_and_the_users_line(
    kind: str, more: Any, error: type[JobError], found: str
) -> None:
    with pytest.raises(error) as caught:
        opened(MAKES[kind](**more))
    text = str(caught.value)
    assert "operator 'the-name' (uid 'the-uid') failed in open()" in text and found in text
    assert "context.state(name, state)" in text


def test_keyed_state_in_open_needs_a_key_and_a_state_needs_open() -> None:
    with pytest.raises(PlanError, match="'seen' is a ValueState, which needs a key"):
        opened(MapRows(_Unkeyed(), "x long"))

    class Late(Mapped):
        def open(self, context: Any) -> None:
            self.context = context

        def __call__(self, row: Any) -> Any:
            self.context.state("late", ValueState("long"))

    operator = opened(MapRows(Late(), "x long", keys=["key"]))
    with pytest.raises(UserCodeError, match=r"states are declared in open\(\), before the first row"):
        push(operator)


class _Unkeyed:
    def open(self, context: Any) -> None:
        context.state("seen", ValueState("long"))

    def __call__(self, row: Any) -> Any:
        return row


def test_a_function_of_batches_opens_too() -> None:
    class Batched:
        def open(self, context: Any) -> None:
            self.seen = context.state("seen", BroadcastState("string", "long", default=0))

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.seen["rows"] += batch.num_rows
            return batch

    spec = MapBatches(Batched(), SCHEMA)
    operator = opened(spec)
    push(operator)
    again = opened(spec, frozen(operator))
    push(again)
    assert frozen(again)["seen"][0].to_pylist() == [{"map_key": "rows", "value": 6}]


def test_a_failure_in_open_or_close_shows_the_users_lines() -> None:
    class Fails:
        def open(self, context: Any) -> None:
            raise ValueError("no such table")

        def __call__(self, row: Any) -> Any:
            return row

    with pytest.raises(UserCodeError, match=r"failed in open\(\): ValueError: no such table"):
        opened(MapRows(Fails(), "x long"))

    class Ends(Fails):
        def open(self, context: Any) -> None:
            pass

        def close(self) -> None:
            raise ValueError("still busy")

    with pytest.raises(UserCodeError, match=r"failed in close\(\): ValueError: still busy"):
        opened(MapRows(Ends(), "x long")).close()


def test_a_wrong_type_in_open_is_told_as_in_a_class() -> None:
    class Wrong(Mapped):
        def open(self, context: Any) -> None:
            context.state("seen", ValueState("lnog"))

    with pytest.raises(SchemaError, match=r"failed in open\(\).*lnog"):
        opened(MapRows(Wrong(), "x long", keys=["key"]))
