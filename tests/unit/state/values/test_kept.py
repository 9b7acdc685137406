"""Python values for Arrow types: kept as they are, or refused."""

from __future__ import annotations

import datetime
import time
import types
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from weir.schema import parse_type
from weir.state.values.conversion import NotOfType, to_array, to_list
from weir.state.values.infinities import array_of

UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 1, 1, 12)
FINE = datetime.datetime(2024, 1, 1, 12, 0, 0, 5, UTC)
Turned = namedtuple("Turned", "b a")
LONG = parse_type("array<long>")
PAIR = parse_type("struct<a:long,b:string>")
COUNTS = parse_type("map<string,long>")


@pytest.mark.parametrize(
    ("value", "kind", "kept"),
    [
        ((1, 2), LONG, [1, 2]),
        ({1, 2}, LONG, [1, 2]),
        (deque([1]), LONG, [1]),
        (range(2), LONG, [0, 1]),
        (np.array([1, 2]), LONG, [1, 2]),
        (np.array([1, None], object), LONG, [1, None]),
        (np.array([1.5], np.float32), pa.list_(pa.float64()), [1.5]),
        ([1, 2.5, np.float32(0.5)], pa.list_(pa.float64()), [1.0, 2.5, 0.5]),
        ([[1], None, (2,), []], pa.list_(LONG), [[1], None, [2], []]),
        (["é", None], parse_type("array<string>"), ["é", None]),
        ((1, "x"), PAIR, {"a": 1, "b": "x"}),
        ({"b": None, "a": None}, PAIR, {"a": None, "b": None}),
        (UserDict(a=1, b="x"), PAIR, {"a": 1, "b": "x"}),
        (types.MappingProxyType({"a": 1}), COUNTS, {"a": 1}),
        (OrderedDict(a=1), COUNTS, {"a": 1}),
        ([("a", 1)], COUNTS, {"a": 1}),
        ([UserDict(a=1)], pa.list_(COUNTS), [{"a": 1}]),
        (FINE.replace(microsecond=5000), pa.timestamp("ms", "UTC"), FINE.replace(microsecond=5000)),
        ([NOON], parse_type("array<timestamp_ntz>"), [NOON]),
        (datetime.datetime(2024, 1, 1), pa.date32(), datetime.date(2024, 1, 1)),
        (datetime.time(1, 2, 3), pa.time32("s"), datetime.time(1, 2, 3)),
        (np.array(["2024-01-01T12"], "M8[us]"), parse_type("array<timestamp_ntz>"), [NOON]),
    ],
    ids=str,
)
def test_what_fits_is_kept(value: Any, kind: pa.DataType, kept: Any) -> None:
    assert to_list(to_array([None, value], kind)) == [None, kept]


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ({"a": 1, "B": "x"}, PAIR, "field 'b' is missing; field 'B' is not in the struct"),
        ({"a": 1}, PAIR, "field 'b' is missing"),
        ({"a": 1, "b": "x", "c": 2}, PAIR, "field 'c' is not in the struct"),
        (UserDict(a=1), PAIR, "field 'b' is missing"),
        ([{"a": 1}], pa.list_(PAIR), "inside of it: field 'b' is missing"),
        ((1, "x", 2), PAIR, "3 values for 2 fields"),
        (Turned(b="x", a=1), PAIR, "in another order"),
        ([("a", 1), ("b", "x")], PAIR, "wrong type"),
        ([("a", 1), ("a", 2)], COUNTS, "a key more than once"),
        ([["a", 1]], COUNTS, "wrong type"),
        ({"a": True}, COUNTS, r"True \(bool\) inside of it, where int64"),
        ("ab", parse_type("array<string>"), "it is no list"),
        (["ab", "cd"], parse_type("array<array<string>>"), r"'ab' \(str\) inside of it: it is no list"),
        (b"ab", LONG, "it is no list"),
        (bytearray(b"ab"), LONG, "it is no list"),
        (5, LONG, "wrong type"),
        (np.array([1.0]), LONG, "inside of it, where int64"),
        (np.array([True]), LONG, "inside of it, where int64"),
        (np.array([1], "m8[ns]"), pa.list_(pa.duration("us")), "use astype"),
        (np.array(["2024-01-01"], "M8[ns]"), parse_type("array<timestamp>"), "use astype"),
        ([0.5, True], pa.list_(pa.float64()), r"True \(bool\) inside of it"),
        (1.5, pa.dictionary(pa.int32(), pa.int64()), "wrong type"),
        (True, pa.float64(), "wrong type"),
        (np.True_, pa.int64(), "wrong type"),
        (FINE, pa.timestamp("ms", "UTC"), "finer than"),
        ([FINE], pa.list_(pa.timestamp("s", "UTC")), "finer than"),
        (datetime.timedelta(microseconds=5), pa.duration("s"), "finer than"),
        (datetime.time(1, 2, 3, 5), pa.time32("s"), "finer than"),
        (datetime.time(1, tzinfo=UTC), pa.time64("us"), "has a time zone"),
        (FINE, pa.timestamp("us"), "has a time zone"),
        ([FINE], parse_type("array<timestamp_ntz>"), "has a time zone"),
        ({"d": NOON}, parse_type("struct<d:date>"), "keeps no time of day"),
        ("\ud800", pa.string(), "surrogates"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_and_not_bent(value: Any, kind: pa.DataType, reason: str) -> None:
    with pytest.raises(NotOfType, match=reason) as caught:
        to_array([None, value], kind)
    assert caught.value.index == 1
    assert caught.value.value is value


def test_nanoseconds_of_pandas_are_not_cut_off() -> None:
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp("2024-01-01T00:00:00.123456789Z")
    for value, kind in ((moment, pa.timestamp("us", "UTC")), (pandas.Timedelta(1, "ns"), pa.duration("us"))):
        with pytest.raises(NotOfType, match="finer than"):
            to_array([value], kind)
    assert to_array([moment.floor("us")], pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist() == [1704067200123456]
    assert len(to_array([moment], pa.timestamp("ns", "UTC"))) == 1
    with pytest.raises(NotOfType, match="use None"):
        to_array([pandas.NaT], pa.timestamp("us", "UTC"))


VECTORS = np.random.default_rng(1).random((300, 768))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (list(VECTORS.astype(np.float32)), pa.list_(pa.float32())),
        ([tuple(vector.tolist()) for vector in VECTORS], pa.list_(pa.float64())),
        ([list(range(768)) for _ in VECTORS], pa.list_(pa.float64())),
        ([["é", *["word"] * 49] for _ in VECTORS], pa.list_(pa.string())),
    ],
    ids=["float arrays", "tuples", "integers for doubles", "a word that is not ASCII"],
)
def test_to_check_vectors_takes_about_as_long_as_to_convert_them(values: Any, kind: pa.DataType) -> None:
    """Twice the time of Arrow alone was measured, with a check of each value it was a hundred times."""
    alone, checked = least_ms(lambda: array_of(values, kind)), least_ms(lambda: to_array(values, kind))
    assert checked < 10 * alone + 1, f"{checked:.1f} ms, and {alone:.1f} ms without the check"


def least_ms(call: Callable[[], Any], *, times: int = 5) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1_000)
    return min(found)
