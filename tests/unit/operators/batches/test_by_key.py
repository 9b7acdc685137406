"""Running sums and the like by key, against plain Python, row by row."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.seeds import seeds
from weir.errors import DataError
from weir.operators.batches import by_key
from weir.operators.batches.by_key import ByKey


class Batch:
    """Random rows of some keys; some keys have none."""

    def __init__(self, dice: random.Random, *, sort: bool) -> None:
        self.keys = dice.randrange(1, 8)
        count = dice.choice([0, 1, 5, 60])
        numbers = [dice.randrange(self.keys) for _ in range(count)]
        self.key_row = sorted(numbers) if sort else numbers
        self.whole = [dice.choice([None, dice.randrange(-(1 << 62), 1 << 62)]) for _ in range(count)]
        self.half = [dice.choice([None, 1e300, 0.1, -0.3, math.inf if dice.random() < 0.1 else 7.5]) for _ in numbers]
        self.word = [dice.choice([None, "a", "bc"]) for _ in range(count)]
        self.start = [dice.randrange(100) for _ in range(self.keys)]
        self.rows = pl.DataFrame(
            {"key_row": self.key_row, "whole": self.whole, "half": self.half, "word": self.word},
            schema={"key_row": pl.Int64, "whole": pl.Int64, "half": pl.Float64, "word": pl.String},
        )
        self.state = pl.DataFrame({"start": self.start, "name": [f"k{n}" for n in range(self.keys)]})
        self.by_key = ByKey(self.rows, self.state)

    def of(self, values: list[Any], key: int) -> list[Any]:
        return [value for value, row in zip(values, self.key_row, strict=True) if row == key]


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("seed", seeds(30))
def test_random_batches_give_what_a_loop_over_the_rows_gives(
    sort: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(by_key, "_FEW_ROWS", dice.choice([0, 3, 32]))
    it = Batch(dice, sort=sort)
    sums: dict[str, dict[int, Any]] = {
        "whole": dict(enumerate(it.start)),
        "half": dict(enumerate(map(float, it.start))),
    }
    counts, before = dict.fromkeys(range(it.keys), 0), {n: f"k{n}" for n in range(it.keys)}
    running: dict[str, list[Any]] = {"whole": [], "half": [], "count": [], "previous": []}
    for key, whole, half, word in zip(it.key_row, it.whole, it.half, it.word, strict=True):
        counts[key] += 1
        sums["whole"][key] += whole or 0
        sums["half"][key] += half or 0.0
        running["whole"].append(sums["whole"][key])
        running["half"].append(sums["half"][key])
        running["count"].append(counts[key])
        running["previous"].append(before[key])
        before[key] = word
    if all(map(fits, running["whole"])):
        assert it.by_key.running_sum("whole", start="start").to_list() == running["whole"]
        assert it.by_key.sum("whole", start="start").to_list() == list(sums["whole"].values())
    else:
        for add_up in (it.by_key.running_sum, it.by_key.sum):
            with pytest.raises(DataError, match="beyond the range of int64"):
                add_up("whole", start="start")
    assert same(it.by_key.running_sum("half", start="start").to_list(), running["half"])
    assert same(it.by_key.sum("half", start="start").to_list(), list(sums["half"].values()))
    assert it.by_key.running_count().to_list() == running["count"]
    assert it.by_key.previous("word", start="name").to_list() == running["previous"]
    assert it.by_key.spread("name").to_list() == [f"k{n}" for n in it.key_row]
    assert it.by_key.count().to_list() == list(counts.values())
    for key in range(it.keys):
        words = it.of(it.word, key)
        assert it.by_key.first("word").to_list()[key] == (words[0] if words else None)
        assert it.by_key.last("word").to_list()[key] == (words[-1] if words else None)
        expected = 0.0
        for value in it.of(it.half, key):
            expected += value or 0.0
        assert same([it.by_key.sum("half").to_list()[key]], [expected])


def fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 63


def test_a_sum_that_leaves_int64_for_one_row_only_is_an_error_however_rows_are_cut() -> None:
    values, start = [(1 << 63) - 1, 1, -1], 0
    for cuts in ([3], [2, 1], [1, 2], [1, 1, 1]):
        with pytest.raises(DataError, match="beyond the range of int64"):
            total, place = start, 0
            for cut in cuts:
                rows = pl.DataFrame({"key_row": [0] * cut, "v": values[place : place + cut]})
                keys = ByKey(rows, pl.DataFrame({"total": [total]}))
                total, place = keys.sum("v", start="total")[0], place + cut
    keys = ByKey(pl.DataFrame({"key_row": [0, 1, 0], "v": [(1 << 63) - 1, 5, -1]}), pl.DataFrame({"total": [0, 1]}))
    assert keys.running_sum("v", start="total").to_list() == [(1 << 63) - 1, 6, (1 << 63) - 2]


def test_a_sum_of_floats_is_the_same_however_rows_are_cut() -> None:
    values = [1e16, 1.0, 1.0, -1e16, 0.1]
    for cuts in ([5], [1, 4], [2, 3], [1, 1, 1, 1, 1]):
        total, place = 0.0, 0
        for cut in cuts:
            rows = pl.DataFrame({"key_row": [0] * cut, "v": values[place : place + cut]})
            keys = ByKey(rows, pl.DataFrame({"total": [total]}))
            total, place = keys.sum("v", start="total")[0], place + cut
        assert total == 1e16 + 1.0 + 1.0 - 1e16 + 0.1


def same(found: list[float], expected: list[float]) -> bool:
    return [str(value) for value in found] == [str(value) for value in expected]


def test_without_a_start_sums_begin_at_zero_and_the_first_row_has_no_previous() -> None:
    rows = pl.DataFrame({"key_row": [0, 0, 1], "value": [1, 2, 3]})
    keys = ByKey(rows, pl.DataFrame({"key": ["a", "b"]}))
    assert keys.running_sum("value").to_list() == [1, 3, 3]
    assert keys.running_sum(np.array([1.5, 1.0, 2.0])).to_list() == [1.5, 2.5, 2.0]
    assert keys.previous("value").to_list() == [None, 1, None]
    assert keys.last(keys.running_sum("value")).to_list() == [3, 3]


def test_what_cannot_be_added_up_or_has_another_length_is_refused() -> None:
    rows = pl.DataFrame({"key_row": [0, 0], "word": ["a", "b"]})
    state = pl.DataFrame({"key": ["a"]})
    with pytest.raises(TypeError, match="expected integers or floats to add up, found String"):
        ByKey(rows, state).running_sum("word")
    with pytest.raises(ValueError, match="expected 2 values, one for each row, found 3"):
        ByKey(rows, state).last(np.arange(3))
    with pytest.raises(TypeError, match="Polars frames of process_batches"):
        ByKey(rows.to_pandas(), state)  # type: ignore[arg-type]
