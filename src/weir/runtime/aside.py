"""A thread for errands of the stream: what waits for a local disk, so that the stream does not.

Comes in: work of any number of operators of one task. Goes out: whether it is over. Never touches
what the work is about.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from weir.state.aside import Errand

CLOSE_TIMEOUT_S = 5.0


class ThreadAside:
    """One thread, begun with the first errand. How many wait is up to those who ask: each of them has a limit."""

    def __init__(self) -> None:
        self._errands: queue.SimpleQueue[_ThreadErrand | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Callable[[], None]) -> Errand:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="weir-aside", daemon=True)
            self._thread.start()
        errand = _ThreadErrand(work)
        self._errands.put(errand)
        return errand

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Drop what has not begun, and wait for what has, at most so long."""
        self._is_closed = True
        if self._thread is not None:
            self._errands.put(None)
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        while (errand := self._errands.get()) is not None:
            if not self._is_closed:
                errand.perform()
            del errand  # what it holds must not stay in memory until the next one comes


class _ThreadErrand:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    def perform(self) -> None:
        try:
            assert self._work is not None
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None
            self._done.set()

    def is_over(self, wait_s: float = 0.0) -> bool:
        is_over = self._done.wait(wait_s) if wait_s else self._done.is_set()
        if is_over and self._error is not None:
            raise self._error
        return is_over
