"""What every state backend promises of values that expire, and of types that change between two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import At, Maker, backends, moved
from tests.states import as_restored, table_of
from weir.errors import CheckpointError
from weir.state.declared.cursor import TOUCHED_COLUMN
from weir.state.declared.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, Ttl, ValueState


@pytest.fixture(params=backends())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(backends()[request.param], tmp_path)


# --- Time-to-live -------------------------------------------------------------------------------------


TIMED: dict[str, tuple[Callable[[Ttl], KeyedState], Callable[[Any], None], Callable[[Any], Any], Any]] = {
    "value": (lambda ttl: ValueState("long", default=0, ttl=ttl), lambda s: s.set(7), lambda s: s.get(), 0),
    "list": (lambda ttl: ListState("long", ttl=ttl), lambda s: s.add(7), lambda s: s.get(), []),
    "map": (lambda ttl: MapState("long", "long", ttl=ttl), lambda s: s.put(7, 7), lambda s: dict(s.items()), {}),
    "map entry": (lambda ttl: MapState("long", "long", ttl=ttl), lambda s: s.put(7, 7), lambda s: s.get(7), None),
    "reducing": (lambda ttl: ReducingState("long", max, ttl=ttl), lambda s: s.add(7), lambda s: s.get(), None),
    "aggregating": (
        lambda ttl: AggregatingState("long", create=int, add=lambda a, v: a + v, ttl=ttl),
        lambda s: s.add(7),
        lambda s: s.get(),
        None,
    ),
}


@pytest.mark.parametrize("kind", TIMED)
def test_a_value_expires_after_its_last_write(make: Maker, kind: str) -> None:
    state, store, load, nothing = TIMED[kind]
    at = At(make(), state(Ttl("10s")))
    store(at(1))
    store(at(2))
    held = load(at(1))
    assert held != nothing
    make.now_ms += 9_999
    assert load(at(1)) == held
    assert at.table().num_rows == 2 and at.table().schema.names[-1] == TOUCHED_COLUMN
    again = moved(make, at, state(Ttl("10s")))
    make.now_ms += 1
    for one in (at, again):
        assert load(one(1)) == nothing
        assert one.table().num_rows == 0
    store(at(1))
    assert load(at(1)) == held


@pytest.mark.parametrize("kind", TIMED)
def test_reading_keeps_a_value_alive_where_it_was_asked_for(make: Maker, kind: str) -> None:
    state, store, load, nothing = TIMED[kind]
    at = At(make(), state(Ttl("10s", refresh="read")))
    store(at(1))
    held = load(at(1))
    for _ in range(3):
        make.now_ms += 9_000
        assert load(at(1)) == held
    make.now_ms += 10_000
    assert load(at(1)) == nothing


@pytest.mark.parametrize("kind", TIMED)
def test_a_snapshot_leaves_out_what_had_expired_then_and_nothing_that_was_touched(make: Maker, kind: str) -> None:
    state, store, load, nothing = TIMED[kind]
    at = At(make(), state(Ttl("10s")))
    store(at(1))
    store(at(3))
    make.now_ms += 6_000
    store(at(2))
    make.now_ms += 5_000
    frozen = at.backend.freeze()["s"]
    store(at(3))
    make.now_ms += 6_000
    table = table_of(frozen)
    assert table.column("k").to_pylist() == [2]
    frozen.released()
    at.backend.begin(at.backend.keys([pa.array([1])]))
    at.backend.end()
    assert load(at(1)) == load(at(2)) == nothing
    assert load(at(3)) != nothing


def test_map_entries_expire_one_by_one(make: Maker) -> None:
    state = MapState("string", "long", ttl=Ttl("10s"))
    at = At(make(), state)
    at(1)["old"] = 1
    make.now_ms += 6_000
    at(1)["new"] = 2
    make.now_ms += 5_000
    assert at.table().column("map_key").to_pylist() == ["new"]
    assert len(at(1)) == 1 and at(1).keys() == ["new"] and "old" not in at(1) and at(1).get("old", 5) == 5
    assert moved(make, at, state)(1).items() == [("new", 2)]


def test_a_time_to_live_may_be_added_and_removed(make: Maker) -> None:
    at = At(make(), ValueState("long"))
    at(1).set(1)
    mortal = moved(make, at, ValueState("long", ttl=Ttl("10s")))
    make.now_ms += 9_999
    assert mortal(1).get() == 1
    immortal = moved(make, mortal, ValueState("long"))
    make.now_ms += 1
    assert mortal(1).get() is None and immortal(1).get() == 1


# --- Evolution ----------------------------------------------------------------------------------------


EVOLVED: list[tuple[KeyedState, Callable[[Any], None], KeyedState, Callable[[Any], Any], Any]] = [
    (ValueState("int"), lambda s: s.set(5), ValueState("long"), lambda s: s.get(), 5),
    (ValueState("int"), lambda s: s.set(5), ValueState("double"), lambda s: s.get(), 5.0),
    (ValueState("float"), lambda s: s.set(0.5), ValueState("double"), lambda s: s.get(), 0.5),
    (
        ValueState("struct<a:int,b:string>"),
        lambda s: s.set({"a": 1, "b": "x"}),
        ValueState("struct<c:long,a:long,d:string>", default={"a": 0, "c": 7, "d": None}),
        lambda s: s.get(),
        {"c": 7, "a": 1, "d": None},
    ),
    (
        ListState("struct<a:int>"),
        lambda s: s.add_all([{"a": 1}, None, {"a": None}]),
        ListState("struct<a:long,b:array<int>>"),
        lambda s: s.get(),
        [{"a": 1, "b": None}, None, {"a": None, "b": None}],
    ),
    (
        MapState("int", "struct<a:int>"),
        lambda s: s.put(1, {"a": 2}),
        MapState("long", "struct<a:double>"),
        lambda s: s.items(),
        [(1, {"a": 2.0})],
    ),
    (ValueState("long"), lambda s: s.set(5), ReducingState("long", max), lambda s: s.get(), 5),
    (ValueState("long"), lambda s: s.set(5), ValueState("string", migrate=str), lambda s: s.get(), "5"),
    (ListState("long"), lambda s: s.add_all([5, 6]), ListState("string", migrate=str), lambda s: s.get(), ["5", "6"]),
    (MapState("long", "long"), lambda s: s.put(1, 2), MapState("long", "string", migrate=str), lambda s: s[1], "2"),
    (
        AggregatingState("long", create=int, add=lambda a, v: a + v),
        lambda s: s.add(5),
        AggregatingState("array<long>", create=list, add=lambda a, v: [*a, v], migrate=lambda old: [old]),
        lambda s: s.get(),
        [5],
    ),
]


@pytest.mark.parametrize(("old", "store", "new", "load", "expected"), EVOLVED, ids=lambda case: "")
def test_types_evolve_when_a_state_is_restored(
    make: Maker,
    old: KeyedState,
    store: Callable[[Any], None],
    new: KeyedState,
    load: Callable[[Any], Any],
    expected: Any,
) -> None:
    at = At(make(), old)
    store(at(1))
    again = moved(make, at, new)
    assert load(again(1)) == expected
    assert load(moved(make, again, new)(1)) == expected


@pytest.mark.parametrize(
    ("old", "store", "new", "message"),
    [
        (ValueState("long"), lambda s: s.set(1), ValueState("int"), "stored as bigint, declared as int: bigint cannot"),
        (
            ValueState("struct<a:struct<b:string>>"),
            lambda s: s.set({"a": {"b": "x"}}),
            ValueState("struct<a:struct<b:long>>"),
            "stored as struct<a:struct<b:string>>, declared as struct<a:struct<b:bigint>>: field a.b: string cannot",
        ),
        (ValueState("long"), lambda s: s.set(1), ListState("long"), "as a value state, the function declares a list"),
        (MapState("string", "long"), lambda s: s.put("a", 1), MapState("long", "long"), "its map keys are stored as"),
        (
            ValueState("long"),
            lambda s: s.set(1),
            ValueState("string", migrate=lambda old: old / 0),
            "migrate failed for 1: ZeroDivisionError",
        ),
        (
            ValueState("long"),
            lambda s: s.set(1),
            ValueState("string", migrate=lambda old: old),
            r" holds string, but migrate returned 1 \(int\)",
        ),
    ],
    ids=lambda case: "",
)
def test_what_cannot_be_read_is_refused_with_both_types(
    make: Maker, old: KeyedState, store: Callable[[Any], None], new: KeyedState, message: str
) -> None:
    at = At(make(), old)
    store(at(1))
    with pytest.raises(CheckpointError, match=f"(?s)state 's'.*{message}"):
        moved(make, at, new)


def test_a_table_of_an_older_weir_which_says_nothing_of_its_form_is_read(make: Maker) -> None:
    at = At(make(), ValueState("int"))
    at(1).set(5)
    bare = at.table()
    bare = bare.cast(pa.schema([field.remove_metadata() for field in bare.schema]))
    again = At(make(), ValueState("long"))
    again.backend.restore(as_restored({"s": [bare]}))
    assert again(1).get() == 5
