"""What every state backend promises of lists, maps, reducing and aggregating states, and of pickled values."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.state_backends import KEYS, MAX_PARALLELISM, At, Maker, backends, moved
from tests.states import as_restored, table_of
from weir.errors import CheckpointError
from weir.operators.base import key_group_range
from weir.state.backend import declare
from weir.state.declared.kinds import (
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    Pickled,
    ReducingState,
    ValueState,
)
from weir.state.frozen import KEY_GROUP_COLUMN


@pytest.fixture(params=backends())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(backends()[request.param], tmp_path)


def mean() -> AggregatingState:
    return AggregatingState(
        "struct<n:long,sum:double>",
        create=lambda: {"n": 0, "sum": 0.0},
        add=lambda so_far, value: {"n": so_far["n"] + 1, "sum": so_far["sum"] + value},
        result=lambda so_far: so_far["sum"] / so_far["n"],
    )


# --- Lists --------------------------------------------------------------------------------------------


def test_a_list_grows_is_replaced_and_forgotten_also_after_a_restore(make: Maker) -> None:
    at = At(make(), ListState("long"))
    assert at(1).get() == []
    at(1).add(1)
    at(1).add_all([2, None])
    at(2).set(iter([7]))
    at(3).add(3)
    at(3).clear()
    at(3).clear()
    at(4).set([])
    at(5).add_all([])
    again = moved(make, at, ListState("long"))
    for one in (at, again):
        assert [one(key).get() for key in range(6)] == [[], [1, 2, None], [7], [], [], []]
        one(1).add(4)
        assert one(1).get() == [1, 2, None, 4]
    assert at.table().schema.types[-1] == pa.list_(pa.int64())


def test_a_list_begins_with_its_default(make: Maker) -> None:
    at = At(make(), ListState("long", default=[1, 2]))
    assert at(1).get() == [1, 2]
    assert at.table().num_rows == 0
    at(1).add(3)
    at(2).set([])
    assert (at(1).get(), at(2).get(), at(3).get()) == ([1, 2, 3], [], [1, 2])
    again = moved(make, at, ListState("long", default=[9]))
    assert (again(1).get(), again(2).get(), again(3).get()) == ([1, 2, 3], [], [9])


def test_what_a_list_hands_out_is_a_copy_and_what_it_takes_is_copied(make: Maker) -> None:
    at = At(make(), ListState("array<long>"))
    mine = [[1], [2]]
    at(1).set(mine)
    mine[0].append(9)
    at(1).get().append([5])
    at(1).get()[0].append(5)
    assert at(1).get() == [[1], [2]]


def test_a_list_takes_all_values_or_none(make: Maker) -> None:
    at = At(make(), ListState("long"))
    at(42).add(1)
    pattern = r"state 's' holds a list of bigint, but was given 'x' \(str\) at key 42"
    for use in (lambda: at(42).add("x"), lambda: at(42).add_all([2, "x"]), lambda: at(42).set([2, "x"])):
        with pytest.raises(TypeError, match=pattern):
            use()
    with pytest.raises(TypeError, match=r"was given '12' \(str\) at key 42: expected values in a list"):
        at(42).set("12")
    assert at(42).get() == [1]


# --- Maps ---------------------------------------------------------------------------------------------


def test_a_map_is_used_like_a_dictionary_also_after_a_restore(make: Maker) -> None:
    at = At(make(), MapState("string", "long"))
    assert at(1).is_empty() and len(at(1)) == 0 and at(1).get("a") is None and at(1).get("a", 5) == 5
    at(1).put("a", 1)
    at(1)["b"] = 2
    at(1).put_all({"c": None, "d": 4})
    del at(1)["d"]
    at(1).remove("zz")
    at(2)["a"] = 9
    at(3)["a"] = 1
    at(3).clear()
    at(4)["a"] = 1
    at(4).remove("a")
    assert at.table().num_rows == 4
    for one in (at, moved(make, at, MapState("string", "long"))):
        assert dict(one(1).items()) == {"a": 1, "b": 2, "c": None}
        assert sorted(one(1).keys()) == sorted(one(1)) == ["a", "b", "c"]
        assert sorted(map(str, one(1).values())) == ["1", "2", "None"]
        assert one(1)["a"] == 1 and one(1).contains("c") and "c" in one(1) and "d" not in one(1)
        assert one(1).get("c", 7) is None and len(one(1)) == 3 and not one(1).is_empty()
        assert dict(one(2).items()) == {"a": 9}
        assert one(3).is_empty() and one(4).is_empty()
        for use in (lambda one=one: one(1)["zz"], lambda one=one: one(1).__delitem__("zz")):  # type: ignore[misc]
            with pytest.raises(KeyError):
                use()


def test_a_maps_default_stands_for_keys_that_are_not_there_and_is_not_stored(make: Maker) -> None:
    at = At(make(), MapState("string", "array<long>", default=[1]))
    at(1).get("a").append(2)
    assert at(1)["a"] == [1] and at(1).get("a") == [1] and at(1).get("a", None) is None
    assert at(1).is_empty() and at.table().num_rows == 0
    at(1)["a"] = [5]
    at(1)["a"].append(6)
    at(1).values()[0].append(6)
    assert at(1).items() == [("a", [5])]


@pytest.mark.parametrize(
    ("ddl", "keys"),
    [
        ("long", [0, -(2**63), 2**63 - 1]),
        ("string", ["", "é", "a\x00b"]),
        ("binary", [b"", b"\xff"]),
        ("double", [0.0, float("inf"), float("nan")]),
        ("boolean", [True, False]),
        ("date", [datetime.date(1, 1, 1), datetime.date(2024, 1, 1)]),
        ("timestamp", [datetime.datetime(2024, 10, 27, 1, tzinfo=datetime.timezone.utc)]),
    ],
)
def test_map_keys_of_every_type_are_found_again(make: Maker, ddl: str, keys: list[Any]) -> None:
    at = At(make(), MapState(ddl, "long"))
    for number, key in enumerate(keys):
        at(1)[key] = number
    for one in (at, moved(make, at, MapState(ddl, "long"))):
        fresh = [float(str(key)) if isinstance(key, float) else key for key in keys]
        assert [one(1)[key] for key in fresh] == list(range(len(keys)))
        assert set(map(repr, one(1).keys())) == set(map(repr, keys)) and len(one(1)) == len(keys)
        assert {type(key) for key in one(1)} == {type(key) for key in keys}


def test_a_map_refuses_wrong_keys_and_values_by_name(make: Maker) -> None:
    at = At(make(), MapState("long", "string"))
    holds = r"state 's' holds a map of bigint to string, but was given the"
    for use, found in [
        (lambda: at(42).put("x", "y"), r"map key 'x' \(str\) at key 42"),
        (lambda: at(42).get("x"), r"map key 'x' \(str\) at key 42"),
        (lambda: at(42).put(None, "y"), r"map key None \(NoneType\) at key 42: a map key cannot be None"),
        (lambda: at(42).put(1, 2), r"value 2 \(int\) at key 42"),
        (lambda: at(42).put_all({1: "a", 2: 2}), r"value 2 \(int\) at key 42"),
    ]:
        with pytest.raises(TypeError, match=f"{holds} {found}"):
            use()
    assert at(42).is_empty()


def test_map_entries_of_several_old_subtasks_join(make: Maker) -> None:
    at = At(make(), MapState("long", "long"))
    for key in range(100):
        at(key).put_all({i: key * i for i in range(key % 4)})
    table = at.table()
    assert table.column(KEY_GROUP_COLUMN).to_pylist() == sorted(table.column(KEY_GROUP_COLUMN).to_pylist())
    assert table.schema.names == [KEY_GROUP_COLUMN, "k", "map_key", "value"]
    found: dict[int, dict[int, int]] = {}
    for index in range(3):
        own = key_group_range(index, 3, MAX_PARALLELISM)
        part = table.filter([group in own for group in table.column(0).to_pylist()])
        again = At(make(KEYS, own), MapState("long", "long"))
        again.backend.restore(as_restored({"s": [part.slice(0, 7), part.slice(7)]}))
        found.update({key: dict(again(key).items()) for key in set(part.column("k").to_pylist())})
    assert found == {key: {i: key * i for i in range(key % 4)} for key in range(100) if key % 4}


# --- Reducing and aggregating -------------------------------------------------------------------------


def test_reducing_folds_from_the_first_value_on(make: Maker) -> None:
    state = ReducingState("long", lambda so_far, value: so_far * 10 + value, default=-1)
    at = At(make(), state)
    for value in (1, 2, 3):
        at(1).add(value)
    at(2).add(5)
    at(2).clear()
    for one in (at, moved(make, at, state)):
        assert (one(1).get(), one(2).get()) == (123, -1)
        one(1).add(4)
        assert one(1).get() == 1234
    with pytest.raises(TypeError, match=r"state 's' holds bigint, but became 'x' \(str\) at key 3"):
        at(3).add("x")


def test_aggregating_keeps_an_accumulator_of_its_own(make: Maker) -> None:
    at = At(make(), mean())
    assert at(1).get() is None
    for value in (1.0, 2.0, 6.0):
        at(1).add(value)
    for one in (at, moved(make, at, mean())):
        assert one(1).get() == 3.0
        one(1).add(7.0)
        assert one(1).get() == 4.0
        one(1).clear()
        assert one(1).get() is None


def test_an_accumulator_may_be_changed_in_place_but_must_be_returned(make: Maker) -> None:
    def append(so_far: list[int], value: int) -> list[int]:
        so_far.append(value)
        return so_far

    at = At(make(), AggregatingState("array<long>", create=list, add=append, default="none"))
    at(1).add(1)
    frozen = at.backend.freeze()["s"]
    at(1).add(2)
    at(1).get().append(9)
    assert at(1).get() == [1, 2] and at(2).get() == "none"
    assert table_of(frozen).column("value").to_pylist() == [[1]]
    forgetful = At(make(), AggregatingState("array<long>", create=list, add=lambda so_far, value: so_far.append(value)))
    with pytest.raises(TypeError, match=r"its accumulator became None .* add must return the accumulator"):
        forgetful(1).add(1)


# --- Pickled ------------------------------------------------------------------------------------------


class Thing:
    def __init__(self, n: int) -> None:
        self.n = n


PICKLED: list[tuple[KeyedState, Callable[[Any, Any], None], Callable[[Any], Any]]] = [
    (ValueState(Pickled(), default=Thing(0)), lambda s, v: s.set(v), lambda s: s.get()),
    (ListState(Pickled()), lambda s, v: s.add(v), lambda s: s.get()[0]),
    (MapState("long", Pickled()), lambda s, v: s.put(1, v), lambda s: s[1]),
]


@pytest.mark.parametrize(("state", "store", "load"), PICKLED, ids=lambda case: type(case).__name__)
def test_pickled_objects_are_kept_as_bytes_and_read_only_where_declared(
    make: Maker, state: KeyedState, store: Callable[[Any, Any], None], load: Callable[[Any], Any]
) -> None:
    at = At(make(), state)
    thing = Thing(1)
    store(at(1), thing)
    thing.n = 2
    load(at(1)).n = 3
    for one in (at, moved(make, at, state)):
        assert type(load(one(1))) is Thing and load(one(1)).n == 1
    with pytest.raises(TypeError, match=r"(?s)state 's' holds .*pickled object.* at key 1: it cannot be pickled"):
        store(at(1), lambda: None)


def test_what_was_not_pickled_is_never_unpickled(make: Maker) -> None:
    at = At(make(), ValueState("binary"))
    at(1).set(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match=r"stored as binary, declared as Pickled\(\)"):
        moved(make, at, ValueState(Pickled()))
    kept = moved(make, at, ValueState(Pickled(), migrate=Thing))
    assert kept(1).get().n.startswith(b"cos")
    assert type(moved(make, kept, ValueState("binary"))(1).get()) is bytes


def test_several_states_of_one_backend_do_not_touch_each_other(make: Maker) -> None:
    backend = make()
    one = declare(backend, ValueState("long", name="one"))
    two = declare(backend, ListState("long", name="two"))
    [key] = backend.keys([pa.array([1])])
    backend.cursor.key = key
    backend.begin([key])
    one.set(1)
    two.add(2)
    one.clear()
    backend.end()
    frozen = backend.freeze()
    assert {name: table_of(state).num_rows for name, state in frozen.items()} == {"one": 0, "two": 1}
