"""A job's sinks, as its driver looks after them: taken over, cleared of what is void, and finished.

Comes in: the plan, and where an attempt starts from. Goes out: calls of the sinks, behind
the driver's back. Decides who may restore from behind what is committed: nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weir.config import JobConfig
from weir.errors import CheckpointError, JobError, OwnershipError, StorageUnavailable
from weir.graph.plan import Plan
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.operators.sink import Fence, Sink, SinkOwner
from weir.runtime.storage.checkpoints import Claim
from weir.snapshot.commit import pending_of
from weir.snapshot.manifest import Manifest


class SinkDesk:
    """The sinks of one job, on its driver. `fence`: raises when another driver has taken the job over; `lives`: the
    lineages that the job's checkpoint location knows of."""

    def __init__(
        self,
        config: JobConfig,
        lineage: Lineage,
        fence: Fence,
        *,
        lives: Callable[[], frozenset[Lineage]] = frozenset,
    ) -> None:
        self._config = config
        self._lineage = lineage
        self._fence = fence
        self._lives = lives

    def validate(self, plan: Plan) -> None:
        """Before anything starts, and without changing anything."""
        lives = self._lives()
        for sink, owner in self._of(plan, lives):
            try:
                sink.validate(owner)
            except JobError:
                if self._lives() != lives:  # What is in the way is output of a run that began since the look.
                    raise OwnershipError(
                        f"job {self._config.name!r} was started by somebody else just now; start again to go on with "
                        "what is there"
                    ) from None
                raise

    def traces(self, plan: Plan) -> tuple[CheckpointId, AttemptId]:
        """The newest checkpoint, and the newest attempt, that any sink knows of; 0: none does."""
        owned = list(self._of(plan))
        checkpoints = [sink.committed_up_to(owner) or 0 for sink, owner in owned]
        attempts = [sink.attempts_up_to(owner) or 0 for sink, owner in owned]
        return CheckpointId(max([0, *checkpoints])), AttemptId(max([0, *attempts]))

    def adopt(self, plan: Plan) -> None:
        """The first attempt of a run is claimed."""
        for sink, owner in self._of(plan, self._lives()):
            try:
                sink.adopt(owner, self._fence)
            except JobError:
                self._fence()  # What is in the way may be output of a driver that has taken over since.
                raise

    def recover(self, plan: Plan, claim: Claim, manifests: Sequence[Manifest] | None = ()) -> None:
        """An attempt is about to start the vertices of the plan that run. `manifests`: of all checkpoints that are
        there; None: some could not be read, and nobody knows what they name."""
        restored = None if claim.restore is None else claim.restore.checkpoint
        for sink, owner in self._of(plan):
            committed = sink.committed_up_to(owner)
            if committed is not None and (restored is None or committed > restored):
                self._fence()  # Who was overtaken has not seen the checkpoints of its successor; nothing is gone.
                found = "there is no checkpoint" if restored is None else f"checkpoint {restored} is the newest"
                raise CheckpointError(
                    f"sink {owner.name!r} has committed rows of checkpoint {committed}, and {found}: going on from "
                    "there would write them again. Put the checkpoints back; or go back on purpose, with weir run "
                    "--resume --at, or with resume=False and overwrite=True in the sink"
                )
            if manifests is None:
                continue
            there = manifests if claim.restore is None else (claim.restore, *manifests)
            pending = [committable for manifest in there for committable in pending_of(manifest, owner.uid)]
            try:
                sink.recover(owner, claim.attempt, pending, self._fence, oldest=self._oldest_kept(claim))
            except StorageUnavailable:
                continue  # Readers skip what is left; the next attempt, or the end of the job, removes it.

    def repeated(self, plan: Plan, back_to: int) -> list[str]:
        """What going back to a checkpoint would write again, for people to read."""
        found = []
        for sink, owner in self._of(plan):
            committed = sink.committed_up_to(owner)
            if committed is None:
                found.append(f"what sink {owner.name!r} has written since checkpoint {back_to}")
            elif committed > back_to:
                found.append(f"what sink {owner.name!r} has committed in checkpoints {back_to + 1} to {committed}")
        return found

    def finish(self, plan: Plan) -> None:
        """Everything is committed."""
        for sink, owner in self._of(plan):
            sink.finish(owner, self._fence)

    def _oldest_kept(self, claim: Claim) -> CheckpointId | None:
        """The oldest checkpoint that the job may go back to, if that is known. Those beside a copy that it went back to
        are there for as long as the copy is, and are not in its line."""
        retain = 1 if self._config.checkpoints is None else self._config.checkpoints.retain
        is_known = len(claim.completed) >= min(2, retain) and claim.completed[0] > claim.went_back_to
        return claim.completed[0] if is_known else None

    def _of(self, plan: Plan, lives: frozenset[Lineage] = frozenset()) -> Iterator[tuple[Sink, SinkOwner]]:
        config = self._config
        is_durable = config.checkpoints is not None and config.checkpoints.to is not None
        for vertex in plan.running:
            operator = vertex.operators[-1]
            if isinstance(operator.spec, Sink):
                yield (
                    operator.spec,
                    SinkOwner(
                        config.name,
                        self._lineage,
                        operator.uid,
                        operator.name,
                        resume=config.resume,
                        settings=config.settings,
                        lives=lives,
                        is_durable=is_durable,
                    ),
                )
