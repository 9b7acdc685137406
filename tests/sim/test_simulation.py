"""A few hundred seeds of the simulation; a seed is one run, whatever the process; and what is broken is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.first_seeds import FIRST_SEED
from tests.sim.run import broken, failure_of, simulate
from tests.sim.variants import VARIANTS

ROOT = Path(__file__).parents[2]
SEEDS = 300
PART = 30

VARIANT_SEEDS_MAX = 120
"""Seeds that a variant may take to be caught, counted from where it was seen to be caught."""


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_every_seed_ends_with_exactly_the_right_output_and_state(first: int) -> None:
    for seed in range(first, first + PART):
        failure = failure_of(seed)
        if failure is not None:
            pytest.fail(failure)


def test_a_seed_is_the_same_run_in_every_process() -> None:
    seeds = [3, 7, 11, 25]  # two of them with their state on disk
    here = [simulate(seed).fingerprint for seed in seeds]
    script = f"from tests.sim.run import simulate\nprint([simulate(seed).fingerprint for seed in {seeds}])"
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        there = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert there.stdout.strip() == str(here)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_what_a_broken_engine_exchanges_is_there(variant: str) -> None:
    with broken(variant):
        pass


@pytest.mark.variants
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_broken_engine_is_caught(variant: str) -> None:
    first = FIRST_SEED.get(variant, 0)
    for seed in range(first, first + VARIANT_SEEDS_MAX):
        if failure_of(seed, variant) is not None:
            assert failure_of(seed) is None, "the sound engine fails with this seed too, so it proves nothing"
            return
    pytest.fail(f"{variant}: not caught by seeds {first} to {first + VARIANT_SEEDS_MAX - 1}")
