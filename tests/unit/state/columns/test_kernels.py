"""Accumulators by slot: rules, nulls, overflow, growth and freezing."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from weir.errors import DataError
from weir.operators.aggregates import frames as aggregate_frames
from weir.operators.aggregates import named as of
from weir.operators.aggregates.frames import FrameKernel, distinct
from weir.state.columns.kernels import FixedKernel, Kernel

INT64_MAX = (1 << 63) - 1


def merge(kernel: Kernel, slots: list[int], values: list[Any], kind: pa.DataType, count: int) -> None:
    kernel.merge(np.array(slots, np.int64), [pa.array(values, kind)], count=count)


def read(kernel: Kernel, count: int) -> list[Any]:
    values: list[Any] = kernel.read(np.arange(count))[0].to_pylist()
    return values


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("add", [7, 5, None, 9]), ("min", [1, 5, None, 9]), ("max", [6, 5, None, 9]), ("last", [6, None, None, 9])],
)
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.int8(), pa.duration("us"), pa.float32()])
def test_nulls_are_left_out_of_sums_and_extremes_but_can_be_last(rule: Any, expected: list[Any], kind: Any) -> None:
    kernel = FixedKernel([kind], [rule], "x")
    merge(kernel, [0, 1], [1, 5], kind, 2)
    merge(kernel, [2, 0, 1, 0, 3], [None, None, None, 6, 9], kind, 4)
    array = kernel.read(np.arange(4))[0]
    assert array.type == kind
    assert (array.cast(pa.int64()) if pa.types.is_duration(kind) else array).to_pylist() == expected


def test_first_keeps_what_came_first_be_it_null_over_merges_and_within_one() -> None:
    kernel = FixedKernel([pa.int64()], ["first"], "x")
    merge(kernel, [0, 0, 1], [None, 4, 5], pa.int64(), 2)
    merge(kernel, [1, 0, 2, 2], [8, 8, 6, 7], pa.int64(), 3)
    assert read(kernel, 3) == [None, 5, 6]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_is_greater_than_any_number_as_in_spark(kind: pa.DataType) -> None:
    low, high = FixedKernel([kind], ["min"], "x"), FixedKernel([kind], ["max"], "x")
    for kernel in (low, high):
        merge(kernel, [0, 0, 1, 2, 2], [math.nan, 1.0, math.nan, math.inf, -math.inf], kind, 3)
    assert str(read(low, 3)) == "[1.0, nan, -inf]"
    assert str(read(high, 3)) == "[nan, nan, inf]"


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("ns", "UTC")]
)
def test_extremes_reach_the_ends_of_every_type(kind: pa.DataType) -> None:
    ends = {pa.int8(): [-128, 127], pa.uint64(): [0, (1 << 64) - 1], pa.int64(): [-INT64_MAX - 1, INT64_MAX]}
    values = pa.array(ends.get(kind, [0, 1]), kind if kind in ends else pa.int32())
    if kind not in ends:
        values = values.cast(pa.int64()).cast(kind) if kind != pa.date32() else values.cast(kind)
    for rule, slots in (("min", [0, 1]), ("max", [0, 1])):
        kernel = FixedKernel([kind], [rule], "x")  # type: ignore[list-item]
        kernel.merge(np.array(slots), [values], count=2)
        assert kernel.read(np.arange(2))[0].equals(values)
        kernel.merge(np.array(slots[::-1]), [values], count=2)
        assert kernel.read(np.arange(2))[0].equals(values.take(pa.array([0, 0] if rule == "min" else [1, 1])))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_leaves_int64_raises_and_one_that_touches_its_end_does_not(sign: int) -> None:
    kernel = FixedKernel([pa.int64()], ["add"], "total")
    end = INT64_MAX if sign > 0 else -INT64_MAX - 1
    half = end // 2
    merge(kernel, [0, 1, 1], [half, half, end - half], pa.int64(), 2)
    assert read(kernel, 2) == [half, end]
    merge(kernel, [1, 1, 0], [-sign * 5, sign * 5, 3], pa.int64(), 2)
    assert read(kernel, 2) == [half + 3, end]
    merge(kernel, [0, 1], [1, sign], pa.int64(), 2)
    assert read_slots(kernel, [0]) == [half + 4]
    with pytest.raises(DataError, match=r"'total'.*beyond"):
        read(kernel, 2)
    merge(kernel, [1], [-sign], pa.int64(), 2)
    assert read(kernel, 2) == [half + 4, end]


@pytest.mark.parametrize("sign", [1, -1])
def test_where_every_row_is_shown_a_sum_must_not_leave_int64_in_passing(sign: int) -> None:
    end = INT64_MAX if sign > 0 else -INT64_MAX - 1
    for cuts in ([3], [1, 2], [2, 1], [1, 1, 1]):
        kernel = FixedKernel([pa.int64()], ["add"], "total")
        kernel.show_every_row()
        with pytest.raises(DataError, match=r"'total'.*beyond"):
            place = 0
            for cut in cuts:
                merge(kernel, [0] * cut, [end, sign, -sign][place : place + cut], pa.int64(), 1)
                place += cut
        kernel = FixedKernel([pa.int64()], ["add"], "total")
        kernel.show_every_row()
        merge(kernel, [0, 1, 0, 1, 0], [end, end, -sign, -sign, sign], pa.int64(), 2)
        assert read(kernel, 2) == [end, end - sign]


def test_sums_far_beyond_int64_come_back_exactly() -> None:
    generator = np.random.default_rng(3)
    kernel, expected = FixedKernel([pa.int64()], ["add"], "x"), [0] * 20
    for _ in range(50):
        slots, values = generator.integers(0, 20, 200), generator.integers(-INT64_MAX - 1, INT64_MAX, 200)
        kernel.merge(slots, [pa.array(values)], count=20)
        for slot, value in zip(slots.tolist(), values.tolist(), strict=True):
            expected[slot] += value
    other = FixedKernel([pa.int64()], ["add"], "x")
    kernel.pour(np.arange(20), other, np.arange(20)[::-1], count=20)
    for slot, total in enumerate(expected):
        while abs(expected[slot]) > INT64_MAX:
            step = min(INT64_MAX, max(-INT64_MAX, expected[slot]))
            merge(other, [19 - slot], [-step], pa.int64(), 20)
            expected[slot] -= step
        assert read_slots(other, [19 - slot]) == [expected[slot]], total


def test_large_values_of_both_signs_that_cancel_out_are_summed_exactly() -> None:
    generator = np.random.default_rng(2)
    kernel, expected = FixedKernel([pa.int64()], ["add"], "x"), np.zeros(50, object)
    for _ in range(20):
        slots = generator.permutation(np.repeat(np.arange(50), 2))
        values = generator.integers(-(1 << 61), 1 << 61, 50)
        pairs = np.empty(100, np.int64)
        order = np.argsort(slots, kind="stable")
        pairs[order[0::2]], pairs[order[1::2]] = values, -values + 1
        kernel.merge(slots, [pa.array(pairs)], count=50)
        expected += 1
    assert read(kernel, 50) == expected.tolist()


def read_slots(kernel: Kernel, slots: list[int]) -> list[Any]:
    found: list[Any] = kernel.read(np.array(slots))[0].to_pylist()
    return found


def frame_kernel(rule: str, kind: pa.DataType) -> Kernel:
    aggregate = getattr(of, rule)("x")
    kernel: Kernel = aggregate.kernel(pa.schema({"x": kind}), "out")
    assert isinstance(kernel, FrameKernel)
    return kernel


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("min", ["a", "b", None, "d"]),
        ("max", ["c", "b", None, "d"]),
        ("first", ["a", "b", None, "d"]),
        ("last", ["c", None, None, "d"]),
    ],
)
def test_strings_follow_the_same_rules(rule: str, expected: list[Any]) -> None:
    kernel = frame_kernel(rule, pa.string())
    merge(kernel, [0, 1], ["a", "b"], pa.string(), 2)
    merge(kernel, [2, 0, 1, 0, 3], [None, None, None, "c", "d"], pa.string(), 4)
    assert read(kernel, 4) == expected


@pytest.mark.parametrize("rule", ["first", "last"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int64()), [[1], [], None, [2, 3]]),
        (
            pa.struct({"a": pa.string(), "b": pa.int64()}),
            [{"a": "x", "b": 1}, {"a": None, "b": 2}, None, {"a": "", "b": 3}],
        ),
        (pa.binary(), [b"\0", b"", None, b"ab"]),
        (pa.decimal128(20, 3), [Decimal("1.250"), Decimal("-1.000"), None, Decimal("0.001")]),
    ],
)
def test_first_and_last_take_values_of_any_type(rule: str, kind: pa.DataType, values: list[Any]) -> None:
    kernel = frame_kernel(rule, kind)
    merge(kernel, [0, 1, 2, 0], values, kind, 3)
    assert kernel.read(np.arange(3))[0].type == kind
    assert read(kernel, 3) == [values[0 if rule == "first" else 3], values[1], values[2]]


def test_decimals_are_summed_exactly_and_nothing_but_nulls_is_null() -> None:
    kernel = frame_kernel("sum", pa.decimal128(10, 2))
    kind = pa.decimal128(20, 2)
    merge(kernel, [0, 1], [Decimal("0.10"), None], kind, 2)
    for _ in range(9):
        merge(kernel, [0, 1], [Decimal("0.10"), None], kind, 2)
    assert read(kernel, 2) == [Decimal("1.00"), None]


@pytest.mark.parametrize("times", [2, 3, 4, 7])
def test_a_sum_of_decimals_beyond_their_38_digits_raises(times: int) -> None:
    kind = pa.decimal128(38, 2)
    kernel = frame_kernel("sum", kind)
    most, least = Decimal("8" * 36), Decimal("-" + "8" * 36)
    merge(kernel, [0, 1, 1], [most, most, least], kind, 2)
    assert read(kernel, 2) == [most, 0]
    with pytest.raises(DataError, match=r"'out'.*beyond"):
        merge(kernel, [0] * (times - 1), [most] * (times - 1), kind, 2)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_cleared_kernel_has_forgotten_everything(kind: pa.DataType) -> None:
    for rule in ("min", "max", "first", "last"):
        kernel: Kernel = getattr(of, rule)("x").kernel(pa.schema({"x": kind}), "out")
        for number in (5, 6, 4):
            kernel.clear()
            merge(kernel, [0, 1], pa.array([number, None], pa.int64()).cast(kind).to_pylist(), kind, 2)
            assert read(kernel, 2) == pa.array([number, None], pa.int64()).cast(kind).to_pylist()


def test_frames_stay_few_and_hold_little_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_frames, "_GARBAGE_ROWS_MIN", 100)
    kernel = FrameKernel([pa.field("x", pa.string())], {"x": pl.col("x").last()})
    generator = np.random.default_rng(1)
    newest = [""] * 200
    merge(kernel, list(range(200)), newest, pa.string(), 200)
    for turn in range(300):
        slots = generator.integers(0, 200, int(generator.integers(1, 40))).tolist()
        words = [f"{turn} {i}" for i in range(len(slots))]
        for slot, word in zip(slots, words, strict=True):
            newest[slot] = word
        merge(kernel, slots, words, pa.string(), 200)
        assert len(kernel._frames) <= 8
        assert sum(map(len, kernel._frames)) == kernel._row_count <= 500
    assert read(kernel, 200) == newest


def test_distinct_keeps_each_slot_once() -> None:
    assert sorted(distinct(np.array([3, 1, 3, 0, 1]), 4).tolist()) == [0, 1, 3]
    assert distinct(np.array([], np.int64), 0).tolist() == []
