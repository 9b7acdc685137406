"""`weir bench`: one command for each workload.

Comes in: what was typed. Goes out: one JSON line, or a small table, and exit code 1
when the workload's own check found its result wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.bench.fan_in import bench_fan_in
from weir.cli.bench.keyed import bench_keyed_batches, bench_keyed_process, bench_keyed_sum
from weir.cli.bench.nexmark import bench_nexmark
from weir.cli.bench.options import Events, Every, Json, Master, Tls, Work
from weir.cli.bench.run import bench_options, perhaps_with_tls, run_bench
from weir.cli.bench.state import state_application
from weir.cli.bench.store import bench_checkpoint_store
from weir.cli.commands import Commands
from weir.cli.options import Debug, Parallelism

if TYPE_CHECKING:
    from weir.bench.harness import BenchOptions, BenchReport


def bench_application() -> typer.Typer:
    app = Commands(
        help="Measure a workload on this machine. Each one checks its own result first.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
    )
    app.command("filter")(bench_filter)
    app.command("keyed-sum")(bench_keyed_sum)
    app.command("keyed-process")(bench_keyed_process)
    app.command("keyed-batches")(bench_keyed_batches)
    app.command("interval-join")(bench_interval_join)
    app.command("window")(bench_window)
    app.command("sliding")(bench_sliding)
    app.command("session")(bench_session)
    app.command("nexmark")(bench_nexmark)
    app.command("latency")(bench_latency)
    app.command("recovery")(bench_recovery)
    app.command("checkpoint-cost")(bench_checkpoint_cost)
    app.command("checkpoint-store")(bench_checkpoint_store)
    app.command("fan-in")(bench_fan_in)
    app.command("soak")(bench_soak)
    app.add_typer(state_application(), name="state")
    return app


def bench_filter(
    events: int = Events(300_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """80-byte strings through a substring filter: source → filter → sink, exactly once.

    Data: 262,144 different strings of 80 lower-case letters and spaces, made before the clock starts; row n is string
    n modulo 262,144, handed over as a slice without a copy. One string in a thousand holds the word that passes the
    filter. The number of rows that pass must be the known one.

    **Example:** `weir bench filter --events 1000000000 --json`
    """
    from weir.bench.filtering import run_filter

    run_bench(
        run_filter,
        bench_options(events, parallelism, checkpoint_every, work=work),
        json=json,
        master=master,
        debug=debug,
    )


def bench_interval_join(
    events: int = Events(40_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Two streams joined by key where their times are within a second: two sources → key by → join → sink.

    Data: half of the events on each side, 500,000 a second of event time, out of order by up to a second, over
    1,000,000 keys, computed with NumPy from the row's number. A row has one partner on average. The number of committed
    pairs, and the sum of the products of their values, must be the true ones.

    **Example:** `weir bench interval-join --events 20000000 --json`
    """
    from weir.bench.interval_join import run_interval_join

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(run_interval_join, options, json=json, master=master, debug=debug)


