"""The options that several commands have, each declared once.

Comes in: nothing. Goes out: annotations for the parameters of commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show Weir's own traceback when something fails.")]
Parallelism = Annotated[int, typer.Option("--parallelism", "-p", min=1, help="How many subtasks and slots.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, for programs.")]
