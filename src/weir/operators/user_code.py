"""Errors of the user's own code, told in the user's terms.

Comes in: an exception out of a function, the operator and what it was given. Goes
out: a UserCodeError with the user's frames only, the operator's name and uid, and
the row. Never decides what happens next.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import polars

from weir.errors import UserCodeError
from weir.operators.base import OperatorContext
from weir.state.values.conversion import shown
from weir.texts import QUOTED_CHARACTERS_MAX, quoted

_PACKAGE = PurePath(__file__).parent.parent
_HIDDEN = (
    str(_PACKAGE / "operators"),
    str(_PACKAGE / "state"),
    str(_PACKAGE / "runtime" / "task" / "calls.py"),
    str(PurePath(traceback.__file__).parent / "asyncio"),
    str(PurePath(polars.__file__).parent),
)
"""Where frames that say nothing to a user come from."""

_NOTHING: Any = object()


def operator_label(context: OperatorContext) -> str:
    """How messages call an operator.

    >>> from weir.ids import AttemptId, Uid
    >>> operator_label(OperatorContext("job", Uid("u1"), "map", 0, 1, 128, AttemptId(1)))
    "operator 'map' (uid 'u1')"
    """
    return f"operator {context.name!r} (uid {context.uid!r})"


def user_code_error(
    error: BaseException, context: OperatorContext, *, row: Any = _NOTHING, key: Any = _NOTHING, doing: str = ""
) -> UserCodeError:
    """The error to raise, `from None`, in place of one that the user's code raised."""
    details: dict[str, Any] = {"uid": context.uid, "operator": context.name, "error": type(error).__name__}
    given = ""
    if key is not _NOTHING:
        details["key"] = shown(key)
        given += f"\n  key: {details['key']}"
    if row is not _NOTHING:
        details["row"] = shown(row)
        given += f"\n  row: {details['row']}"
    what = f" in {doing}" if doing else ""
    label = f"{operator_label(context)} failed{what}: {type(error).__name__}"
    message = f"{label}: {quoted(str(error))}{given}"
    details["without_rows"] = "\n".join((label, *user_frames(error)))
    report = user_traceback(error)
    return UserCodeError(f"{message}\n{report}" if report else message, **details)


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception and of those that it followed from, without our frames; empty if none is left."""
    report = traceback.TracebackException.from_exception(error)
    theirs = 0
    for part in _chain(report):
        frames = [frame for frame in part.stack if not frame.filename.startswith(_HIDDEN)]
        part.stack = traceback.StackSummary.from_list(frames)
        theirs += len(frames)
    # Each line by itself, so that a long message leaves room for the frames.
    return "".join(map(_line, report.format())).rstrip() if theirs else ""


def user_frames(error: BaseException) -> list[str]:
    """The user's lines of code on the way to an exception; nothing of what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_HIDDEN)]
    return [line.rstrip() for line in traceback.format_list(theirs)]


def _line(text: str) -> str:
    return text if len(text) <= QUOTED_CHARACTERS_MAX else f"{quoted(text)}\n"


def _chain(report: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    if report is not None:
        yield report
        yield from _chain(report.__cause__)
        yield from _chain(report.__context__)
