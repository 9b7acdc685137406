"""Work behind the stream's back is held to its share while the stream is busy, and no longer than that."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weir.runtime.pace import BREATH_MAX_S, BUSY_LOOK_S, NICENESS, SPELL_SHARE, UNPACED_S, Pace, stand_back

SHARE = 0.1
PIECE_S = 0.002
WAKING_S = 0.0001
"""A sleep takes longer than it should."""


class World:
    """Threads that work in pieces beside a stream, by a clock of their own."""

    def __init__(self, *, stream: float, share: float = SHARE) -> None:
        self.stream = stream
        """How many processors the stream uses."""
        self.sleeps: list[float] = []
        self.now_s = 0.0
        self.pace = Pace(share, times_s=self._times_s, sleep=self._sleep)
        self._own_s: dict[int, float] = {}
        self._stream_s = 0.0
        self.pace.begin()

    def work(self, seconds: float) -> float:
        """So much processor time in small pieces; how long that takes."""
        began_s = self.now_s
        for _ in range(round(seconds / PIECE_S)):
            self.use(PIECE_S)
            self.pace.breathe()
        return self.now_s - began_s

    def use(self, seconds: float) -> None:
        self._own_s[threading.get_ident()] = self._times_s()[1] + seconds
        self._pass(seconds)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._pass(seconds + WAKING_S)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self._stream_s += seconds * self.stream

    def _times_s(self) -> tuple[float, float, float]:
        own_s = self._own_s.get(threading.get_ident(), 0.0)
        return self.now_s, own_s, self._stream_s + sum(self._own_s.values())


def test_large_work_is_held_to_its_share_while_others_are_busy() -> None:
    world = World(stream=1.0)
    assert world.work(1.0) == pytest.approx((1.0 - UNPACED_S) / SHARE, rel=0.02)
    assert max(world.sleeps) <= BREATH_MAX_S


def test_small_work_rests_for_as_long_as_it_works_and_does_not_wait_for_its_share() -> None:
    world = World(stream=1.0)
    assert world.work(UNPACED_S) == pytest.approx(UNPACED_S / SPELL_SHARE, rel=0.1)
    assert max(world.sleeps) <= PIECE_S / SPELL_SHARE


def test_a_share_above_that_of_spells_is_what_work_gets() -> None:
    world = World(stream=1.0, share=1.0)
    assert world.work(1.0) == pytest.approx(1.0)


def test_work_that_nobody_else_needs_the_processor_for_does_not_wait() -> None:
    world = World(stream=0.05)
    assert world.work(1.0) == pytest.approx(1.0)
    assert world.sleeps == []


def test_work_is_held_no_longer_when_the_stream_has_ended() -> None:
    world = World(stream=1.0)
    world.work(1.0)
    world.stream = 0.0
    assert world.work(5.0) < 5.0 + 2 * BUSY_LOOK_S + 2 * BREATH_MAX_S


def test_work_that_was_fast_while_nothing_came_owes_nothing_when_something_comes() -> None:
    world = World(stream=0.0)
    world.work(5.0)
    world.stream = 1.0
    assert world.work(0.5) < 0.5 / SHARE + 2 * BUSY_LOOK_S


def test_work_that_has_waited_is_not_let_run_for_longer_than_at_its_beginning() -> None:
    world = World(stream=1.0)
    world.work(1.0)
    world._sleep(60.0)  # for a store that answers late
    assert world.work(1.0) == pytest.approx((1.0 - UNPACED_S) / SHARE, rel=0.02)


def test_work_that_is_over_waits_for_nothing() -> None:
    world = World(stream=1.0)
    world.use(1.0)
    world.pace.breathe(lambda: len(world.sleeps) == 3)
    assert world.sleeps == [BREATH_MAX_S] * 3


def test_threads_that_keep_the_same_pace_do_not_hold_each_other() -> None:
    world = World(stream=0.0)
    with ThreadPoolExecutor(1) as other:
        other.submit(world.pace.begin).result()
        for _ in range(200):
            world.work(PIECE_S)
            other.submit(world.work, PIECE_S).result()
    assert world.sleeps == []


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux only")
def test_a_thread_that_stands_back_leaves_the_others_as_they_are() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def standing_back() -> tuple[int, int, int]:
        before = niceness()
        stand_back()
        once = niceness()
        stand_back()
        return before, once, niceness()

    own = niceness()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(standing_back).result() == (own, min(own + NICENESS, 19), 19)
    assert niceness() == own
