"""How far sources have come for good is noted here, before the rows behind the last note go on.

Comes in: how far readers have read. Goes out: notes in storage, the word to readers that their rows may go on, and
where the readers of the next attempt begin. That is all that "at most once" rests on:

  1. A reader is told to go on only when a note is durable that lies behind its rows, and only as long as its attempt is
     the one that runs: what is noted for an attempt that was left meanwhile lets nothing go on.
  2. An attempt begins where the last note says, and not before. Another driver reads it behind its own claim; whoever
     was overtaken then looks for that claim behind each note, and lets nothing go on.
  3. No attempt is claimed while a note is written, and none is written while one is claimed: a driver would take its
     own claim for another's, and which of a note and a checkpoint is newer could not be told.
  4. Nothing is noted of a source before all its readers have told where they begin: what is noted is whole, whatever
     the parallelism was before, and will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from weir.errors import OwnershipError, code_of
from weir.graph.plan import Plan
from weir.ids import AttemptId, Uid
from weir.runtime.driver import phases
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.region import Region
from weir.runtime.ports import Background
from weir.runtime.storage.checkpoints import CheckpointStore, Claim
from weir.snapshot.messages import PositionReached, PositionReserved
from weir.snapshot.parts import NONE_RESERVED, Json, Reserved, ReservedSources


class ReadingAttempts(Protocol):
    """The job's attempts, as reservations need them."""

    @property
    def plan(self) -> Plan: ...

    @property
    def regions(self) -> Sequence[Region]: ...

    def fail(self, region: Region | None, error: str, *, code: str = "", fatal: bool = False) -> None:
        """The job as a whole cannot go on like this."""

    def claim_next(self) -> None:
        """No note is being written: attempts may be claimed."""


@dataclass
class _Readers:
    """What the readers of a source have told in one attempt."""

    attempt: AttemptId
    positions: dict[int, Json] = field(default_factory=dict)


class ReservationDesk:
    """The positions of one job's sources, over all its attempts."""

    def __init__(
        self, attempts: ReadingAttempts, claims: ClaimDesk, store: CheckpointStore, background: Background
    ) -> None:
        self._attempts = attempts
        self._claims = claims
        self._store = store
        self._background = background
        self._noted = NONE_RESERVED
        self._readers: dict[Uid, _Readers] = {}
        self._asked: list[PositionReached] = []
        self.is_writing = False
        """Law 3."""

    def beginning(self, claim: Claim) -> ReservedSources:
        """Where sources of an attempt go on from, if not from where its checkpoint says."""
        if claim.reserved.attempt > self._noted.attempt:
            self._noted = claim.reserved
        # A checkpoint of another run, or a savepoint, is older than whatever was read here.
        is_own = claim.restore is not None and bool(claim.completed)
        writer = claim.restore.attempt if claim.restore is not None and is_own else AttemptId(0)
        # A checkpoint that is newer than the note knows better: nothing is read at most once any more, or the user has
        # gone back.
        return self._noted if self._noted.attempt >= writer else NONE_RESERVED

    def hear(self, told: PositionReached) -> None:
        """A reader has come so far, and its rows wait."""
        readers = self._readers.get(told.uid)
        if readers is None or readers.attempt != told.attempt:
            readers = self._readers[told.uid] = _Readers(told.attempt)
        readers.positions[told.subtask.index] = told.position
        self._asked.append(told)
        self.go_on()

    def go_on(self) -> None:
        """Note what was told, if that may be. One note at a time: what is told meanwhile makes up the next."""
        if self.is_writing or self._claims.is_busy:
            return
        asked = [told for told in self._asked if self._region_of(told) is not None]
        ready = [told for told in asked if self._is_whole(told)]
        self._asked = [told for told in asked if not self._is_whole(told)]
        if not ready:
            return
        told_of = {told.uid: self._readers[told.uid].positions for told in ready}
        new = {uid: Reserved(tuple(found[i] for i in range(len(found)))) for uid, found in told_of.items()}
        # Under the newest attempt, as manifests are: which of the two is newer can be told by that.
        attempt = self._claims.newest or ready[0].attempt
        read_behind = max(self._noted.read_behind, *(told.read_behind for told in ready))
        note = ReservedSources(attempt, {**self._noted.sources, **new}, read_behind)
        self.is_writing = True
        self._background.run(lambda: self._store.reserve(note), lambda result: self._written(ready, note, result))

    def _written(self, ready: Sequence[PositionReached], note: ReservedSources, result: BaseException | None) -> None:
        self.is_writing = False
        running = [(told, region) for told in ready if (region := self._region_of(told)) is not None]
        if isinstance(result, BaseException):
            if running:
                error, is_fatal = f"{type(result).__name__}: {result}", isinstance(result, OwnershipError)
                self._attempts.fail(None, error, code=code_of(result), fatal=is_fatal)
        else:
            alive = {told.uid: note.sources[told.uid] for told, _ in running}
            self._noted = replace(note, sources={**self._noted.sources, **alive})
            for told, region in running:
                region.tell_one(told.task, PositionReserved(told.attempt, told.subtask, told.number))
        self._attempts.claim_next()
        self.go_on()

    def _is_whole(self, told: PositionReached) -> bool:
        """Whether all readers of the source have told where they are."""
        readers = self._readers[told.uid]
        return len(readers.positions) == self._attempts.plan.vertices[told.subtask.vertex].parallelism

    def _region_of(self, told: PositionReached) -> Region | None:
        """That of the attempt, while it runs, or begins to."""
        return next(
            (
                region
                for region in self._attempts.regions
                if region.attempt == told.attempt and isinstance(region.phase, phases.Deploying | phases.Running)
            ),
            None,
        )
