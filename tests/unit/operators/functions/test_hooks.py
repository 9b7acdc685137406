"""Snapshot hooks: function objects that say themselves what is to be kept of them."""

from __future__ import annotations

import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.functions import Subtasks, known
from tests.contract.state_backends import backends
from weir.config import Heap, StateBackend
from weir.errors import CheckpointError, PlanError, SchemaError, UserCodeError
from weir.operators.base import OperatorSpec
from weir.operators.batches.functions import MapBatches
from weir.operators.functions.interfaces import ProcessFunction
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.rows import FilterRows, FlatMapRows, MapRows
from weir.state.declared.kinds import OperatorListState, Pickled, ValueState

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.int64())])


class Counting:
    """Counts in a plain attribute."""

    def __init__(self) -> None:
        self.counts = {"rows": 0}
        self.restored: list[Any] = []

    def take(self, count: int = 1) -> int:
        self.counts["rows"] += count
        return self.counts["rows"]

    def snapshot_state(self) -> Any:
        return self.counts

    def restore_state(self, values: list[Any]) -> None:
        self.restored = values
        self.counts = {"rows": sum(value["rows"] for value in values)}


class Frozen(Counting):
    """The same by the asynchronous form: what it gives does not change any more."""

    snapshot_state = None  # type: ignore[assignment]

    def snapshot_state_async(self) -> Any:
        return dict(self.counts)


class Later(Frozen):
    """The value is made behind the stream's back."""

    def snapshot_state_async(self) -> Any:
        rows = self.counts["rows"]
        return lambda: {"rows": rows}


class Typed(Counting):
    snapshot_type = "struct<rows:long>"


class Objects(Counting):
    snapshot_type = Pickled()

    def snapshot_state(self) -> Any:
        return Counter(self.counts)


class Everyone(Counting):
    snapshot_redistribute = "union"


HOOKED = [Counting, Frozen, Later, Typed, Objects]


def mapped(kind: Any) -> Any:
    return type("Mapped", (kind,), {"__call__": lambda self, row: self.take()})()


def flat_mapped(kind: Any) -> Any:
    return type("FlatMapped", (kind,), {"__call__": lambda self, row: [self.take()]})()


def passing(kind: Any) -> Any:
    return type("Passing", (kind,), {"__call__": lambda self, row: self.take() > 0})()


def batched(kind: Any) -> Any:
    return type("Batched", (kind,), {"__call__": lambda self, batch: {"n": pa.array([self.take(batch.num_rows)])}})()


def processed(kind: Any) -> Any:
    return type("Processed", (kind, ProcessFunction), {"process": lambda self, row, context: (self.take(),)})()


SPECS: dict[str, Any] = {
    "map": lambda kind: MapRows(mapped(kind), "n long"),
    "keyed map": lambda kind: MapRows(mapped(kind), "n long", keys=["key"]),
    "flat_map": lambda kind: FlatMapRows(flat_mapped(kind), "n long"),
    "filter": lambda kind: FilterRows(passing(kind)),
    "keyed filter": lambda kind: FilterRows(passing(kind), keys=["key"]),
    "map_batches": lambda kind: MapBatches(batched(kind), "n long"),
    "process": lambda kind: ProcessRows(["key"], processed(kind), "n long"),
}


def batch(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count)), pa.array(range(count))], schema=SCHEMA)


def running(
    spec: OperatorSpec, tmp_path: Path, parallelism: int, checkpoint: Any = None, backend: StateBackend | None = None
) -> Subtasks:
    keys = () if not getattr(spec, "keys", None) and not isinstance(spec, ProcessRows) else ("key",)
    return Subtasks(
        spec,
        keys,
        backend=backend or Heap(),
        directory=tmp_path,
        parallelism=parallelism,
        checkpoint=checkpoint,
    )


def functions_of(subtasks: Subtasks) -> list[Any]:
    return [getattr(operator, "stateful", None) or operator._stateful for operator in subtasks.operators]  # type: ignore[attr-defined]


def counts(subtasks: Subtasks) -> list[int]:
    return [stateful.function.counts["rows"] for stateful in functions_of(subtasks)]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("kind", HOOKED)
