"""Everything that Weir raises.

    WeirError
    ├── JobError               the user must fix it; never retried
    │   ├── PlanError          (ValueError)  the dataflow is not well formed
    │   │   └── SchemaError                  a column or type does not fit
    │   ├── ConfigError        (ValueError)  a setting is wrong
    │   ├── DataError          (ValueError)  a record or file cannot be read
    │   ├── CheckpointError                  a checkpoint cannot be used
    │   │   └── CorruptCheckpoint            its bytes are not what was written
    │   ├── OwnershipError                   a directory belongs to another job
    │   └── JobFailed                        the job ended in failure; holds the cause
    ├── UserCodeError                        a user's function raised; the restart strategy decides
    ├── Unavailable                          try again
    │   ├── StorageUnavailable (OSError)     the outcome of a storage call is unknown or it was refused
    │   │   └── StorageFull                  no room; nothing was published
    │   ├── LocalDiskFailed    (OSError)     a task's local disk is full, or does not work
    │   ├── TaskLost                         a task stopped answering
    │   └── SlotsMissing                     Spark has too few free slots
    └── ProtocolViolation      (RuntimeError) our bug: a machine met what it must never meet

Each error has a stable `code`, survives pickling, and its message names the
operator, what was found, what was expected and what to do. No message shows the
credentials in a URI, or is longer than texts.MESSAGE_CHARACTERS_MAX.
"""

from __future__ import annotations

from typing import Any

from weir.texts import shown as shown
from weir.texts import told as told


class WeirError(Exception):
    """Base of everything that Weir raises."""

    code = "WEIR"

    def __init__(self, message: str, **details: Any) -> None:
        self.message = told(message)
        super().__init__(self.message)
        self.details = details

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(kind: type[WeirError], message: str, details: dict[str, Any]) -> WeirError:
    return kind(message, **details)


class JobError(WeirError):
    """The user must fix something; running it again changes nothing."""

    code = "JOB"


class PlanError(JobError, ValueError):
    """The dataflow is not well formed."""

    code = "PLAN"


class SchemaError(PlanError):
    """A column or a type does not fit."""

    code = "SCHEMA"


class ConfigError(JobError, ValueError):
    """A setting is wrong."""

    code = "CONFIG"


class DataError(JobError, ValueError):
    """A record or a file cannot be read."""

    code = "DATA"


class CheckpointError(JobError):
    """A checkpoint cannot be used for this job."""

    code = "CHECKPOINT"


class CorruptCheckpoint(CheckpointError):
    """A checkpoint's bytes are not what was written."""

    code = "CHECKPOINT_CORRUPT"


class OwnershipError(JobError):
    """A directory belongs to another job or another run."""

    code = "OWNERSHIP"


class JobFailed(JobError):
    """The job ended in failure. `__cause__` or the message says why."""

    code = "JOB_FAILED"


class UserCodeError(WeirError):
    """A user's function raised. The message holds the user's traceback, the operator and the row."""

    code = "USER_CODE"


class Unavailable(WeirError):
    """Something is not there for now; trying again may help."""

    code = "UNAVAILABLE"


class StorageUnavailable(Unavailable, OSError):
    """A storage call failed and its outcome may be unknown: look before you repeat or delete."""

    code = "STORAGE"


class StorageFull(StorageUnavailable):
    """No room is left where the write had to go."""

    code = "STORAGE_FULL"


class LocalDiskFailed(Unavailable, OSError):
    """State could not be written to a task's local disk: it is full, or does not work."""

    code = "LOCAL_DISK"


class TaskLost(Unavailable):
    """A task stopped answering."""

    code = "TASK_LOST"


class SlotsMissing(Unavailable):
    """Spark has too few free slots for the job's parallelism."""

    code = "SLOTS"


class ProtocolViolation(WeirError, RuntimeError):
    """Our bug: a machine met an event that its phase must never meet."""

    code = "PROTOCOL"


def code_of(error: object) -> str:
    """The stable code of an error of ours; empty for anything else.

    >>> code_of(StorageFull("no room")), code_of(KeyError("x"))
    ('STORAGE_FULL', '')
    """
    return error.code if isinstance(error, WeirError) else ""
