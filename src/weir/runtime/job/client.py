"""Talking to a job that runs in another process of this user.

Comes in: an entry of the registry. Goes out: what the job answers, or its errors. Calls
that take long wait for their answer, with a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weir.errors import JobError, TaskLost, Unavailable, WeirError
from weir.runtime.job.registry import JobEntry
from weir.runtime.net.flight import CONNECT_TIMEOUT_S
from weir.runtime.net.lines import Lines
from weir.runtime.net.requests import Requester

QUICK_S = 10.0
"""For what a job can answer at once."""

GRACE_S = 30.0
"""How much later than asked for an answer may come before the line is given up."""


class JobClient:
    """One job of the registry."""

    def __init__(self, entry: JobEntry) -> None:
        self.entry = entry

    def status(self, timeout_s: float = QUICK_S) -> dict[str, Any]:
        found: dict[str, Any] = self._call("status", timeout_s)
        return found

    def checkpoints(self) -> list[dict[str, Any]]:
        """The latest checkpoints, whatever became of them, oldest first."""
        found: list[dict[str, Any]] = self._call("checkpoints", QUICK_S)
        return found

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("metrics", QUICK_S)
        return found

    def cancel(self, timeout_s: float = 120.0) -> str:
        """End the job; how it ended."""
        return str(self._call("cancel", timeout_s))

    def trigger_checkpoint(self, timeout_s: float = 600.0) -> int:
        return int(self._call("checkpoint", timeout_s + GRACE_S, timeout_s=timeout_s))

    def savepoint(self, directory: str | None = None, timeout_s: float = 600.0) -> str:
        return str(self._call("savepoint", timeout_s + GRACE_S, directory=directory, timeout_s=timeout_s))

    def stop(
        self, savepoint: str | bool = True, *, drain: bool = False, timeout_s: float = 600.0
    ) -> tuple[str | None, str]:
        """The savepoint's path, if there is one, and how the job ended."""
        found = self._call("stop", timeout_s + GRACE_S, savepoint=savepoint, drain=drain, timeout_s=timeout_s)
        return found["savepoint"], found["status"]

    def rescale(self, parallelism: int, timeout_s: float = 600.0) -> int:
        return int(self._call("rescale", timeout_s + GRACE_S, parallelism=parallelism, timeout_s=timeout_s))

    def _call(self, call: str, limit_s: float, **arguments: Any) -> Any:
        requester = Requester(
            self.entry.address, Lines(self.entry.token), connect_timeout_s=min(limit_s, CONNECT_TIMEOUT_S)
        )
        try:
            found, _ = requester.ask({"call": call, **arguments}, timeout_s=limit_s)
        except TaskLost as error:
            raise Unavailable(f"job {self.entry} does not answer at {self.entry.address}: {error}") from None
        finally:
            requester.close()
        if "error" in found:
            raise _errors().get(found["error"], JobError)(found["message"])
        return found["value"]


def _errors() -> dict[str, type[WeirError]]:
    return {kind.code: kind for kind in _kinds(WeirError)}


def _kinds(kind: type[WeirError]) -> Iterator[type[WeirError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
