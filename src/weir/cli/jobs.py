"""The commands that look after running jobs: list, status, checkpoints, cancel, savepoint, stop, rescale.

Comes in: what was typed. Goes out: calls to jobs of this user that run in other processes,
found by the registry, and their answers as tables or as JSON. Starts no Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.failures import readable_errors
from weir.cli.options import AsJson, Debug

if TYPE_CHECKING:
    from weir.runtime.job.client import JobClient

LIST_TIMEOUT_S = 2.0
"""How long `weir list` waits for each job."""

FAILURES_SHOWN = 3
"""Those before are left to --json."""

DEFAULT_TIMEOUT_S = 600.0

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name; `weir list` shows what runs.")]
Run = Annotated[str | None, typer.Option("--run", help="Which of several: the beginning of its run id.")]
Pid = Annotated[int | None, typer.Option("--pid", help="Which of several: the process id of its driver.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for it to be done.")
]


def add_job_commands(app: typer.Typer) -> None:
    app.command("list")(list_jobs)
    app.command("status")(status)
    app.command("checkpoints")(checkpoints)
    app.command("cancel")(cancel)
    app.command("savepoint")(savepoint)
    app.command("stop")(stop)
    app.command("rescale")(rescale)


# --- Looking --------------------------------------------------------------------------------------------


def list_jobs(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the jobs that you run on this machine.

    A job is listed from its start to its end, whichever process runs it. One whose process was killed is not.

    **Example:** `weir list --json`
    """
    with readable_errors(debug=debug):
        from weir.runtime.job.registry import entries

        found = [_glance(entry) for entry in entries()]
        if as_json:
            _print_json(found)
        elif not found:
            typer.echo("No job runs.")
        else:
            rows = [
                (job["name"], job["status"], job["parallelism"], _ago(job["started_s"]), job["pid"], job["run"][:8])
                for job in found
            ]
            _table(("job", "status", "tasks", "running for", "pid", "run"), rows)


def status(name: JobName, run: Run = None, pid: Pid = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show how a job is: its phase, restarts, newest checkpoint, last failures, and rows by operator.

    --json has more failures, with their tracebacks.
    While storage is away, also since when the job waits for it, what was found last, and when it looks again.

    **Example:** `weir status word-count --json`
    """
    with readable_errors(debug=debug):
        client = _client(name, run, pid)
        found, metrics = client.status(), client.metrics()
        if as_json:
            _print_json({**found, "operators": metrics["operators"]})
            return
        newest = found["checkpoint"]
        lines = [
            ("job", f"{found['name']}  (run {found['run'][:8]}, pid {found['pid']} on {found['host']})"),
            ("status", f"{found['status']}, attempt {found['attempt']}, {found['restarts']} restarts"),
            *_waiting_lines(found),
            ("running for", _ago(found["started_s"])),
            ("parallelism", str(found["parallelism"])),
            ("checkpoints", found["checkpoints"] or "in the driver's memory"),
            ("newest", "none yet" if newest is None else _checkpoint_line(newest)),
            *_failure_lines(found.get("failures", ())),
        ]
        for label, text in lines:
            typer.echo(f"{label:12} {text}")
        typer.echo("")
        operators = [
            (op["uid"], op["name"], f"{op['rows_in']:,}", f"{op['rows_out']:,}", f"{op.get('backpressure', 0):.0%}")
            for op in metrics["operators"]
        ]
        _table(("uid", "operator", "rows in", "rows out", "backpressure"), operators)


def checkpoints(name: JobName, run: Run = None, pid: Pid = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List a job's latest checkpoints and what became of them, oldest first.

    **Example:** `weir checkpoints word-count`
    """
    with readable_errors(debug=debug):
        found = _client(name, run, pid).checkpoints()
        if as_json:
            _print_json(found)
        elif not found:
            typer.echo("No checkpoint yet.")
        else:
            rows = [
                (
                    record["id"],
                    record["state"],
                    f"{record['duration_ms']:,} ms",
                    _size(record["size_bytes"]),
                    _size(record["uploaded_bytes"]),
                    record["savepoint"] or record["reason"] or ("final" if record["final"] else ""),
                )
                for record in found
            ]
            _table(("id", "state", "took", "size", "uploaded", ""), rows)


# --- Doing ----------------------------------------------------------------------------------------------


def cancel(name: JobName, run: Run = None, pid: Pid = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """End a job at once.

    What was committed stays, what was not is dropped; `weir run --resume` goes on from the last checkpoint. To lose no
    work, use `weir stop`.

    **Example:** `weir cancel word-count`
    """
    with readable_errors(debug=debug):
        client = _client(name, run, pid)
        ended = client.cancel()
        _answer(as_json, {"job": name, "status": ended}, f"{client.entry} is {ended}.")


def savepoint(
    name: JobName,
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]",
            help="A new directory is made below this one. By default in savepoints/ below the job's checkpoints.",
        ),
    ] = None,
    run: Run = None,
    pid: Pid = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a savepoint: a checkpoint that is yours, and that Weir never deletes.

    Prints its path, once it is complete and every sink has committed what it holds. The job goes on. Start another run
    from it, also of changed code or at another parallelism, with `weir run JOB.py --from PATH`.

    **Example:** `weir savepoint word-count s3://bucket/savepoints`
    """
    with readable_errors(debug=debug):
        from weir.errors import shown

        path = shown(_client(name, run, pid).savepoint(_absolute(directory), timeout))
        _answer(as_json, {"job": name, "savepoint": path}, path)


def stop(
    name: JobName,
    directory: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="DIR", help="Where to put the savepoint; as for `weir savepoint`."),
    ] = None,
    no_savepoint: Annotated[
        bool, typer.Option("--no-savepoint", help="Stop behind an ordinary checkpoint; go on with `weir run --resume`.")
    ] = False,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Let the sources end, so that everything is flushed: the job is then finished."),
    ] = False,
    run: Run = None,
    pid: Pid = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop a job behind a savepoint, with everything committed up to it.

    Prints the savepoint's path. Go on with `weir run JOB.py --from PATH`, or with `--resume` in the same place. When
    the savepoint fails, the job goes on.

    **Example:** `weir stop word-count --savepoint /data/savepoints`
    """
    with readable_errors(debug=debug):
        from weir.errors import ConfigError, shown

        if no_savepoint and directory is not None:
            raise ConfigError("--savepoint and --no-savepoint exclude each other")
        client = _client(name, run, pid)
        place = _absolute(directory)
        wanted: str | bool = False if no_savepoint else True if place is None else place
        found, ended = client.stop(wanted, drain=drain, timeout_s=timeout)
        path = None if found is None else shown(found)
        text = path or f"{client.entry} is {ended}."
        _answer(as_json, {"job": name, "status": ended, "savepoint": path}, text)


