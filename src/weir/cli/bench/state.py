"""`weir bench state`: one command for each benchmark of state.

Comes in: what was typed. Goes out: one JSON line, or a small table, and exit code 1
when the state in the last checkpoint is not what it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.bench.options import Json, Work
from weir.cli.bench.run import run_workload
from weir.cli.commands import Commands
from weir.cli.options import Debug, Parallelism

if TYPE_CHECKING:
    from weir.bench.harness import BenchReport
    from weir.bench.state.job import StateOptions

State = Annotated[
    str, typer.Option("--state", "-s", metavar="SIZE", help="How much, such as 200MB: in entries of about 100 bytes.")
]
Backend = Annotated[str, typer.Option("--backend", "-b", help="heap or rocksdb.")]
Memory = Annotated[str, typer.Option("--memory", help="With rocksdb: the budget of each task.")]
Kind = Annotated[
    str,
    typer.Option(
        "--kind", help="Of what: process, batches, agg, window, session, join, as-of or timers.", show_default=True
    ),
]


ENTRIES_MIN = 10_000


def state_application() -> typer.Typer:
    app = Commands(
        help="Measure large state. Each one checks its last checkpoint, or all of its results.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
    )
    for name, command in (
        ("updates", updates),
        ("pause", pause),
        ("incremental", incremental),
        ("restore", restore),
        ("rescale", rescale),
    ):
        app.command(name)(command)
    return app


def updates(
    state: State = "1GB",
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    seconds: Annotated[float, typer.Option("--seconds", help="How long to measure, once the state is there.")] = 30,
    compare: Annotated[bool, typer.Option("--compare", help="The same on heap, too, and the ratio to that.")] = False,
    kind: Kind = "process",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Rows a second once the state is there, and the memory of the workers. By key, rows change entries at random.

    **Example:** `weir bench state updates --kind session --state 200MB --compare`
    """
    from weir.bench.state.workloads import run_updates

    options = (state, backend, memory, kind, parallelism, work)
    _run(lambda given: run_updates(given, seconds=seconds, compare=compare), options, json=json, debug=debug)


def pause(
    state: State = "1GB",
    backend: Backend = "heap",
    memory: Memory = "512MB",
    kind: Kind = "process",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """How long a checkpoint holds a task up, and what it costs the stream while it is written.

    A pause is the longest time between two ticks, of which 1,000 a second go through each task beside its rows. Those
    `beyond` leave out the time in which an idle process, one on each processor, did not get to run either: that was
    the machine.

    **Example:** `weir bench state pause --kind join --backend rocksdb`
    """
    from weir.bench.state.workloads import run_pause

    _run(run_pause, (state, backend, memory, kind, parallelism, work), json=json, debug=debug)


def incremental(
    state: State = "200MB",
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    kind: Kind = "process",
    share: Annotated[float, typer.Option("--share", min=0.0001, max=1, help="Of the entries, that changes.")] = 0.01,
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """What a checkpoint uploads after a share of the entries has changed.

    **Example:** `weir bench state incremental --kind window`
    """
    from weir.bench.state.workloads import run_incremental

    options = (state, backend, memory, kind, parallelism, work)
    _run(lambda given: run_incremental(given, share=share), options, json=json, debug=debug)


def restore(
    state: State = "1GB",
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    kind: Kind = "process",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """From SIGKILL of a worker until all tasks run again, with local copies of the state.

    **Example:** `weir bench state restore --kind timers`
    """
    from weir.bench.state.workloads import run_restore

    _run(run_restore, (state, backend, memory, kind, parallelism, work), json=json, debug=debug)


def rescale(
    state: State = "100MB",
    backend: Backend = "heap",
    memory: Memory = "512MB",
    kind: Kind = "process",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Rescale a running job from 2 to 4 to 3, in place, and check that nothing was lost or repeated.

    **Example:** `weir bench state rescale --state 50MB`
    """
    from weir.bench.state.workloads import run_rescale

    _run(run_rescale, (state, backend, memory, kind, parallelism, work), json=json, debug=debug)


def _run(
    workload: Callable[[StateOptions], BenchReport],
    given: tuple[str, str, str, str, int, str | None],
    *,
    json: bool,
    debug: bool,
) -> None:
    run_workload(workload, lambda: _options(*given), json=json, debug=debug)


def _options(state: str, backend: str, memory: str, kind: str, parallelism: int, work: str | None) -> StateOptions:
    import weir
    from weir.bench.state.job import KINDS, StateOptions
    from weir.bench.state.kinds import ENTRY_BYTES
    from weir.config.units import size_bytes
    from weir.errors import ConfigError

    chosen: Any = {"heap": weir.Heap(), "rocksdb": weir.RocksDb(memory_max=memory)}.get(backend)
    if chosen is None:
        raise ConfigError(f"--backend is heap or rocksdb; found {backend!r}")
    if kind not in KINDS:
        raise ConfigError(f"--kind is one of {', '.join(KINDS)}; found {kind!r}")
    entries = size_bytes(state, "--state") // ENTRY_BYTES
    if entries < ENTRIES_MIN:
        raise ConfigError(f"--state is at least {ENTRIES_MIN * ENTRY_BYTES} bytes; found {state!r}")
    return StateOptions(entries, kind=kind, backend=chosen, parallelism=parallelism, work=work)
