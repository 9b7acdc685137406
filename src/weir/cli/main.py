"""The `weir` command.

Comes in: what was typed. Goes out: a job, the demo or a benchmark, started with these
options. Imports as little as it can: whatever needs Spark or Polars is imported by the
command that uses it, so that --help and --version answer at once.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.bench.workloads import bench_application
from weir.cli.commands import Commands
from weir.cli.failures import FAILED, error_console, readable_errors, show_script_error
from weir.cli.jobs import add_job_commands
from weir.cli.options import Debug, Parallelism
from weir.cli.state import add_state_commands
from weir.version import __version__

SHOWN_PACKAGES = ("pyspark", "pyarrow", "polars", "numpy")

FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SAVEPOINT",
        help="Start from this savepoint, or from a checkpoint (…/chk-0000000012) of another run, as long as this run "
        "has no checkpoint of its own.",
    ),
]
CheckpointsTo = Annotated[
    str | None,
    typer.Option("--checkpoints", metavar="URI", help="Where checkpoints go: a directory, s3://…, gs://…, hdfs://…"),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="The Spark master to run on, such as spark://host:7077.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="CHECKPOINT",
        help="With --resume: go back to this checkpoint (chk-0000000012), whatever is newer. What sinks have committed "
        "since is written again; it is said what that is.",
    ),
]
AllowDroppedState = Annotated[
    bool, typer.Option("--allow-dropped-state", help="Leave out state of operators that the job no longer has.")
]


def main() -> None:
    """The entry point of the `weir` command."""
    application()()


def application() -> typer.Typer:
    app = Commands(
        name="weir",
        help="Stateful stream processing in Python, inside Spark: exactly once, after any failure.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_weir)
    app.command("run")(run)
    app.command("demo")(demo)
    add_job_commands(app)
    add_state_commands(app)
    app.add_typer(bench_application(), name="bench")
    return app


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    parts = [f"weir {__version__}", f"Python {sys.version.split()[0]}"]
    for package in SHOWN_PACKAGES:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} is not installed")
    typer.echo(", ".join(parts))
    raise typer.Exit


def _weir(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Stateful stream processing in Python, inside Spark: exactly once, after any failure."""


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.py", help="The script: it builds an Environment and runs it.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="What the script finds in sys.argv[1:].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of an earlier run of the same job.")
    ] = False,
    at: At = None,
    from_savepoint: FromSavepoint = None,
    allow_dropped_state: AllowDroppedState = False,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, help="Instead of what the script says.")
    ] = None,
    checkpoints: CheckpointsTo = None,
    master: Master = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show how the job goes.")] = False,
    debug: Debug = False,
) -> None:
    """Run a job.

    The script runs as if by `python JOB.py`; the options here win over its own settings. Ctrl-C cancels the job:
    what was committed stays, and --resume goes on from the last checkpoint.

    **Example:** `weir run word_count.py --checkpoints /tmp/checkpoints --resume -- --input lines/`
    """
    with readable_errors(debug=debug):
        from weir.api.overrides import overriding
        from weir.cli.progress import ProgressView, says_failures
        from weir.cli.script import run_script
        from weir.cli.session import spark_on
        from weir.errors import WeirError

        progress = None if no_progress else ProgressView(error_console())
        try:
            with (
                nullcontext() if progress is None else says_failures(),
                spark_on(master, job.stem, say=None if progress is None else progress.say),
                overriding(
                    resume=resume or None,
                    at=at,
                    from_savepoint=from_savepoint,
                    allow_dropped_state=allow_dropped_state,
                    parallelism=parallelism,
                    checkpoints_to=checkpoints,
                    progress=progress or False,
                ),
            ):
                run_script(job, arguments or ())
        except (WeirError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if debug:
                raise
            show_script_error(error, str(job.resolve()))
            raise typer.Exit(FAILED) from None
        finally:
            if progress is not None:
                progress.close()


def demo(
    words: Annotated[int, typer.Option("--words", min=1_000, help="How many words to count.")] = 4_000_000,
    parallelism: Parallelism = 2,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Leave the workers alone.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A fresh directory for the result; by default a temporary one."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Count the words of a generated stream, kill a worker in the middle, and verify the result.

    Starts a local Spark, checkpoints every second, sends SIGKILL to one of its own Python workers, recovers from the
    last checkpoint, and compares what was committed with the known answer.
    Then counts once more, as fast as this machine can. Takes about half a minute.

    **Example:** `weir demo --words 10000000 --output counts`
    """
    with readable_errors(debug=debug):
        from rich.console import Console

        from weir.cli.demo.job import DemoOptions, run_demo
        from weir.cli.progress import ProgressView, says_failures
        from weir.cli.session import spark_on

        options = DemoOptions(words=words, parallelism=parallelism, kill=not no_kill, output=output)
        console = Console()
        with says_failures(), spark_on(None, "demo", say=ProgressView(console).say):
            verified = run_demo(options, console)
        if not verified:
            raise typer.Exit(FAILED)
