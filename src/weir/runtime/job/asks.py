"""What users wait for: savepoints, stops and rescales of one job, from the call to the answer.

Comes in: requests and notices, on the driver's thread. Goes out: futures that are done.
A request made while the job starts waits until its tasks run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from weir.errors import JobError
from weir.runtime.driver.phases import Notice, Outcome

ASKS_MAX = 1_000
"""Requests that may be open at once."""


@dataclass
class Ask:
    """One request."""

    what: str
    send: Callable[[], None]
    """Tells the driver; raises when it cannot take it now."""
    ends_job: bool = False
    """The answer comes when the job has ended."""
    is_sent: bool = False
    savepoint: str | None = field(default=None, repr=False)
    future: Future[Any] = field(default_factory=Future)


class Asks:
    """The open requests of one job, by name."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._open: dict[str, Ask] = {}

    def add(self, name: str, ask: Ask, *, is_running: bool) -> None:
        """Keep a request; tell the driver at once if the job runs."""
        if len(self._open) >= ASKS_MAX:
            raise JobError(f"job {self._job!r}: {ASKS_MAX} requests are open already")
        self._open[name] = ask
        if is_running:
            self._send(name, ask)

    def send_waiting(self) -> None:
        """The job runs: now they can be told."""
        for name, ask in list(self._open.items()):
            if not ask.is_sent:
                self._send(name, ask)

    def noticed(self, notice: Notice) -> None:
        """Something happened that may be an answer."""
        name = notice.detail.get("request")
        ask = self._open.get(name) if isinstance(name, str) else None
        if ask is None or not isinstance(name, str):
            return
        if notice.kind == "request_failed":
            del self._open[name]
            ask.future.set_exception(JobError(f"job {self._job!r}: {ask.what} failed: {notice.detail['reason']}"))
        elif notice.kind == "savepoint_completed" and ask.ends_job:
            ask.savepoint = notice.detail["savepoint"]
        else:
            del self._open[name]
            ask.future.set_result(notice.detail.get("savepoint"))

    def job_ended(self, outcome: Outcome | None) -> None:
        """No other answer comes."""
        for ask in self._open.values():
            if ask.ends_job and outcome in (Outcome.STOPPED, Outcome.FINISHED):
                ask.future.set_result(ask.savepoint)
            else:
                how = "has crashed" if outcome is None else f"is {outcome.value}"
                there = "" if ask.savepoint is None else f", but its savepoint is complete: {ask.savepoint}"
                ask.future.set_exception(JobError(f"job {self._job!r} {how}: {ask.what} did not come about{there}"))
        self._open.clear()

    def _send(self, name: str, ask: Ask) -> None:
        ask.is_sent = True
        try:
            ask.send()
        except BaseException as error:
            if self._open.pop(name, None) is not None:
                ask.future.set_exception(error)
