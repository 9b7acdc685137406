"""A running job's door for other processes of the same user: the far end of client.py.

Comes in: calls with the job's own token, which tasks do not have. Goes out: answers as
JSON; long calls answer when they are done. Knows nothing of drivers and tasks: it asks
the job, as any user's thread may.

    request   {"call", …}
    answer    {"value"} or {"error": code, "message"}
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import JobError, WeirError, shown
from weir.runtime.job.registry import JobEntry, register, this_host, unregister
from weir.runtime.net.connection import Connection, Frame
from weir.runtime.net.flight import FrameServer, Handlers, Refused
from weir.runtime.net.lines import LOOPBACK, Lines
from weir.runtime.net.requests import HELLO, Answers, Head
from weir.snapshot.coordinator.history import CheckpointRecord
from weir.texts import told

if TYPE_CHECKING:
    from weir.runtime.job.handle import Job

_LOG = logging.getLogger(__name__)

CALL_TIMEOUT_MAX_S = 24 * 3600.0
"""The longest that a call may ask to wait."""

LEAVE_S = 2.0
"""How long answers that are under way may take to leave when the job has ended."""


class JobService:
    """Listens for one job and keeps its entry in the registry."""

    def __init__(self, job: Job, lines: Lines, *, checkpoints: str | None) -> None:
        self._job = job
        self._answers = Answers(self._answer, lines)
        self._server = FrameServer(LOOPBACK, lines, self._accept)
        self._entry = JobEntry(
            name=job.name,
            run=job.run,
            pid=os.getpid(),
            host=this_host(),
            address=self._server.address,
            token=lines.token,
            started_s=time.time(),
            checkpoints=None if checkpoints is None else shown(checkpoints),
            parallelism=job.parallelism,
        )
        try:
            register(self._entry)
        except OSError as error:
            _LOG.warning("job %s: not listed for `weir list`, since its entry cannot be written: %s", job.name, error)

    def unlist(self) -> None:
        """The job has ended: nobody finds it any more."""
        try:
            unregister(self._entry)
        except OSError as error:
            _LOG.warning("job %s: its entry is left behind: %s", self._entry.name, error)

    def close(self) -> None:
        """Stop listening, once the answers that are under way have left."""
        self._answers.settle(LEAVE_S)
        self._server.close(LEAVE_S)

    # --- Calls ----------------------------------------------------------------------------------------------

    def _accept(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        if HELLO not in hello:
            raise Refused("this is a job's door for commands; tasks connect elsewhere")
        return self._answers.serve(connection)

    def _answer(self, request: dict[str, Any], data: pa.Buffer) -> tuple[Head, Frame]:
        try:
            call = self._calls.get(request.pop("call", None))
            if call is None:
                raise JobError("no such call; is the command of another version than the job?")
            return {"value": call(self, request)}, b""
        except WeirError as error:
            return {"error": error.code, "message": str(error)}, b""
        except Exception as error:
            return {"error": type(error).__name__, "message": told(str(error) or repr(error))}, b""

    def _status(self, request: dict[str, Any]) -> Any:
        metrics = self._job.metrics()
        completed = self._job.checkpoints()
        error = self._job.error
        return {
            **self._entry.public,
            "parallelism": self._job.parallelism,
            "status": self._job.status,
            "attempt": metrics["attempt"],
            "restarts": metrics["restarts"],
            "checkpoint": _record(completed[-1]) if completed else None,
            "error": None if error is None else str(error),
            "waits_for": metrics["waits_for"],
            "restoring": metrics.get("restoring"),
            "failures": metrics["failures"],
            "running_s": time.time() - self._entry.started_s,
        }

    def _checkpoints(self, request: dict[str, Any]) -> Any:
        return [_record(record) for record in self._job.checkpoint_history()]

    def _metrics(self, request: dict[str, Any]) -> Any:
        return {**self._job.metrics(), "checkpoints": self._checkpoints(request)}

    def _cancel(self, request: dict[str, Any]) -> Any:
        self._job.cancel_now()
        return self._job.status

    def _checkpoint(self, request: dict[str, Any]) -> Any:
        return self._job.trigger_checkpoint(_timeout_s(request))

    def _savepoint(self, request: dict[str, Any]) -> Any:
        return self._job.savepoint(request.get("directory"), _timeout_s(request))

    def _stop(self, request: dict[str, Any]) -> Any:
        savepoint, drain = request.get("savepoint", True), bool(request.get("drain", False))
        path = self._job.stop(savepoint, drain, _timeout_s(request))
        return {"savepoint": path, "status": self._job.status}

    def _rescale(self, request: dict[str, Any]) -> Any:
        self._job.rescale(int(request["parallelism"]), _timeout_s(request))
        return self._job.parallelism

    _calls: Mapping[Any, Callable[[JobService, dict[str, Any]], Any]] = {
        "status": _status,
        "checkpoints": _checkpoints,
        "metrics": _metrics,
        "cancel": _cancel,
        "checkpoint": _checkpoint,
        "savepoint": _savepoint,
        "stop": _stop,
        "rescale": _rescale,
    }


def _timeout_s(request: Mapping[str, Any]) -> float:
    return min(float(request.get("timeout_s") or CALL_TIMEOUT_MAX_S), CALL_TIMEOUT_MAX_S)


def _record(record: CheckpointRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "attempt": record.attempt,
        "state": record.state.value,
        "duration_ms": round(record.duration_ms),
        "size_bytes": record.size_bytes,
        "uploaded_bytes": record.uploaded_bytes,
        "acknowledged": record.acknowledged,
        "final": record.final,
        "savepoint": record.savepoint,
        "reason": None if record.reason is None else record.reason.value,
        "detail": record.detail,
    }
