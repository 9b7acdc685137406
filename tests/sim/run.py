"""Run simulated seeds: `python -m tests.sim.run --seeds 1000`, or replay one: `--seed 17`.

`--first` and `--seeds` give the range, `--resume` leaves out what has passed with the same sources before (which is
kept in .sim/), `--variants` says for every broken engine which seed catches it first.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import multiprocessing.pool
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tests.sim.checkers import check, check_now
from tests.sim.disks import without_races
from tests.sim.patching import all_of, patched
from tests.sim.progress import Progress
from tests.sim.variants import VARIANTS
from tests.sim.workload import Types
from tests.sim.world import World
from weir.operators.aggregates import state
from weir.operators.functions import keyed
from weir.operators.windows import kept_panes, panes, partials, rows
from weir.operators.windows.sessions import aggregate, pieces
from weir.operators.windows.sessions import runs as sessions_in_segments
from weir.operators.windows.sessions import store as sessions
from weir.runtime.task import subtask, turns
from weir.state.columns.segments import grouping, lot, merging, store
from weir.state.rocks import backend as rocks

RUNS_MAX = 3
"""Of one job: the first, and those that go on from savepoints."""

STARTED_FROM_SAVEPOINT = 0.7
RESUMED_IN_PLACE = 0.5
"""How often a savepoint is used, and how often a stopped job is gone on with where it is."""

SEEDS_AT_ONCE = 5
"""Seeds that a process is given at once."""


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> World:
    """One seed with all its checks; raises when something does not hold."""
    *_, last = runs(seed, trace)
    return last


def runs(seed: int, trace: Callable[[str], None] | None = None) -> Iterator[World]:
    """The run of a job, then perhaps one from a savepoint of it, and so on. Each is handed out before it begins, and
    is checked when the next is asked for."""
    with without_races(), patched(Types, "are_wide", False), small_pieces(random.Random(f"pieces of {seed}")):
        world: World | None = World(seed, trace)
        while world is not None:
            yield world
            world.run()
            while world.stopped is not None and world.users.rng.random() < RESUMED_IN_PLACE:
                check_now(world)
                world.resume()
                world.run()
            check(world)
            world.close()
            world = _from_savepoint(world, seed, trace)


def small_pieces(rng: random.Random) -> AbstractContextManager[None]:
    """With half of the seeds what is merged is merged in pieces of a few rows, so that much happens in between."""
    if rng.random() < 0.5:
        return nullcontext()
    return all_of(
        patched(store, "AT_ONCE_ROWS_MAX", rng.choice([2, 10])),
        patched(store, "STEP_ROWS", rng.choice([1, 4])),
        patched(store, "STEP_RATIO", rng.choice([0, 2])),
        patched(merging, "SEGMENT_BYTES_MAX", rng.choice([100, 400])),
        patched(lot, "SEGMENT_BYTES_MAX", rng.choice([100, 400])),
        patched(store, "TENDED_ROWS", rng.choice([1, 4_096])),
        patched(store, "TENDED_AT_ONCE_ROWS_MAX", rng.choice([0, 4, 32_768])),
        patched(grouping, "PIECE_ROWS", rng.choice([1, 5])),
        patched(panes, "OWN_ROWS_MIN", rng.choice([2, 4_096])),
        patched(kept_panes, "HEAD_SLOTS_MAX", rng.choice([3, 10, 262_144])),
        patched(kept_panes, "SHARED_ROWS_MAX", rng.choice([2, 262_144])),
        patched(partials, "PIECE_ROWS", rng.choice([1, 3])),
        patched(pieces, "PIECE_ROWS", rng.choice([1, 3])),
        patched(sessions, "COMPACTED_SLOTS_MIN", rng.choice([0, 4])),
        patched(aggregate, "MOVED_SESSIONS_MAX", rng.choice([0, 2, 65_536])),
        patched(state, "BATCH_ROWS_MAX", rng.choice([1, 4, 65_536])),
        patched(keyed, "FIRED_AT_ONCE", rng.choice([1, 3, 4_096])),
        patched(rows, "FIRED_ROWS_MAX", rng.choice([1, 262_144])),
        patched(sessions_in_segments, "DUE_ROWS_MAX", rng.choice([1, 3, 131_072])),
        patched(subtask, "COURSE_MS", rng.choice([0.0, 5.0])),
        patched(rocks, "CONVERTED_ENTRIES_LEAST", rng.choice([1, 3])),
        patched(rocks, "CONVERTED_ENTRIES_PER_KEY", 0),
        patched(turns, "TURN_ROWS_FIRST", rng.choice([1_000, 1])),
        patched(turns, "TURN_ROWS_MIN", rng.choice([1, 3])),
    )


def _from_savepoint(world: World, seed: int, trace: Callable[[str], None] | None) -> World | None:
    savepoints, rng = world.users.savepoints, world.users.rng
    if not savepoints or int(world.place) == RUNS_MAX or rng.random() > STARTED_FROM_SAVEPOINT:
        return None
    return World(seed, trace, after=world, savepoint=rng.choice(savepoints))


def failure_of(seed: int, variant: str | None = None) -> str | None:
    """What is wrong with this seed, with the end of its trace, or None. A variant whose target is not there any more
    raises: it breaks nothing, so that nothing it brings about is a catch."""
    with broken(variant):
        return _failure_of(seed)


def _failure_of(seed: int) -> str | None:
    world: World | None = None
    try:
        for run in runs(seed):
            world = run
    except Exception:
        trail = "" if world is None else "\n".join(list(world.trace)[-40:])
        return f"seed {seed} failed; replay it with: make sim SEED={seed}\n{trail}\n{traceback.format_exc()}"
    finally:
        if world is not None:
            world.close()
    return None


def broken(variant: str | None) -> AbstractContextManager[None]:
    """The engine with one thing broken on purpose; sound without a variant."""
    return nullcontext() if variant is None else VARIANTS[variant]()


# --- The command ------------------------------------------------------------------------------------------


def main() -> int:
    options = _options()
    if options.seed is not None:
        with broken(options.variant):
            simulate(options.seed, print)
        print(f"seed {options.seed}: passed")
        return 0
    seeds = range(options.first, options.first + options.seeds)
    if options.variants is not None:
        return run_variants(options.variants or sorted(VARIANTS), seeds, options.processes)
    return run_seeds(seeds, options.variant, processes=options.processes, resume=options.resume)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    parser.add_argument("--resume", action="store_true", help="leave out what has passed with the same sources")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the engine on purpose")
    parser.add_argument("--variants", nargs="*", metavar="NAME", help="find the first seed that catches each of these")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def run_seeds(seeds: range, variant: str | None, *, processes: int, resume: bool) -> int:
    """All of them, in parallel; 1 when one has failed."""
    started, failed = time.monotonic(), 0
    with Progress(variant) as progress, _pool(processes) as pool:
        left = [seed for seed in seeds if not resume or seed not in progress.passed]
        outcomes = pool.imap_unordered(partial(_outcome, variant=variant), left, chunksize=SEEDS_AT_ONCE)
        for done, (seed, failure) in enumerate(outcomes, 1):
            progress.note(seed, passed=failure is None)
            if failure is not None:
                failed += 1
                print(f"\n{failure}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{done}/{len(left)} seeds, {failed} failed", end="", file=sys.stderr)
    if len(left) < len(seeds):
        print(f"{len(seeds) - len(left)} seeds have passed before")
    print(f"{len(left)} seeds in {time.monotonic() - started:.0f} s")
    print(f"{len(seeds) - failed} passed, {failed} failed")
    return 1 if failed else 0


def run_variants(names: list[str], seeds: range, processes: int) -> int:
    """For each variant the first of these seeds that catches it, as lines for first_seeds.py; 1 when one is missed."""
    first: dict[str, int | None] = {}
    with _pool(processes) as pool:
        found = pool.imap_unordered(partial(first_seed, seeds=seeds), names)
        for name, seed in found:
            first[name] = seed
            print(f'    "{name}": {seed},' if seed is not None else f"    # {name} is not caught", flush=True)
    missed = sorted(name for name, seed in first.items() if seed is None)
    print(f"{len(names) - len(missed)} caught, {len(missed)} not: {', '.join(missed)}")
    return 1 if missed else 0


def first_seed(name: str, seeds: range) -> tuple[str, int | None]:
    """The first seed that fails with the variant and passes without it."""
    return name, next((seed for seed in seeds if failure_of(seed, name) and failure_of(seed) is None), None)


def _outcome(seed: int, variant: str | None) -> tuple[int, str | None]:
    return seed, failure_of(seed, variant)


def _pool(processes: int) -> multiprocessing.pool.Pool:
    # Frames are tiny: threads that share them cost more than they bring, and every core has a process of its own.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    return multiprocessing.get_context("spawn").Pool(processes, initializer=gc.freeze)


if __name__ == "__main__":
    sys.exit(main())
