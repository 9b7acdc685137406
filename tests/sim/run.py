"""Run simulated seeds: `python -m tests.sim.run --seeds 1000`, or replay one: `--seed 17`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tests.sim.checkers import check, check_now
from tests.sim.variants import VARIANTS
from tests.sim.world import World

RUNS_MAX = 3
"""Of one job: the first, and those that go on from savepoints."""

STARTED_FROM_SAVEPOINT = 0.7
RESUMED_IN_PLACE = 0.5
"""How often a savepoint is used, and how often a stopped job is gone on with where it is."""


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> World:
    """One seed with all its checks; raises when something does not hold."""
    *_, last = runs(seed, trace)
    return last


def runs(seed: int, trace: Callable[[str], None] | None = None) -> Iterator[World]:
    """The run of a job, then perhaps one from a savepoint of it, and so on. Each is handed out before it begins, and
    is checked when the next is asked for."""
    world: World | None = World(seed, trace)
    while world is not None:
        yield world
        world.run()
        while world.stopped is not None and world.users.rng.random() < RESUMED_IN_PLACE:
            check_now(world)
            world.resume()
            world.run()
        check(world)
        world = _from_savepoint(world, seed, trace)


def _from_savepoint(world: World, seed: int, trace: Callable[[str], None] | None) -> World | None:
    savepoints, rng = world.users.savepoints, world.users.rng
    if not savepoints or int(world.place) == RUNS_MAX or rng.random() > STARTED_FROM_SAVEPOINT:
        return None
    return World(seed, trace, after=world, savepoint=rng.choice(savepoints))


def failure_of(seed: int, variant: str | None = None) -> str | None:
    """What is wrong with this seed, with the end of its trace, or None."""
    world: World | None = None
    try:
        with broken(variant):
            for run in runs(seed):
                world = run
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
