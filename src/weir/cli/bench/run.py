"""What the commands of `weir bench` share: run a workload, show its report.

Comes in: a workload and its options. Goes out: one JSON line, or a small table, and exit
code 1 when the workload's own check found its result wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from weir.cli.failures import FAILED, error_console, readable_errors

if TYPE_CHECKING:
    from weir.bench.harness import BenchOptions, BenchReport

Given = TypeVar("Given", bound=Any)


def run_workload(
    workload: Callable[[Given], BenchReport],
    options: Callable[[], Given],
    *,
    json: bool,
    debug: bool,
    master: str | None = None,
) -> None:
    """Run it on Spark, with its progress shown unless JSON is wanted."""
    with readable_errors(debug=debug):
        from dataclasses import replace

        from weir.cli.progress import ProgressView
        from weir.cli.session import spark_on

        given = options()
        progress = None if json else ProgressView(error_console())
        try:
            with spark_on(master, "weir bench", say=None if progress is None else progress.say):
                report = workload(replace(given, show=progress))
        finally:
            if progress is not None:
                progress.close()
        show_report(report, json=json)


def perhaps_with_tls(
    workload: Callable[[BenchOptions], BenchReport], tls: bool
) -> Callable[[BenchOptions], BenchReport]:
    """The workload, or with `tls` the same with TLS and without."""
    from weir.bench.encrypted import run_with_tls

    return (lambda options: run_with_tls(workload, options)) if tls else workload


def bench_options(events: int, parallelism: int, checkpoint_every: str, *, work: str | None) -> BenchOptions:
    """What the options that all workloads have come to."""
    from weir.bench.harness import BenchOptions

    every = None if checkpoint_every == "off" else checkpoint_every
    return BenchOptions(events=events, parallelism=parallelism, checkpoint_every=every, work=work)


def run_bench(
    workload: Callable[[BenchOptions], BenchReport],
    options: BenchOptions,
    *,
    json: bool,
    master: str | None,
    debug: bool,
) -> None:
    """Run a workload whose options are made already."""
    run_workload(workload, lambda: options, json=json, master=master, debug=debug)


def show_report(*reports: BenchReport, json: bool) -> None:
    """Print what was measured; exit code 1 when the workload found a result of its own wrong."""
    for report in reports:
        typer.echo(report.as_json()) if json else _show(report)
    if not all(report.verified for report in reports):
        raise typer.Exit(FAILED)


def _show(report: BenchReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title=report.workload, title_justify="left")
    for name, value in report.as_dict().items():
        if name != "workload":
            table.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    Console().print(table)
