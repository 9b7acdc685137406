"""Keys to slots, against a Python dictionary."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from weir.state.keys.columns import read_column, without_views
from weir.state.keys.hashing import hash_keys, key_groups
from weir.state.keys.index import KeyIndex
from weir.state.keys.store import BytesStore

COLUMNS: dict[str, list[Any]] = {
    "int64": [pa.array([None, *range(-500, 500)], pa.int64())],
    "far_apart": [pa.array([None, *(n * 10**15 for n in range(-900, 900))], pa.int64())],
    "int8": [pa.array([None, *range(-128, 128)], pa.int8())],
    "uint32": [pa.array([None, 0, (1 << 32) - 1, *range(1 << 31, (1 << 31) + 500)], pa.uint32())],
    "uint64": [pa.array([None, 0, 1, (1 << 64) - 1, *range(5, 600)], pa.uint64())],
    "bool": [pa.array([None, True, False])],
    "double": [pa.array([None, 0.0, math.nan, math.inf, *(n / 3 for n in range(1, 400))])],
    "string": [pa.array([None, "", "a", *("wort-" * (n % 9) + str(n) for n in range(900))])],
    "binary": [pa.array([None, b"", b"\0", b"\0\0", *(bytes([n, 0]) for n in range(200))])],
    "fixed_binary": [pa.array([None, b"abc", b"abd", b"\0\0\0"], pa.binary(3))],
    "view": [pa.array([None, "", "x" * 40, "x" * 41], pa.string_view())],
    "small_decimal": [pa.array([None, Decimal("-1.50"), Decimal("1.50")], pa.decimal128(9, 2))],
    "wide_decimal": [pa.array([None, *(Decimal(7) ** n for n in range(30))], pa.decimal128(38, 0))],
    "nanoseconds": [pa.array([None, 1, 2, 3, 1_000], pa.int64()).cast(pa.timestamp("ns"))],
    "nothing": [pa.nulls(2)],
    "two": [pa.array(["a", "a", None, None, "b", "b"]), pa.array([1, 2, 1, None, 1, None])],
    "three": [pa.array([1.5, 1.5, None]), pa.array(["x", None, None]), pa.array([True, True, None])],
}


def schema_of(columns: list[pa.Array]) -> pa.Schema:
    return pa.schema([pa.field(f"k{i}", column.type) for i, column in enumerate(columns)])


def take(columns: list[pa.Array], rows: pa.Array) -> list[pa.Array]:
    return [without_views(column).take(rows).cast(column.type) for column in columns]


def rows_of(columns: list[pa.Array]) -> list[tuple[Any, ...]]:
    """Rows as Python values that compare the way keys do."""
    values = [["nan" if v != v else v for v in column.to_pylist()] for column in columns]
    return list(zip(*values, strict=True))


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_keys_share_a_slot_and_different_keys_do_not(name: str) -> None:
    keys = COLUMNS[name]
    index = KeyIndex(schema_of(keys))
    generator = np.random.default_rng(3)
    slot_of: dict[tuple[Any, ...], int] = {}
    for size in (0, 1, 5, 300, 5_000, 3):
        rows = pa.array(generator.integers(0, len(keys[0]), size))
        columns = take(keys, rows)
        slots = index.slots(columns, hash_keys(columns)).tolist()
        for row, slot in zip(rows_of(columns), slots, strict=True):
            assert slot_of.setdefault(row, slot) == slot
    assert sorted(slot_of.values()) == list(range(len(index)))
    stored = index.keys()
    assert [column.type for column in stored] == [column.type for column in keys]
    assert {row: slot for slot, row in enumerate(rows_of(stored))} == slot_of
    assert index.hashes.tolist() == hash_keys(stored).tolist()


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_that_are_looked_up_are_found_or_not_and_none_is_added(name: str) -> None:
    keys = COLUMNS[name]
    some = pa.array(np.arange(1, len(keys[0]), 2))
    index = KeyIndex(schema_of(keys))
    assert set(index.known(keys).tolist()) == {-1}
    taken = take(keys, some)
    slot_of = dict(zip(rows_of(taken), index.slots(taken).tolist(), strict=True))
    count = len(index)
    for hashes in (None, hash_keys(keys)):
        assert index.known(keys, hashes).tolist() == [slot_of.get(row, -1) for row in rows_of(keys)]
    assert index.known(take(keys, some[:0])).tolist() == [] and len(index) == count
    slots = index.slots(keys)
    assert index.known(keys).tolist() == slots.tolist()


@pytest.mark.parametrize("name", ["string", "two", "wide_decimal", "uint64", "nanoseconds"])
def test_different_keys_with_the_same_hash_get_slots_of_their_own(name: str) -> None:
    keys = COLUMNS[name]
    index = KeyIndex(schema_of(keys))
    count = min(len(keys[0]), 60)
    columns = [column.slice(0, count) for column in keys]
    collided = np.repeat(np.arange((count + 2) // 3, dtype=np.uint64), 3)[:count]
    first = index.slots(columns, collided).tolist()
    assert sorted(first) == list(range(count))
    backwards = pa.array(np.arange(count)[::-1])
    again = index.slots([column.take(backwards) for column in columns], collided[::-1].copy())
    assert again.tolist() == first[::-1]


def test_a_null_is_not_the_value_whose_hash_is_that_of_null() -> None:
    index = KeyIndex(pa.schema({"k": pa.int64()}))
    column = pa.array([7, None, 7, None])
    slots = index.slots([column], np.full(4, 42, np.uint64)).tolist()
    assert slots[0] == slots[2] != slots[1] == slots[3]


def test_a_null_stays_out_of_the_table_when_the_table_grows() -> None:
    index = KeyIndex(pa.schema({"k": pa.int64()}))
    index.slots([pa.array([None], pa.int64())], np.array([42], np.uint64))
    many = [pa.array(np.arange(5_000))]
    index.slots(many, hash_keys(many))
    assert index.slots([pa.array([-7])], np.array([42], np.uint64)).tolist() == [5_001]


def test_long_strings_with_the_same_hash_are_told_apart_by_their_last_byte() -> None:
    words = pa.array([stem + end for stem in ("", "x" * 7, "x" * 8, "x" * 23, "x" * 64) for end in ("a", "b", "\0")])
    index = KeyIndex(pa.schema({"k": pa.string()}))
    same = np.full(len(words), 7, np.uint64)
    assert sorted(index.slots([words], same).tolist()) == list(range(len(words)))


def test_bytes_below_a_null_are_not_stored() -> None:
    text = pa.array(["ab", "cd", "ef"])
    hidden = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *text.buffers()[1:]])
    store = BytesStore(pa.string(), 0)
    store.append(read_column(hidden))
    assert store.freeze().build(None).to_pylist() == ["ab", None, "ef"]
    assert len(store.freeze().data) == 4


def test_a_key_whose_hash_is_zero_is_found_again() -> None:
    for keys in (pa.array([1, 2]), pa.array(["a", "b"])):
        index = KeyIndex(pa.schema({"k": keys.type}))
        hashes = np.array([0, 1], np.uint64)
        assert index.slots([keys], hashes).tolist() == index.slots([keys], hashes).tolist() == [0, 1]


def test_zeros_of_both_signs_and_nans_of_any_payload_are_one_key_each() -> None:
    other_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
    column = pa.array(np.array([0.0, -0.0, math.nan, other_nan]))
    for columns in ([column], [column, pa.array(["x"] * 4)]):
        index = KeyIndex(schema_of(columns))
        zero, minus_zero, nan, another_nan = index.slots(columns, hash_keys(columns)).tolist()
        assert zero == minus_zero != nan == another_nan


def test_what_lies_below_a_null_does_not_matter() -> None:
    hidden = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, 6, 7]))])
    text = pa.array(["ab", "cd", "ef"])
    hidden_text = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *text.buffers()[1:]])
    for columns in ([hidden], [hidden, pa.array([1, 1, 1])], [hidden_text]):
        index = KeyIndex(schema_of(columns))
        index.slots(columns, hash_keys(columns))
        assert len(index) == 2 + (columns[0] is hidden_text)
        assert set(rows_of(index.keys())) == set(rows_of(columns))


@pytest.mark.parametrize("name", ["int64", "string", "two"])
def test_frozen_keys_stay_as_they_were_while_the_index_grows_and_is_cleared(name: str) -> None:
    keys = COLUMNS[name]
    index = KeyIndex(schema_of(keys))
    head = [column.slice(1, 3) for column in keys]
    index.slots(head, hash_keys(head))
    frozen, read = index.freeze(), index.keys()
    before = rows_of(frozen.keys())
    many = [pa.concat_arrays([column] * 9) for column in keys]
    index.slots(many, hash_keys(many))
    index.clear()
    assert len(index) == 0
    last = [column.slice(len(column) - 3) for column in keys]
    index.slots(last, hash_keys(last))
    assert len(frozen) == 3
    assert rows_of(frozen.keys()) == rows_of(read) == before
    assert set(rows_of(index.keys())) == set(rows_of(last))


def test_keys_of_chosen_slots_come_in_the_order_asked_for() -> None:
    columns = [pa.array(["a", None, "ccccccccccccc"]), pa.array([1, 2, None])]
    index = KeyIndex(schema_of(columns))
    slots = index.slots(columns, hash_keys(columns))
    assert rows_of(index.keys(slots[[2, 0, 1, 2]])) == [(r := rows_of(columns))[2], r[0], r[1], r[2]]


def test_a_cleared_index_gives_back_a_table_that_was_far_too_large() -> None:
    index = KeyIndex(pa.schema({"k": pa.int64()}))
    for keys in (np.arange(100_000), np.arange(3), np.arange(3)):
        index.clear()
        index.slots([pa.array(keys)], hash_keys([pa.array(keys)]))
    index.clear()
    assert len(index._table) < 10_000


def test_integers_keep_their_slots_when_they_turn_out_to_lie_far_apart() -> None:
    index, known = KeyIndex(pa.schema({"key": pa.int64()})), {}
    for values in ([5, 7, 5, None], [], [-3, 900_000], [1 << 62, 5, -(1 << 63)], [7, None, (1 << 63) - 1, 1 << 62]):
        slots = index.slots([pa.array(values, pa.int64())]).tolist()
        for value, slot in zip(values, slots, strict=True):
            assert known.setdefault(value, slot) == slot
    assert sorted(known.values()) == list(range(len(index)))
    assert index.keys()[0].to_pylist() == sorted(known, key=known.__getitem__)
    assert index.hashes.tolist() == hash_keys(index.keys()).tolist()


def test_integers_that_are_handed_out_one_after_the_other_get_slots_in_that_order() -> None:
    index = KeyIndex(pa.schema({"key": pa.int64()}))
    for start in range(10**12, 10**12 + 3_000_000, 300_000):
        numbers = np.arange(start, start + 300_000)
        assert index.slots([pa.array(numbers)]).tolist() == (numbers - 10**12).tolist()
    index.clear()
    assert index.slots([pa.array([10**12 + 5, 4])]).tolist() in ([0, 1], [1, 0])


def test_integers_stay_dense_when_they_come_a_few_at_a_time_from_any_side() -> None:
    index, dice = KeyIndex(pa.schema({"key": pa.int64()})), np.random.default_rng(1)
    known: dict[int, int] = {}
    for _ in range(300):
        values = dice.integers(-300_000, 300_000, 3)
        for value, slot in zip(values.tolist(), index.slots([pa.array(values)]).tolist(), strict=True):
            assert known.setdefault(value, slot) == slot
    assert sorted(known.values()) == list(range(len(index)))
    assert index._dense is not None


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_keys_whose_hashes_differ_in_the_upper_half_only_are_told_apart_also_behind_a_growth(kind: pa.DataType) -> None:
    numbers = np.arange(3_000)
    column = pa.array(numbers * 10_000_000).cast(kind)
    hashes = (numbers.astype(np.uint64) << np.uint64(32)) | np.uint64(5)
    index = KeyIndex(pa.schema({"key": kind}))
    index._dense = None
    for end in (10, 3_000, 3_000):
        slots = index.slots([column[:end]], hashes[:end])
        assert len(set(slots.tolist())) == end == len(index)
    assert index.keys(slots)[0].equals(column)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_keys_are_found_again_whatever_table_they_have_moved_to(kind: pa.DataType) -> None:
    rng, index, known = np.random.default_rng(3), KeyIndex(pa.schema({"key": kind})), {}
    for _ in range(40):
        column = pa.array(rng.integers(0, 1 << 40, 700) // rng.integers(1, 1 << 24, 700)).cast(kind)
        for key, slot in zip(column.to_pylist(), index.slots([column]).tolist(), strict=True):
            assert known.setdefault(key, slot) == slot
    assert len(index) == len(known) == len(set(known.values()))


def test_strings_with_the_same_hash_are_told_apart_whichever_byte_differs() -> None:
    words = [bytes(length) for length in range(45)]
    words += [bytes(at) + b"x" + bytes(length - at - 1) for length in range(1, 45) for at in range(length)]
    order = np.random.default_rng(2).permutation(len(words))
    column = pa.array([words[number] for number in order], pa.binary())
    hashes = np.repeat(np.arange(-(-len(words) // 30), dtype=np.uint64), 30)[: len(words)]
    index = KeyIndex(pa.schema([("k", pa.binary())]))
    assert sorted(index.slots([column], hashes).tolist()) == list(range(len(words)))
    assert index.keys()[0].to_pylist() == [column[row].as_py() for row in np.argsort(index.slots([column], hashes))]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_keys_that_stand_in_one_row_of_places_are_found_also_around_the_end_of_the_table(kind: pa.DataType) -> None:
    keys = pa.array(range(10**12, 10**12 + 300), pa.int64()).cast(kind)
    hashes = (np.uint64(1_020) + (np.arange(300, dtype=np.uint64) << np.uint64(20))) & np.uint64(0xFFFFFFFF)
    index = KeyIndex(pa.schema([("k", pa.int64()), ("l", kind)]))
    ones = pa.array([1] * 300)
    slots = index.slots([ones, keys], hashes)
    assert sorted(slots.tolist()) == list(range(300))
    assert index.slots([ones, keys], hashes).tolist() == slots.tolist()
    back = np.arange(299, -1, -7)
    again = index.slots([ones.take(pa.array(back)), keys.take(pa.array(back))], hashes[back])
    assert again.tolist() == slots[back].tolist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_keys_of_one_key_group_stand_close_to_where_they_belong(kind: pa.DataType) -> None:
    """Their hashes have the lowest bits in common: of a subtask that has few key groups, those of all its keys do."""
    keys = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 500_000)).cast(kind)
    own = keys.filter(pa.array(key_groups(hash_keys([keys]), 128) == 77))
    index = KeyIndex(pa.schema([("k", kind)]))
    for start in range(0, len(own), 1_000):
        index.slots([own.slice(start, 1_000)])
    places = np.flatnonzero(index._table)
    homes = index._homes(index._table[places] & ~np.uint64(0xFFFFFFFF))
    steps = (places - homes) & index._mask
    assert len(places) == len(own) > 3_000
    assert steps.max() < 100 and steps.mean() < 2
