"""How work behind the stream's back leaves the processor to the stream.

Comes in: the work's pauses for breath. Goes out: sleeps, for as long as its thread has had more than its share
and other threads of the process are busy. Never touches what the work is about.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

BUSY_SHARE_MIN = 0.1
"""A process whose other threads use less of a processor than this has no need of anybody's restraint. Low, since a
stream that other processes leave little of the processor is short of it, and not idle."""

BUSY_LOOK_S = 0.1
"""How busy the others are is judged by the last one to two times as long: not by what they did before, since a stream
that has ended needs nobody's restraint, and not by less, since work that holds the interpreter lets nobody be busy."""

UNPACED_S = 0.05
"""Processor time that each piece of work may take before it is held to its share: small snapshots should not wait."""

SPELL_S = 0.001
SPELL_SHARE = 0.5
"""Also small work rests for as long as it has worked, after each spell of about so long. A stream takes the interpreter
anew behind each call into Arrow, and beside a thread that never rests it waits for it each time, dozens of times for
one batch; beside one that rests it waits once."""

BREATH_MAX_S = 0.05
"""Longest sleep of background work before it looks again whether anybody else is busy."""

NICENESS = 10
"""By which threads behind the stream's back stand back: where processors are short, it gets ten times as much."""

NICENESS_MAX = 19
"""The system knows no more."""

Times: TypeAlias = "tuple[float, float, float]"
"""The time, the processor time of a thread, and that of others."""


class Pace:
    """Holds the work of each of some threads to a share of a processor while the process is busy with other things."""

    def __init__(
        self,
        share: float,
        *,
        times_s: Callable[[], Times] = lambda: (time.monotonic(), time.thread_time(), time.process_time()),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`times_s`: the time, and the processor time of this thread and of the whole process."""
        self._share = share
        self._times_s = times_s
        self._sleep = sleep
        self._turns = threading.local()
        self._lock = threading.Lock()
        self._paced_s = 0.0
        """Processor time of all work that keeps this pace, as far as it has breathed."""

    def begin(self) -> None:
        """A piece of work begins in this thread."""
        _, self._turns.own_s, _ = self._times_s()
        self._turns.turn = Turn(self._share, self._look())

    def breathe(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until the thread has not had more than its share, unless nobody else needs it, or all `is_over`."""
        while not is_over():
            too_early_s = self._turns.turn.too_early_s(self._look())
            if too_early_s <= 0:
                return
            self._sleep(min(too_early_s, BREATH_MAX_S))

    def _look(self) -> Times:
        """The time, the processor time of this thread, and that of all threads that do not keep this pace."""
        now_s, own_s, all_s = self._times_s()
        with self._lock:
            self._paced_s += own_s - self._turns.own_s
            paced_s = self._paced_s
        self._turns.own_s = own_s
        return now_s, own_s, all_s - paced_s


def stand_back() -> None:
    """From now on this thread has a processor when the others of this machine leave one, and so have threads that are
    begun by it. Where threads have no priority of their own, nothing happens."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(own + NICENESS, NICENESS_MAX))


class Turn:
    """What one piece of work has had of the processor, and what it may have. Pure: it is told the times."""

    def __init__(self, share: float, now: Times) -> None:
        self._allowances = [_Allowance(share, UNPACED_S), _Allowance(max(share, SPELL_SHARE), SPELL_S)]
        self._looked = now
        self._older = self._newer = now

    def too_early_s(self, now: Times) -> float:
        """How long the work should wait; not at all when that is zero or less."""
        wall_s, own_s, _ = _since(self._looked, now)
        self._looked = now
        if now[0] - self._newer[0] >= BUSY_LOOK_S:
            self._older, self._newer = self._newer, now
        lately_s, _, others_s = _since(self._older, now)
        is_needed = others_s > BUSY_SHARE_MIN * lately_s
        return max(each.too_early_s(wall_s, own_s, is_needed=is_needed) for each in self._allowances)


class _Allowance:
    """A share of a processor, and what may be taken at once."""

    def __init__(self, share: float, at_once_s: float) -> None:
        self._share = share
        self._at_once_s = at_once_s
        self._ahead_s = -at_once_s
        """How much more than its share the work has had while others were busy."""

    def too_early_s(self, wall_s: float, own_s: float, *, is_needed: bool) -> float:
        """`wall_s`, `own_s`: what has passed since the last look, and what the work has had of it."""
        self._ahead_s = max(self._ahead_s + own_s - self._share * wall_s, -self._at_once_s)
        if not is_needed:
            # What nobody else needed is owed to nobody: work that was fast while the stream had nothing to do goes on
            # at its share, and not behind a debt, when there is more.
            self._ahead_s = min(self._ahead_s, 0.0)
        return self._ahead_s / self._share


def _since(then: Times, now: Times) -> Times:
    return now[0] - then[0], now[1] - then[1], now[2] - then[2]
