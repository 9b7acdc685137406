"""Which of several channels have something to take.

Comes in: what channels tell when an element has come, perhaps in another thread. Goes out:
a bit for each channel that has something, and for each whose next element are rows. Looks
at a channel only when it was told to, so that the cost does not grow with their number;
takes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from weir.runtime.ports import InChannel


class Arrivals:
    """What has come, as far as it was heard of. All but the telling belongs to the loop's thread."""

    def __init__(self, channels: Sequence[InChannel]) -> None:
        self._channels = channels
        # What came before anybody listened was told to nobody, so all are looked at once.
        self._told = deque(range(len(channels)))
        self.filled = 0
        """The channels that have something."""
        self.rows = 0
        """Those of them whose next element is a batch."""
        for number, channel in enumerate(channels):
            channel.on_arrival(partial(self._told.append, number))

    def hear(self) -> None:
        """Look at those that were told of. No more than one word for each element waits here."""
        while self._told:
            number = self._told.popleft()
            bit = 1 << number
            if not self.filled & bit and (element := self._channels[number].peek()) is not None:
                self.filled |= bit
                if isinstance(element, pa.RecordBatch):
                    self.rows |= bit

    def taken(self, number: int) -> None:
        """Something was taken from a channel: what is next there is to be looked at."""
        bit = 1 << number
        self.filled &= ~bit
        self.rows &= ~bit
        self._told.append(number)
