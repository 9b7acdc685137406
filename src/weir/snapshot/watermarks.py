"""How far event time has come, over several channels.

Comes in: the watermarks of each channel, that a channel is idle, or that it has ended.
Goes out: the watermark of all of them. Never touches rows or clocks.

Laws:
  1. The merged watermark never goes back.
  2. It is the least of the channels that count: those that are neither idle, nor behind
     it since they were. A channel that was idle and resumes behind the merged watermark
     counts again when it has caught up; its rows are late until then.
  3. When the last channel falls idle, what is known of any of them holds: the greatest.
  4. A channel without watermarks holds nothing back, as long as others have some.
  5. An ended channel holds nothing back; when all have ended, so has event time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weir.errors import ProtocolViolation

NEVER_US = -(1 << 63)
"""Before the first watermark."""

END_US = (1 << 63) - 1
"""The watermark behind the last row."""


@dataclass
class _Channel:
    time_us: int = NEVER_US
    is_idle: bool = False
    counts: bool = True
    is_timeless: bool = False


class WatermarkMerge:
    """The watermark of a subtask's inputs."""

    def __init__(self, channel_count: int, timeless: Collection[int] = ()) -> None:
        """`timeless`: channels on which no watermarks come, such as those of rules that are broadcast."""
        if channel_count < 1:
            raise ProtocolViolation(f"watermarks: {channel_count} channels have no watermark")
        if len(timeless) == channel_count:
            timeless = ()
        self._channels = [
            _Channel(is_idle=channel in timeless, counts=channel not in timeless, is_timeless=channel in timeless)
            for channel in range(channel_count)
        ]
        self._merged_us = NEVER_US

    @property
    def time_us(self) -> int:
        """The merged watermark."""
        return self._merged_us

    @property
    def is_idle(self) -> bool:
        """Nothing is to be expected from any channel for now."""
        return all(channel.is_idle for channel in self._channels)

    def is_ahead(self, channel: int) -> bool:
        """Whether others hold event time back, and not this channel."""
        return self._channels[channel].time_us > self._merged_us

    def advanced(self, channel: int, time_us: int) -> int | None:
        """A channel's watermark. The merged one, if it has grown."""
        found = self._channels[channel]
        if time_us < found.time_us:
            raise ProtocolViolation(f"watermarks: channel {channel} went back from {found.time_us} to {time_us}")
        found.time_us = time_us
        found.is_idle = False
        found.counts = found.counts or time_us >= self._merged_us
        return self._grown()

    def idle(self, channel: int) -> int | None:
        """No rows come on a channel for now. The merged watermark, if it has grown."""
        found = self._channels[channel]
        if found.time_us == END_US:
            return None
        found.is_idle, found.counts = True, False
        return self._grown()

    def resumed(self, channel: int) -> None:
        """Rows come again on a channel that was idle."""
        found = self._channels[channel]
        if found.is_idle and not found.is_timeless:
            found.is_idle = False
            found.counts = found.time_us >= self._merged_us

    def ended(self, channel: int) -> int | None:
        """No more rows come on a channel. The merged watermark, if it has grown."""
        return self.advanced(channel, END_US)

    def restored(self, time_us: int) -> None:
        """The merged watermark was there before the restart."""
        self._merged_us = max(self._merged_us, time_us)

    def _grown(self) -> int | None:
        # Ended channels say nothing of the others: event time has ended when all have.
        still_open = [channel for channel in self._channels if channel.time_us != END_US]
        counting = [channel.time_us for channel in still_open if channel.counts]
        merged_us = min(counting) if counting else max((channel.time_us for channel in still_open), default=END_US)
        if merged_us <= self._merged_us:
            return None
        self._merged_us = merged_us
        return merged_us
