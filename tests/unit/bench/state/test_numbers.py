"""Row numbers: permuted without loss, and which of them a source had given."""

from __future__ import annotations

import numpy as np
import pytest

from weir.bench.state.numbers import Given, drawn, shuffled
from weir.connectors.generator import SPLITS


@pytest.mark.parametrize("count", [1, 2, 1_000, 1_013, 4_096])
def test_of_any_numbers_in_a_row_each_remainder_comes_once(count: int) -> None:
    for first in (0, 17, 123_456_789):
        assert sorted(shuffled(np.arange(first, first + count), count)) == list(range(count))


def test_numbers_are_drawn_from_all_that_are_below() -> None:
    assert set(drawn(np.arange(1_000), 10)) == set(range(10))


def test_given_are_the_first_rounds_of_each_split() -> None:
    given = Given({0: 2, 1: 1, 127: 3})
    assert len(given) == 6
    expected = [0, 1, 127, SPLITS, SPLITS + 127, 2 * SPLITS + 127]
    assert np.concatenate(list(given.chunks())).tolist() == expected
    asked = np.array([-1, -SPLITS, 0, 1, 2, SPLITS, SPLITS + 1, 3 * SPLITS + 127])
    assert given.has(asked).tolist() == [False, False, True, True, False, True, False, False]


def test_nothing_is_given_by_a_source_that_has_not_begun() -> None:
    assert len(Given({})) == 0 and list(Given({}).chunks()) == []
