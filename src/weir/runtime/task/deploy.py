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
from weir.snapshot.messages import DeployTask


def deploy(worker: Worker, order: DeployTask) -> None:
    """Open the worker as the order says. When that fails half-way, whoever made the worker closes it, behind its
    background work: commits of what was restored may have begun there already."""
    manifest, origin = _restored(order, worker.ports)
    worker.open(Beginning(manifest, origin, order.positions, order.loses_state, order.reserves))


def _restored(order: DeployTask, ports: WorkerPorts) -> tuple[Manifest | None, Storage | None]:
    """What to start from, and where that lies when it is not among the job's own checkpoints."""
    if order.restore is None:
        return None, None
    if order.origin is None:
        return decode(ports.storage.read(layout.manifest_path(order.restore)).to_pybytes()), None
    origin = Origin(order.origin)
    source = origin.open(ports.opener)
    return origin.read(source), source
