"""What users wait for: checkpoints, savepoints, stops and rescales of one job, from the call to the answer.

Comes in: requests, notices and the time-outs of who waits, on the driver's thread. Goes out: futures that are done.

Laws:
  1. A request made while no attempt runs waits for the next one.
  2. A request whose attempt ends before it is there is made again on the next one. Nothing has come of it then, and
     each try has a name, and a place for its savepoint, of its own: what may still be written of one is none of
     another's.
  3. Who waits no longer makes nothing new happen: what no attempt has been told is withdrawn, and what one has been
     told goes on with that attempt alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from weir.errors import JobError
from weir.ids import CheckpointId
from weir.runtime.driver.notices import (
    Answer,
    AttemptFailed,
    CheckpointAborted,
    CheckpointSucceeded,
    Notice,
    RequestFailed,
    RescaleCompleted,
    SavepointCompleted,
)
from weir.runtime.driver.verdicts import Final, Finished, Stopped
from weir.snapshot.coordinator.orders import AbortReason

ASKS_MAX = 1_000
"""Requests that may be open at once."""


@dataclass(eq=False)
class Ask:
    """One request."""

    what: str
    send: Callable[[str], None]
    """Tells the driver, under a name that is new each time; raises when it cannot take it now."""
    ends_job: bool = False
    """The answer comes when the job has ended."""
    saves: bool = False
    """… and is a savepoint: without one there is no answer."""
    name: str | None = None
    """Under which an attempt was told; None: none was, or it has ended since."""
    savepoint: str | None = field(default=None, repr=False)
    is_left: bool = False
    """Nobody waits any more."""
    future: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class AskForCheckpoint:
    """A plain checkpoint: any that begins from now on will do."""

    first: CheckpointId
    """The oldest that answers: one that is under way does not hold what came in since."""
    future: Future[int] = field(default_factory=Future)


class Asks:
    """The open requests of one job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._open: list[Ask] = []
        self._checkpoints: list[AskForCheckpoint] = []

    # --- From users -----------------------------------------------------------------------------------------

    def add(self, ask: Ask, *, is_running: bool) -> None:
        """Keep a request; tell the driver at once if the job runs."""
        if len(self._open) >= ASKS_MAX:
            raise JobError(f"job {self._job!r}: {ASKS_MAX} requests are open already")
        self._open.append(ask)
        if is_running:
            self._send(ask)

    def leave(self, ask: Ask) -> bool:
        """Nobody waits any more. Whether an attempt was told of it: then it goes on."""
        ask.is_left = True
        if ask.name is None and ask in self._open:
            self._open.remove(ask)
            return False
        return True

    def add_checkpoint(self, ask: AskForCheckpoint) -> None:
        self._checkpoints.append(ask)

    def leave_checkpoint(self, ask: AskForCheckpoint) -> None:
        """Nobody waits any more: no other attempt is asked."""
        if ask in self._checkpoints:
            self._checkpoints.remove(ask)

    # --- From the driver ------------------------------------------------------------------------------------

    def runs(self, request_checkpoint: Callable[[], None]) -> None:
        """The job runs: now it can be told what was asked for meanwhile."""
        if self._checkpoints:
            request_checkpoint()
        for ask in [ask for ask in self._open if ask.name is None]:
            self._send(ask)

    def hear(self, notice: Notice) -> None:
        if isinstance(notice, CheckpointSucceeded):
            for waiting in self._answered(notice.checkpoint):
                waiting.future.set_result(notice.checkpoint)
        elif isinstance(notice, CheckpointAborted) and notice.reason is not AbortReason.ATTEMPT_ENDED:
            for waiting in self._answered(notice.checkpoint):
                waiting.future.set_exception(JobError(f"the checkpoint did not complete: {notice.why}"))
        elif isinstance(notice, AttemptFailed) and not notice.restarts:
            for waiting in self._answered(None):
                waiting.future.set_exception(JobError(f"the checkpoint did not complete: {notice.error}"))
        elif isinstance(notice, SavepointCompleted | RequestFailed | RescaleCompleted):
            self._answer(notice)

    def job_ended(self, verdict: Final | None) -> None:
        """No other answer comes. None: the driver has crashed."""
        for waiting in self._answered(None):
            waiting.future.set_exception(JobError(f"job {self._job!r} has ended"))
        for ask in self._open:
            if ask.ends_job and isinstance(verdict, Stopped | Finished):
                self._ended_for(ask, verdict)
            else:
                how = "has crashed" if verdict is None else f"is {verdict.status}"
                there = "" if ask.savepoint is None else f", but its savepoint is complete: {ask.savepoint}"
                ask.future.set_exception(JobError(f"job {self._job!r} {how}: {ask.what} did not come about{there}"))
        self._open.clear()

    # --- Small things -----------------------------------------------------------------------------------------

    def _ended_for(self, ask: Ask, verdict: Stopped | Finished) -> None:
        """The job has ended as it was asked to; or as somebody else has asked, or by itself, before it was told."""
        if ask.saves and ask.savepoint is None:
            # To start from no savepoint would be to start from nothing.
            ask.future.set_exception(
                JobError(
                    f"job {self._job!r} is {verdict.status}, and there is no savepoint: it was ending already when "
                    f"{ask.what} was asked for. Go on from its last checkpoint (resume, weir run --resume), or start "
                    "another job from that (from_savepoint, --from)"
                )
            )
        else:
            ask.future.set_result(ask.savepoint)

    def _answer(self, answer: Answer) -> None:
        """The driver has an answer; perhaps to nobody here."""
        ask = next((ask for ask in self._open if ask.name == answer.request), None)
        if ask is None:
            return
        if isinstance(answer, RequestFailed) and answer.ended_early and not ask.is_left:
            ask.name = None  # Law 2.
        elif isinstance(answer, RequestFailed):
            self._open.remove(ask)
            ask.future.set_exception(JobError(f"job {self._job!r}: {ask.what} failed: {answer.reason}"))
        elif isinstance(answer, SavepointCompleted) and ask.ends_job:
            ask.savepoint = answer.savepoint
        else:
            self._open.remove(ask)
            ask.future.set_result(answer.savepoint if isinstance(answer, SavepointCompleted) else None)

    def _send(self, ask: Ask) -> None:
        ask.name = uuid.uuid4().hex
        try:
            ask.send(ask.name)
        except BaseException as error:
            if ask in self._open:
                self._open.remove(ask)
                ask.future.set_exception(error)

    def _answered(self, checkpoint: CheckpointId | None) -> list[AskForCheckpoint]:
        """Take out who waits for this checkpoint; None: everybody."""
        answered = [ask for ask in self._checkpoints if checkpoint is None or ask.first <= checkpoint]
        self._checkpoints = [ask for ask in self._checkpoints if ask not in answered]
        return answered
