"""Where in the user's file an operator was written, and errors that say so.

Comes in: the stack, and errors of specs. Goes out: the innermost place outside this
package, and the same errors with it. Never touches the file itself.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from weir.errors import PlanError
from weir.graph.logical import Place

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MISSING = re.compile(r"""(?:no|find) column ['"]([^'"]+)['"]""")
"""How specs, and Polars, say that a column is not there."""


def place_of_caller() -> Place:
    """The line of user code that called into Weir."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Place(_shortened(frame.f_code.co_filename), frame.f_lineno)


@contextmanager
def placed(kind: str, schema: pa.Schema) -> Iterator[None]:
    """Let errors about an operator say where it was written and, for a misspelt column, what may be meant."""
    try:
        yield
    except PlanError as error:
        message = error.message.removeprefix(f"{kind}: ") + _suggestion(error.message, schema)
        raise type(error)(f"{kind} ({place_of_caller()}): {message}", **error.details) from error.__cause__


def _suggestion(message: str, schema: pa.Schema) -> str:
    found = _MISSING.search(message)
    if found is None or "did you mean" in message:
        return ""
    close = difflib.get_close_matches(found[1], schema.names, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _is_ours(file: str) -> bool:
    # contextlib stands between a `with placed(…)` and its caller only while the block is left.
    return os.path.abspath(file).startswith(_PACKAGE) or file.endswith(f"{os.sep}contextlib.py")


def _shortened(file: str) -> str:
    """Relative to the working directory when the file lies below it."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file
