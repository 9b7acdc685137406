"""Why a job has restarted: the last failures of its attempts, for people and for the log.

Comes in: the driver's notices. Goes out: a bounded list of records, and a line in the log for each at once, with the
traceback. What is told of a failure is without credentials already, and without rows where they may not be shown.
Decides nothing.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

from weir.ids import AttemptId, CheckpointId, TaskIndex
from weir.runtime.driver.notices import AttemptFailed, AttemptRunning, Notice, WorkerDied
from weir.runtime.ports import Clock

FAILURES_MAX = 20
"""The last failures that a job keeps."""

_LOG = logging.getLogger(__name__)

_TRACEBACK = re.compile(r"^(?:Traceback \(most recent call last\):|  File \")", re.MULTILINE)


@dataclass(frozen=True)
class FailureRecord:
    """An attempt has failed, or could not begin."""

    at_ms: int
    """When, in milliseconds since 1970."""
    attempt: AttemptId | None
    """None: none could be claimed."""
    region: int | None
    """Of a job that has several; None: it is about all of it."""
    task: TaskIndex | None
    """The one that has failed, or was lost; None: it was none of them, or nobody knows."""
    error: str
    """What has happened; of an error in a user's function also the operator, its uid and the row."""
    traceback: str | None
    restarts: bool
    """Another attempt follows."""
    cause: str | None = None
    """How the task's process has died, if it has; known only when the next attempt runs."""
    restored_from: CheckpointId | None = None
    """What the next attempt that ran began from; None: from the beginning, or there was none up to now."""
    recovery_ms: int | None = None
    """From the failure until everything ran again; None: it has not up to now."""

    @property
    def public(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @property
    def who(self) -> str:
        """
        >>> FailureRecord(0, AttemptId(3), None, TaskIndex(1), "killed", None, True).who
        'attempt 3, task 1'
        """
        parts = ["no attempt" if self.attempt is None else f"attempt {self.attempt}"]
        parts += [f"{what} {it}" for what, it in (("region", self.region), ("task", self.task)) if it is not None]
        return ", ".join(parts)

    @property
    def reason(self) -> str:
        """What has happened, and how the task's process has died."""
        return self.error if self.cause is None else f"{self.error}; {self.cause}"


@dataclass
class _Kept:
    record: FailureRecord
    failed_ms: float
    run_again: set[int | None]
    """Regions that ran again since: each counts once."""


class Failures:
    """The last failures of one job. The driver's own thread tells it of them."""

    def __init__(self, job: str, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self._kept: deque[_Kept] = deque(maxlen=FAILURES_MAX)

    @property
    def records(self) -> list[FailureRecord]:
        """Oldest first."""
        return [kept.record for kept in self._kept]

    def hear(self, notice: Notice) -> None:
        if isinstance(notice, AttemptFailed):
            self._failed(notice)
        elif isinstance(notice, WorkerDied):
            self._explained(notice)
        elif isinstance(notice, AttemptRunning):
            self._runs(notice)

    def _failed(self, notice: AttemptFailed) -> None:
        error, traceback = without_traceback(notice.error)
        record = FailureRecord(
            self._clock.wall_ms(), notice.attempt, notice.region, notice.task, error, traceback, notice.restarts
        )
        self._kept.append(_Kept(record, self._clock.now_ms(), set()))
        if notice.restarts:
            _LOG.warning("job %s: %s failed, restarting: %s", self._job, record.who, notice.error.rstrip())
        else:  # The job's own error holds the rest.
            _LOG.warning("job %s: %s failed, and the job with it: %s", self._job, record.who, error.partition("\n")[0])

    def _explained(self, notice: WorkerDied) -> None:
        for kept in self._kept:
            record = kept.record
            if record.attempt == notice.attempt and record.task in (None, notice.task) and record.cause is None:
                cause = f"task {notice.task}: {notice.how}" if record.task is None else notice.how
                kept.record = replace(record, cause=cause)
                _LOG.warning("job %s: %s: %s", self._job, record.who, cause)

    def _runs(self, notice: AttemptRunning) -> None:
        for kept in self._kept:
            if notice.region in kept.run_again or kept.record.region not in (None, notice.region):
                continue
            kept.run_again.add(notice.region)
            took_ms = round(self._clock.now_ms() - kept.failed_ms)
            kept.record = replace(kept.record, restored_from=notice.restored, recovery_ms=took_ms)
        if notice.recovery_ms is not None:
            came_from = "the beginning" if notice.restored is None else f"checkpoint {notice.restored}"
            took_s = notice.recovery_ms / 1e3
            _LOG.warning("job %s: attempt %s runs from %s, %.1f s later", self._job, notice.attempt, came_from, took_s)


def without_traceback(error: str) -> tuple[str, str | None]:
    """What has happened, and the traceback behind it, if there is one.

    >>> without_traceback("operator 'a' failed: KeyError: 1\\nTraceback (most recent call last):\\n...\\nKeyError: 1")
    ("operator 'a' failed: KeyError: 1", 'Traceback (most recent call last):\\n...\\nKeyError: 1')
    >>> without_traceback("Traceback (most recent call last):\\n...\\nKeyError: 1\\n")[0]
    'KeyError: 1'
    """
    found = _TRACEBACK.search(error)
    if found is None:
        return error.strip(), None
    traceback = error[found.start() :].rstrip()
    return error[: found.start()].strip() or traceback.splitlines()[-1].strip(), traceback
