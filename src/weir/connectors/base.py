"""The contracts of sources and sinks, for people who write connectors of their own.

A `Source` is what the plan carries; its `SourceReader` reads on one subtask, from a position that fits into JSON, and
can rewind to it. A `Sink` is what the plan carries; its `SinkWriter` writes epochs on one subtask, and makes them
visible when their checkpoint is complete. Each says its guarantee; a job's is the weakest of its parts.
"""

from weir.operators.base import OperatorContext
from weir.operators.sink import Fence, Sink, SinkGuarantee, SinkOwner, SinkWriter
from weir.operators.source import DriverContext, Source, SourceGuarantee, SourceReader

__all__ = [
    "Source",
    "SourceReader",
    "SourceGuarantee",
    "DriverContext",
    "Sink",
    "SinkWriter",
    "SinkOwner",
    "SinkGuarantee",
    "Fence",
    "OperatorContext",
]
