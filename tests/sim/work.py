"""What the processes of a simulated world do, stopped at every storage call: the world picks who goes on next.

Production code is synchronous. Here each thread of a process is a coroutine (a greenlet) that hands over whenever it
calls storage, so that others act before the call takes effect. A process that dies dies there; its call may still
take effect, later. Nothing here depends on real threads or time: the same choices give the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from greenlet import getcurrent, greenlet


class CallerCrashed(BaseException):
    """The process that made the call died in the middle of it."""


class Call:
    """One storage call on its way. It takes effect once, perhaps while its caller is frozen, or dead."""

    def __init__(
        self, name: str, act: Callable[[], Any], half: Callable[[], None] | None = None, *, path: str = ""
    ) -> None:
        self.name = name
        self.path = path
        """What it writes, where that is known."""
        self.half = half
        """What is left of it when it is cut off; None where nothing is changed."""
        self.not_before_ms = 0.0
        """Until then it hangs."""
        self._act = act
        self._outcome: tuple[bool, Any] | None = None

    @property
    def is_done(self) -> bool:
        return self._outcome is not None

    def perform(self) -> None:
        """Let it take effect, if it has not yet."""
        if self._outcome is None:
            try:
                self._outcome = True, self._act()
            except Exception as error:
                self._outcome = False, error

    def reply(self) -> Any:
        self.perform()
        is_good, value = self._outcome or (False, None)
        if is_good:
            return value
        raise cast(Exception, value)


class Work(greenlet):  # type: ignore[misc]
    """One thread of a process, from storage call to storage call."""

    def __init__(
        self, act: Callable[[], Any], done: Callable[[Any], None] | None = None, *, owner: Process | None = None
    ) -> None:
        super().__init__()
        self.done = done
        self.owner = owner
        self.call: Call | None = None
        """What it waits for."""
        self.result: Any = None
        """What it returned, or its exception, as a thread pool would hand it back."""
        self.is_over = False
        self.is_killed = False
        self.has_crashed = False
        self._act = act

    def run(self) -> None:
        try:
            self.result = self._act()
        except Exception as error:
            self.result = error
        except CallerCrashed:
            self.has_crashed = True
        finally:
            self.is_over = True

    def go_on(self) -> None:
        """Until the next call, or to the end."""
        self.parent = getcurrent()
        self.switch()

    def go_to_the_end(self) -> None:
        """Nobody else acts meanwhile."""
        while not self.is_over:
            self.go_on()

    def stop_at(self, call: Call) -> None:
        """Hand over. Called by the work itself, which goes on from here."""
        if self.is_killed:
            raise CallerCrashed
        self.call = call
        self.parent.switch()
        self.call = None

    def kill(self) -> Call | None:
        """It ends where it stands. What comes back is the call that it waited for."""
        call, self.is_killed = self.call, True
        if self:
            self.parent = getcurrent()
            self.throw(CallerCrashed)
        self.is_over = True
        return None if call is None or call.is_done else call

    def is_ready(self, now_ms: float) -> bool:
        return self.call is None or self.call.is_done or now_ms >= self.call.not_before_ms

    @property
    def has_hung(self) -> bool:
        """Whether it waits for a call that hangs, or has hung."""
        return self.call is not None and self.call.not_before_ms > 0


class SimBackground:
    """The background threads of a process: work begins in order, as soon as a thread is free, and ends in any order."""

    def __init__(self, threads: int, owner: Process) -> None:
        self._threads = threads
        self._owner = owner
        self.waiting: deque[Work] = deque()
        self.begun: list[Work] = []
        self.results: deque[Work] = deque()
        """Over; the process's main thread has not been told yet."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append(Work(work, done, owner=self._owner))

    def breathe(self) -> None:
        """Time does not pass while work is done."""

    def ready(self, now_ms: float) -> list[Work]:
        """What can go on, or begin."""
        ready = [work for work in self.begun if work.is_ready(now_ms)]
        if self.waiting and len(self.begun) < self._threads:
            ready.append(self.waiting[0])
        return ready

    def go_on(self, work: Work) -> None:
        if self.waiting and work is self.waiting[0]:
            self.begun.append(self.waiting.popleft())
        work.go_on()
        if work.is_over:
            self.begun.remove(work)
            if not work.has_crashed:
                self.results.append(work)

    @property
    def is_idle(self) -> bool:
        return not self.begun and not self.waiting and not self.results


class Process:
    """A process: a main thread, which may be in the middle of a storage call, and background threads."""

    def __init__(self, threads: int) -> None:
        self.background = SimBackground(threads, self)
        self.main: Work | None = None
        self.alive = True
        self.is_lucky = False
        """Whether its storage calls never go wrong, nor hang."""
        self.frozen_until_ms = 0.0

    def ready(self, now_ms: float) -> list[Work]:
        """What the world may let go on: work, or the news of its end."""
        if not self.alive or now_ms < self.frozen_until_ms:
            return []
        ready = self.background.ready(now_ms)
        if self.main is not None and self.main.is_ready(now_ms):
            ready.append(self.main)
        if self.background.results and self.main is None:
            ready.append(self.background.results[0])
        return ready

    def go_on(self, work: Work) -> None:
        if work is self.main:
            work.go_on()
            if work.is_over:
                self.main = None
                self.main_ended(work)
        elif work.is_over:
            self.background.results.remove(work)
            self.told(work)
        else:
            self.background.go_on(work)
        if work.has_crashed:
            self.crashed()

    def main_ended(self, work: Work) -> None:
        """The main thread has done what it was about."""

    def told(self, work: Work) -> None:
        """The main thread is told what became of background work."""
        if work.done is not None:
            work.done(work.result)

    def crashed(self) -> None:
        """The process has died in the middle of a call."""

    def kill_works(self) -> list[Call]:
        """All its threads end where they stand; the calls that were on their way come back."""
        works = [*self.background.begun, *([] if self.main is None else [self.main])]
        self.background.begun, self.main = [], None
        self.background.waiting.clear()
        self.background.results.clear()
        return [call for work in works if (call := work.kill()) is not None]

    @property
    def calls(self) -> list[Call]:
        """Those that are on their way."""
        works = [*self.background.begun, *([] if self.main is None else [self.main])]
        return [work.call for work in works if work.call is not None and not work.call.is_done]


def run_quietly(act: Callable[[], Any]) -> None:
    """Something of a process that is gone: whatever comes of it, nobody hears."""
    try:
        act()
    except (Exception, CallerCrashed):
        return
