"""Waiting for a job while showing how it goes.

Comes in: a handle. Goes out: the job's end, and now and then one line about it.
The waiting itself is the handle's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from typing import TextIO

from weir.api.job import ENDED, JobHandle
from weir.api.overrides import Progress

INTERVAL_S = 0.5


def wait_with_progress(handle: JobHandle, progress: Progress, *, sources: Collection[str] = ()) -> None:
    """Wait until the job has ended. An interrupt cancels the job before it goes on."""
    show = reporter(progress, sources)
    try:
        while show is not None and handle.status not in ENDED:
            show(handle)
            handle.wait(INTERVAL_S)
        handle.wait()
    except KeyboardInterrupt:
        handle.cancel()
        raise
    finally:
        if show is not None:
            show(handle)


def reporter(progress: Progress, sources: Collection[str]) -> Callable[[JobHandle], None] | None:
    """What to call with the handle now and then, if anything."""
    if progress is None:
        progress = sys.stderr.isatty()
    if callable(progress):
        return progress
    return Line(sys.stderr, sources) if progress else None


class Line:
    """One line on a terminal, written over and over."""

    def __init__(self, out: TextIO, sources: Collection[str], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._sources = frozenset(sources)
        self._now_s = now_s
        self._width = 0
        self._before = (now_s(), 0)

    def __call__(self, handle: JobHandle) -> None:
        text = self.describe(handle)
        self._out.write("\r" + text.ljust(self._width) + ("\n" if handle.status in ENDED else ""))
        self._out.flush()
        self._width = len(text)

    def describe(self, handle: JobHandle) -> str:
        """The job in one line: rows that its sources have read, how fast, and the newest checkpoint."""
        metrics = handle.metrics()
        operators = metrics.get("operators", ())
        rows = sum(operator["rows_out"] for operator in operators if operator["uid"] in self._sources)
        now_s = self._now_s()
        seconds, more = now_s - self._before[0], rows - self._before[1]
        self._before = (now_s, rows)
        parts = [f"{handle.name}: {handle.status}", f"{rows:,} rows read"]
        if (wait := metrics.get("waits_for")) is not None:
            parts.append(f"waits for storage, away for {max(0.0, time.time() - wait['since_ms'] / 1e3):.0f} s")
        if (found := metrics.get("restoring")) is not None:
            parts.append(f"restored {found['read_bytes'] / 1e6:,.0f} of {found['of_bytes'] / 1e6:,.0f} MB")
        if seconds > 0 and more > 0:
            parts.append(f"{more / seconds:,.0f} rows/s")
        if checkpoints := handle.checkpoints():
            parts.append(f"checkpoint {checkpoints[-1].id}")
        return ", ".join(parts)
