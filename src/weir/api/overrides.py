"""What the command line decides over a script's own settings.

Comes in: options of `weir run`, for as long as it runs a script. Goes out: the
values that Environment.run and submit put in place of their own. A plain module
value, not a context variable: scripts may run their jobs in threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weir.api.job import JobHandle
from weir.config import Checkpoints
from weir.graph.plan import Plan

Progress: TypeAlias = "bool | Callable[[JobHandle], None] | None"
"""True: print; False: do not; None: print on a terminal; a function: called with the handle now and then."""


Inspect: TypeAlias = Callable[[Plan], None]


class Inspected(BaseException):
    """A script's job was looked at rather than started; the script goes no further."""


@dataclass(frozen=True)
class Overrides:
    """None leaves what the script says."""

    resume: bool | None = None
    parallelism: int | None = None
    checkpoints_to: str | None = field(default=None, repr=False)
    progress: Progress = None
    at: str | None = field(default=None, repr=False)
    from_savepoint: str | None = field(default=None, repr=False)
    allow_dropped_state: bool = False
    inspect: Inspect | None = None
    """Called in place of starting a job."""

    def apply_to_checkpoints(self, checkpoints: Checkpoints | None) -> Checkpoints | None:
        if self.checkpoints_to is None:
            return checkpoints
        return replace(checkpoints or Checkpoints(), to=self.checkpoints_to)


_current = Overrides()


def current() -> Overrides:
    """The overrides that hold now."""
    return _current


@contextmanager
def overriding(
    *,
    resume: bool | None = None,
    parallelism: int | None = None,
    checkpoints_to: str | None = None,
    progress: Progress = None,
    at: str | None = None,
    from_savepoint: str | None = None,
    allow_dropped_state: bool = False,
    inspect: Inspect | None = None,
) -> Iterator[Overrides]:
    """Let these values win over what scripts say, until the block ends.

    >>> with overriding(parallelism=4):
    ...     current().parallelism
    4
    >>> current().parallelism is None
    True
    """
    global _current
    before = _current
    _current = Overrides(
        resume=resume,
        parallelism=parallelism,
        checkpoints_to=checkpoints_to,
        progress=progress,
        at=at,
        from_savepoint=from_savepoint,
        allow_dropped_state=allow_dropped_state,
        inspect=inspect,
    )
    try:
        yield _current
    finally:
        _current = before
