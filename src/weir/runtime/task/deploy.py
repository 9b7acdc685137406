"""From the driver's order to a running task: a worker is opened with its state out of the checkpoint that is named.

Comes in: a new worker and the order. Goes out: nothing; the worker is open. Spark, the local run and the simulation all
open their tasks here. Knows nothing of how the order came, never waits for another, and closes nothing.
"""

from __future__ import annotations

from weir.runtime.ports import Storage
from weir.runtime.storage import layout
from weir.runtime.storage.beginning import Beginning
from weir.runtime.storage.savepoints import Origin
from weir.runtime.task.worker import Worker, WorkerPorts
from weir.snapshot.manifest import Manifest, decode
from weir.snapshot.messages import DeployTask, TaskRestoring

PROGRESS_INTERVAL_MS = 500.0
"""How often a task tells how far its restore is; one that is through before says nothing of it."""


def deploy(worker: Worker, order: DeployTask) -> None:
    """Open the worker as the order says. When that fails half-way, whoever made the worker closes it, behind its
    background work: commits of what was restored may have begun there already."""
    manifest, origin = _restored(order, worker.ports)
    progress = RestoreProgress(worker, 0 if manifest is None else _state_bytes(manifest))
    worker.open(Beginning(manifest, origin, order.positions, order.loses_state, order.reserves, progress.was_read))


class RestoreProgress:
    """Tells the driver now and then how much a worker has read of what it restores."""

    def __init__(self, worker: Worker, of_bytes: int) -> None:
        self._worker = worker
        self._of_bytes = of_bytes
        self._read_bytes = 0
        self._tell_ms = worker.ports.clock.now_ms() + PROGRESS_INTERVAL_MS

    def was_read(self, length_bytes: int) -> None:
        self._read_bytes += length_bytes
        now_ms = self._worker.ports.clock.now_ms()
        if now_ms >= self._tell_ms:
            self._tell_ms = now_ms + PROGRESS_INTERVAL_MS
            config = self._worker.config
            told = TaskRestoring(config.attempt, config.task, self._read_bytes, self._of_bytes)
            self._worker.ports.control.send(told)


def _state_bytes(manifest: Manifest) -> int:
    parts = [part for operator in manifest.operators.values() for part in operator.parts]
    return sum(file.length_bytes for part in parts for state in part.states.values() for file in state.files.values())


def _restored(order: DeployTask, ports: WorkerPorts) -> tuple[Manifest | None, Storage | None]:
    """What to start from, and where that lies when it is not among the job's own checkpoints."""
    if order.restore is None:
        return None, None
    if order.origin is None:
        return decode(ports.storage.read(layout.manifest_path(order.restore)).to_pybytes()), None
    origin = Origin(order.origin)
    source = origin.open(ports.opener)
    return origin.read(source), source
