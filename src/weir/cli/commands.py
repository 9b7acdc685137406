"""What all commands have in common.

Comes in: what was typed, taken apart. Goes out: the same to the command itself, unless an empty text is among it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from weir.cli.failures import readable_errors
from weir.errors import ConfigError

WRONGLY_USED = 2
"""The exit code of commands that were typed wrongly."""


class Commands(typer.Typer):
    """Commands that take no empty text."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=_Command, **options)


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        with readable_errors(debug=bool(ctx.params.get("debug")), exit_code=WRONGLY_USED):
            for parameter in self.params:
                if ctx.params.get(str(parameter.name)) == "":
                    # Of a shell variable that is not set. To take it for an option that was left out would start anew
                    # what was to go on from a savepoint.
                    option = next((text for text in parameter.opts if text.startswith("-")), None)
                    raise ConfigError(
                        f"{option or parameter.metavar or parameter.name} is an empty text; is a variable of your "
                        f"shell not set? Give it a value, or leave it out"
                    )
        return super().invoke(ctx)
