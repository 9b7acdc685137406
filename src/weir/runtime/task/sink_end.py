"""The end of a chain that holds a sink: writes epochs, and commits those that are granted.

Comes in: batches, barriers' checkpoints, notices of completion, the time. Goes out:
committables for the manifest, and a report when everything up to a checkpoint is
committed. The decisions are snapshot/commit.py's; the IO is the writer's, in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from weir.errors import ProtocolViolation, StorageUnavailable, Unavailable, WeirError
from weir.ids import CheckpointId, Uid
from weir.operators.base import Frozen, OperatorContext, Restored
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.sink import SinkWriter
from weir.runtime.ports import Background, Chance, Clock
from weir.runtime.task.chain import Counters
from weir.snapshot.backoff import Backoff
from weir.snapshot.commit import (
    Commit,
    CommitEvent,
    CommitFailed,
    CommitSucceeded,
    Committer,
    Completed,
    EndAttempt,
    EpochPrepared,
    ReportCommitted,
    RestoredPending,
    RetryDue,
)
from weir.snapshot.parts import Json, PendingEpochs


class SinkEnd:
    """One subtask's sink writer and what is still to be committed."""

    def __init__(
        self,
        context: OperatorContext,
        writer: SinkWriter,
        *,
        background: Background,
        clock: Clock,
        chance: Chance,
        report: Callable[[CheckpointId], None],
        retries_max: int,
        backoff: Backoff,
        kept: StatefulFunction | None = None,
    ) -> None:
        """`kept`: the writer, where it has states of its own."""
        self.uid: Uid = context.uid
        self.name = context.name
        self.counters = Counters()
        self._context = context
        self._writer = writer
        self._kept = kept
        self._background = background
        self._clock = clock
        self._chance = chance
        self._report = report
        self._committer = Committer(retries_max, backoff)
        self._failure: BaseException | None = None
        """What the last commit that failed has raised."""

    def open(self, restored: Restored | None, checkpoint: CheckpointId | None) -> None:
        """Open the writer; what the restored checkpoint holds is committed, since that checkpoint is complete."""
        if restored is None or checkpoint is None:
            self._writer.open(self._context, None)
            return
        parts = restored.inline_for(self._context.index, self._context.parallelism, PendingEpochs)
        pending = [committable for part in parts for _, committable in part.epochs]
        self._writer.open(self._context, pending)
        self._handle(RestoredPending(checkpoint, pending))

    def write(self, batch: pa.RecordBatch) -> None:
        self.counters.took(batch)
        self._writer.write(batch)

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        """Close the epoch; the returned function makes it durable, in the background."""
        return self._writer.prepare(checkpoint)

    def freeze(self) -> Frozen | None:
        """What the writer keeps, behind `prepare`; None: nothing."""
        return None if self._kept is None else Frozen(states=self._kept.freeze())

    def prepared(self, checkpoint: CheckpointId, committable: Json) -> None:
        """The epoch is durable: from now on every snapshot carries it until it is committed."""
        self._handle(EpochPrepared(checkpoint, committable))

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint exists: commit its epochs."""
        self._handle(Completed(checkpoint))

    @property
    def wake_ms(self) -> float | None:
        """When `tick` is wanted."""
        return self._committer.due_ms

    def tick(self) -> None:
        """Time has passed: repeat a commit whose delay is over."""
        due_ms = self._committer.due_ms
        if due_ms is not None and (now_ms := self._clock.now_ms()) >= due_ms:
            self._handle(RetryDue(now_ms))

    @property
    def inline(self) -> PendingEpochs | None:
        """What the manifest must hold for this sink; None when all is committed, so that the sink may be removed."""
        pending = self._committer.pending
        return PendingEpochs(pending) if pending else None

    def close(self) -> None:
        self._writer.close()

    def _handle(self, event: CommitEvent) -> None:
        for effect in self._committer.handle(event):
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, Commit):
            commit = effect
            self._background.run(
                lambda: self._writer.commit(commit.grant, commit.committables),
                lambda result: self._committed(commit, result),
            )
        elif isinstance(effect, ReportCommitted):
            self._report(effect.checkpoint)
        elif isinstance(effect, EndAttempt):
            # Where files or connections fail, storage is away, and may be for long. Anything else is a failure like
            # any other, of which the restart strategy allows so many.
            kind = StorageUnavailable if isinstance(self._failure, OSError) else Unavailable
            raise kind(f"sink {self.name!r} (uid {self.uid!r}) cannot commit: {effect.reason}")
        else:
            raise ProtocolViolation(f"unknown effect {effect!r}")

    def _committed(self, commit: Commit, result: object) -> None:
        if isinstance(result, WeirError) and not isinstance(result, StorageUnavailable):
            raise result
        if isinstance(result, BaseException):
            self._failure = result
            reason = f"{type(result).__name__}: {result}"
            self._handle(CommitFailed(commit.grant.checkpoint, reason, self._clock.now_ms(), self._chance()))
        else:
            self._handle(CommitSucceeded(commit.grant.checkpoint))
