"""Regions that fail alone, broken on purpose: what was lost with one counts, or is claimed too early."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.sim.patching import patched
from weir.snapshot.coordinator.machine import Coordinator


def region_claims_while_a_manifest_is_written() -> AbstractContextManager[None]:
    """A region that was lost takes its next attempt before it is known what became of a checkpoint."""
    return patched(Coordinator, "is_publishing", property(lambda self: False))


def lost_region_keeps_its_snapshots() -> AbstractContextManager[None]:
    """What a region acknowledged before it was lost still counts, although it begins again from before that."""

    def region_lost(self: Coordinator, run: Any, subtasks: list[Any], now_ms: float) -> Any:
        for subtask in subtasks:
            del run.attempts[subtask]
            run.finished.discard(subtask)
            run.committed.pop(subtask, None)
        return self._requests.attempt_ended("lost")

    return patched(Coordinator, "_region_lost", region_lost)


def lost_region_counts_as_finished() -> AbstractContextManager[None]:
    """That a region had finished before it was lost is not forgotten, and so the job ends without it."""
    original = Coordinator._region_lost

    def region_lost(self: Coordinator, run: Any, subtasks: list[Any], now_ms: float) -> Any:
        kept = run.finished & set(subtasks), {s: run.committed[s] for s in subtasks if s in run.committed}
        final, published = run.final, run.final_published
        effects = original(self, run, subtasks, now_ms)
        run.finished |= kept[0]
        run.committed.update(kept[1])
        run.final, run.final_published = final, published
        return effects

    return patched(Coordinator, "_region_lost", region_lost)


REGION_VARIANTS = (
    region_claims_while_a_manifest_is_written,
    lost_region_keeps_its_snapshots,
    lost_region_counts_as_finished,
)
