"""The handle of a job that was resumed, and had nothing left to do.

Comes in: the manifest of its last checkpoint. Goes out: what a job's handle tells after its end. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from weir.errors import JobError
from weir.graph.plan import Plan
from weir.operators.sink import Sink
from weir.operators.source import Source
from weir.runtime.driver.notices import HadFinished, Notice
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.driver.verdicts import Finished
from weir.runtime.job.failures import FailureRecord
from weir.runtime.task.metrics import operator_metrics
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState
from weir.snapshot.manifest import Manifest, OperatorSnapshot
from weir.snapshot.parts import Position, read_as


def is_left_nothing(plan: Plan, last: Manifest, sinks: SinkDesk) -> bool:
    """Whether a job that had read all its input has none in this plan, either: its sources and sinks were there, every
    source says that it is read to its end, and no sink has committed anything since."""
    ends = [operator for vertex in plan.vertices for operator in vertex.operators]
    if any(operator.uid not in last.operators for operator in ends if isinstance(operator.spec, Source | Sink)):
        return False
    sources = [(operator.spec, last.operators[operator.uid]) for operator in ends if isinstance(operator.spec, Source)]
    # Where a backup of the checkpoints was put back, sinks may know of later ones: what then is a start says.
    return all(_is_read(source, snapshot) for source, snapshot in sources) and sinks.traces(plan)[0] <= last.checkpoint


def _is_read(source: Source, snapshot: OperatorSnapshot) -> bool:
    found = [position.value for part in snapshot.parts if (position := read_as(part.inline, Position)) is not None]
    try:
        return source.bounded and source.is_read_to_end(found)
    except Exception:  # It may be another source by now: its readers say what is wrong with the positions.
        return False


class HandleOfFinished:
    """A job that had finished before it was resumed; may be used from any thread."""

    def __init__(self, name: str, plan: Plan, last: Manifest) -> None:
        self.name = name
        self.status = Finished.status
        self.error: BaseException | None = None
        self.parallelism = plan.parallelism
        self.failures: list[FailureRecord] = []
        self.notices: list[Notice] = [HadFinished(None, last.checkpoint)]
        self.process_ids: list[int] = []
        self._plan = plan
        size_bytes = sum(file.length_bytes for file in last.files)
        state = CheckpointState.COMPLETED
        self._last = CheckpointRecord(
            last.checkpoint, last.attempt, last.created_ms, state, size_bytes=size_bytes, final=True
        )

    def wait(self, timeout: float | None = None) -> str:
        return self.status

    def cancel(self) -> None:
        """An end is an end."""

    def trigger_checkpoint(self, timeout: float | None = None) -> int:
        self._refuse("the checkpoint")

    def savepoint(self, directory: str | None = None, timeout: float | None = None) -> str:
        self._refuse("the savepoint")

    def stop(self, savepoint: str | bool = True, drain: bool = False, timeout: float | None = None) -> str | None:
        self._refuse("the stop")

    def rescale(self, parallelism: int, timeout: float | None = None) -> None:
        self._refuse("the rescale")

    def checkpoints(self) -> list[CheckpointRecord]:
        """The last one, of the run that has finished."""
        return [self._last]

    def checkpoint_history(self) -> list[CheckpointRecord]:
        return self.checkpoints()

    def metrics(self) -> Mapping[str, Any]:
        """Nothing was read or written."""
        return {
            "status": self.status,
            "attempt": None,
            "restarts": 0,
            "operators": operator_metrics([], self._plan),
            "checkpoints": self.checkpoints(),
            "failures": [],
            "waits_for": None,
            "restoring": None,
        }

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Nothing happens any more."""

    def _refuse(self, what: str) -> NoReturn:
        raise JobError(f"job {self.name!r} is {self.status}: {what} would find no job")