@pytest.mark.parametrize("name", SPECS)
def test_what_the_hook_gives_comes_back_dealt_out(name: str, kind: Any, backend: str, tmp_path: Path) -> None:
    spec = known(SPECS[name](kind), SCHEMA)
    assert spec.states == ("snapshot_state",)
    first = running(spec, tmp_path, 2, backend=backends()[backend])
    first.process(batch(20))
    before, checkpoint = counts(first), first.checkpoint()
    # Behind the barrier; none of it is in the snapshot.
    first.process(batch(20))
    same = running(spec, tmp_path, 2, checkpoint, backends()[backend])
    assert counts(same) == before and sum(before) == 20
    fewer = running(spec, tmp_path, 1, checkpoint, backends()[backend])
    assert counts(fewer) == [20] and len(functions_of(fewer)[0].function.restored) == 2
    more = running(spec, tmp_path, 3, checkpoint, backends()[backend])
    assert sorted(counts(more)) == sorted([*before, 0])
    # Where nothing falls to a subtask it is not asked to restore anything.
    assert sum(stateful.function.restored == [] for stateful in functions_of(more)) == 1
    for each in (first, same, fewer, more):
        each.close()


def test_union_gives_all_values_to_all(tmp_path: Path) -> None:
    spec = known(SPECS["map"](Everyone), SCHEMA)
    first = running(spec, tmp_path, 2)
    first.process(batch(20))
    for parallelism in (2, 3):
        again = running(spec, tmp_path, parallelism, first.checkpoint())
        assert counts(again) == [20] * parallelism


def test_the_asynchronous_form_is_serialised_by_who_writes_the_snapshot(tmp_path: Path) -> None:
    made_by: list[str] = []

    class Traced(Later):
        def snapshot_state_async(self) -> Any:
            def make() -> Any:
                made_by.append(threading.current_thread().name)
                return {"rows": 1}

            return make

    operator = running(known(SPECS["map"](Traced), SCHEMA), tmp_path, 1).operators[0]
    frozen = operator.freeze().states["snapshot_state"]
    assert made_by == []
    thread = threading.Thread(target=lambda: [list(frozen.tables()) for _ in range(2)], name="snapshot")
    thread.start()
    thread.join()
    assert made_by == ["snapshot"]


