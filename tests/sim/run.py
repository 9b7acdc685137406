"""Run simulated seeds: `python -m tests.sim.run --seeds 1000`, or replay one: `--seed 17`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tests.sim.checkers import check
from tests.sim.variants import VARIANTS
from tests.sim.world import World


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> World:
    """One run with all its checks; raises when something does not hold."""
    world = World(seed, trace)
    world.run()
    check(world)
    return world


def failure_of(seed: int, variant: str | None = None) -> str | None:
    """What is wrong with this seed, with the end of its trace, or None."""
    world: World | None = None
    try:
        with broken(variant):
            world = World(seed)
            world.run()
            check(world)
    except Exception:
        trail = "" if world is None else "\n".join(list(world.trace)[-40:])
        return f"seed {seed} failed; replay it with: make sim SEED={seed}\n{trail}\n{traceback.format_exc()}"
    return None


def broken(variant: str | None) -> AbstractContextManager[None]:
    """The engine with one thing broken on purpose; sound without a variant."""
    return nullcontext() if variant is None else VARIANTS[variant]()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the engine on purpose")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        with broken(options.variant):
            simulate(options.seed, print)
        print(f"seed {options.seed}: passed")
        return 0
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    failures = 0
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes) as pool:
        outcomes = pool.imap_unordered(partial(failure_of, variant=options.variant), seeds, chunksize=5)
        for done, failure in enumerate(outcomes, 1):
            if failure is not None:
                failures += 1
                print(f"\n{failure}")
            if sys.stderr.isatty():
                print(f"\r{done}/{options.seeds} seeds, {failures} failed", end="", file=sys.stderr)
    print(f"{options.seeds} seeds in {time.monotonic() - started:.0f} s")
    print(f"{options.seeds - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
