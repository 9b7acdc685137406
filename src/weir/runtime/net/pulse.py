"""One thread that calls back at steady intervals, for everything in this process that must not fall asleep.

Comes in: who wants to be called, and how often. Goes out: the calls, which must not wait
for anything. The thread lives only while there is somebody to call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Beat = Callable[[], None]


class Pulse:
    """`join` and `leave` may be called from any thread, from a beat, too."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._due_s: dict[Beat, float] = {}
        self._interval_s: dict[Beat, float] = {}
        self._running = False

    def join(self, beat: Beat, interval_s: float) -> None:
        """Call `beat` from now on, the first time after one interval."""
        with self._changed:
            self._interval_s[beat] = interval_s
            self._due_s[beat] = time.monotonic() + interval_s
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="weir-pulse", daemon=True).start()
            self._changed.notify_all()

    def leave(self, beat: Beat) -> None:
        with self._changed:
            self._due_s.pop(beat, None)
            self._interval_s.pop(beat, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due_s:
                    self._running = False
                    return
                now_s = time.monotonic()
                due = [beat for beat, due_s in self._due_s.items() if due_s <= now_s]
                if not due:
                    self._changed.wait(min(self._due_s.values()) - now_s)
                    continue
                for beat in due:
                    self._due_s[beat] = now_s + self._interval_s[beat]
            for beat in due:
                beat()


PULSE = Pulse()
"""The process's own."""
