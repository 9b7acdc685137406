"""Frozen settings, checked when they are made.

Comes in: what the user wrote ("5s", 10, "64MB"). Goes out: plain values with
their unit in the name. Never touches files or clocks.
"""

from weir.config.backends import BACKENDS, Heap, RocksDb, StateBackend
from weir.config.checkpoints import Checkpoints, Mode
from weir.config.checks import check_at_least, check_booleans, port_range
from weir.config.job import JobConfig
from weir.config.names import checkpoint_named, lineage_named
from weir.config.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart
from weir.config.settings import MAX_PARALLELISM_LIMIT, Settings
from weir.config.units import BARE_SECONDS_MAX, Duration, Size, duration_ms, size_bytes

__all__ = [
    "BACKENDS",
    "BARE_SECONDS_MAX",
    "MAX_PARALLELISM_LIMIT",
    "Checkpoints",
    "Duration",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "Heap",
    "JobConfig",
    "Mode",
    "NoRestart",
    "Restart",
    "RocksDb",
    "Settings",
    "Size",
    "StateBackend",
    "check_at_least",
    "check_booleans",
    "checkpoint_named",
    "duration_ms",
    "lineage_named",
    "port_range",
    "size_bytes",
]
