"""The contract of a sink: rows become visible when their checkpoint is complete.

What a writer gets between two barriers is an epoch. `prepare` closes the epoch;
the function that it returns makes it durable (in a background thread) and gives
back the committable, JSON that goes into the manifest. `commit` makes it visible;
it may be called any number of times for the same committable, also by a writer
of a later attempt, and must then change nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa

from weir.ids import CheckpointId
from weir.operators.base import OperatorContext
from weir.snapshot.messages import Json

SinkGuarantee = Literal["exactly_once", "at_least_once"]


class SinkWriter(ABC):
    """One subtask's writer."""

    @abstractmethod
    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        """Get ready. `restored`: the committables of the restored checkpoint that fall to this subtask, which the
        worker will commit; None on a fresh start. Everything else that older attempts left uncommitted is void."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows into the current epoch."""

    @abstractmethod
    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        """Close the epoch and begin the next. The returned function runs once, in the background: it makes the
        epoch durable and returns the committable, or None when there is nothing to commit."""

    def commit(self, committables: Sequence[Json]) -> None:
        """Make these epochs visible, idempotently. Runs in the background."""

    def close(self) -> None:
        """Release what is held; uncommitted epochs may be dropped. Called exactly once."""


class Sink(ABC):
    """A picklable description of a sink."""

    @property
    def guarantee(self) -> SinkGuarantee:
        return "exactly_once"

    def check(self, schema: pa.Schema, name: str) -> None:
        """At build time: raise SchemaError if rows of this schema cannot be written."""

    def validate(self, job: str, name: str, resume: bool) -> None:
        """On the driver before anything starts: raise a JobError that names the operator, what was found
        and what to do (a directory that belongs to another job, a location that cannot be written …)."""

    @abstractmethod
    def writer(self) -> SinkWriter:
        """A fresh writer for one subtask."""

    def finish(self) -> None:
        """On the driver, after the last commit of a bounded job."""
