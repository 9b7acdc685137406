"""The commands that look into checkpoints: state, check.

Comes in: the location of a checkpoint or savepoint. Goes out: what it holds, and what
would become of it under a job's new code. Starts no Spark, and changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.failures import readable_errors
from weir.cli.options import AsJson, Debug
from weir.errors import shown

if TYPE_CHECKING:
    from weir.runtime.driver.compatibility import Finding

Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A savepoint, or a checkpoint such as …/chk-0000000012.")
]

REFUSED = 1
COULD_NOT_LOOK = 2
"""Of fsck, where 1 means damage: the location is wrong, or storage is away."""


def add_state_commands(app: typer.Typer) -> None:
    app.command("state")(state)
    app.command("fsck")(fsck)
    app.command("check", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(check)


def state(checkpoint: Checkpoint, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the operators, states, schemas, sizes and row counts in a checkpoint or savepoint.

    `weir.state.read(spark, CHECKPOINT, uid=…, state=…)` gives the rows themselves as a Spark DataFrame.

    **Example:** `weir state checkpoints/billing/chk-0000000012`
    """
    with readable_errors(debug=debug):
        from weir.api.state_table import describe
        from weir.schema import format_schema

        found = describe(checkpoint)
        rows = [
            {
                "uid": one.uid,
                "state": one.state,
                "rows": one.rows,
                "bytes": one.bytes,
                "parts": one.parallelism,
                "format": one.format,
                "schema": format_schema(one.schema),
            }
            for one in found
        ]
        typer.echo(json.dumps(rows)) if as_json else _show(rows, f"State in {shown(checkpoint)}", "It holds no state.")


def fsck(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="A job's checkpoint directory, or one that holds several.")
    ],
    remove: Annotated[
        bool, typer.Option("--repair", help="Delete leftovers that nobody needs. Nothing else is ever changed.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Verify every checkpoint of a job: manifests, files, lengths, checksums; and find what was left behind.

    Reads all that checkpoints name, may run beside the job, and changes nothing without --repair. Exit code 1: a
    checkpoint is damaged or missing. Exit code 2: it could not look, since the location is wrong or storage is away.

    **Example:** `weir fsck checkpoints/billing --repair`
    """
    with readable_errors(debug=debug, exit_code=COULD_NOT_LOOK):
        from weir.cli.fsck import run_fsck

        if not run_fsck(location, repair=remove, as_json=as_json):
            raise typer.Exit(REFUSED)


def check(
    context: typer.Context,
    savepoint: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="A savepoint or checkpoint.")],
    job: Annotated[Path, typer.Argument(metavar="JOB.py", help="The script that would start from it.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what would become of a savepoint's state if JOB.py started from it: restored, evolved, migrated, dropped, …

    Runs the script up to the point where it would start its job, and no further. Exit code 1: it would be refused.

    **Example:** `weir check savepoints/billing-20260101-a1b2 billing.py`
    """
    with readable_errors(debug=debug):
        from weir.runtime.driver.compatibility import misfits_of

        findings = _findings(savepoint, job, context.args)
        rows = [{"uid": f.uid, "state": f.state, "becomes": f.fate.value, "why": f.reason} for f in findings]
        typer.echo(json.dumps(rows)) if as_json else _show(
            rows, f"{shown(savepoint)} under {job}", "It holds no state."
        )
        if not as_json:
            _advise(findings)
        if misfits_of(findings):
            raise typer.Exit(REFUSED)


def _findings(savepoint: str, job: Path, arguments: list[str]) -> list[Finding]:
    from weir.api.overrides import Inspected, overriding
    from weir.api.upgrade import check_upgrade
    from weir.cli.script import run_script
    from weir.errors import ConfigError

    found: list[Finding] = []
    try:
        with overriding(inspect=lambda plan: found.extend(check_upgrade(savepoint, plan))):
            run_script(job, arguments)
    except Inspected:
        return found
    raise ConfigError(f"{job} ended without starting a job: call env.run() or env.submit() in it")


def _advise(findings: list[Finding]) -> None:
    from weir.runtime.driver.compatibility import misfits_of

    if misfits_of(findings, may_drop=True):
        typer.echo("Refused: the job would not start from this savepoint.")
    elif misfits_of(findings):
        typer.echo("Refused unless you pass --allow-dropped-state: the state that is marked would be lost.")
    else:
        typer.echo("The job can start from this savepoint.")


def _show(rows: list[dict[str, Any]], title: str, otherwise: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        typer.echo(otherwise)
        return
    table = Table(title=Text(title), title_justify="left")
    for name in rows[0]:
        numeric = isinstance(rows[0][name], int)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # As Text: names may hold brackets, which mean something in a string.
        table.add_row(*(Text(f"{value:,}" if isinstance(value, int) else str(value)) for value in row.values()))
    Console().print(table)
