"""Attempts are claimed here, one at a time, once the checkpoint directory is the job's.

Comes in: who wants an attempt. Goes out: a claim, with what it starts from, or why there
is none. Looks into storage in the background; decides nothing about who may want one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weir.config import JobConfig
from weir.errors import ProtocolViolation, StorageUnavailable, shown
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId
from weir.runtime.driver.sink_desk import SinkDesk
from weir.runtime.ports import Background, Opener, Storage
from weir.runtime.storage.checkpoints import IDS_LEASED, CheckpointStore, Claim
from weir.runtime.storage.savepoints import origin_at
from weir.snapshot.coordinator.orders import PublishManifest, PublishSavepoint
from weir.snapshot.manifest import Kind, Manifest, build
from weir.snapshot.messages import FromTask, SnapshotTaken


class ClaimDesk:
    """Claims attempts of one job. `check`: raises when the job cannot start from a manifest of another run, whose files
    are in that storage."""

    def __init__(
        self,
        config: JobConfig,
        *,
        run: str,
        store: CheckpointStore,
        background: Background,
        opener: Opener,
        check: Callable[[Manifest, Storage], None],
    ) -> None:
        self.newest: AttemptId | None = None
        """The last attempt that was claimed: manifests carry it."""
        self.is_busy = False
        self._time_ms = 0.0
        """How late processing time is known to be: no manifest says that it was made before."""
        self._config = config
        self._run = run
        self._store = store
        self._sinks = SinkDesk(config, store.lineage, store.check_newest, lives=store.lives)
        self._background = background
        self._opener = opener
        self._check = check
        self._origin = None if config.from_savepoint is None else origin_at(config.from_savepoint)
        self._is_adopted = False
        self._has_sinks = False
        """Sinks have been taken over."""
        self._own: AttemptId | None = None
        """The first attempt that was claimed here: what it and later ones have written fits."""
        self._next_checkpoint = CheckpointId(1)
        self._ids_below = CheckpointId(1)
        self._is_leasing = False

    def claim(self, plan: Plan, region: Plan, done: Callable[[Claim | BaseException | None], None]) -> None:
        """Claim the next attempt, for a region of the plan. Nothing is claimed in a directory that may be somebody
        else's: None is the answer when it has just become ours, and the claim can be asked for again."""
        self.is_busy = True
        if self._is_adopted:
            self._background.run(
                lambda: self._claim_and_check(plan, region), lambda result: self._claimed(result, done)
            )
        else:
            self._background.run(
                lambda: self._store.adopt(self._run, self._config.resume), lambda result: self._adopted(result, done)
            )

    def finish(self, plan: Plan, done: Callable[[BaseException | None], None], *, drained: bool = False) -> None:
        """Note that the job has ended and committed everything, and have its sinks tidy up. OwnershipError: another
        driver goes on with it."""

        def finish() -> None:
            self._store.finish(drained=drained)
            self._sinks.finish(plan)

        self._background.run(finish, done)

    def look(self, done: Callable[[BaseException | None], None]) -> None:
        """Whether the job is still this driver's to stop. OwnershipError: another goes on with it."""
        self._background.run(self._store.check_newest, done)

    def given_out(self, following: CheckpointId) -> None:
        """Checkpoints below `following` were given out. Our own count may be ahead of what storage shows: an id is
        never given out twice."""
        self._next_checkpoint = max(self._next_checkpoint, following)

    def may_give_out(self, checkpoint: CheckpointId) -> bool:
        """Whether this id is ours. Takes the next ids in good time."""
        if self._ids_below - checkpoint <= IDS_LEASED // 2 and not self._is_leasing and self.newest is not None:
            self._is_leasing = True
            attempt, ids_below = self.newest, CheckpointId(checkpoint + IDS_LEASED)
            self._background.run(
                lambda: self._store.lease(attempt, ids_below), lambda result: self._leased(ids_below, result)
            )
        return checkpoint < self._ids_below

    def _leased(self, ids_below: CheckpointId, result: object) -> None:
        self._is_leasing = False
        if not isinstance(result, BaseException):
            self._ids_below = max(self._ids_below, ids_below)

    def heard(self, message: FromTask) -> None:
        """Snapshots tell how late it is where they were taken."""
        if isinstance(message, SnapshotTaken):
            self._time_ms = max(self._time_ms, message.wall_ms)

    def origin_of(self, claim: Claim) -> str | None:
        """Where the restored checkpoint lies when it is none of the job's own."""
        is_foreign = claim.restore is not None and not claim.completed
        return self._origin.location if is_foreign and self._origin is not None else None

    def manifest(
        self, effect: PublishManifest | PublishSavepoint, plan: Plan, kind: Kind, created_ms: float
    ) -> Manifest:
        """What the checkpoint is made of, under the newest attempt."""
        if self.newest is None:
            raise ProtocolViolation(f"driver: {effect!r:.200} without an attempt")
        return build(
            job=self._config.name,
            checkpoint=effect.checkpoint,
            attempt=self.newest,
            max_parallelism=plan.max_parallelism,
            created_ms=max(created_ms, self._time_ms),
            parts=effect.parts,
            parallelism={vertex.id: vertex.parallelism for vertex in plan.vertices},
            kind=kind,
            lineage=self._store.lineage,
        )

    def _adopted(self, result: BaseException | None, done: Callable[[Claim | BaseException | None], None]) -> None:
        self.is_busy = False
        self._is_adopted = not isinstance(result, BaseException)
        done(result if isinstance(result, BaseException) else None)

    def _claim_and_check(self, plan: Plan, region: Plan) -> Claim:
        back_to = self._config.back_to if self._own is None else None
        # As long as there is no checkpoint of its own, every attempt starts from what the user named.
        is_new = self._origin is not None and self._store.listing().newest is None
        storage, origin = self._read_origin() if is_new else (self._store.storage, None)
        above = self._next_checkpoint if origin is None else max(self._next_checkpoint, origin.checkpoint + 1)
        noted = None if self._origin is None else shown(self._origin.location)
        # Where checkpoints were brought back from a backup, sinks know more of this lineage than its directory does.
        committed, attempt = self._sinks.traces(plan) if self._own is None else (0, AttemptId(0))
        above = max(above, committed + 1) if back_to is not None else above
        claim = self._store.claim(back_to, CheckpointId(above), origin=noted, above=attempt)
        if claim.restore is None:
            claim = replace(claim, restore=origin)
        else:
            storage = self._store.storage
        self._own = self._own or claim.attempt
        # What was gone back to is a copy, made by this attempt of what another run has written.
        is_own = storage is self._store.storage and claim.restore is not None and claim.restore.attempt >= self._own
        if claim.restore is not None and (back_to is not None or not is_own):
            self._check(claim.restore, storage)
        if not self._has_sinks:
            self._sinks.adopt(plan)
            self._has_sinks = True
            self._clear_others()
        self._sinks.recover(region, claim, self._store.manifests())
        return claim

    def _read_origin(self) -> tuple[Storage, Manifest]:
        assert self._origin is not None
        storage = self._origin.open(self._opener)
        return storage, self._origin.read(storage)

    def _clear_others(self) -> None:
        if self._origin is not None:
            return  # It may be there that it lies.
        try:
            self._store.clear_others()
        except StorageUnavailable:
            pass  # The next run tries again.

    def _claimed(self, result: Claim | BaseException, done: Callable[[Claim | BaseException | None], None]) -> None:
        self.is_busy = False
        if isinstance(result, Claim):
            self.newest = result.attempt
            self._ids_below = max(self._ids_below, result.ids_below)
            self._time_ms = max(self._time_ms, 0.0 if result.restore is None else result.restore.created_ms)
            result = replace(result, next_checkpoint=max(result.next_checkpoint, self._next_checkpoint))
        done(result)
