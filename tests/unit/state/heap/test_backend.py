"""The heap backend's own parts: descriptors, values both ways, and what freezing costs the stream."""

from __future__ import annotations

import datetime
import decimal
import gc
import pickle
from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.states import Shelf, as_restored, table_of
from weir.errors import PlanError, SchemaError
from weir.schema import parse_type
from weir.snapshot.parts import FileRef
from weir.state.backend import declare
from weir.state.declared.kinds import KeyedState, ListState, MapState, Ttl, ValueState
from weir.state.heap.backend import HeapBackend
from weir.state.place import StatePlace
from weir.state.values.conversion import NotOfType, copier, normaliser, shown, to_array, to_list

KEYS = pa.schema([("k", pa.int64())])
ALL_GROUPS = {"max_parallelism": 128, "key_groups": range(128)}


def test_descriptors_travel_and_take_the_attributes_name_unless_they_have_one() -> None:
    state = ValueState("array<long>", default=[1])
    assert pickle.loads(pickle.dumps(state)) == state
    assert state.named("total").name == "total"
    assert ValueState("long", name="own").named("total").name == "own"
    assert ValueState(pa.int64()) == ValueState("long") != ValueState("int")


def test_a_default_of_another_type_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"the default 'x' \(str\) is not a bigint"):
        ValueState("long", default="x")
    with pytest.raises(SchemaError, match="expected a type such as 'long'"):
        ValueState(int)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="'lang' is not a type"):
        ValueState("lang")


def test_a_descriptor_has_no_value_of_its_own() -> None:
    for use in (lambda s: s.get(), lambda s: s.set(1), lambda s: s.clear(), lambda s: s.value):
        with pytest.raises(PlanError, match="state 'total' has no value here"):
            use(ValueState("long", name="total"))


def test_freezing_does_the_work_later_and_sees_the_state_as_it_was() -> None:
    backend = HeapBackend(KEYS, **ALL_GROUPS)
    state = backend.value_state(ValueState("long", default=0, name="s"))

    def add(keys: list[int]) -> None:
        for key in backend.keys([pa.array(keys)]):
            backend.cursor.key = key
            state.set(state.get() + 1)

    add([1, 2])
    first = backend.freeze()["s"]
    add([2, 3])
    backend.cursor.key = 1
    state.clear()
    second = backend.freeze()["s"]
    backend.close()
    for frozen, expected in ((first, {1: 1, 2: 1}), (second, {2: 2, 3: 1})):
        table = table_of(frozen)
        assert dict(zip(table["k"].to_pylist(), table["value"].to_pylist())) == expected


def test_arrow_does_not_get_to_bend_values() -> None:
    for value, kind in [
        (1.5, pa.int64()),
        (b"x", pa.string()),
        ("x", pa.binary()),
        (True, pa.float64()),
        (1, pa.date32()),
    ]:
        with pytest.raises(NotOfType) as caught:
            to_array([None, value], kind)
        assert caught.value.index == 1 and caught.value.value is value


def test_the_first_value_that_does_not_fit_is_the_one_that_is_named() -> None:
    with pytest.raises(NotOfType) as caught:
        to_array([1, 300, 400], pa.int8())
    assert (caught.value.index, caught.value.value) == (1, 300)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, None]),
        (pa.float16(), [0.5, None]),
        (pa.timestamp("s"), [datetime.datetime(2024, 1, 1), None]),
        (pa.timestamp("ns", "UTC"), [datetime.datetime(2024, 1, 1, 0, 0, 0, 1, datetime.timezone.utc), None]),
        (pa.timestamp("us", "+02:00"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), None]),
        (pa.date64(), [datetime.date(2024, 1, 1), None]),
        (pa.duration("ns"), [datetime.timedelta(microseconds=1), None]),
        (pa.time64("us"), [datetime.time(1, 2, 3), None]),
        (pa.decimal128(5, 1), [decimal.Decimal("1.5"), None]),
        (pa.map_(pa.string(), pa.int64()), [{"a": 1}, {}, None]),
        (pa.null(), [None, None]),
    ],
    ids=str,
)
def test_arrays_become_python_values_and_the_same_array_again(kind: pa.DataType, values: list[Any]) -> None:
    array = to_array(values, kind)
    assert to_list(array) == values
    assert to_array(to_list(array), kind).equals(array)
    assert to_list(array.slice(1)) == values[1:]


