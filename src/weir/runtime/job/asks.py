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
from weir.runtime.driver.notices import Answer, RequestFailed, SavepointCompleted
from weir.runtime.driver.verdicts import Final, Finished, Stopped

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

    def answered(self, answer: Answer) -> None:
        """The driver has an answer; perhaps to nobody here."""
        ask = self._open.get(answer.request)
        if ask is None:
            return
        if isinstance(answer, RequestFailed):
            del self._open[answer.request]
            ask.future.set_exception(JobError(f"job {self._job!r}: {ask.what} failed: {answer.reason}"))
        elif isinstance(answer, SavepointCompleted) and ask.ends_job:
            ask.savepoint = answer.savepoint
        else:
            del self._open[answer.request]
            ask.future.set_result(answer.savepoint if isinstance(answer, SavepointCompleted) else None)

    def job_ended(self, verdict: Final | None) -> None:
        """No other answer comes. None: the driver has crashed."""
        for ask in self._open.values():
            if ask.ends_job and isinstance(verdict, Stopped | Finished):
                ask.future.set_result(ask.savepoint)
            else:
                how = "has crashed" if verdict is None else f"is {verdict.status}"
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
