"""The driver's part in keeping sources close to each other in event time.

Comes in: how far the sources of each task are. Goes out: word to all tasks of how far the
slowest of each group is, once in an interval at most. What that is decides
snapshot/watermark_groups.py; who waits for it, the source's subtask.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.graph.plan import Plan
from weir.ids import AttemptId, SubtaskId
from weir.operators.time.watermarks import aligned_strategy
from weir.runtime.ports import Clock
from weir.snapshot.messages import AlignSources, SourcesReached, ToTask
from weir.snapshot.watermark_groups import WatermarkGroups


class SourceAlignment:
    """The groups of one plan. `tell`: sends a message to every task that runs."""

    def __init__(
        self, plan: Plan, *, clock: Clock, interval_ms: float, tell: Callable[[Callable[[AttemptId], ToTask]], None]
    ) -> None:
        members = {
            SubtaskId(vertex.id, index): strategy.group
            for vertex in plan.vertices
            if (strategy := aligned_strategy(operator.spec for operator in vertex.operators)) is not None
            for index in range(vertex.parallelism)
            if strategy.group is not None
        }
        self._groups = WatermarkGroups(members)
        self._clock = clock
        self._interval_ms = interval_ms
        self._tell = tell
        self._told: dict[str, int] = {}
        self._next_ms = 0.0
        self._is_due = False

    @property
    def due_ms(self) -> float | None:
        """When `tick` has something to tell."""
        return self._next_ms if self._is_due else None

    def heard(self, message: SourcesReached) -> None:
        """How far the sources of a task are."""
        for source in message.sources:
            self._groups.reached(source.subtask, source.time_us)
        self._is_due = self._groups.slowest_us != self._told
        self.tick()

    def launched(self, region: Plan) -> None:
        """The sources of a region begin again. The others keep to what they know until it has said where."""
        self._groups.forget(region.subtasks)

    def runs(self) -> None:
        """There are tasks that have been told nothing yet."""
        self._is_due, self._next_ms = bool(self._groups.slowest_us), 0.0
        self.tick()

    def tick(self) -> None:
        now_ms = self._clock.now_ms()
        if self._is_due and now_ms >= self._next_ms:
            slowest_us = self._groups.slowest_us
            self._told, self._is_due, self._next_ms = slowest_us, False, now_ms + self._interval_ms
            self._tell(lambda attempt: AlignSources(attempt, slowest_us))
