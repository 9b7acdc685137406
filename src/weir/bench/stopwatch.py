"""A source that notes when it was first polled; otherwise the source that it wraps.

Comes in: any source. Goes out: the same rows and positions, one small file per subtask
with the time of its first poll, and on request a profile of the task's own thread.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from weir.bench.wrapped import WrappedReader, WrappedSource
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader

PROFILE_VARIABLE = "WEIR_BENCH_PROFILE"
"""Environment variable of the command: a directory for one cProfile file per task."""


class Stopwatch(WrappedSource):
    """`source`, with the time of its first poll written below `directory`; `prepare` runs before that."""

    def __init__(self, source: Source, directory: Path, *, prepare: Callable[[], object] | None = None) -> None:
        super().__init__(source)
        self.directory = directory
        self.prepare = prepare
        self.profiles = os.environ.get(PROFILE_VARIABLE)

    def validate(self, name: str) -> None:
        super().validate(name)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.profiles:
            Path(self.profiles).mkdir(parents=True, exist_ok=True)

    def reader(self) -> SourceReader:
        return _StopwatchReader(self)


class _StopwatchReader(WrappedReader):
    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(stopwatch.source.reader())
        self._stopwatch = stopwatch
        self._started = False
        self._profile: cProfile.Profile | None = None

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        if self._stopwatch.prepare is not None:
            self._stopwatch.prepare()
        super().open(context, restored)

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        if not self._started:
            self._start()
        return self.inner.poll(rows_max)

    def close(self) -> None:
        if self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(f"{self._stopwatch.profiles}/task-{self.context.index}.prof")
        super().close()

    def _start(self) -> None:
        self._started = True
        name = f"{self.context.index}-{self.context.attempt}"
        (self._stopwatch.directory / name).write_text(str(time.monotonic_ns()))
        if self._stopwatch.profiles:
            # Polls, operators and sinks all run on this thread, so its profile is the task's.
            self._profile = cProfile.Profile()
            self._profile.enable()


def first_poll_ns(directory: Path) -> int:
    """When the first subtask of any source was first polled."""
    return min(int(path.read_text()) for path in directory.rglob("*") if path.is_file())
