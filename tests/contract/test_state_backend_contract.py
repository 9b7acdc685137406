"""What every state backend promises, run against each of them."""

from __future__ import annotations

import datetime
import decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.contract.state_backends import KEYS, MAX_PARALLELISM, Maker, backends
from tests.states import as_restored, table_of
from weir.errors import CheckpointError, PlanError, ProtocolViolation
from weir.operators.base import key_group_range
from weir.state.declared.kinds import ValueState
from weir.state.frozen import KEY_GROUP_COLUMN
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.values.conversion import NotOfType

UTC = datetime.timezone.utc


@pytest.fixture(params=backends())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(backends()[request.param], tmp_path)


class Point(NamedTuple):
    x: int
    tags: list[int]


VALUES = [
    ("boolean", True),
    ("byte", -128),
    ("long", 2**63 - 1),
    ("float", 0.5),
    ("double", float("inf")),
    ("string", "dé🙂jà"),
    ("binary", b"\x00\xff"),
    ("date", datetime.date(1, 1, 1)),
    ("timestamp", datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)),
    ("timestamp_ntz", datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),
    ("decimal(10,2)", decimal.Decimal("1.25")),
    ("array<long>", [1, None, 3]),
    ("map<string,array<long>>", {"a": [1], "b": []}),
    ("struct<x:long,y:array<string>>", {"x": 1, "y": ["z"]}),
]


@pytest.mark.parametrize(("ddl", "value"), VALUES, ids=[ddl for ddl, _ in VALUES])
def test_values_of_every_type_come_back_as_they_were_also_after_a_restore(make: Maker, ddl: str, value: Any) -> None:
    backend = make(KEYS)
    state = backend.value_state(ValueState(ddl, name="s"))
    one, two, three = backend.keys([pa.array([1, 2, 3])])
    backend.cursor.key = one
    assert state.get() is None
    state.set(value)
    backend.cursor.key = two
    state.set(None)

    restored = make(KEYS)
    again = restored.value_state(ValueState(ddl, name="s"))
    restored.restore(as_restored({"s": [table_of(backend.freeze()["s"])]}))
    for handle, cursor in ((state, backend.cursor), (again, restored.cursor)):
        cursor.key = one
        assert handle.get() == value and type(handle.get()) is type(value)
        assert handle.value == value
        for key in (two, three):
            cursor.key = key
            assert handle.get() is None


def test_get_is_the_default_until_set_and_after_clear_but_none_is_a_value(make: Maker) -> None:
    backend = make(KEYS)
    state = backend.value_state(ValueState("long", default=7, name="s"))
    backend.cursor.key = backend.keys([pa.array([1])])[0]
    assert state.get() == 7
    state.set(8)
    state.clear()
    state.clear()
    assert state.get() == 7
    state.set(None)
    assert state.get() is None
    assert table_of(backend.freeze()["s"]).num_rows == 1
    state.clear()
    assert table_of(backend.freeze()["s"]).num_rows == 0


@pytest.mark.parametrize(("ddl", "value"), [case for case in VALUES if "<" in case[0]], ids=str)
def test_only_set_changes_the_state(make: Maker, ddl: str, value: Any) -> None:
    def spoil(thing: Any) -> None:
        for part in thing.values() if isinstance(thing, dict) else ():
            if isinstance(part, list):
                part.append(None)
        thing.clear()

    for default in (None, value):
        backend = make(KEYS)
        state = backend.value_state(ValueState(ddl, default=default, name="s"))
        backend.cursor.key = backend.keys([pa.array([1])])[0]
        mine = pa.array([value], ValueState(ddl).type).to_pylist(maps_as_pydicts="strict")[0]
        if default is None:
            state.set(mine)
        build = partial(table_of, backend.freeze()["s"])
        spoil(mine)
        spoil(state.get())
        assert state.get() == value
        assert build().num_rows == (default is None)


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("long", 1.0),
        ("long", True),
        ("long", "1"),
        ("long", 2**63),
        ("byte", 128),
        ("double", "1"),
        ("string", 1),
        ("string", "\ud800"),
        ("boolean", 1),
        ("date", "2024-01-01"),
        ("timestamp", 0),
        ("decimal(4,2)", decimal.Decimal("1.001")),
        ("array<long>", ["a"]),
        ("struct<x:long>", 1),
    ],
)
def test_a_value_that_could_not_be_written_is_refused_when_it_is_set(make: Maker, ddl: str, value: Any) -> None:
    backend = make(KEYS)
    state = backend.value_state(ValueState(ddl, name="the-state"))
    backend.cursor.key = backend.keys([pa.array([42])])[0]
    with pytest.raises(TypeError, match=r"(?s)state 'the-state' holds .* but was set to .* at key 42"):
        state.set(value)
    assert state.get() is None


