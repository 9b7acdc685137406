"""Simulated ports: a clock that the world moves, channels and control lines that deliver when the world says so.
Background work is in work.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from weir.ids import ChannelId
from weir.operators.calls import AsyncFunction
from weir.runtime.ports import Element
from weir.snapshot.messages import FromTask


class SimClock:
    def __init__(self) -> None:
        self.time_ms = 0.0

    def now_ms(self) -> float:
        return self.time_ms

    def wall_ms(self) -> int:
        return round(self.time_ms)

    def not_before(self, wall_ms: float) -> None:
        """Nobody sets this clock."""


class SimChannel:
    """One FIFO. What is on the wire is not yet there for the receiver; both count against the capacity."""

    def __init__(self, capacity: int, local: bool) -> None:
        self._capacity = capacity
        self._local = local
        self.wire: deque[Element] = deque()
        self.inbox: deque[Element] = deque()
        self._tell: Callable[[], None] = lambda: None

    def offer(self, element: Element) -> bool:
        if len(self.wire) + len(self.inbox) >= self._capacity:
            return False
        self.wire.append(element)
        if self._local:
            self.deliver()
        return True

    def deliver(self) -> None:
        self.inbox.append(self.wire.popleft())
        self._tell()

    def on_arrival(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def peek(self) -> Element | None:
        return self.inbox[0] if self.inbox else None

    def pop(self) -> Element:
        return self.inbox.popleft()


class SimCalls:
    """Calls of a user's async function, each of which returns after a time of its own."""

    def __init__(self, function: AsyncFunction, clock: SimClock, rng: random.Random) -> None:
        self._function = function
        self._clock = clock
        self._rng = rng
        self._under_way: list[tuple[float, int, Any]] = []

    def start(self, rows: Sequence[tuple[int, Any]]) -> None:
        for number, row in rows:
            back_ms = self._clock.time_ms + self._rng.choice([0, 0.5, 2, 8])
            self._under_way.append((back_ms, number, row))

    def finished(self) -> list[tuple[int, bool, Any]]:
        back = sorted(call[:2] for call in self._under_way if call[0] <= self._clock.time_ms)
        rows = {number: row for _, number, row in self._under_way}
        self._under_way = [call for call in self._under_way if call[0] > self._clock.time_ms]
        return [(number, True, _result(self._function(rows[number]))) for _, number in back]

    @property
    def has_finished(self) -> bool:
        return any(back_ms <= self._clock.time_ms for back_ms, _, _ in self._under_way)

    def close(self) -> None:
        self._under_way = []


def _result(call: Any) -> Any:
    """Of a coroutine that never has to wait."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a simulated call waits for something")


class SimTransport:
    """The channels of one attempt, shared by its tasks."""

    def __init__(self, channels: dict[ChannelId, SimChannel]) -> None:
        self._channels = channels

    def out(self, channel: ChannelId) -> SimChannel:
        return self._channels[channel]

    def into(self, channel: ChannelId) -> SimChannel:
        return self._channels[channel]


class SimControl:
    """A task's line to the driver: first in, first out, delivered by the world."""

    def __init__(self) -> None:
        self.to_driver: deque[FromTask] = deque()

    def send(self, message: FromTask) -> None:
        self.to_driver.append(message)
