"""Which channels have something, and how rarely one has to look."""

from __future__ import annotations

from tests.sim.ports import SimChannel
from tests.unit.runtime.fakes import rows
from weir.runtime.ports import Element
from weir.runtime.task.arrivals import Arrivals
from weir.snapshot.elements import EndOfInput


class Watched(SimChannel):
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        super().__init__(100, local=True)
        self.looks = 0

    def peek(self) -> Element | None:
        self.looks += 1
        return super().peek()


def test_what_came_before_anybody_listened_is_found() -> None:
    channels = [Watched(), Watched()]
    channels[1].offer(rows(1))
    arrivals = Arrivals(channels)
    arrivals.hear()
    assert (arrivals.filled, arrivals.rows) == (0b10, 0b10)


def test_what_is_next_is_known_after_each_that_was_taken() -> None:
    channel = Watched()
    arrivals = Arrivals([channel])
    for element in (rows(1), EndOfInput()):
        channel.offer(element)
    found = []
    for _ in range(3):
        arrivals.hear()
        found.append((arrivals.filled, arrivals.rows))
        if arrivals.filled:
            channel.pop()
            arrivals.taken(0)
    assert found == [(1, 1), (1, 0), (0, 0)]


def test_channels_on_which_nothing_comes_are_looked_at_once() -> None:
    channels = [Watched() for _ in range(100)]
    arrivals = Arrivals(channels)
    for _ in range(50):
        channels[7].offer(rows(1))
        arrivals.hear()
        assert arrivals.filled == 1 << 7
        channels[7].pop()
        arrivals.taken(7)
    assert [channel.looks for number, channel in enumerate(channels) if number != 7] == [1] * 99
    assert channels[7].looks <= 101