def rescale(
    name: JobName,
    parallelism: Annotated[int, typer.Argument(metavar="P", min=1, help="The new parallelism.")],
    run: Run = None,
    pid: Pid = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a job go on at another parallelism, in place.

    Takes a checkpoint, stops the tasks behind it and starts them again at P; nothing is lost or repeated. Operators
    with a parallelism of their own keep it. When Spark has too few slots, the job goes on as before.

    **Example:** `weir rescale word-count 4`
    """
    with readable_errors(debug=debug):
        client = _client(name, run, pid)
        now = client.rescale(parallelism, timeout)
        _answer(as_json, {"job": name, "parallelism": now}, f"{client.entry} runs with {now} tasks.")


# --- Small things ---------------------------------------------------------------------------------------


def _client(name: str, run: str | None, pid: int | None) -> JobClient:
    from weir.runtime.job.client import JobClient
    from weir.runtime.job.registry import find_job

    return JobClient(find_job(name, run=run, pid=pid))


def _glance(entry: Any) -> dict[str, Any]:
    from weir.errors import Unavailable
    from weir.runtime.job.client import JobClient

    try:
        return JobClient(entry).status(LIST_TIMEOUT_S)
    except Unavailable:
        return {**entry.public, "status": "does not answer"}


def _waiting_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What keeps a job from running, if it is storage, or a restore."""
    from weir.cli.progress import restored_text, storage_wait_text

    if found.get("restoring") is not None:
        return [("restored", restored_text(found["restoring"]))]
    wait = found.get("waits_for")
    if wait is None:
        return []
    return [
        ("waits for", f"{storage_wait_text(wait)} ({_ago(wait['since_ms'] / 1e3)} so far)"),
        ("", wait["error"]),
    ]


def _failure_lines(failures: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The last few failures, the newest first: what happened, and what became of the job."""
    lines: list[tuple[str, str]] = []
    for failure in reversed(failures[-FAILURES_SHOWN:]):
        at = time.strftime("%H:%M:%S", time.localtime(failure["at_ms"] / 1e3))
        where = [f"{what} {failure[what]}" for what in ("attempt", "region", "task") if failure[what] is not None]
        reason = failure["error"] if failure["cause"] is None else f"{failure['error']}; {failure['cause']}"
        first, *rest = reason.splitlines() or [""]
        lines.append(("" if lines else "last failure", f"{at}, {', '.join(where) or 'no attempt'}: {first}"))
        lines += [("", line) for line in rest]
        if failure["recovery_ms"] is not None:
            start = failure["restored_from"]
            came_from = "the beginning" if start is None else f"checkpoint {start}"
            lines.append(("", f"ran again from {came_from} after {failure['recovery_ms'] / 1e3:.1f} s"))
    return lines


def _absolute(directory: str | None) -> str | None:
    """The job's process has another working directory."""
    if directory is None:
        return None
    from weir.runtime.storage.locations import absolute_location

    return absolute_location(directory)


def _answer(as_json: bool, found: Any, text: str) -> None:
    if as_json:
        _print_json(found)
    else:
        typer.echo(text)


def _print_json(found: Any) -> None:
    typer.echo(json.dumps(found, default=str))


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # names may hold brackets
    Console(highlight=False, soft_wrap=True).print(table)


def _checkpoint_line(record: dict[str, Any]) -> str:
    return f"checkpoint {record['id']}, {_size(record['size_bytes'])}, took {record['duration_ms']:,} ms"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size_bytes < 1_024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1_024
    return f"{size_bytes:,.1f} GB"


def _ago(started_s: float) -> str:
    seconds = max(0, round(time.time() - started_s))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
