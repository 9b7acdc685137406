"""A source that gives as many rows as it is told, and notes when it gave them.

Comes in: any generator, and a file with the number of rows that it may give. Goes out: the same rows and positions, and
small files with the times of its polls. So a benchmark fills state to the row, stops, and lets the stream go.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.bench.wrapped import WrappedReader, WrappedSource
from weir.operators.base import InlinePart, OperatorContext
from weir.operators.source import Source, SourceReader
from weir.snapshot.parts import Json

LIMIT, POLLS = "limit", "polls"
OPEN = 1 << 62
CLOSED_WAIT_MS = LOOK_MS = 1.0


class Valve(WrappedSource):
    """`source`, as far as the file below `directory` lets it."""

    def __init__(self, source: Source, directory: Path) -> None:
        super().__init__(source)
        self.directory = directory

    def validate(self, name: str) -> None:
        super().validate(name)
        (self.directory / POLLS).mkdir(parents=True, exist_ok=True)
        self.let(0)

    def let(self, rows: int) -> None:
        """Let so many rows through altogether, counted from the job's beginning; 0 stops the source where it is."""
        fresh = self.directory / f"{LIMIT}.new"
        fresh.write_text(str(rows))
        os.replace(fresh, self.directory / LIMIT)

    def reader(self) -> SourceReader:
        return _ValveReader(self)


class _ValveReader(WrappedReader):
    def __init__(self, valve: Valve) -> None:
        super().__init__(valve.source.reader())
        self._directory = valve.directory
        self._given = self._limit = 0
        self._looked_ns = 0
        self._polls: list[tuple[int, int]] = []
        self._files = 0

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        super().open(context, restored)
        self._given = sum(self.inner.position()["rounds"].values())

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        if time.monotonic_ns() - self._looked_ns >= LOOK_MS * 1e6:
            self._limit, self._looked_ns = self._own_limit(), time.monotonic_ns()
        left = self._limit - self._given
        if left <= 0:
            return None
        batch = self.inner.poll(min(rows_max, left))
        if batch is not None:
            self._given += batch.num_rows
            self._polls.append((time.monotonic_ns(), batch.num_rows))
        return batch

    def position(self) -> Json:
        self._write_polls()
        return super().position()

    @property
    def wait_ms(self) -> float:
        return CLOSED_WAIT_MS if self._given >= self._limit else self.inner.wait_ms

    def close(self) -> None:
        self._write_polls()
        super().close()

    def _own_limit(self) -> int:
        total, parallelism = int((self._directory / LIMIT).read_text()), self.context.parallelism
        return total // parallelism + (self.context.index < total % parallelism)

    def _write_polls(self) -> None:
        if self._polls:
            name = f"{self.context.index}-{self.context.attempt}-{self._files}.npy"
            np.save(self._directory / POLLS / name, np.array(self._polls, np.int64))
            self._polls = []
            self._files += 1


def rows_between(directory: Path, start_s: float, end_s: float) -> int:
    """How many rows all readers gave between two times, as far as they have written it down."""
    return sum(_between(np.load(path), start_s, end_s) for path in (directory / POLLS).glob("*.npy"))


def _between(polls: npt.NDArray[np.int64], start_s: float, end_s: float) -> int:
    at, rows = polls.T
    return int(rows[(at >= start_s * 1e9) & (at < end_s * 1e9)].sum())
