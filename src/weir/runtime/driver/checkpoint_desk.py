"""What the coordinator wants done is done here: triggers, manifests, savepoints, old checkpoints.

Comes in: events for the coordinator. Goes out: its effects, as orders to tasks, writes to
storage and notices; and what comes of them, as its next events. Decides nothing about
checkpoints (snapshot/coordinator/machine.py does) and nothing about attempts (loop.py does): whom
to leave, and what a failure means, is asked of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from weir.errors import OwnershipError, ProtocolViolation, StorageFull, StorageUnavailable, code_of
from weir.graph.plan import Plan
from weir.ids import AttemptId
from weir.runtime.driver import notices
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.notices import Notice
from weir.runtime.driver.region import Region
from weir.runtime.driver.retirement_desk import RetirementDesk
from weir.runtime.ports import Background, Clock, Opener
from weir.runtime.storage.checkpoints import CheckpointStore
from weir.runtime.storage.savepoints import SavepointDesk
from weir.snapshot import messages as m
from weir.snapshot.coordinator import orders
from weir.snapshot.coordinator.events import (
    CheckpointRequested,
    CoordinatorEvent,
    ManifestPublished,
    ManifestRefused,
    SavepointPublished,
    SavepointRefused,
)
from weir.snapshot.coordinator.machine import Coordinator
from weir.snapshot.manifest import Manifest
from weir.snapshot.restart import Restarts


class LaunchedAttempts(Protocol):
    """The job's attempts, as checkpoints need them."""

    @property
    def plan(self) -> Plan: ...

    @property
    def regions(self) -> Sequence[Region]: ...

    @property
    def attempt(self) -> AttemptId | None: ...

    def tell(self, message: Callable[[AttemptId], m.ToTask]) -> None:
        """Tell every task of the regions that run."""

    def fail(self, region: Region | None, error: str, *, code: str = "", fatal: bool = False) -> None:
        """An attempt has failed. None: the job as a whole cannot go on like this."""

    def claim_next(self) -> None:
        """No manifest is being written: attempts may be claimed."""

    def request_failed(self, request: CheckpointRequested) -> None:
        """Nothing comes of what a user asked for."""

    def leave_for(self, request: CheckpointRequested) -> None:
        """Everything is committed that the user wanted to stop, or rescale, behind."""

    def finish(self) -> None:
        """The input is at its end, and everything is committed."""


@dataclass(frozen=True)
class Ports:
    """What the desk reaches the world through."""

    clock: Clock
    background: Background
    store: CheckpointStore
    opener: Opener
    notify: Callable[[Notice], None]


