"""The contract of a sink: rows become visible when their checkpoint is complete.

What a writer gets between two barriers is an epoch. `prepare` closes the epoch;
the function that it returns makes it durable (in a background thread) and gives
back the committable, JSON that goes into the manifest. `commit` makes it visible;
it may be called any number of times for the same committable, also by a writer
of a later attempt, and must then change nothing.

On the driver a sink looks after its target: it takes it over for a job, clears what
nobody will commit, and says what is committed already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from weir.config import Settings
from weir.ids import AttemptId, CheckpointId, Lineage, Uid
from weir.operators.base import OperatorContext
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import Json

SinkGuarantee = Literal["exactly_once", "at_least_once"]

Fence: TypeAlias = Callable[[], None]
"""Raises OwnershipError when another driver has taken the job over. Whoever deletes looks what there is, then calls
this, then deletes what was found, by name: all that a newer driver can rest on came later."""


@dataclass(frozen=True)
class SinkOwner:
    """Whose output a sink writes."""

    job: str
    lineage: Lineage
    """The job's life: born at a start without resume, kept by every resume."""
    uid: Uid
    name: str
    resume: bool
    """The job goes on from a checkpoint of this lineage, if there is one."""
    settings: Settings = field(default_factory=Settings)
    """Of the job."""
    lives: frozenset[Lineage] = frozenset()
    """Lineages that the job's checkpoint location knows of. What others have left uncommitted, their runs may want."""
    is_durable: bool = True
    """Its checkpoints outlive the driver, so that another run may commit what this one has not."""


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

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        """Make these epochs visible, idempotently. Runs in the background. The grant names the checkpoint that is
        complete, and with which everything before it is."""

    def close(self) -> None:
        """Release what is held; uncommitted epochs may be dropped. Called exactly once."""


class Sink(ABC):
    """A picklable description of a sink."""

    writer_class: type[SinkWriter] | None = None
    """The class of its writers, where that declares operator states (OperatorListState, BroadcastState) or snapshot
    hooks: they are restored before `open`, and kept as they are behind `prepare`. None: its writers keep nothing."""

    @property
    def guarantee(self) -> SinkGuarantee:
        return "exactly_once"

    @property
    def place(self) -> tuple[str, ...] | None:
        """Where the rows go, from the outermost part inwards, if nothing else may write there; None: anybody may."""
        return None

    def check(self, schema: pa.Schema, name: str) -> None:
        """At build time: raise SchemaError if rows of this schema cannot be written."""

    def validate(self, owner: SinkOwner) -> None:
        """On the driver before anything starts, without changing anything: raise a JobError that names the operator,
        what was found and what to do (a directory that belongs to another job, a location that cannot be written …)."""

    def adopt(self, owner: SinkOwner, fence: Fence) -> None:
        """On the driver, once the first attempt of a run is claimed and before its tasks start: take the target over,
        and clear it if the user wants that. May be called again."""

    def recover(
        self,
        owner: SinkOwner,
        attempt: AttemptId,
        committables: Sequence[Json],
        fence: Fence,
        *,
        oldest: CheckpointId | None,
    ) -> None:
        """On the driver, before the tasks of an attempt start: remove what attempts before this one have left
        uncommitted, other than these committables, which checkpoints name that are still there: the restored one, and
        any that the user may yet go back to. Best effort.

        oldest: the user may go back as far as to this checkpoint, so its committables may have to be known as committed
                once more; None: further, perhaps
        """

    def committed_up_to(self, owner: SinkOwner) -> CheckpointId | None:
        """The newest checkpoint of this lineage of which anything is durably committed, where the target can tell: the
        job is not restored from behind it unless the user says so."""
        return None

    def attempts_up_to(self, owner: SinkOwner) -> AttemptId | None:
        """The newest attempt of this lineage that has left anything in the target, where that can tell: no later one
        has its number, also when the checkpoint location was brought back from a backup."""
        return None

    @abstractmethod
    def writer(self) -> SinkWriter:
        """A fresh writer for one subtask."""

    def finish(self, owner: SinkOwner, fence: Fence) -> None:
        """On the driver, after the last commit of a bounded job."""
