"""The options that several commands of `weir bench` have, each declared once.

Comes in: nothing. Goes out: annotations for the parameters of commands.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON line on standard output.")]
Every = Annotated[
    str, typer.Option("--checkpoint-every", metavar="TIME", help="Such as 5s or 200ms; 'off': only the last one.")
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="A Spark master instead of the embedded Spark.")
]
Work = Annotated[
    str | None,
    typer.Option(
        "--work", metavar="DIR", help="Where to work; by default a temporary place. Shared, if executors are elsewhere."
    ),
]
Tls = Annotated[bool, typer.Option("--tls", help="With TLS and without, in turn, and the ratio of the two.")]


def Events(default: int) -> Any:
    """The option --events, for functions whose workloads take different numbers."""
    return typer.Option(default, "--events", "-n", min=1, help="How many events.")
