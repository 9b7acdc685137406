"""A job on its way to another parallelism: asked for, behind its checkpoint, running, or gone back.

Comes in: what becomes of the checkpoint, of the attempts at the new parallelism. Goes
out: the plan to go on with, and the notices that answer. Never touches a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.errors import JobError
from weir.graph.plan import Plan
from weir.ids import AttemptId
from weir.runtime.driver import notices, verdicts
from weir.runtime.driver.notices import Notice


@dataclass(frozen=True)
class Rescaling:
    """The job is on its way to another parallelism."""

    name: str
    plan: Plan
    previous: Plan | None = None
    """What to go back to; None as long as the old attempt runs."""


class RescaleDesk:
    """At most one rescaling at a time."""

    def __init__(self, notify: Callable[[Notice], None]) -> None:
        self._notify = notify
        self.current: Rescaling | None = None

    def check_free(self, job: str) -> None:
        if self.current is not None:
            raise JobError(f"job {job!r} is already being rescaled")

    def begin(self, name: str, plan: Plan) -> None:
        """The checkpoint that it goes on behind is asked for, by the same name."""
        self.current = Rescaling(name, plan)

    def refused(self, name: str) -> None:
        """Nothing comes of a request; perhaps it was this one's."""
        if self.current is not None and self.current.name == name:
            self.current = None

    def committed(self, name: str, previous: Plan, now_ms: float) -> verdicts.Rescaled | None:
        """Everything is committed behind a request. The attempts are left for the new plan, if it was this one's."""
        if self.current is None or self.current.name != name:
            return None
        self.current = replace(self.current, previous=previous)
        return verdicts.Rescaled(self.current.plan, now_ms)

    def failed(self, error: str, attempt: AttemptId | None, now_ms: float) -> verdicts.WentBack | None:
        """An attempt has failed. If it was to be the first at the new parallelism, that does not even start: whatever
        the reason, the old one did."""
        rescaling, previous = self.current, None if self.current is None else self.current.previous
        if rescaling is None or previous is None:
            return None
        self.current = None
        self._notify(notices.RequestFailed(attempt, rescaling.name, error))
        return verdicts.WentBack(error, previous, now_ms)

    def all_run(self, attempt: AttemptId | None, plan: Plan) -> None:
        """Every region runs. If they do for the first time at another parallelism, that has succeeded."""
        rescaling, previous = self.current, None if self.current is None else self.current.previous
        if rescaling is None or previous is None:
            return
        self.current = None
        self._notify(notices.RescaleCompleted(attempt, rescaling.name, plan.parallelism, previous.parallelism))
