"""Calls of users' async functions, on an event loop in a thread of its own.

Comes in: rows, from the task's thread. Goes out: results or exceptions, which that thread
fetches; it is woken when there are some. A call that takes too long is cancelled, and
one that has failed is tried again, as its policy says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from weir.operators.calls import AsyncFunction, CallPolicy, CallTimedOut

BLOCKED_GRACE_S = 5.0
"""How much longer than its policy allows a call may take before the event loop counts as blocked."""

JOIN_S = 1.0
"""How long to wait for the thread when closing; it ends with the process at the latest."""


class ThreadedCalls:
    """The calls of one operator in one subtask."""

    def __init__(self, function: AsyncFunction, policy: CallPolicy, *, wake: Callable[[], None] = lambda: None) -> None:
        self._function = function
        self._policy = policy
        self._wake = wake
        self._finished: deque[tuple[int, bool, Any]] = deque()
        self._deadlines_s: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="weir-calls", daemon=True)
        self._thread.start()

    # --- On the task's thread ---

    def start(self, rows: Sequence[tuple[int, Any]]) -> None:
        deadline_s = time.monotonic() + self._policy.longest_ms / 1_000 + BLOCKED_GRACE_S
        self._deadlines_s.update((number, deadline_s) for number, _ in rows)
        self._loop.call_soon_threadsafe(self._begin, list(rows))

    def finished(self) -> list[tuple[int, bool, Any]]:
        found = []
        while self._finished:
            call = self._finished.popleft()
            if self._deadlines_s.pop(call[0], None) is not None:
                found.append(call)
        if self._is_blocked:
            number = next(iter(self._deadlines_s))
            del self._deadlines_s[number]
            found.append((number, False, CallTimedOut(self._blocked())))
        return found

    @property
    def has_finished(self) -> bool:
        return bool(self._finished) or self._is_blocked

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._cancel()))
        self._thread.join(JOIN_S)

    @property
    def _is_blocked(self) -> bool:
        # The first that was started and is not through has the earliest deadline.
        return bool(self._deadlines_s) and time.monotonic() > next(iter(self._deadlines_s.values()))

    def _blocked(self) -> str:
        return (
            f"the function has not returned within {self._policy.longest_ms / 1_000:g} s, and could not be cancelled: "
            "it blocks the event loop, or ignores the cancellation. Await what takes long (asyncio.to_thread for what "
            "cannot be awaited)"
        )

    # --- On the event loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _begin(self, rows: list[tuple[int, Any]]) -> None:
        for number, row in rows:
            task = self._loop.create_task(self._call(number, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, number: int, row: Any) -> None:
        retry = self._policy.retry
        for delay_ms in [*retry.delays_ms, None]:
            try:
                result = await asyncio.wait_for(self._function(row), self._policy.timeout_ms / 1_000)
            except asyncio.TimeoutError:
                seconds = self._policy.timeout_ms / 1_000
                failure: Exception = CallTimedOut(f"the function has not returned within {seconds:g} s")
            except Exception as error:
                failure = error
                if not isinstance(error, retry.on):
                    break
            else:
                self._done(number, True, result)
                return
            if delay_ms is not None:
                await asyncio.sleep(delay_ms / 1_000)
        self._done(number, False, failure)

    def _done(self, number: int, succeeded: bool, result: Any) -> None:
        is_first = not self._finished
        self._finished.append((number, succeeded, result))
        if is_first:
            self._wake()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:  # they may close what they have open
            await asyncio.wait(tasks, timeout=JOIN_S / 2)
        self._loop.stop()
