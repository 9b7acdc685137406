"""Whose turn it is."""

from __future__ import annotations

import random

from weir.runtime.task.turns import Turns, TurnSize, members


def test_each_that_wants_one_has_a_turn_before_any_has_two() -> None:
    turns = Turns()
    assert [turns.next_of(0b1011) for _ in range(4)] == [0, 1, 3, 0]
    assert turns.next_of(0b0100) == 2
    assert turns.next_of(0) is None
    assert turns.next_of(0b0111) == 0


def test_members_are_the_bits_in_order() -> None:
    chosen = sorted(random.Random(1).sample(range(1_000), 40))
    assert list(members(sum(1 << channel for channel in chosen))) == chosen


def test_one_slow_turn_is_forgotten_also_where_only_few_rows_come_at_a_time() -> None:
    size = TurnSize(65_536, 20.0)
    for _ in range(100):
        size.took(rows=10_000, ms=1.0)
    assert size.rows_max == 65_536
    size.took(rows=1_500, ms=10_000.0)
    assert size.rows_max == 256
    for _ in range(300):
        size.took(rows=100, ms=0.01)
    assert size.rows_max == 65_536


def test_turns_without_rows_say_nothing() -> None:
    size = TurnSize(65_536, 20.0)
    size.took(rows=0, ms=5_000.0)
    assert size.rows_max == 1_000
