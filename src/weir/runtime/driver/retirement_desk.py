"""Has what nobody needs deleted behind the driver's back, one thing after the other.

Comes in: what the coordinator gives up. Goes out: calls of the store, in the background.
What could not be deleted is tried again with the next checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from weir.ids import AttemptId, CheckpointId
from weir.runtime.ports import Background
from weir.runtime.storage.checkpoints import CheckpointStore

DISCARDS_WAITING_MAX = 100
"""Aborted checkpoints that wait to be discarded. Beyond that their files go when they are retired."""


class RetirementDesk:
    """One deletion at a time: of retirements that are asked for meanwhile, only the last need be done."""

    def __init__(self, store: CheckpointStore, background: Background) -> None:
        self._store = store
        self._background = background
        self._is_busy = False
        self._oldest_kept: CheckpointId | None = None
        self._discards: deque[Callable[[], None]] = deque(maxlen=DISCARDS_WAITING_MAX)

    def retire(self, oldest_kept: CheckpointId) -> None:
        """Every checkpoint before this one is to go. If the job ends before that, its last sweep sees to it."""
        self._store.keep_from(oldest_kept)
        self._oldest_kept = max(self._oldest_kept or oldest_kept, oldest_kept)
        self._next()

    def discard(self, checkpoint: CheckpointId, attempts: Sequence[AttemptId]) -> None:
        """The checkpoint was aborted: what these attempts have written for it is to go."""
        self._discards.extend(partial(self._store.discard, checkpoint, attempt) for attempt in attempts)
        self._next()

    def _next(self) -> None:
        if self._is_busy:
            return
        if self._oldest_kept is not None:
            oldest_kept, self._oldest_kept = self._oldest_kept, None
            work: Callable[[], None] = partial(self._store.retire, oldest_kept)
        elif self._discards:
            work = self._discards.popleft()
        else:
            return
        self._is_busy = True
        self._background.run(work, self._done)

    def _done(self, result: object) -> None:
        self._is_busy = False
        self._next()
