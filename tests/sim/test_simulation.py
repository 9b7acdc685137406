"""A few hundred seeds of the simulation, and the proof that it sees what is broken."""

from __future__ import annotations

import pytest

from tests.sim.run import failure_of, simulate
from tests.sim.variants import VARIANTS

SEEDS = 300
PART = 30
VARIANT_SEEDS_MAX = 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_every_seed_ends_with_exactly_the_right_output_and_state(first: int) -> None:
    for seed in range(first, first + PART):
        failure = failure_of(seed)
        if failure is not None:
            pytest.fail(failure)


def test_a_seed_is_the_same_run_every_time() -> None:
    first, second = simulate(7), simulate(7)
    assert list(first.trace) == list(second.trace)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_broken_engine_is_caught(variant: str) -> None:
    with VARIANTS[variant]():
        for seed in range(VARIANT_SEEDS_MAX):
            if failure_of(seed) is not None:
                return
    pytest.fail(f"{variant}: not caught in {VARIANT_SEEDS_MAX} seeds")
