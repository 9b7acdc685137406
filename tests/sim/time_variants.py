"""Engines that are broken in event time, each in one place. The simulation must catch them all."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

from tests.sim.patching import patched
from weir.operators.watermarks import AssigningWatermarks
from weir.operators.window_aggregate import WindowAggregateOperator
from weir.operators.window_panes import PaneGroup
from weir.snapshot.watermark_groups import WatermarkGroups
from weir.snapshot.watermarks import WatermarkMerge


def watermark_is_the_greatest() -> AbstractContextManager[None]:
    """The fastest channel decides how far event time has come."""

    def grown(self: WatermarkMerge) -> int | None:
        merged_us = max(channel.time_us for channel in self._channels)
        if merged_us <= self._merged_us:
            return None
        self._merged_us = merged_us
        return merged_us

    return patched(WatermarkMerge, "_grown", grown)


def splits_are_taken_as_one() -> AbstractContextManager[None]:
    """The fastest split of a source decides how far it has come."""

    def reading(self: AssigningWatermarks, split: str, still_open: Collection[str] | None) -> None:
        """Nobody cares."""

    return patched(AssigningWatermarks, "reading", reading)


def window_is_emitted_early() -> AbstractContextManager[None]:
    """A window is complete when the watermark comes near its end."""
    original = WindowAggregateOperator.watermark

    def watermark(self: WindowAggregateOperator, time_us: int, out: Any) -> int | None:
        original(self, min(time_us + 2, (1 << 63) - 1), out)
        return time_us

    return patched(WindowAggregateOperator, "watermark", watermark)


def changed_pane_counts_as_written() -> AbstractContextManager[None]:
    """A pane that was written for a checkpoint is not written again, whatever has come since."""
    original = PaneGroup.freeze

    def freeze(self: PaneGroup, name: str) -> Any:
        if not hasattr(self, "written"):
            self.written = original(self, name)  # type: ignore[attr-defined]
        return self.written  # type: ignore[attr-defined]

    return patched(PaneGroup, "freeze", freeze)


def panes_are_forgotten_on_restore() -> AbstractContextManager[None]:
    """Windows that were open begin anew after a restart."""
    return patched(WindowAggregateOperator, "_take_over", lambda self, table: None)


def ended_source_is_waited_for() -> AbstractContextManager[None]:
    """Sources that are aligned with one that has ended wait for ever."""
    original = WatermarkGroups.reached

    def reached(self: WatermarkGroups, member: Any, time_us: int | None) -> None:
        if time_us is not None:
            original(self, member, time_us)

    return patched(WatermarkGroups, "reached", reached)


TIME_VARIANTS = (
    watermark_is_the_greatest,
    splits_are_taken_as_one,
    window_is_emitted_early,
    changed_pane_counts_as_written,
    panes_are_forgotten_on_restore,
    ended_source_is_waited_for,
)
