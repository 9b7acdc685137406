"""Weir: a stateful stream processor for Python that runs inside Spark.

    import weir
    from weir import connectors as io

These are the public names. Public too are weir.connectors, weir.connectors.base (for people who write connectors),
weir.errors, weir.state and weir.testing; every other module is private, and may change with any version.
"""

from weir import errors, state
from weir.api.connected import BroadcastConnectedStream, ConnectedStreams, KeyedConnectedStreams
from weir.api.environment import Environment
from weir.api.job import JobHandle, JobResult
from weir.api.joined import CoGroupedStreams
from weir.api.keyed import KeyedStream
from weir.api.stream import Stream
from weir.api.time.watermarks import bounded_disorder, monotonic, watermarks_by
from weir.api.time.windows import (
    continuous,
    count_window,
    global_window,
    on_count,
    on_processing_time,
    on_watermark,
    session,
    sliding,
    tumbling,
)
from weir.api.windowed import WindowedStream
from weir.config import (
    Checkpoints,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    Heap,
    NoRestart,
    RocksDb,
    Settings,
)
from weir.operators.aggregates.named import Aggregate, aggregate, avg, count, first, last, max, min, sum, top
from weir.operators.batches.by_key import ByKey
from weir.operators.batches.keyed import KeyedBatchFunction
from weir.operators.calls import Retry
from weir.operators.functions.interfaces import BroadcastProcessFunction, CoProcessFunction, ProcessFunction
from weir.operators.time.watermarks import WatermarkGenerator, WatermarkStrategy
from weir.operators.windows.functions import Window
from weir.operators.windows.triggers import Trigger, WindowState
from weir.state.declared.kinds import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    Pickled,
    ReducingState,
    Ttl,
    ValueState,
)
from weir.state.declared.per_window import per_window
from weir.version import __version__

__all__ = [
    # building jobs
    "Environment",
    "Stream",
    "KeyedStream",
    "ConnectedStreams",
    "KeyedConnectedStreams",
    "BroadcastConnectedStream",
    # event time
    "bounded_disorder",
    "monotonic",
    "watermarks_by",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "tumbling",
    "sliding",
    "session",
    "count_window",
    "global_window",
    "on_watermark",
    "on_count",
    "on_processing_time",
    "continuous",
    "Trigger",
    "WindowState",
    "Window",
    "WindowedStream",
    "CoGroupedStreams",
    # aggregates
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "top",
    "aggregate",
    "Aggregate",
    # stateful functions
    "ProcessFunction",
    "CoProcessFunction",
    "BroadcastProcessFunction",
    "KeyedBatchFunction",
    "ByKey",
    "Retry",
    "ValueState",
    "ListState",
    "MapState",
    "ReducingState",
    "AggregatingState",
    "OperatorListState",
    "BroadcastState",
    "per_window",
    "Ttl",
    "Pickled",
    # settings
    "Checkpoints",
    "Settings",
    "Heap",
    "RocksDb",
    "NoRestart",
    "FixedDelay",
    "ExponentialDelay",
    "FailureRate",
    # running jobs
    "JobHandle",
    "JobResult",
    # looking into checkpoints
    "state",
    # the rest
    "errors",
    "__version__",
]
