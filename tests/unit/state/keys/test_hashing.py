"""Hashes, key groups and owners, without Spark (tests/spark compares with the real one)."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.states import split_by_owner
from weir.errors import SchemaError
from weir.operators.base import key_group_range
from weir.state.keys.hashing import check_key_type, hash_keys, key_groups, owner_of
from weir.state.keys.splitting import KeySplitter


def hashes(values: list[Any], data_type: pa.DataType) -> list[int]:
    return hash_keys([pa.array(values, data_type)]).tolist()


def test_known_hashes_of_spark_stay_what_they_are() -> None:
    signed = hash_keys([pa.array([1, 2]), pa.array(["a", None])]).view(np.int64)
    assert signed.tolist() == [-8527884376001292090, -3341702809300393011]


@pytest.mark.parametrize("other", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_a_string_hashes_the_same_in_every_layout(other: pa.DataType) -> None:
    words = pa.array(["", "a", None, "äöü", "x" * 31, "x" * 32, "x" * 100, "a"])
    assert hash_keys([words.cast(other)]).tolist() == hash_keys([words]).tolist()
    assert hash_keys([words.cast(other).slice(2, 5)]).tolist() == hash_keys([words]).tolist()[2:7]


@pytest.mark.parametrize("data_type", [pa.int64(), pa.bool_(), pa.string(), pa.float64(), pa.decimal128(38, 2)])
def test_a_slice_hashes_like_the_same_rows_of_the_whole(data_type: pa.DataType) -> None:
    values = [None if i % 5 == 3 else i % 7 for i in range(40)]
    whole = pa.array(values, pa.int64()).cast(data_type)
    assert hash_keys([whole.slice(3, 30)]).tolist() == hash_keys([whole]).tolist()[3:33]


@pytest.mark.parametrize("data_type", [pa.float16(), pa.float32(), pa.float64()])
def test_zeros_are_one_key_and_nans_are_one_key(data_type: pa.DataType) -> None:
    other_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
    values = np.array([0.0, -0.0, math.nan, -math.nan, other_nan]).astype(data_type.to_pandas_dtype())
    zero, minus_zero, *nans = hash_keys([pa.array(values)]).tolist()
    assert zero == minus_zero
    assert len(set(nans)) == 1


def test_a_timestamp_hashes_by_its_microseconds_whatever_its_unit_and_zone() -> None:
    moment = [datetime(2024, 5, 6, 7, 8, 9), datetime(1960, 1, 1), None]
    expected = hashes(moment, pa.timestamp("us"))
    for data_type in (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("us", tz="UTC")):
        assert hashes(moment, data_type) == expected


def test_a_null_leaves_the_hash_of_the_columns_before_it() -> None:
    left = pa.array([1, 2, 3])
    assert hash_keys([left, pa.nulls(3)]).tolist() == hash_keys([left]).tolist()
    assert hash_keys([pa.nulls(3), left]).tolist() == hash_keys([left]).tolist()
    assert hash_keys([pa.nulls(1)]).tolist() == [42]


@pytest.mark.parametrize("data_type", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64()), pa.time64("us")])
def test_types_that_cannot_be_keys_are_refused_by_name(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"'basket'.*cannot be keyed"):
        check_key_type(data_type, "basket")


def test_a_struct_key_is_refused_with_the_way_out() -> None:
    with pytest.raises(SchemaError, match="select the fields"):
        check_key_type(pa.struct({"a": pa.int64()}), "point")


@pytest.mark.parametrize("max_parallelism", [1, 7, 100, 128])
def test_key_groups_are_never_negative_and_follow_the_signed_hash(max_parallelism: int) -> None:
    words = np.array([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], np.uint64)
    expected = [int(word) % max_parallelism for word in words.view(np.int64)]
    assert key_groups(words, max_parallelism).tolist() == expected


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(1, 1), (1, 128), (3, 128), (5, 7), (128, 128), (300, 1000)]
)
def test_the_owner_of_a_group_is_the_subtask_whose_range_holds_it(parallelism: int, max_parallelism: int) -> None:
    owners = [owner_of(group, parallelism, max_parallelism) for group in range(max_parallelism)]
    ranges = [key_group_range(index, parallelism, max_parallelism) for index in range(parallelism)]
    assert owners == [index for index, groups in enumerate(ranges) for _ in groups]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 5, 9, 300])
def test_a_split_batch_has_every_row_once_at_its_owner_in_its_old_order(parallelism: int) -> None:
    generator = np.random.default_rng(parallelism)
    names = [None if n == 0 else f"name-{n}" for n in generator.integers(0, 50, 1_000)]
    batch = pa.record_batch({"name": names, "n": generator.integers(0, 9, 1_000), "row": np.arange(1_000)}).slice(7)
    parts = split_by_owner(batch, ["name", "n"], parallelism, 1_000)
    assert [owner for owner, _ in parts] == sorted({owner for owner, _ in parts})
    groups = key_groups(hash_keys([batch["name"], batch["n"]]), 1_000)
    for owner, part in parts:
        own_rows = [i for i, group in enumerate(groups) if owner_of(int(group), parallelism, 1_000) == owner]
        assert part.equals(batch.take(pa.array(own_rows)))
    assert sum(part.num_rows for _, part in parts) == batch.num_rows


def test_a_batch_with_string_views_is_split_too() -> None:
    words = pa.array([None, *(f"a rather long word {n}" for n in range(50))], pa.string_view())
    parts = split_by_owner(pa.record_batch({"word": words}), ["word"], 3, 128)
    assert [part.schema.field("word").type for _, part in parts] == [pa.string_view()] * 3
    assert {word for _, part in parts for word in part["word"].to_pylist()} == set(words.to_pylist())


def test_a_batch_of_one_owner_is_passed_on_as_it_is() -> None:
    batch = pa.record_batch({"key": [5, 5, 5]})
    assert split_by_owner(batch, ["key"], 1, 128)[0][1] is batch
    assert split_by_owner(batch, ["key"], 4, 128)[0][1] is batch
    assert split_by_owner(batch.slice(0, 0), ["key"], 4, 128) == []


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.timestamp("us")])
@pytest.mark.parametrize("spread", [100, 30_000, 1 << 62])
def test_remembered_owners_are_those_of_the_hash_however_keys_come(kind: pa.DataType, spread: int) -> None:
    dice = np.random.default_rng(7)
    numbers = np.dtype(np.int64) if pa.types.is_timestamp(kind) else np.dtype(kind.to_pandas_dtype())
    least, most = max(np.iinfo(numbers).min, -spread), min(np.iinfo(numbers).max, spread)
    splitter = KeySplitter(["key"], 3, 128)
    for size in (1, 5, 2_000, 2_000, 20_000, 5):
        values = pa.array(dice.integers(least, most, size, endpoint=True)).cast(kind)
        if size == 2_000:
            values = pa.concat_arrays([values, pa.nulls(1, kind)])
        owners = key_groups(hash_keys([values]), 128).astype(int) * 3 // 128
        batch = pa.record_batch({"key": values, "row": pa.array(range(len(values)))})
        found = {owner: part.column("row").to_pylist() for owner, part in splitter.split(batch)}
        assert found == {owner: np.flatnonzero(owners == owner).tolist() for owner in sorted(set(owners.tolist()))}


def test_rows_are_split_by_the_hash_that_comes_with_them() -> None:
    words = pa.array([None if n % 7 == 0 else f"word-{n % 90}" for n in range(2_000)])
    batch = pa.record_batch({"word": words, "row": pa.array(range(2_000))})
    hashed = batch.append_column("hash(word)", pa.array(hash_keys([words])))
    for parallelism in (1, 2, 9):
        expected = split_by_owner(batch, ["word"], parallelism, 128)
        found = KeySplitter(["word"], parallelism, 128, hashed_as="hash(word)").split(hashed)
        assert [(owner, part.drop_columns("hash(word)")) for owner, part in found] == expected
