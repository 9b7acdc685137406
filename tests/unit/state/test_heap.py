"""The heap backend's own parts: descriptors, values both ways, and what freezing costs the stream."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.states import table_of
from weir.errors import PlanError, SchemaError
from weir.state.descriptors import ValueState
from weir.state.heap import HeapBackend
from weir.state.values import NotOfType, copier, shown, to_array, to_list

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
