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

What a watermark costs does not grow with the number of channels: those that may decide
next stand in a heap. Only when none of them counts any more are all looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from weir.errors import ProtocolViolation

NEVER_US = -(1 << 63)
"""Before the first watermark."""

END_US = (1 << 63) - 1
"""The watermark behind the last row."""


OUTDATED_PER_CHANNEL_MAX = 4
"""How many times that no longer hold a heap keeps, on average, before it is made anew."""


@dataclass
class _Channel:
    time_us: int = NEVER_US
    is_idle: bool = False
    counts: bool = True
    is_timeless: bool = False


class _Earliest:
    """Times of channels, the least first. One that no longer holds is passed over when it comes up."""

    def __init__(self, channels: Iterable[int]) -> None:
        self._times_us = dict.fromkeys(channels, NEVER_US)
        self._heap = [(time_us, channel) for channel, time_us in self._times_us.items()]

    @property
    def first(self) -> tuple[int, int] | None:
        """The least time, and a channel that has it."""
        while self._heap and self._times_us.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def put(self, channel: int, time_us: int) -> None:
        """The time of a channel, in place of the one before."""
        self._times_us[channel] = time_us
        heappush(self._heap, (time_us, channel))
        if len(self._heap) > OUTDATED_PER_CHANNEL_MAX * (len(self._times_us) + 1):
            self._heap = [(time_us, channel) for channel, time_us in self._times_us.items()]
            heapify(self._heap)

    def drop(self, channel: int) -> None:
        self._times_us.pop(channel, None)


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
        self._idle_count = len(timeless)
        self._deciding = _Earliest(channel for channel, found in enumerate(self._channels) if found.counts)
        """Those that count and have not ended."""
        self._leading = _Earliest(())
        self.ahead = 0
        """A bit for each channel that does not hold event time back while others do."""

    @property
    def time_us(self) -> int:
        """The merged watermark."""
        return self._merged_us

    @property
    def is_idle(self) -> bool:
        """Nothing is to be expected from any channel for now."""
        return self._idle_count == len(self._channels)

    def advanced(self, channel: int, time_us: int) -> int | None:
        """A channel's watermark. The merged one, if it has grown."""
        found = self._channels[channel]
        if time_us < found.time_us:
            raise ProtocolViolation(f"watermarks: channel {channel} went back from {found.time_us} to {time_us}")
        found.time_us = time_us
        self._set_idle(found, False)
        if not found.counts and time_us < self._merged_us:
            return None
        found.counts = True
        if time_us == END_US:
            self._deciding.drop(channel)
        else:
            self._deciding.put(channel, time_us)
        if time_us > self._merged_us:
            self._leading.put(channel, time_us)
            self.ahead |= 1 << channel
        return self._grown()

    def idle(self, channel: int) -> int | None:
        """No rows come on a channel for now. The merged watermark, if it has grown."""
        found = self._channels[channel]
        if found.time_us == END_US or found.is_idle:
            return None
        self._set_idle(found, True)
        found.counts = False
        self._deciding.drop(channel)
        return self._grown()

    def resumed(self, channel: int) -> None:
        """Rows come again on a channel that was idle."""
        found = self._channels[channel]
        if found.is_idle and not found.is_timeless:
            self._set_idle(found, False)
            found.counts = found.time_us >= self._merged_us
            if found.counts:
                self._deciding.put(channel, found.time_us)

    def ended(self, channel: int) -> int | None:
        """No more rows come on a channel. The merged watermark, if it has grown."""
        return self.advanced(channel, END_US)

    def _set_idle(self, found: _Channel, is_idle: bool) -> None:
        self._idle_count += is_idle - found.is_idle
        found.is_idle = is_idle

    def _grown(self) -> int | None:
        merged_us = self._decided_us()
        if merged_us <= self._merged_us:
            return None
        self._merged_us = merged_us
        while (first := self._leading.first) is not None and first[0] <= merged_us:
            self._leading.drop(first[1])
            self.ahead &= ~(1 << first[1])
        return merged_us

    def _decided_us(self) -> int:
        """Where event time would be if it could go back."""
        if (first := self._deciding.first) is not None:
            return first[0]
        # Ended channels say nothing of the others: event time has ended when all have.
        return max((found.time_us for found in self._channels if found.time_us != END_US), default=END_US)
