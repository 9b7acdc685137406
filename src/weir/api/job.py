"""What a started job looks like from the user's side.

Comes in: the object that the runtime's launcher returns, which satisfies JobHandle
without knowing of it. Goes out: the handle's protocol and the result of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from weir.snapshot.coordinator.history import CheckpointRecord

if TYPE_CHECKING:
    from weir.runtime.job.failures import FailureRecord

ENDED = ("finished", "stopped", "failed", "cancelled")


class JobHandle(Protocol):
    """A job that was submitted. All of it may be used from any thread."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str:
        """created, starting, running, restarting, stopping; and at last finished, stopped, failed or cancelled."""

    @property
    def error(self) -> BaseException | None:
        """Why the job failed, once it has."""

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the job has ended, or for `timeout` seconds; the status then. Raises when it has failed."""

    def cancel(self) -> None:
        """End the job without committing what is not yet committed; returns when its tasks are gone."""

    def trigger_checkpoint(self, timeout: float | None = 60.0) -> int:
        """Take a checkpoint now, or as soon as the job runs; its id once it is complete. If its attempt fails, it is
        taken on the next one. Raises JobError when the checkpoint fails, and when the job has ended; TimeoutError after
        `timeout` seconds: it may complete later all the same."""

    def savepoint(self, directory: str | None = None, timeout: float | None = 600.0) -> str:
        """Take a savepoint: a checkpoint that is yours, in a new directory below `directory` (None: in `savepoints`
        below the checkpoint location), which Weir never deletes. Its path, once it is complete and every sink has
        committed what it holds. While the job restarts it waits for the next attempt, and when its attempt fails it is
        taken anew on the next one. Raises JobError when it fails; the job goes on. TimeoutError after `timeout`
        seconds: it may complete later all the same, if it had begun."""

    def stop(self, savepoint: str | bool = True, drain: bool = False, timeout: float | None = 600.0) -> str | None:
        """End the job behind a savepoint (True; a string: below that directory) or a plain checkpoint (False), with
        everything committed up to it; the savepoint's path. The job can be resumed, or started from the savepoint.
        `drain`: let the sources end first, as if there were no more input, so that everything is flushed. Waits for the
        next attempt as `savepoint` does; after TimeoutError it ends the job all the same only if it had begun."""

    def rescale(self, parallelism: int, timeout: float | None = 600.0) -> None:
        """Go on at another parallelism, in place, from a checkpoint that is taken for it. Operators with a parallelism
        of their own keep it. Waits for the next attempt as `savepoint` does. Raises when that cannot be; the job then
        goes on as before."""

    def checkpoints(self) -> Sequence[CheckpointRecord]:
        """The completed checkpoints among the latest, oldest first."""

    @property
    def failures(self) -> Sequence[FailureRecord]:
        """Why the job has restarted: the last failures of its attempts, oldest first, also once it has ended. Each says
        when (`at_ms`), which `attempt` and `task`, the `error`, its `traceback`, the `cause` of a process's death where
        it is known, the checkpoint that the next attempt was `restored_from`, and how long it took (`recovery_ms`)."""

    def metrics(self) -> Mapping[str, Any]:
        """What the job has done so far, as plain data.

        At least `operators`, a list with one mapping for each operator: uid, name, rows_in, rows_out, bytes_in,
        bytes_out, and backpressure as the share of time that its subtasks waited for a full output. Counters are
        those of the current attempt. `failures` are those of the handle, as plain data.
        """


@dataclass(frozen=True)
class JobResult:
    """How a run ended."""

    name: str
    status: str
    seconds: float
    """From submit to the end."""

    checkpoints: tuple[CheckpointRecord, ...] = ()
    """The completed ones among the latest, oldest first."""

    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        number = len(self.checkpoints)
        counted = f"{number} checkpoint{'' if number == 1 else 's'}"
        return f"{self.name}: {self.status} after {self.seconds:.1f} s, {counted}"
