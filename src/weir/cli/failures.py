"""Errors as people read them: a short panel instead of a traceback of ours.

Comes in: what a command raised. Goes out: a panel on standard error and an exit code.
Never decides whether something is an error.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from weir.errors import (
    CheckpointError,
    CorruptCheckpoint,
    JobFailed,
    ProtocolViolation,
    SchemaError,
    SlotsMissing,
    StorageFull,
    UserCodeError,
    WeirError,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

FAILED = 1
INTERRUPTED = 130
"""What shells expect of a command that Ctrl-C ended."""

_HINTS: tuple[tuple[type[WeirError], str], ...] = (
    (SchemaError, "Print `stream.schema` or `env.explain()` to see which columns exist at that point."),
    (CorruptCheckpoint, "Older checkpoints are kept as they are; sinks may have committed past them."),
    (SlotsMissing, "Lower --parallelism, or pass a --master with more cores."),
    (StorageFull, "Make room, then run again with --resume."),
    (UserCodeError, "Fix the function; with checkpoints in storage, --resume goes on where the job stopped."),
    (JobFailed, "Once the cause is gone, --resume goes on from the last checkpoint (Checkpoints(to=…))."),
    (ProtocolViolation, "This is a bug in Weir. Please report it with the output of the same command and --debug."),
)


@contextmanager
def readable_errors(*, debug: bool, exit_code: int = FAILED) -> Iterator[None]:
    """Turn what Weir raises into a panel and this exit code, 1 for a checkpoint that cannot be used, and Ctrl-C into
    exit code 130."""
    try:
        yield
    except WeirError as error:
        if debug:
            raise
        show_error(error)
        raise typer.Exit(FAILED if isinstance(error, CheckpointError) else exit_code) from None
    except KeyboardInterrupt:
        error_console().print("[yellow]Interrupted.[/] What was committed stays; the rest was cancelled.")
        raise typer.Exit(INTERRUPTED) from None


def error_console() -> Console:
    """Standard error, so that standard output stays the job's own."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def show_error(error: WeirError) -> None:
    error_console().print(panel_of(error))


def panel_of(error: WeirError) -> Panel:
    """Kind, message and what to do."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    parts = [Text(str(error).strip() or type(error).__name__)]
    if hint := hint_for(error):
        parts.append(Text(f"\n→ {hint}", style="cyan"))
    return Panel(Group(*parts), title=f"[bold red]{type(error).__name__}[/]", border_style="red", title_align="left")


def hint_for(error: WeirError) -> str | None:
    """What to do next, for the errors whose message cannot know that it was the command line that met them."""
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)


def show_script_error(error: BaseException, script: str) -> None:
    """A bug of the script itself: its own traceback, from the script's first line on."""
    own = frames_from(error.__traceback__, script)
    text = "".join(traceback.format_exception(type(error), error, own))
    error_console().print(text, markup=False, end="", soft_wrap=True)


def frames_from(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback without what comes before the script; all of it when the script is not in it."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != script:
        found = found.tb_next
    return found or trace
