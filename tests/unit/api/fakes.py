"""Jobs that do not run: a handle whose life the test scripts, and a launcher that gives it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weir.config import JobConfig
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId
from weir.operators.sink import Sink, SinkOwner
from weir.runtime.storage.layout import new_lineage
from weir.snapshot.coordinator.history import CheckpointRecord, CheckpointState


class FakeHandle:
    """Goes through `statuses`, one further with each wait for a time; a wait without one goes to the end."""

    def __init__(self, statuses: Sequence[str], *, name: str = "job", error: BaseException | None = None) -> None:
        self.name = name
        self.error = error
        self.cancelled = False
        self.rows = 0
        self.on_wait: Callable[[], None] = lambda: None
        self._statuses = list(statuses)

    @property
    def status(self) -> str:
        return self._statuses[0]

    def wait(self, timeout: float | None = None) -> str:
        self.on_wait()
        self.rows += 1_000
        del self._statuses[: 1 if timeout is not None and len(self._statuses) > 1 else len(self._statuses) - 1]
        if self.status == "failed" and self.error is not None:
            raise self.error
        return self.status

    def cancel(self) -> None:
        self.cancelled = True
        self._statuses = ["cancelled"]

    def trigger_checkpoint(self) -> int:
        return 1

    def checkpoints(self) -> list[CheckpointRecord]:
        record = CheckpointRecord(CheckpointId(7), AttemptId(1), 0.0, state=CheckpointState.COMPLETED, size_bytes=12)
        return [record] if self.rows else []

    def metrics(self) -> Mapping[str, Any]:
        counters = {"rows_in": 0, "rows_out": self.rows, "bytes_in": 0, "bytes_out": 0}
        return {"operators": [{"uid": "in", **counters}, {"uid": "other", **counters}]}


class FakeLauncher:
    """What was submitted, and the handle that is given back. Sinks are validated as a real launch would."""

    def __init__(self) -> None:
        self.handle = FakeHandle(["created", "running", "finished"])
        self.launched: list[tuple[Plan, JobConfig, Any]] = []

    def submit(
        self, plan: Plan, config: JobConfig, session: Any = None, *, plan_at: Callable[[int], Plan] | None = None
    ) -> FakeHandle:
        for vertex in plan.vertices:
            last = vertex.operators[-1]
            if isinstance(last.spec, Sink):
                last.spec.validate(SinkOwner(config.name, new_lineage(), last.uid, last.name, resume=config.resume))
        self.launched.append((plan, config, session))
        return self.handle

    @property
    def plan(self) -> Plan:
        return self.launched[-1][0]

    @property
    def config(self) -> JobConfig:
        return self.launched[-1][1]

    @property
    def session(self) -> Any:
        return self.launched[-1][2]
