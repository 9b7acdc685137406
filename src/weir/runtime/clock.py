"""The real clock, the loop's mailbox, and threads for work behind the stream's back.

Comes in: callables from any thread. Goes out: the same callables, run one after
the other by the thread that drains the mailbox. Never touches sockets or files.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from weir.runtime.pace import Pace, stand_back

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0

CATCH_UP_PACE = 0.5
"""How fast processing time passes while it is ahead of the wall clock: it neither goes back nor stands still."""


class SystemClock:
    """Time that only grows, whatever happens to the date: the wall clock is looked at once, and what it shows later is
    what has passed since then."""

    def __init__(self, *, wall_s: Callable[[], float] = time.time, passed_s: Callable[[], float] | None = None) -> None:
        """`passed_s`: seconds since some moment that nobody sets, also those in which the machine slept."""
        self._passed_s = passed_s or _since_boot_s
        self._from_s = self._passed_s()
        self._wall_ms = wall_s() * 1_000
        self._known_ms = 0.0
        self._known_from_s = self._from_s

    def now_ms(self) -> float:
        return time.monotonic() * 1_000

    def wall_ms(self) -> int:
        passed_s = self._passed_s()
        by_wall_ms = self._wall_ms + (passed_s - self._from_s) * 1_000
        since_known_ms = self._known_ms + (passed_s - self._known_from_s) * 1_000 * CATCH_UP_PACE
        return int(max(by_wall_ms, since_known_ms))

    def not_before(self, wall_ms: float) -> None:
        self._known_ms, self._known_from_s = max(wall_ms, float(self.wall_ms())), self._passed_s()


def _since_boot_s() -> float:
    """Linux has a clock that goes on while the machine sleeps; elsewhere the usual one must do."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Mailbox:
    """Where other threads leave work for the loop's thread, and wake it."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def wake(self) -> None:
        """End the current wait, or the next one if there is none now. Cheap when nobody waits."""
        # The unlocked look is safe: whoever waits next clears the flag first, and looks at the world after that.
        if self._woken:
            return
        with self._changed:
            self._woken = True
            self._changed.notify()

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop's thread run this."""
        self._calls.append(call)
        self.wake()

    def wait(self, timeout_ms: float | None) -> bool:
        """Wait until woken, at most so long (None: without a limit). Says whether it was woken."""
        with self._changed:
            if not self._woken:
                self._changed.wait(None if timeout_ms is None else timeout_ms / 1_000)
            woken, self._woken = self._woken, False
            return woken

    def drain(self) -> int:
        """Run what has been posted until now, in order; how many that was. For the loop's thread, if it runs."""
        done = 0
        for _ in range(len(self._calls)):
            try:
                call = self._calls.popleft()
            except IndexError:  # the loop has ended, and another thread drains too
                break
            call()
            done += 1
        return done

    def drain_all(self) -> list[Exception]:
        """The same when the loop has ended, whatever becomes of each; what was raised."""
        raised: list[Exception] = []
        while self._calls:
            try:
                self.drain()
            except Exception as error:
                raised.append(error)
        return raised


class ThreadBackground:
    """Runs work in at most `threads` threads; its results are handed out by the mailbox's drain."""

    def __init__(self, threads: int, mailbox: Mailbox, *, share: float = 1.0, stands_back: bool = False) -> None:
        """`share`: most of a processor that each thread may use while the loop is busy, as far as its work breathes.
        `stands_back`: the loop goes first where processors are short."""
        self._threads_max = threads
        self._pace = Pace(share)
        self._stands_back = stands_back
        self._mailbox = mailbox
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._pending = 0
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread; later, `done` with its result or its exception in the loop's. After the close nothing
        begins any more."""
        with self._lock:
            if self._closed:
                return
            self._pending += 1
            if self._pending > len(self._threads) < self._threads_max:
                self._start_thread()
        self._work.put(lambda: self._perform(work, done))

    def breathe(self) -> None:
        """Wait, if the work of this thread has had its share."""
        self._pace.breathe(lambda: self._closed)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Drop what has not begun, wait for what has, at most so long. False when some still runs then."""
        with self._lock:
            self._closed = True
        deadline_s = time.monotonic() + timeout_s
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._loop, name=f"weir-background-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _loop(self) -> None:
        if self._stands_back:
            stand_back()
        while (step := self._work.get()) is not None:
            if not self._closed:
                step()
            del step  # what it holds must not stay in memory until the next one comes

    def _perform(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        result: T | BaseException
        self._pace.begin()
        try:
            result = work()
        except BaseException as error:
            result = error
        with self._lock:
            self._pending -= 1
        self._mailbox.post(lambda: done(result))