def test_none_is_nothing_to_keep(tmp_path: Path) -> None:
    class Nothing(Counting):
        def snapshot_state(self) -> Any:
            return None

    spec = known(SPECS["map"](Nothing), SCHEMA)
    first = running(spec, tmp_path, 2)
    assert counts(running(spec, tmp_path, 2, first.checkpoint())) == [0, 0]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"ids": {1, 2}}, r"it\['ids'\] is a set"),
        ([1, (2, 3)], r"it\[1\] is a tuple"),
        ({1: "a"}, "it has the key 1, a int, not a text"),
        (Counter(), "it is a Counter"),
        (object, "it is a type"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_cannot_be_kept_as_json_is_refused_with_operator_type_and_advice(
    value: Any, where: str, is_async: bool, tmp_path: Path
) -> None:
    class Bad(Counting if not is_async else Frozen):  # type: ignore[misc]
        pass

    if is_async:
        Bad.snapshot_state_async = lambda self: value if not callable(value) else lambda: value
    else:
        Bad.snapshot_state = lambda self: value
    subtasks = running(known(SPECS["map"](Bad), SCHEMA), tmp_path, 1)
    with pytest.raises(SchemaError) as caught:
        subtasks.checkpoint()
    text = str(caught.value)
    hook = "snapshot_state_async()" if is_async else "snapshot_state()"
    assert f"operator 'the-name' (uid 'the-uid'): {hook} of Mapped returned what cannot be kept as JSON" in text
    assert "snapshot_type = 'an Arrow type'" in text and "nothing is lost" in text
    assert __import__("re").search(where, text)


def test_endless_values_and_those_of_another_type_are_refused_too(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)

    class Endless(Counting):
        def snapshot_state(self) -> Any:
            return endless

    with pytest.raises(SchemaError, match="nested without end"):
        running(known(SPECS["map"](Endless), SCHEMA), tmp_path, 1).checkpoint()

    class Long(Counting):
        def snapshot_state(self) -> Any:
            return {"total": 10**5_000}

    with pytest.raises(SchemaError, match="no number in it may be so long"):
        running(known(SPECS["map"](Long), SCHEMA), tmp_path, 1).checkpoint()

    class Wrong(Typed):
        def snapshot_state(self) -> Any:
            return {"rows": "many"}

    with pytest.raises(SchemaError, match=r"cannot be kept as struct<rows:bigint>.*Return struct<rows:bigint>, or"):
        running(known(SPECS["map"](Wrong), SCHEMA), tmp_path, 1).checkpoint()

    class Open(Objects):
        def snapshot_state(self) -> Any:
            return threading.Lock()

    with pytest.raises(SchemaError, match="it cannot be pickled: TypeError"):
        running(known(SPECS["map"](Open), SCHEMA), tmp_path, 1).checkpoint()


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    value = {"a": [None, True, 1 << 70, 1.5, float("inf"), "\ud800 ß", {}], "": []}

    class Exact(Counting):
        def snapshot_state(self) -> Any:
            return value

        def restore_state(self, values: list[Any]) -> None:
            self.restored = values

    spec = known(SPECS["map"](Exact), SCHEMA)
    (stateful,) = functions_of(running(spec, tmp_path, 1, running(spec, tmp_path, 1).checkpoint()))
    assert stateful.function.restored == [value]
    value = {"nan": float("nan")}
    (stateful,) = functions_of(running(spec, tmp_path, 1, running(spec, tmp_path, 1).checkpoint()))
    assert math.isnan(stateful.function.restored[0]["nan"])


def test_failures_of_hooks_name_the_operator_and_the_users_line(tmp_path: Path) -> None:
    class Fails(Counting):
        def snapshot_state(self) -> Any:
            raise ValueError("not now")

    with pytest.raises(UserCodeError, match=r"\(uid 'the-uid'\) failed in snapshot_state\(\): ValueError: not now"):
        running(known(SPECS["map"](Fails), SCHEMA), tmp_path, 1).checkpoint()

    class FailsLater(Frozen):
        def snapshot_state_async(self) -> Any:
            return lambda: 1 / 0

    with pytest.raises(UserCodeError, match=r"failed in what snapshot_state_async\(\) returned: ZeroDivisionError"):
        running(known(SPECS["map"](FailsLater), SCHEMA), tmp_path, 1).checkpoint()

    class FailsToRestore(Counting):
        def restore_state(self, values: list[Any]) -> None:
            raise KeyError("rows")

    spec = known(SPECS["map"](FailsToRestore), SCHEMA)
    checkpoint = running(spec, tmp_path, 1).checkpoint()
    with pytest.raises(UserCodeError, match=r"failed in restore_state\(\): KeyError"):
        running(spec, tmp_path, 1, checkpoint)


def test_mistakes_are_told_when_the_job_is_written() -> None:
    def row(self: Any, row: Any) -> Any:
        return row

    def hook(self: Any, *values: Any) -> Any:
        return None

    def made(**parts: Any) -> Any:
        return MapRows(type("Bad", (), {"__call__": row, **parts})(), "x long")

    with pytest.raises(PlanError, match=r"map: Bad has snapshot_state, but no restore_state\(self, values\)"):
        made(snapshot_state=hook)
    with pytest.raises(PlanError, match=r"map: Bad has restore_state, but no snapshot_state\(self\)"):
        made(restore_state=hook)
    with pytest.raises(PlanError, match="has both snapshot_state and snapshot_state_async"):
        made(snapshot_state=hook, snapshot_state_async=hook, restore_state=hook)
    with pytest.raises(PlanError, match="redistribute must be 'split' or 'union', found 'all'"):
        made(snapshot_state=hook, restore_state=hook, snapshot_redistribute="all")
    with pytest.raises(PlanError, match="'snapshot_state' is what the operator calls a state of its own"):
        made(snapshot_state=hook, restore_state=hook, mine=OperatorListState("long", name="snapshot_state"))


def test_another_type_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    checkpoint = running(known(SPECS["map"](Counting), SCHEMA), tmp_path, 1).checkpoint()
    for other, found in (
        (Typed, "stored as JSON, but now it is struct<rows:bigint>; set snapshot_type back"),
        (Objects, "stored as JSON, but now it is pickled object"),
    ):
        with pytest.raises(CheckpointError, match=f"^operator 'the-name'.*{found}"):
            running(known(SPECS["map"](other), SCHEMA), tmp_path, 1, checkpoint)


def test_hooks_stand_beside_declared_states(tmp_path: Path) -> None:
    class Both(Counting):
        total = ValueState("long", default=0)

        def __call__(self, row: Any) -> Any:
            self.total.value += row.x
            return self.take(), self.total.value

    spec = known(MapRows(Both(), "n long, total long", keys=["key"]), SCHEMA)
    assert spec.states == ("total", "snapshot_state")
    first = running(spec, tmp_path, 1)
    first.process(batch(5))
    assert running(spec, tmp_path, 1, first.checkpoint()).process(batch(3)) == [(6, 0), (7, 2), (8, 4)]


def test_a_type_evolves_as_that_of_any_state(tmp_path: Path) -> None:
    class Wider(Typed):
        snapshot_type = "struct<rows:long,more:string>"

    checkpoint = running(known(SPECS["map"](Typed), SCHEMA), tmp_path, 1).checkpoint()
    spec = known(SPECS["map"](Wider), SCHEMA)
    stored = next(iter(checkpoint.files.tables(checkpoint.parts[0]["snapshot_state"]))).schema
    assert spec.verdict("snapshot_state", stored) == "evolved"
    (stateful,) = functions_of(running(spec, tmp_path, 1, checkpoint))
    assert stateful.function.restored == [{"rows": 0, "more": None}]
