"""Which of the checkpoints in storage count, and which ids are free.

Comes in: what a look into the job's directory found. Goes out: the valid
checkpoints and the next ids. Never touches storage.

A manifest alone does not make a checkpoint: a driver that was given up may write
one late. What decides is where the later attempts started from. An attempt is
  1. claimed: from then on older drivers stop. They look for newer claims after
     each publication, before they tell anyone that it is complete;
  2. started: only after its claim it looks what is there, and records what it
     restores. Then it, too, looks for newer claims before its tasks run, since they
     commit what they restored.
So whatever an older driver let sinks commit was durable, with the start that it
descends from, before a newer claim existed; the newer attempt has seen it, and has
started from it or from a descendant.
An older driver that does not know yet may still write a manifest. Its id is its own: ids
are leased in storage before they are given out, and a newer attempt begins above the
leases of all the others. What was restored or complete once must be there as long as
nothing newer is: when it is not, somebody has taken it away, and nobody goes on from an
older one unless asked to. An attempt that was asked to go back restores a copy of its own
making, which ends the line of descent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from weir.ids import AttemptId, CheckpointId

NONE_GIVEN_OUT = CheckpointId(1)


def overtaken_by(claimed: Iterable[AttemptId], own: AttemptId) -> AttemptId | None:
    """The newest attempt, if it is newer than one's own: then whoever has that must not complete, delete or report
    anything any more."""
    newest = max(claimed, default=own)
    return newest if newest > own else None


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A manifest that is there, and the attempt that wrote it."""

    checkpoint: CheckpointId
    attempt: AttemptId


@dataclass(frozen=True)
class AttemptStart:
    """What an attempt restored before its tasks ran; None: it began from nothing."""

    attempt: AttemptId
    restored_from: CheckpointId | None
    writer: AttemptId | None = None
    """The attempt that wrote the restored checkpoint; the attempt itself when it was asked to go back."""
    ids_below: CheckpointId = NONE_GIVEN_OUT
    """Checkpoints below were given out, or may have been."""
    origin: str | None = None
    """The savepoint that it began from instead, as far as others may read where that is."""

    @property
    def goes_back(self) -> bool:
        return self.writer == self.attempt


@dataclass(frozen=True)
class Listing:
    """What is in a job's directory."""

    traces: tuple[CheckpointId, ...] = ()
    """Every checkpoint of which anything is there: complete, aborted or half-written."""
    published: tuple[PublishedCheckpoint, ...] = ()
    claimed: tuple[AttemptId, ...] = ()
    """Attempts that were claimed. One without a start never ran, and voids nothing."""
    starts: tuple[AttemptStart, ...] = ()
    completed: tuple[PublishedCheckpoint, ...] = ()
    """The last checkpoint of each attempt that tasks were told to be complete, be it there or not."""
    leases: tuple[PublishedCheckpoint, ...] = ()
    """What attempts have leased since they started: checkpoints below were given out, or may have been."""

    @property
    def valid(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that count, oldest first."""
        return tuple(sorted({published.checkpoint for published in self.valid_published}))

    @property
    def newest(self) -> CheckpointId | None:
        """The checkpoint to restore."""
        return self.newest_published.checkpoint if self.newest_published else None

    @property
    def newest_published(self) -> PublishedCheckpoint | None:
        """The checkpoint to restore, with the attempt that wrote it."""
        return max(self.valid_published, key=lambda published: published.checkpoint, default=None)

    @property
    def missing(self) -> CheckpointId | None:
        """The checkpoint that the newest attempt would have to restore, if that is not there."""
        line = dict(self._line)
        known = [start.restored_from for start in self.starts if start.attempt in line and start.restored_from]
        known += [entry.checkpoint for entry in self.completed if entry.checkpoint <= line.get(entry.attempt, 0)]
        newest_known = max(known, default=None)
        if newest_known is None or (self.newest is not None and self.newest >= newest_known):
            return None
        return newest_known

    @property
    def unnoted(self) -> PublishedCheckpoint | None:
        """The newest checkpoint of an attempt that has run, and is above all of which that is noted: its notes were
        taken away, or older ones put in their place. What is left of them would have the job go on from before it."""
        ran = max([0, *(found.attempt for found in self.starts), *self._told])
        known = max([ran, *self.claimed])
        writers = [entry.attempt for entry in self.published]
        # One that is claimed, and has not started, may have made the one copy that it wanted to go back to.
        lost = {attempt for attempt in writers if attempt > known or (attempt > ran and writers.count(attempt) > 1)}
        beyond = [entry for entry in self.published if entry.attempt in lost]
        return max(beyond, key=lambda entry: entry.checkpoint, default=None)

    @property
    def _told(self) -> list[AttemptId]:
        return [entry.attempt for entry in (*self.completed, *self.leases)]

    @property
    def origin(self) -> str | None:
        """The savepoint that the job has to be started from, as long as it has no checkpoint of its own."""
        if self.newest is not None or self.missing is not None:
            return None
        return max(self.starts, key=lambda start: start.attempt).origin if self.starts else None

    @property
    def next_attempt(self) -> AttemptId:
        """Above every attempt that has left a trace."""
        starts = [start.attempt for start in self.starts]
        publishers = [entry.attempt for entry in (*self.published, *self.completed)]
        return AttemptId(max([0, *self.claimed, *starts, *publishers]) + 1)

    def next_checkpoint(self, own: frozenset[AttemptId] = frozenset()) -> CheckpointId:
        """Above every checkpoint that was given out, void, half-written and deleted ones included. What was given out
        of the leases of its own attempts, a driver knows itself."""
        known = [entry.checkpoint for entry in (*self.published, *self.completed)]
        known += [start.restored_from for start in self.starts if start.restored_from is not None]
        leased = [lease.checkpoint for lease in self.leases if lease.attempt not in own]
        leased += [start.ids_below for start in self.starts if start.attempt not in own]
        return CheckpointId(max([1, *leased, *(id + 1 for id in (*self.traces, *known))]))

    @cached_property
    def valid_published(self) -> tuple[PublishedCheckpoint, ...]:
        """The manifests that count, by the line of descent of the newest attempt that started."""
        line = dict(self._line)
        return tuple(entry for entry in self.published if entry.checkpoint <= line.get(entry.attempt, 0))

    @cached_property
    def _line(self) -> tuple[tuple[AttemptId, float], ...]:
        return tuple(self._descent())

    def _descent(self) -> Iterator[tuple[AttemptId, float]]:
        """Walk from the newest attempt to the one whose checkpoint it restored, and so on.

        What an attempt has written counts up to what its successor restored. Attempts between a successor and the one
        that it restored from are no part of the line, not even with a start: the start of one that was stuck may be
        recorded after a newer attempt has looked, and does not overrule what that one found. Nor is an attempt that
        never started, though it may have made the copy that it wanted to go back to.
        """
        starts = {start.attempt: start for start in self.starts}
        ceiling: float = math.inf
        ancestor: AttemptId | None = None
        for attempt in sorted({*starts, *(entry.attempt for entry in self.completed)}, reverse=True):
            if ancestor is not None and attempt > ancestor:
                continue
            yield attempt, ceiling
            if attempt not in starts:
                continue  # it has run, and its start was taken away
            restored = starts[attempt].restored_from
            if restored is None or starts[attempt].goes_back:
                return
            ceiling = min(ceiling, restored)
            # None: it is gone (retired, or deleted by hand), so any older attempt may be the ancestor; the ceiling
            # still holds.
            writers = [p.attempt for p in self.published if p.checkpoint == restored and p.attempt < attempt]
            ancestor = starts[attempt].writer or max(writers, default=None)
