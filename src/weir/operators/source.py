"""The contract of a source: replayable, with positions that fit into JSON.

Connectors implement it; the worker polls it. A reader is asked for its position
between two polls only, so the position covers exactly the rows handed out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from weir.config import Settings
from weir.operators.base import InlinePart, OperatorContext
from weir.snapshot.parts import Json

SourceGuarantee = Literal["exactly_once", "at_least_once", "at_most_once"]


class SourceReader(ABC):
    """One subtask's reader."""

    @abstractmethod
    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        """Start from the beginning (None), or from the positions of all old subtasks, of which this one
        takes those splits that are now its own (old and new parallelism may differ)."""

    @abstractmethod
    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows, at most `rows_max`; None when there are none now. Never waits for data to come."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """No row will ever come again."""

    @abstractmethod
    def position(self) -> Json:
        """Where the next poll goes on, as JSON that later polls do not change."""

    @property
    def split(self) -> str:
        """Of a source with several splits: the one that the last rows came from."""
        return ""

    @property
    def open_splits(self) -> frozenset[str] | None:
        """The splits that more rows may come from now; None: nobody can tell. Event time waits for the slowest."""
        return None

    @property
    def wait_ms(self) -> float:
        """After an empty poll: how long to wait before the next."""
        return 10.0

    @property
    def lag(self) -> str | None:
        """For people: how far behind, or how far along, this reader is."""
        return None

    @property
    def keeper(self) -> Any:
        """The object whose class is `Source.reader_class`: the reader itself, unless it stands before another."""
        return self

    def close(self) -> None:
        """Release what is held. Called exactly once."""


@dataclass(frozen=True)
class DriverContext:
    """Where a source stands on the driver, for those that have work to do there."""

    session: Any
    """The SparkSession that the job runs on."""
    name: str
    parallelism: int
    """Of the source: how many readers there will be."""
    slots: int
    """How many tasks the whole job holds."""
    directory: str | None = field(repr=False)
    """A location that this operator of this job may fill, kept as long as its checkpoints; None: there is none."""
    resume: bool
    """The job goes on from a checkpoint of an earlier run, which may have filled the directory."""
    settings: Settings = field(default_factory=Settings)
    """Of the job."""


class Source(ABC):
    """A picklable description of a source."""

    reader_class: type[SourceReader] | None = None
    """The class of its readers, where that declares operator states (OperatorListState, BroadcastState) or snapshot
    hooks: they are restored before `open`, and kept with each position. None: its readers keep nothing but that."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the rows."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """Whether it ends by itself."""

    @property
    def guarantee(self) -> SourceGuarantee:
        return "exactly_once"

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        """Whether readers that went on from these positions, those of all subtasks, would find nothing, told without
        opening any: a job that had finished, and of which all sources say so, ends at once when it is resumed. False:
        only a reader can tell, as where there may be more by now than there was."""
        return False

    def validate(self, name: str) -> None:
        """Checked on the driver before anything starts: raise a JobError that names the operator `name`."""

    def on_driver_start(self, driver: DriverContext) -> None:
        """Called once for a job, before the source is pickled for the first attempt: start what feeds the readers."""

    def on_driver_stop(self) -> None:
        """Called once after on_driver_start, when the job has ended in whatever way."""

    @abstractmethod
    def reader(self) -> SourceReader:
        """A fresh reader for one subtask."""
