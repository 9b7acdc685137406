"""The end of a job that has committed everything is noted here, however long storage is away.

Comes in: that the job is over. Goes out: that this is noted and tidied up, or why not.
Without the note the next start would take the job for one that can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.errors import OwnershipError, StorageUnavailable
from weir.graph.plan import Plan
from weir.runtime.driver.claims import ClaimDesk
from weir.runtime.driver.verdicts import Failed, Final, Finished, Stopped
from weir.runtime.ports import Chance, Clock
from weir.snapshot.restart import Failure, RestartAfter, Restarts


class FinishDesk:
    """Tries again what storage has refused, as the job's settings for outages say."""

    def __init__(self, claims: ClaimDesk, restarts: Restarts, clock: Clock, chance: Chance) -> None:
        self.due_ms: float | None = None
        """When it is tried again."""
        self._claims = claims
        self._restarts = restarts
        self._clock = clock
        self._chance = chance
        self._again: Callable[[], None] = lambda: None
        self._give_up: Callable[[], None] = lambda: None
        self._looking: Callable[[BaseException | None], None] | None = None
        """Who waits for the last look of a job that is stopped."""
        self._is_given_up = False

    def conclude(self, verdict: Final, plan: Plan, done: Callable[[Final], None]) -> None:
        """No task runs any more: what is to be noted or looked at before the job ends; `done` hears how it does end."""

        def ended(result: BaseException | None) -> None:
            # What storage refused is no reason to fail; another driver is.
            done(Failed(str(result)) if isinstance(result, OwnershipError) else verdict)

        if isinstance(verdict, Finished):
            self.finish(plan, ended, drained=verdict.drained)
        elif isinstance(verdict, Stopped):
            self.look(ended)
        else:
            done(verdict)

    def finish(self, plan: Plan, done: Callable[[BaseException | None], None], *, drained: bool) -> None:
        """Note the end; `done` hears why that was not possible, if it was not."""
        self._again = lambda: self.finish(plan, done, drained=drained)
        self._claims.finish(plan, lambda result: self._tried(result, done), drained=drained)

    def look(self, done: Callable[[BaseException | None], None]) -> None:
        """Look once whether a job that is stopped is still this driver's; `done` hears when it is not."""
        self._looking = done
        if self._is_given_up:
            self._looked(None)
        else:
            self._claims.look(self._looked)

    def tick(self) -> None:
        if self.due_ms is not None and self._clock.now_ms() >= self.due_ms:
            self.due_ms = None
            self._again()

    def give_up(self) -> None:
        """Nobody wants to wait any longer."""
        self._is_given_up = True
        if self.due_ms is not None:
            self.due_ms = None
            self._give_up()
        self._looked(None)

    def _looked(self, result: BaseException | None) -> None:
        done, self._looking = self._looking, None
        if done is not None:
            done(result)

    def _tried(self, result: BaseException | None, done: Callable[[BaseException | None], None]) -> None:
        if isinstance(result, StorageUnavailable):
            failure = Failure(self._clock.now_ms(), str(result), StorageUnavailable.code, self._chance())
            decision = self._restarts.failed(failure)
            if isinstance(decision, RestartAfter) and self._restarts.outage is not None:
                self.due_ms = failure.now_ms + decision.delay_ms
                self._give_up = lambda: done(result)
                return
        done(result)
