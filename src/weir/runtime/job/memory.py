"""Whether the memory that a job's state was given goes round. Comes in: the plan and the settings."""

from __future__ import annotations

from weir.config import RocksDb, Settings
from weir.errors import ConfigError
from weir.graph.plan import Plan
from weir.operators.base import OperatorSpec

STATE_BYTES_MIN = 1 << 20
"""One state needs so much at least: for what was written last, and for what is being looked at."""


def check_memory(plan: Plan, settings: Settings) -> None:
    """ConfigError when the operators of one task get less than their states need."""
    if not isinstance(settings.backend, RocksDb):
        return
    operators = [operator for vertex in plan.running for operator in vertex.operators]
    stateful = {o.uid: o.spec.states for o in operators if isinstance(o.spec, OperatorSpec) and o.spec.states}
    if not stateful:
        return
    share_bytes = settings.backend.memory_max_bytes // len(stateful)
    uid, states = max(stateful.items(), key=lambda item: len(item[1]))
    if share_bytes < STATE_BYTES_MIN * len(states):
        needed = len(stateful) * len(states) * STATE_BYTES_MIN >> 20
        raise ConfigError(
            f"RocksDb(memory_max={settings.backend.memory_max!r}) is too small: {len(stateful)} operators of a task "
            f"share it, so that {share_bytes:,} bytes are left to {uid!r}, which keeps {len(states)} states "
            f"({', '.join(states)}). Each needs {STATE_BYTES_MIN >> 20} MB: give at least memory_max='{needed}MB'"
        )
