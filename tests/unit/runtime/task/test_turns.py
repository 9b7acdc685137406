"""Whose turn it is."""

from __future__ import annotations

import random

from weir.runtime.task.turns import Turns, members


def test_each_that_wants_one_has_a_turn_before_any_has_two() -> None:
    turns = Turns()
    assert [turns.next_of(0b1011) for _ in range(4)] == [0, 1, 3, 0]
    assert turns.next_of(0b0100) == 2
    assert turns.next_of(0) is None
    assert turns.next_of(0b0111) == 0


def test_members_are_the_bits_in_order() -> None:
    chosen = sorted(random.Random(1).sample(range(1_000), 40))
    assert list(members(sum(1 << channel for channel in chosen))) == chosen
