"""What is told of a task's failure, and to whom.

Comes in: an exception. Goes out: a text for the job's driver, which travels over the job's own
line, and an exception for Spark, which writes what it is given into logs and its event log,
where rows have no business.
"""

from __future__ import annotations

import traceback

from weir.errors import CheckpointError, ConfigError, OwnershipError, Unavailable, WeirError
from weir.texts import told

HIDDEN = "(rows, keys and messages are not shown: Settings.show_rows is False)"

_WITHOUT_ROWS = (Unavailable, ConfigError, CheckpointError, OwnershipError)
"""They speak of storage, settings and other jobs. All others may quote what a function was given, or returned."""


def for_driver(error: BaseException, *, show_rows: bool) -> str:
    """The whole story; without what may hold values of rows, unless they may be shown."""
    if show_rows or isinstance(error, _WITHOUT_ROWS):
        return str(error) if isinstance(error, WeirError) else told("".join(traceback.format_exception(error)))
    if isinstance(error, WeirError) and "without_rows" in error.details:
        return f"{told(error.details['without_rows'])} {HIDDEN}"
    return told(f"{type(error).__name__} {HIDDEN}\n{''.join(traceback.format_tb(error.__traceback__)).rstrip()}")


def for_spark(error: BaseException, who: str) -> BaseException:
    """What to raise in its place. A user's function may have put anything into its message."""
    if isinstance(error, Unavailable) or not isinstance(error, Exception):
        return error
    kind = error.code if isinstance(error, WeirError) else type(error).__name__
    return TaskFailure(f"{who} failed ({kind}); what happened was told to the job's driver")


class TaskFailure(RuntimeError):
    """What Spark gets to see of an error."""
