"""Keys as strings, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.bench.string_keys import KEYS_MAX, REGIONS, numbers_of, strings_of


def test_a_key_is_a_region_and_eight_digits() -> None:
    numbers = np.array([0, 1, 42, 9_999, 10_000, 12_345_679, KEYS_MAX - 1])
    made = strings_of(numbers)
    made.validate(full=True)
    assert made.to_pylist() == [f"{REGIONS[number % 4].decode()}{number:08d}" for number in numbers.tolist()]


def test_the_number_of_a_key_is_read_back_also_from_a_slice() -> None:
    numbers = np.random.default_rng(3).integers(0, KEYS_MAX, 5_000)
    made = strings_of(numbers)
    assert numbers_of(made).tolist() == numbers.tolist()
    assert numbers_of(made.slice(7, 90)).tolist() == numbers[7:97].tolist()
    assert numbers_of(made.slice(0, 0)).tolist() == [] == numbers_of(strings_of(numbers[:0])).tolist()
    assert made.type == pa.string()
