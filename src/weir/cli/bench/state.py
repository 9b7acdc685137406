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

Keys = Annotated[int, typer.Option("--keys", "-k", min=1_000, help="How many keys, each with 100 bytes.")]
Backend = Annotated[str, typer.Option("--backend", "-b", help="heap or rocksdb.")]
Memory = Annotated[str, typer.Option("--memory", help="With rocksdb: the budget of each task.")]
Kind = Annotated[str, typer.Option("--kind", help="rows: a process function; columns: a batch function.")]


def state_application() -> typer.Typer:
    app = Commands(
        help="Measure large state. Each one checks the state in its last checkpoint.",
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
    keys: Keys = 10_000_000,
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    seconds: Annotated[float, typer.Option("--seconds", help="How long to update random keys.")] = 30,
    kind: Kind = "rows",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Updates of random keys a second, and the memory of the workers.

    **Example:** `weir bench state updates --keys 1000000 --backend heap`
    """
    from weir.bench.state.workloads import run_updates

    options = (keys, backend, memory, kind, parallelism, work)
    _run(lambda given: run_updates(given, seconds=seconds), options, json=json, debug=debug)


def pause(
    keys: Keys = 10_000_000,
    backend: Backend = "heap",
    memory: Memory = "512MB",
    kind: Kind = "rows",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """How long a checkpoint holds the stream (the largest gap), and what it costs while it is written.

    **Example:** `weir bench state pause --kind columns`
    """
    from weir.bench.state.workloads import run_pause

    _run(run_pause, (keys, backend, memory, kind, parallelism, work), json=json, debug=debug)


def incremental(
    keys: Keys = 2_000_000,
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    kind: Kind = "rows",
    share: Annotated[float, typer.Option("--share", min=0.0001, max=1, help="Of the keys, that changes.")] = 0.01,
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """What a checkpoint uploads after a share of the keys has changed.

    **Example:** `weir bench state incremental --backend heap --kind columns`
    """
    from weir.bench.state.workloads import run_incremental

    options = (keys, backend, memory, kind, parallelism, work)
    _run(lambda given: run_incremental(given, share=share), options, json=json, debug=debug)


def restore(
    keys: Keys = 10_000_000,
    backend: Backend = "rocksdb",
    memory: Memory = "512MB",
    kind: Kind = "rows",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """From SIGKILL of a worker until all tasks run again, with local copies of the state.

    **Example:** `weir bench state restore --backend heap --kind columns`
    """
    from weir.bench.state.workloads import run_restore

    _run(run_restore, (keys, backend, memory, kind, parallelism, work), json=json, debug=debug)


def rescale(
    keys: Keys = 1_000_000,
    backend: Backend = "heap",
    memory: Memory = "512MB",
    kind: Kind = "rows",
    parallelism: Parallelism = 2,
    json: Json = False,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Rescale a running job from 2 to 4 to 3, in place, and check that nothing was lost or repeated.

    **Example:** `weir bench state rescale --keys 1000000`
    """
    from weir.bench.state.workloads import run_rescale

    _run(run_rescale, (keys, backend, memory, kind, parallelism, work), json=json, debug=debug)


def _run(
    workload: Callable[[StateOptions], BenchReport],
    given: tuple[int, str, str, str, int, str | None],
    *,
    json: bool,
    debug: bool,
) -> None:
    run_workload(workload, lambda: _options(*given), json=json, debug=debug)


def _options(keys: int, backend: str, memory: str, kind: str, parallelism: int, work: str | None) -> StateOptions:
    import weir
    from weir.bench.state.job import StateOptions
    from weir.errors import ConfigError

    chosen: Any = {"heap": weir.Heap(), "rocksdb": weir.RocksDb(memory_max=memory)}.get(backend)
    if chosen is None or kind not in ("rows", "columns"):
        raise ConfigError(f"--backend is heap or rocksdb, --kind is rows or columns; found {backend!r} and {kind!r}")
    return StateOptions(keys, kind=kind, backend=chosen, parallelism=parallelism, work=work)  # type: ignore[arg-type]