def test_numpy_scalars_are_taken() -> None:
    assert to_array([np.int32(1), 2], pa.int64()).to_pylist() == [1, 2]
    assert to_array([np.float32(0.5), 1], pa.float64()).to_pylist() == [0.5, 1.0]


def test_copies_of_nested_values_share_nothing() -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.list_(pa.int64())))), ("n", pa.int64())])
    copy = copier(kind)
    assert copy is not None
    value: Any = {"m": {"a": [[1], None]}, "n": 1}
    copied = copy(value)
    assert copied == value
    copied["m"]["a"][0].append(2)
    copied["m"]["b"] = []
    copied["n"] = 2
    assert value == {"m": {"a": [[1], None]}, "n": 1}
    assert copy(None) is None and copy({"m": None, "n": None}) == {"m": None, "n": None}
    assert copier(pa.int64()) is None


def test_what_cannot_be_shown_does_not_hide_the_error() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Shy()) == "<Shy, whose repr raised RuntimeError>"
    assert len(shown("x" * 10_000)) < 600


def filled(count: int, state: KeyedState, put: Callable[[Any, int], None]) -> HeapBackend:
    backend = HeapBackend(KEYS, **ALL_GROUPS)
    handle = declare(backend, state.named("s"))
    for number, key in enumerate(backend.keys([pa.array(range(count))])):
        backend.cursor.key = key
        put(handle, number)
    return backend


PIECES: list[tuple[KeyedState, int, Callable[[Any, int], None]]] = [
    (ValueState("long"), 35_000, lambda handle, number: handle.set(number)),
    (MapState("long", "long"), 3_500, lambda handle, number: handle.put_all(dict.fromkeys(range(10), number))),
    (ListState("long"), 3_500, lambda handle, number: handle.set([number] * 10)),
]


@pytest.mark.parametrize(("state", "count", "put"), PIECES, ids=lambda case: type(case).__name__)
def test_a_table_comes_in_pieces_that_are_each_sorted(
    state: KeyedState, count: int, put: Callable[[Any, int], None]
) -> None:
    frozen = filled(count, state, put).freeze()["s"]
    tables = list(frozen.tables())
    sizes = [pc.sum(pc.list_value_length(t["value"])).as_py() if "List" in str(state) else len(t) for t in tables]
    assert sum(sizes) == 35_000 and len(sizes) == 7 and max(sizes) < 6_000
    for table in tables:
        groups = table.column(0).to_pylist()
        assert groups == sorted(groups)
    shelf = Shelf()
    part = frozen.write(shelf)
    whole = pa.concat_tables(shelf.tables(part))
    assert whole.num_rows == sum(map(len, tables)) and len(set(whole.column("k").to_pylist())) == count
    mine = pa.concat_tables(shelf.tables(part, ALL_GROUPS["key_groups"], range(3, 9)))
    assert (
        mine.column(0).to_pylist()
        == whole.filter(pc.is_in(whole.column(0), pa.array(range(3, 9)))).column(0).to_pylist()
    )
    assert mine.num_rows


def test_writing_breathes_between_the_pieces_also_while_entries_are_freed() -> None:
    calls: list[str] = []

    class Out:
        def put(self, name: str, data: pa.Buffer | bytes, *, shared: bool = False) -> FileRef:
            calls.append("put")
            return FileRef(name, 1, "")

        def put_file(self, name: str, local_path: str, *, shared: bool = False) -> FileRef:
            raise NotImplementedError

        def breathe(self) -> None:
            calls.append("breathe")

    state, count, put = PIECES[0]
    frozen = filled(count, state, put).freeze()["s"]
    out = Out()
    frozen.write(out)
    assert calls == ["breathe"] * 7 + ["put"]
    frozen.discard(out.breathe)
    assert calls == ["breathe"] * 7 + ["put"] + ["breathe"] * 7