@pytest.mark.parametrize(
    ("ddl", "value", "held"),
    [
        ("long", np.int64(3), 3),
        ("double", 3, 3.0),
        ("float", 0.1, float(np.float32(0.1))),
        ("string", np.str_("x"), "x"),
    ],
)
def test_a_value_is_held_as_it_will_be_after_a_restore(make: Maker, ddl: str, value: Any, held: Any) -> None:
    backend = make(KEYS)
    state = backend.value_state(ValueState(ddl, name="s"))
    backend.cursor.key = backend.keys([pa.array([1])])[0]
    state.set(value)
    assert state.get() == held and type(state.get()) is type(held)


MOMENTS = [datetime.datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)]
KEY_COLUMNS = [
    pa.array([1, None, -(2**63)]),
    pa.array([2**64 - 1, None, 0], pa.uint64()),
    pa.array([True, False, None]),
    pa.array(["", "é", None]),
    pa.array(["", "é", None], pa.large_string()),
    pa.array(["", "é", None], pa.string_view()),
    pa.array(["", "é", None]).dictionary_encode(),
    pa.array([b"", b"\xff", None]),
    pa.array([0.0, float("nan"), None]),
    pa.array([0.0, float("nan"), None], pa.float32()),
    pa.array([datetime.date(2024, 1, 1), None]),
    pa.array([*MOMENTS, None], pa.timestamp("us", "Europe/Berlin")),
    pa.array([1, 2, None], pa.timestamp("ns")),
    pa.array([1, None], pa.duration("us")),
    pa.array([decimal.Decimal("1.10"), None], pa.decimal128(5, 2)),
]


@pytest.mark.parametrize("column", KEY_COLUMNS, ids=lambda column: str(column.type))
def test_keys_of_every_type_are_found_again_and_lie_where_the_exchange_sends_them(
    make: Maker, column: pa.Array
) -> None:
    schema = pa.schema([("k", column.type), ("j", pa.int64())])
    columns = [column, pa.array(range(len(column)))]
    backend = make(schema)
    state = backend.value_state(ValueState("long", name="s"))
    for number, key in enumerate(backend.keys(columns)):
        backend.cursor.key = key
        state.set(number)
    table = table_of(backend.freeze()["s"])
    groups = table.column(KEY_GROUP_COLUMN).to_pylist()
    expected = key_groups(hash_keys(columns), MAX_PARALLELISM).tolist()
    assert groups == sorted(expected)
    assert dict(zip(table.column("value").to_pylist(), groups)) == dict(enumerate(expected))

    restored = make(schema)
    again = restored.value_state(ValueState("long", name="s"))
    restored.restore(as_restored({"s": [table]}))
    for number, key in enumerate(restored.keys(columns)):
        restored.cursor.key = key
        assert again.get() == number


