"""The benchmarks' sink: folds an epoch's rows into small arrays, and commits those as one file.

Comes in: batches. Goes out: one .npz file for each committed epoch and subtask, with the
time of its last row, which the driver reads and checks. Exactly once, like any other
sink: a pending file becomes visible by a rename when its checkpoint is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.ids import CheckpointId
from weir.operators.base import OperatorContext
from weir.operators.sink import Sink, SinkOwner, SinkWriter
from weir.snapshot.commit import CommitGrant
from weir.snapshot.parts import Json

Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"

PENDING, COMMITTED, STAMPS = "pending", "committed", "stamps"


class Fold(Protocol):
    """What a workload keeps of the rows of an epoch."""

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        """Take rows that reached the sink at `now_ns`."""

    def take(self) -> Arrays:
        """What came of the epoch; begin the next one."""


@dataclass(frozen=True)
class Epoch:
    """What one subtask committed with one checkpoint. Times are those of time.monotonic_ns: of one host."""

    checkpoint: int
    subtask: int
    attempt: int
    rows: int
    last_row_ns: int
    committed_ns: int
    arrays: Arrays


class FoldSink(Sink):
    """Fold rows with what `make_fold` returns; `directory` is one that driver and tasks share."""

    def __init__(self, directory: Path, make_fold: Callable[[], Fold]) -> None:
        self.directory = directory
        self.make_fold = make_fold

    def __repr__(self) -> str:
        return f"FoldSink({getattr(self.make_fold, '__name__', 'fold')})"

    def validate(self, owner: SinkOwner) -> None:
        for part in (PENDING, COMMITTED, STAMPS):
            (self.directory / part).mkdir(parents=True, exist_ok=True)

    def writer(self) -> SinkWriter:
        return _FoldWriter(self.directory, self.make_fold())


class _FoldWriter(SinkWriter):
    def __init__(self, directory: Path, fold: Fold) -> None:
        self._directory = directory
        self._fold = fold
        self._rows = 0
        self._last_row_ns = 0

    def open(self, context: OperatorContext, restored: Sequence[Json] | None) -> None:
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        now_ns = time.monotonic_ns()
        self._fold.add(batch, now_ns)
        self._rows += batch.num_rows
        self._last_row_ns = now_ns

    def prepare(self, checkpoint: CheckpointId) -> Callable[[], Json]:
        if not self._rows:
            return lambda: None
        arrays = {
            **self._fold.take(),
            "meta": np.array(
                [checkpoint, self._context.index, self._context.attempt, self._rows, self._last_row_ns], dtype=np.int64
            ),
        }
        self._rows = 0
        name = f"{checkpoint:08d}-{self._context.index}-{self._context.attempt}.npz"

        def make_durable() -> Json:
            np.savez(self._directory / PENDING / name, allow_pickle=False, **arrays)
            return name

        return make_durable

    def commit(self, grant: CommitGrant, committables: Sequence[Json]) -> None:
        for name in committables:
            if name is None:
                continue
            target = self._directory / COMMITTED / name
            if not target.exists():
                os.replace(self._directory / PENDING / name, target)
            stamp = self._directory / STAMPS / name
            if not stamp.exists():
                # At once or not at all: this process may be killed on purpose at any moment.
                made = self._directory / PENDING / f"{name}.stamp-{self._context.attempt}"
                made.write_text(str(time.monotonic_ns()))
                os.replace(made, stamp)


def read_epochs(directory: Path) -> list[Epoch]:
    """The committed epochs, by checkpoint. One of which it is not noted yet when it was committed is not among them."""
    epochs = []
    for stamp in sorted((directory / STAMPS).glob("*.npz")):
        with np.load(directory / COMMITTED / stamp.name) as file:
            arrays: Arrays = {name: file[name] for name in file.files}
        checkpoint, subtask, attempt, rows, last_row_ns = (int(value) for value in arrays.pop("meta"))
        epochs.append(
            Epoch(
                checkpoint=checkpoint,
                subtask=subtask,
                attempt=attempt,
                rows=rows,
                last_row_ns=last_row_ns,
                committed_ns=int(stamp.read_text()),
                arrays=arrays,
            )
        )
    return epochs
