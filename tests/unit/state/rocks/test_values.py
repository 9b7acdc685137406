"""Values and keys as byte strings."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import SchemaError
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.rocks.keys import RocksKeys
from weir.state.rocks.values import check_value_type, pack, unpack

UTC = datetime.timezone.utc
D = decimal.Decimal
PAIR = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
DEEP = pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.struct([("q", pa.string())])))]))

CASES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, None, -3]),
    (pa.uint64(), [2**64 - 1, None, 0]),
    (pa.bool_(), [True, None, False]),
    (pa.float16(), [np.float16(1.5), None]),
    (pa.float64(), [float("inf"), None, -0.0]),
    (pa.string(), ["a", None, "", "dé🙂"]),
    (pa.large_string(), ["a", None, ""]),
    (pa.string_view(), ["a string of more than twelve bytes", None, ""]),
    (pa.binary(), [b"", None, b"\0x"]),
    (pa.binary(3), [b"abc", None]),
    (pa.decimal128(10, 2), [D("1.25"), None]),
    (pa.decimal256(40, 2), [D("-1.25"), None]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=UTC), None]),
    (pa.timestamp("ns"), [1, None]),
    (pa.date32(), [datetime.date(1, 1, 1), None]),
    (pa.date64(), [datetime.date(2001, 1, 1), None]),
    (pa.time64("us"), [datetime.time(1, 2, 3), None]),
    (pa.duration("ms"), [datetime.timedelta(1), None]),
    (pa.null(), [None, None]),
    (pa.list_(pa.int64()), [[1, None, 3], None, [], [4]]),
    (pa.list_(pa.bool_()), [[True, None], [], None]),
    (pa.list_(pa.null()), [[None, None], [], None]),
    (pa.list_(pa.string()), [["a", None, ""], None, [], ["bcd", "e"]]),
    (pa.large_list(pa.string()), [["a"], None]),
    (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None]]),
    (pa.list_(pa.list_(pa.string())), [[["a"], None, []], None, [], [["bcd", "e"], ["f", None]]]),
    (pa.map_(pa.string(), pa.list_(pa.int64())), [[("a", [1]), ("b", []), ("c", None)], None, []]),
    (PAIR, [{"x": 1, "y": ["z"]}, None, {"x": None, "y": None}, {"x": 2, "y": ["", None, "abc"]}]),
    (pa.struct([("x", pa.int64()), ("y", pa.float64())]), [{"x": 1, "y": 2.5}, None, {"x": None, "y": None}]),
    (pa.struct([]), [{}, None]),
    (DEEP, [[{"m": [(1, {"q": "a"}), (2, None)]}, None, {"m": None}], [], None]),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=[str(kind) for kind, _ in CASES])
def test_arrays_of_every_type_come_back_from_bytes_also_when_they_are_slices(
    kind: pa.DataType, values: list[Any]
) -> None:
    whole = pa.array(values + values, kind)
    for array in (whole, whole[1:], whole[2:3], whole[:0], pa.nulls(3, kind)):
        packed = pack(array)
        again = unpack(packed, kind)
        again.validate(full=True)
        assert again.type == kind and again.equals(array)
        assert [value == b"" for value in packed] == [not valid for valid in array.is_valid().to_pylist()]


def test_a_value_packed_alone_is_the_same_as_among_others() -> None:
    for kind, values in CASES:
        array = pa.array(values, kind)
        assert pack(array) == [pack(array[i : i + 1])[0] for i in range(len(array))]


def test_a_type_that_has_no_bytes_is_refused_with_the_state_that_wants_it() -> None:
    with pytest.raises(SchemaError, match="state 'odd': the rocksdb backend cannot keep values of type"):
        check_value_type(pa.dense_union([pa.field("a", pa.int32())]), "odd")


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", None, "", "ab"]),
    (pa.int64(), [1, None, -3, 2]),
    (pa.binary(), [b"", b"\xff", None, b"\0\0"]),
    (pa.decimal128(38, 2), [D("123456789012345678901.25"), None, D(-1), D(0)]),
    (pa.decimal128(9, 2), [D("1.25"), None, D(-1), D(0)]),
    (pa.float32(), [1.0, None, 0.5, 0.0]),
    (pa.bool_(), [True, False, None, True]),
    (pa.null(), [None] * 4),
    (pa.date32(), [datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1), datetime.date(1970, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=UTC), None, None, None]),
    (pa.binary(2), [b"ab", None, b"cd", b"\0\0"]),
]


def test_keys_of_every_type_come_back_and_begin_with_their_key_group() -> None:
    together = [[case] for case in KEYS] + [KEYS, KEYS[::-1], KEYS[:3]]
    for cases in together:
        schema = pa.schema([(f"k{i}", kind) for i, (kind, _) in enumerate(cases)])
        columns = [pa.array(values, kind) for kind, values in cases]
        keys = RocksKeys(schema, 128)
        encoded = keys.encode(columns)
        for suffix in (b"", b"abc"):
            groups, decoded = keys.decode([key + suffix for key in encoded])
            assert decoded == columns
            assert groups.tolist() == key_groups(hash_keys(columns), 128).tolist()
        assert keys.ends([key + b"abc" for key in encoded]) == [len(key) for key in encoded]
        assert [key[:2] for key in encoded] == [int(group).to_bytes(2, "big") for group in groups]


def test_equal_keys_have_equal_bytes_and_others_do_not() -> None:
    keys = RocksKeys(pa.schema([("a", pa.float64())]), 128)
    nan = np.frombuffer(b"\x01\0\0\0\0\0\xf8\xff", np.float64)[0]
    one, other, zero, negative, null = keys.encode([pa.array([float("nan"), nan, 0.0, -0.0, None])])
    assert one == other and zero == negative and len({one, zero, null}) == 3
    pairs = RocksKeys(pa.schema([("a", pa.string()), ("b", pa.string())]), 128)
    columns = [pa.array(["a", "ab", "abc", "", None]), pa.array(["bc", "c", "", "abc", "abc"])]
    assert len({key[2:] for key in pairs.encode(columns)}) == 5


def test_dictionary_columns_give_the_same_keys_as_plain_ones() -> None:
    plain = pa.array(["a", None, "b", "a"])
    for array in (plain, pa.array(["a", "b", "a"])):
        keys = RocksKeys(pa.schema([("a", pa.string())]), 128)
        assert keys.encode([array.dictionary_encode()]) == keys.encode([array])


def test_a_key_is_shown_as_users_know_it() -> None:
    moment = datetime.datetime(2020, 1, 1, tzinfo=UTC)
    keys = RocksKeys(pa.schema([("a", pa.string()), ("b", pa.timestamp("us", "UTC"))]), 128)
    [key] = keys.encode([pa.array(["x"]), pa.array([moment], pa.timestamp("us", "UTC"))])
    assert keys.shown(key) == ("x", moment) and keys.shown(None) is None
