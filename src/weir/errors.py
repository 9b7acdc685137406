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
    │   ├── TaskLost                         a task stopped answering
    │   └── SlotsMissing                     Spark has too few free slots
    └── ProtocolViolation      (RuntimeError) our bug: a machine met what it must never meet

Each error has a stable `code`, survives pickling, and its message names the
operator, what was found, what was expected and what to do. No message shows the
credentials in a URI.
"""

from __future__ import annotations

import os
import re
from typing import Any

_LOCATION = re.compile(r"([A-Za-z][\w+.-]*)(://)(\S*)")
_PORT = re.compile(r"[^/@]*:\d+/")
_HAVE_PORTS = ("hdfs", "viewfs", "http", "https")
_HAVE_CONTAINERS = ("abfs", "abfss")

_INNER = re.compile(r"([?&;][^\s=&]*=[^\s&]*?(?::|%3A)(?:/|%2F){2})[^\s&]*(@|%40)", re.IGNORECASE)
"""An option that is a URI itself, such as a proxy, and who opens that."""

_SECRET = "secret|passw|pwd|token|credential|key|sig|auth|sas|bearer|service_account"
_OPTION = re.compile(
    rf"""([?&;][^\s'"=&]*(?:{_SECRET})[^\s'"=&]*=)(?:{{.*}}|[^\s&]+?(?=['")\],.:]*(?:[\s&]|$)))""",
    re.IGNORECASE | re.DOTALL,
)
"""Options whose names look as if nobody should see their values."""


def shown(text: str | os.PathLike[str]) -> str:
    """A location, or a text with locations in it, for others to read: without credentials.

    >>> shown("s3://AKIA:secret@bucket/out?region=eu-west-1&secret_key=abc")
    's3://…@bucket/out?region=eu-west-1&secret_key=…'
    """
    return _OPTION.sub(r"\1…", _INNER.sub(r"\1…\2", _LOCATION.sub(_without_user, os.fspath(text))))


def _without_user(location: re.Match[str]) -> str:
    """All before the last @ is who opens it: a secret may hold what ought to be written %2F, %40 or %3F."""
    scheme, mark, rest = location.groups()
    place, question, options = rest.partition("?")
    if "@" not in place and ":" in place.partition("/")[0]:
        place, question, options = rest, "", ""
    user, at, host = place.rpartition("@")
    if scheme.lower() in _HAVE_PORTS and _PORT.match(place):
        return location[0]
    if not at or (":" not in user and ("/" in user or scheme.lower() in _HAVE_CONTAINERS)):
        return location[0]
    return f"{scheme}{mark}…@{host}{question}{options}"


class WeirError(Exception):
    """Base of everything that Weir raises."""

    code = "WEIR"

    def __init__(self, message: str, **details: Any) -> None:
        self.message = shown(message)
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