def bench_window(
    events: int = Events(400_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Rows counted by key in windows of 10 s of event time: source → watermarks → key by → window → sink, exactly once.

    Data: 100,000 int64 keys in no order; five million rows in 10 s of event time, out of order by up to 1 s. The
    committed results must be exactly the true ones.

    **Example:** `weir bench window --events 100000000 --json`
    """
    from weir.bench.windows import run_window

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(run_window, options, json=json, master=master, debug=debug)


def bench_sliding(
    events: int = Events(400_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """The same in windows of 60 s, of which one begins every 10 s.

    Data: as for window. The committed results must be exactly the true ones.

    **Example:** `weir bench sliding --json`
    """
    from weir.bench.windows import run_sliding

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(run_sliding, options, json=json, master=master, debug=debug)


def bench_session(
    events: int = Events(100_000_000),
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Rows counted by key in sessions that end when a key is silent for 2 s.

    Data: as for window, but two million rows in 10 s, so that a key's rows are half a second apart, and a session has
    some fifty. Rows are out of order by up to 1 s. The committed results must be exactly the true ones.

    **Example:** `weir bench session --json`
    """
    from weir.bench.windows import run_session

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(run_session, options, json=json, master=master, debug=debug)


def bench_latency(
    events: int = Events(200_000),
    rate: Annotated[float, typer.Option("--rate", min=1, help="Events a second.")] = 10_000,
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "1s",
    tls: Tls = False,
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """How long a row takes from its creation to the sink, through one keyed shuffle, at 10,000 rows a second.

    Each row carries the time at which it was made; the sink notes when it came. p50_ms and p99_ms leave out the first
    two seconds. due_p50_ms and due_p99_ms count from when the rate said that the row should be made. Clocks of
    different hosts cannot be compared, so everything must run on one. Every row must arrive once.

    **Example:** `weir bench latency --events 600000 --json`
    """
    from weir.bench.latency import run_latency

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    workload = perhaps_with_tls(lambda given: run_latency(given, rate), tls)
    run_bench(workload, options, json=json, master=master, debug=debug)


def bench_recovery(
    events: int = Events(2_000_000),
    kills: Annotated[int, typer.Option("--kills", min=1, help="How many workers to kill, one after the other.")] = 3,
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "200ms",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """SIGKILL of a Python worker, to the first new committed output; median and maximum over several kills.

    A keyed job at 200,000 rows a second. The time ends when the sinks have committed the first checkpoint of the new
    attempt. In the end every row must have been committed once, and every sum must be true.

    **Example:** `weir bench recovery --kills 10 --events 5000000`
    """
    from weir.bench.recovery import run_recovery

    options = bench_options(events, parallelism, checkpoint_every, work=work)
    run_bench(lambda given: run_recovery(given, kills), options, json=json, master=master, debug=debug)


def bench_checkpoint_cost(
    events: int = Events(300_000_000),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each setting is measured.")] = 3,
    method: Annotated[
        str | None, typer.Option("--method", help="Some of halting, aligned, at_least_once, with commas between.")
    ] = None,
    state: Annotated[
        str, typer.Option("--state", metavar="SIZES", help="With --method: how much, such as 10MB,1GB,5GB.")
    ] = "10MB,1GB",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="With --method: an SVG; a CSV goes beside it, to which further runs add."),
    ] = None,
    parallelism: Parallelism = 2,
    json: Json = False,
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """What checkpoints cost: keyed-sum without them, every 5 s and every second, in turn.

    With --method: throughput, longest pause and p99 latency of a job with much state while checkpoints of it are taken,
    and without. Halting stops the sources until each checkpoint is complete.

    **Example:** `weir bench checkpoint-cost --method halting,aligned --state 10MB,1GB --plot cost.svg`
    """
    if method is not None:
        options = bench_options(1, parallelism, "off", work=work)
        run_bench(_comparison(method, state, plot), options, json=json, master=master, debug=debug)
        return
    from weir.bench.checkpoint_cost import run_checkpoint_cost

    options = bench_options(events, parallelism, "off", work=work)
    run_bench(lambda given: run_checkpoint_cost(given, rounds), options, json=json, master=master, debug=debug)


def _comparison(method: str, state: str, plot: Path | None) -> Callable[[BenchOptions], BenchReport]:
    def run(options: BenchOptions) -> BenchReport:
        from weir.bench.cost.comparison import METHODS, run_comparison
        from weir.config.units import size_bytes
        from weir.errors import ConfigError

        methods = method.split(",")
        if not set(methods) <= METHODS.keys():
            raise ConfigError(f"--method is some of {', '.join(METHODS)}; found {method!r}")
        return run_comparison(options, methods, [size_bytes(size, "--state") for size in state.split(",")], plot=plot)

    return run


def bench_soak(
    workload: Annotated[
        str, typer.Option("--workload", help="keyed-sum, window, sliding, session or interval-join.")
    ] = "keyed-sum",
    minutes: Annotated[float, typer.Option("--minutes", min=0.05, help="How long.")] = 10,
    plot: Annotated[
        Path, typer.Option("--plot", help="An SVG of memory and disk over time; a CSV goes beside it.")
    ] = Path("soak.svg"),
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="State in rocksdb, with this budget for each task.")
    ] = None,
    parallelism: Parallelism = 2,
    json: Json = False,
    checkpoint_every: Every = "5s",
    master: Master = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """A workload at full speed for minutes, sampling the memory of driver, JVM and workers, and the disk, every second.

    Compares the sizes at 20 % of the run with those at its end; the memory of workers and driver, and state on the
    local disk, may grow by 10 %.

    **Example:** `weir bench soak --workload session --memory 512MB --minutes 30 --plot soak.svg`
    """
    from weir.bench.soak import run_soak

    options = replace(bench_options(1, parallelism, checkpoint_every, work=work), memory_max=memory)
    run_bench(
        lambda given: run_soak(given, workload, minutes=minutes, plot=plot),
        options,
        json=json,
        master=master,
        debug=debug,
    )
