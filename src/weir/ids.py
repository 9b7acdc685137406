"""Typed names for the things that the engine counts.

Comes in: nothing. Goes out: the id types that every other module speaks in.
Never touches anything else; the bottom of the import ladder.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

AttemptId = NewType("AttemptId", int)
"""One fenced run of a job. Grows by one with each launch, over the whole life of the job's storage."""

Lineage = NewType("Lineage", str)
"""A job's life: born at a start without resume, kept by every resume. Part of every name that could collide."""

CheckpointId = NewType("CheckpointId", int)
"""One checkpoint. Never used twice in a lineage."""

TaskIndex = NewType("TaskIndex", int)
"""One slot of the barrier stage: a Spark task that hosts one subtask of every vertex."""

VertexId = NewType("VertexId", int)
"""One chain of operators in the physical plan."""

EdgeId = NewType("EdgeId", int)
"""One exchange between two vertices."""

Uid = NewType("Uid", str)
"""An operator's stable name: what its state is matched by."""


class SubtaskId(NamedTuple):
    """One parallel instance of a vertex."""

    vertex: VertexId
    index: int  # type: ignore[assignment]  # tuple.index is of no use here

    def __str__(self) -> str:
        return f"{self.vertex}.{self.index}"


class ChannelId(NamedTuple):
    """One FIFO between subtask `source` of the edge's upstream and subtask `target` of its downstream."""

    edge: EdgeId
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.source}>{self.target}"