def test_keys_are_shown_as_users_know_them(make: Maker) -> None:
    schema = pa.schema([("k", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    backend = make(schema)
    [key] = backend.keys([pa.array([MOMENTS[0]], schema.field("k").type), pa.array([datetime.date(2024, 1, 1)])])
    assert backend.shown(key) == (MOMENTS[0], datetime.date(2024, 1, 1))


def test_a_key_column_may_be_called_like_the_value(make: Maker) -> None:
    schema = pa.schema([("value", pa.int64())])
    backend = make(schema)
    state = backend.value_state(ValueState("string", name="s"))
    backend.cursor.key = backend.keys([pa.array([1])])[0]
    state.set("x")
    table = table_of(backend.freeze()["s"])
    assert table.schema.names == [KEY_GROUP_COLUMN, "value", "_value"]
    restored = make(schema)
    again = restored.value_state(ValueState("string", name="s"))
    restored.restore(as_restored({"s": [table]}))
    restored.cursor.key = backend.cursor.key
    assert again.get() == "x"


def test_empty_state_freezes_to_an_empty_table_that_restores(make: Maker) -> None:
    backend = make(KEYS)
    backend.value_state(ValueState("long", name="s"))
    table = table_of(backend.freeze()["s"])
    assert table.num_rows == 0 and table.schema.names == [KEY_GROUP_COLUMN, "k", "value"]
    backend.restore(as_restored({"s": [table, table]}))


def test_tables_of_several_old_subtasks_join_and_rows_of_others_are_refused(make: Maker) -> None:
    backend = make(KEYS)
    state = backend.value_state(ValueState("long", name="s"))
    keys = list(range(1_000))
    for key, number in zip(backend.keys([pa.array(keys)]), keys):
        backend.cursor.key = key
        state.set(number)
    table = table_of(backend.freeze()["s"])
    found: dict[int, int] = {}
    for index in range(3):
        own = key_group_range(index, 3, MAX_PARALLELISM)
        part = table.filter([group in own for group in table.column(0).to_pylist()])
        restored = make(KEYS, own)
        again = restored.value_state(ValueState("long", name="s"))
        restored.restore(as_restored({"s": [part.slice(0, 50), part.slice(50)]}))
        for key, number in zip(restored.keys([part.column("k").combine_chunks()]), part.column("k").to_pylist()):
            restored.cursor.key = key
            found[number] = again.get()
        with pytest.raises(ProtocolViolation, match="this subtask owns"):
            restored.restore(as_restored({"s": [table]}))
    assert found == {number: number for number in keys}


def test_rows_are_kept_under_the_same_law(make: Maker) -> None:
    schema = pa.schema([("x", pa.int64()), ("tags", pa.list_(pa.int64()))])
    backend = make(KEYS)
    state = backend.row_state("s", schema)
    backend.cursor.key = backend.keys([pa.array([1])])[0]
    assert state.get() is None
    mine = Point(1, [1, 2])
    state.set(mine)
    build = partial(table_of, backend.freeze()["s"])
    mine.tags.clear()
    state.get()[1].clear()
    assert state.get() == (1, [1, 2]) and type(state.get()) is tuple
    state.set(Point(1, [1, 2]))
    assert state.get() == (1, [1, 2]) and type(state.get()) is tuple
    with pytest.raises(NotOfType):
        state.set(Point("x", []))  # type: ignore[arg-type]
    restored = make(KEYS)
    again = restored.row_state("s", schema)
    restored.restore(as_restored({"s": [build()]}))
    restored.cursor.key = backend.cursor.key
    assert again.get() == (1, [1, 2]) and type(again.get()) is tuple


def test_names_are_given_once_and_unknown_ones_are_not_restored(make: Maker) -> None:
    backend = make(KEYS)
    backend.value_state(ValueState("long", name="s"))
    with pytest.raises(PlanError, match="declared twice"):
        backend.value_state(ValueState("long", name="s"))
    with pytest.raises(PlanError, match="needs a name"):
        backend.value_state(ValueState("long"))
    with pytest.raises(CheckpointError, match="'t', which the function does not declare"):
        backend.restore(as_restored({"t": []}))
