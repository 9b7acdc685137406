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
An older driver that does not know yet may still write a manifest whose id is in use.
It must not replace one that is there: either only the first with an id is created,
or manifests of different attempts have different names, and starts name the writer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weir.ids import AttemptId, CheckpointId


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
    """The attempt that wrote the restored checkpoint. Needed where two attempts can write manifests with the same id;
    where a manifest is created only if there is none with that id, the id says it."""


@dataclass(frozen=True)
class Listing:
    """What is in a job's directory."""

    directories: tuple[CheckpointId, ...] = ()
    """Every checkpoint of which anything is there: complete, aborted or half-written."""
    published: tuple[PublishedCheckpoint, ...] = ()
    claimed: tuple[AttemptId, ...] = ()
    """Attempts that were claimed. One without a start never ran, and voids nothing."""
    starts: tuple[AttemptStart, ...] = ()

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
    def next_attempt(self) -> AttemptId:
        """Above every attempt that has left a trace."""
        starts = [start.attempt for start in self.starts]
        publishers = [published.attempt for published in self.published]
        return AttemptId(max([0, *self.claimed, *starts, *publishers]) + 1)

    @property
    def next_checkpoint(self) -> CheckpointId:
        """Above every checkpoint that has left a trace, void, half-written and deleted ones included."""
        published = [entry.checkpoint for entry in self.published]
        restored = [start.restored_from for start in self.starts if start.restored_from is not None]
        return CheckpointId(max([0, *self.directories, *published, *restored]) + 1)

    def is_fenced(self, attempt: AttemptId) -> bool:
        """Whether a newer attempt has been claimed: then this one must not complete or delete anything any more."""
        return any(claimed > attempt for claimed in self.claimed)

    @cached_property
    def valid_published(self) -> tuple[PublishedCheckpoint, ...]:
        """The manifests that count, by the line of descent of the newest attempt that started."""
        return tuple(self._lineage())

    def _lineage(self) -> Iterator[PublishedCheckpoint]:
        """Walk from the newest attempt to the one whose checkpoint it restored, and so on.

        An attempt's manifests count up to what its successor restored. Attempts between a successor and the one that
        it restored from are no part of the line, not even with a start: the start of one that was stuck may be
        recorded after a newer attempt has looked, and does not overrule what that one found.
        """
        starts = {start.attempt: start for start in self.starts}
        ceiling: float = math.inf
        ancestor: AttemptId | None = None
        for attempt in sorted({*starts, *(p.attempt for p in self.published)}, reverse=True):
            if ancestor is not None and attempt > ancestor:
                continue
            yield from (p for p in self.published if p.attempt == attempt and p.checkpoint <= ceiling)
            if attempt not in starts:
                continue
            restored = starts[attempt].restored_from
            if restored is None:
                return
            ceiling = min(ceiling, restored)
            # None: it is gone (retired, or deleted by an operator who wants an older one), so any older attempt may be
            # the ancestor; the ceiling still holds.
            writers = [p.attempt for p in self.published if p.checkpoint == restored and p.attempt < attempt]
            ancestor = starts[attempt].writer or max(writers, default=None)