@pytest.mark.parametrize(
    ("state", "put"),
    [
        (ValueState("long", ttl=Ttl("10s")), lambda handle: handle.set(1)),
        (ListState("long", ttl=Ttl("10s")), lambda handle: handle.add(1)),
        (MapState("long", "long", ttl=Ttl("10s")), lambda handle: handle.put(1, 1)),
    ],
    ids=lambda case: type(case).__name__,
)
def test_what_nobody_asks_for_again_leaves_memory_after_a_snapshot_has_found_it_expired(
    state: KeyedState, put: Callable[[Any], None]
) -> None:
    now_ms = [0]
    backend = HeapBackend(KEYS, **ALL_GROUPS, place=StatePlace(now_ms=lambda: now_ms[0]))
    handle = declare(backend, state.named("s"))
    for backend.cursor.key in (1, 2, 3):
        put(handle)
    now_ms[0] = 10_000
    frozen = backend.freeze()["s"]
    backend.cursor.key = 2
    put(handle)
    assert table_of(frozen).num_rows == 0
    frozen.released()
    backend.begin([2])
    held = backend._states["s"].layers.live
    assert list(held) == [2] and not held.below


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("struct<a:long,b:array<string>>", {"a": 1, "b": ["x", None]}),
        ("struct<a:long,b:array<string>>", {"b": None, "a": None}),
        ("array<struct<a:double>>", [{"a": 0.5}, None, {"a": None}]),
        ("map<string,array<long>>", {"a": [1], "b": None}),
        ("struct<a:long>", {"a": np.int64(3)}),
        ("struct<a:double>", {"a": 1}),
        ("struct<a:long>", UserDict(a=3)),
        ("map<string,long>", UserDict(a=3)),
        ("struct<a:string>", {"a": "é"}),
        ("array<long>", (1, 2)),
    ],
    ids=str,
)
def test_a_nested_value_is_normalised_as_arrow_would_whichever_way_is_taken(ddl: str, value: Any) -> None:
    kind = parse_type(ddl)
    found = normaliser(kind)(value)
    assert found == to_list(to_array([value], kind))[0]
    assert repr(sorted(found) if isinstance(found, dict) else found) == repr(
        sorted(to_list(to_array([value], kind))[0]) if isinstance(found, dict) else to_list(to_array([value], kind))[0]
    )
    assert found is not value


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("struct<a:long>", {"a": 1.5}),
        ("struct<a:long>", {}),
        ("struct<a:long>", {"A": 1}),
        ("struct<a:long>", {"a": 1, "b": 2}),
        ("map<string,long>", [("a", 1), ("a", 2)]),
        ("array<string>", "ab"),
        ("array<long>", [True]),
        ("map<string,long>", {None: 1}),
        ("array<long>", [2**63]),
    ],
    ids=str,
)
def test_a_nested_value_of_another_type_is_refused(ddl: str, value: Any) -> None:
    with pytest.raises(NotOfType):
        normaliser(parse_type(ddl))(value)


@pytest.mark.parametrize(
    ("state", "put"),
    [
        (ValueState("long"), lambda handle, number: handle.set(number)),
        (ListState("long"), lambda handle, number: handle.add(number)),
        (ListState("long", ttl=Ttl("1h")), lambda handle, number: handle.add(number)),
        (MapState("long", "long"), lambda handle, number: handle.put(number, number)),
    ],
    ids=lambda case: type(case).__name__,
)
def test_the_cycle_collector_does_not_walk_through_state(state: KeyedState, put: Callable[[Any, int], None]) -> None:
    backend, again = HeapBackend(KEYS, **ALL_GROUPS), HeapBackend(KEYS, **ALL_GROUPS)
    handle = declare(backend, state.named("s"))
    declare(again, state.named("s"))

    def change(count: int) -> None:
        backend.begin(range(count))
        for backend.cursor.key in range(count):
            put(handle, backend.cursor.key)
        backend.end()

    change(100)
    frozen = backend.freeze()["s"]
    change(50)
    again.restore(as_restored({"s": [table_of(frozen)]}))
    frozen.released()
    for one in (backend, again):
        one.begin([])
        live = one._states["s"].layers.live
        assert len(live) == 100 and not live.below
        assert not gc.is_tracked(live) and not any(map(gc.is_tracked, live.values()))


def test_nor_through_rows() -> None:
    backend = HeapBackend(KEYS, **ALL_GROUPS)
    row_type = namedtuple("row_type", "a b")
    state = backend.row_state("s", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    for backend.cursor.key in range(10):
        # The second time the types of the row are known.
        for _ in range(2):
            state.set(row_type(backend.cursor.key, "x"))
    gc.collect()
    held = backend._states["s"].layers.live
    assert len(held) == 10 and not any(map(gc.is_tracked, held.values()))


def test_a_snapshot_of_which_nothing_is_left_is_an_empty_table() -> None:
    made = HeapBackend(pa.schema([("k", pa.int64())]), max_parallelism=128, key_groups=range(128))
    state = made.map_state(MapState("long", "long").named("m"))
    made.cursor.key = 1
    state.put(1, 1)
    held = made.freeze()["m"]
    state.clear()
    assert table_of(made.freeze()["m"]).num_rows == 0
    held.released()