class CheckpointDesk:
    """The coordinator's hands."""

    def __init__(
        self,
        attempts: LaunchedAttempts,
        coordinator: Coordinator,
        claims: ClaimDesk,
        restarts: Restarts,
        ports: Ports,
    ) -> None:
        self._attempts = attempts
        self._coordinator = coordinator
        self._claims = claims
        self._restarts = restarts
        self._clock = ports.clock
        self._background = ports.background
        self._store = ports.store
        self._notify = ports.notify
        self._retirements = RetirementDesk(ports.store, ports.background)
        self._savepoints = SavepointDesk(ports.background, ports.opener)

    def hear(self, event: CoordinatorEvent) -> None:
        """Tell the coordinator, and do what it wants."""
        for effect in self._coordinator.handle(event, self._clock.now_ms()):
            self._perform(effect)

    def close(self, done: Callable[[], None]) -> None:
        """No task runs any more: what was written to savepoints that failed goes."""
        self._savepoints.close(done)

    def _perform(self, effect: orders.CoordinatorEffect) -> None:
        if isinstance(effect, orders.SendTrigger):
            self._trigger(effect)
        elif isinstance(effect, orders.SendAbort):
            self._abort(effect)
        elif isinstance(effect, orders.PublishManifest):
            manifest = self._claims.manifest(effect, self._attempts.plan, "checkpoint", self._clock.wall_ms())
            publish = partial(self._store.publish, manifest)
            self._background.run(publish, lambda result: self._published(manifest, result))
        elif isinstance(effect, orders.SendCompleted):
            self._restarts.checkpointed()
            self._attempts.tell(
                lambda attempt: m.CheckpointCompleted(attempt, effect.checkpoint, effect.time_over, effect.ended)
            )
            self._savepoints.sweep(effect.checkpoint)
            self._notify(notices.CheckpointSucceeded(self._attempts.attempt, effect.checkpoint))
        elif isinstance(effect, orders.RetireCheckpoints):
            self._retirements.retire(effect.oldest_kept)
        elif isinstance(effect, orders.SendDrain):
            self._attempts.tell(m.DrainSources)
        elif isinstance(effect, orders.SendResume):
            self._attempts.tell(m.ResumeSources)
        elif isinstance(effect, orders.PublishSavepoint):
            self._save(effect)
        elif isinstance(effect, orders.FailRequest):
            self._request_failed(effect)
        elif isinstance(effect, orders.LeaveAttempt):
            self._attempts.leave_for(effect.request)
        elif isinstance(effect, orders.FailAttempt):
            self._restarts.not_checkpointed(effect.code)
            self._attempts.fail(None, effect.reason, code=effect.code)
        elif isinstance(effect, orders.FinishJob):
            self._attempts.finish()
        else:
            raise ProtocolViolation(f"driver: unknown effect {effect!r}")

    def _trigger(self, effect: orders.SendTrigger) -> None:
        id, savepoint, pause, base = effect.checkpoint, effect.savepoint, effect.pause, effect.base
        if not self._claims.may_give_out(id):
            # Another driver may be given the same id: nothing is written under it.
            self._attempts.fail(
                None, f"no id for checkpoint {id}: storage was away too long", code=StorageUnavailable.code
            )
            return
        stateless = effect.is_stateless
        self._attempts.tell(lambda attempt: m.TriggerCheckpoint(attempt, id, savepoint, pause, base, stateless))

    def _abort(self, effect: orders.SendAbort) -> None:
        self._attempts.tell(lambda attempt: m.AbortCheckpoint(attempt, effect.checkpoint))
        attempts = [region.attempt for region in self._attempts.regions if region.attempt is not None]
        self._retirements.discard(effect.checkpoint, attempts)
        self._notify(notices.CheckpointAborted(self._attempts.attempt, effect.checkpoint, effect.reason, effect.detail))

    def _published(self, manifest: Manifest, result: BaseException | None) -> None:
        if not self._is_current(manifest):
            return  # The next claim looks at what is there.
        if result is None:
            self.hear(ManifestPublished(manifest.checkpoint))
        elif isinstance(result, StorageFull | FileExistsError):
            self.hear(ManifestRefused(manifest.checkpoint, str(result), code_of(result)))
        elif isinstance(result, OwnershipError):
            self._attempts.fail(None, str(result), fatal=True)
        else:
            # Whether the checkpoint exists is not known: neither commit nor abort it. Restarting looks again.
            self._attempts.fail(None, f"{type(result).__name__}: {result}", code=code_of(result))
        self._attempts.claim_next()

    def _is_current(self, manifest: Manifest) -> bool:
        """Whether tasks that run have taken part in it."""
        return manifest.attempt == self._claims.newest and any(region.is_running for region in self._attempts.regions)

    # --- Savepoints -----------------------------------------------------------------------------------------

    def _save(self, effect: orders.PublishSavepoint) -> None:
        manifest = self._claims.manifest(effect, self._attempts.plan, "savepoint", self._clock.wall_ms())
        place = str(effect.request.savepoint)
        self._savepoints.publish(place, manifest, lambda result: self._saved(effect.request, manifest, result))

    def _saved(self, request: CheckpointRequested, manifest: Manifest, result: BaseException | None) -> None:
        if not self._is_current(manifest) or not self._coordinator.awaits_savepoint(manifest.checkpoint):
            # Who asked was told that it failed, with the attempt.
            self._savepoints.discard(str(request.savepoint), self._coordinator.next_checkpoint)
        elif result is None:
            found = request.name, manifest.checkpoint, str(request.savepoint)
            self._notify(notices.SavepointCompleted(self._attempts.attempt, *found))
            self.hear(SavepointPublished(manifest.checkpoint))
        else:
            reason = f"{request.savepoint}: {type(result).__name__}: {result}"
            self.hear(SavepointRefused(manifest.checkpoint, reason))

    def _request_failed(self, effect: orders.FailRequest) -> None:
        request = effect.request
        self._attempts.request_failed(request)
        if request.savepoint is not None:
            self._savepoints.discard(request.savepoint, self._coordinator.next_checkpoint)
        self._notify(notices.RequestFailed(self._attempts.attempt, request.name, effect.reason, effect.ended_early))
