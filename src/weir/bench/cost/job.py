"""The job of the comparison: a bulk of rows at full speed, and probes at a rate, through one operator with much state.

Comes in: a mode and a size. Goes out: a running job, and when probes were made and came. To halt it, valves before its
sources are closed: nothing in the engine stops a stream for a checkpoint.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from weir import connectors
from weir.api.job import ENDED
from weir.bench.epochs import Arrays, FoldSink, read_epochs
from weir.bench.state.job import WAIT_S, directory_of, given_in, wrong_entries
from weir.bench.state.kinds import STATE, BatchEntries, column_names
from weir.bench.state.numbers import Numbers, drawn
from weir.bench.state.valve import OPEN, Valve, rows_between
from weir.errors import WeirError
from weir.operators.sink import Sink
from weir.operators.source import Source

PROBES_PER_S = 2_000
"""Over all tasks."""

BULK, PROBES = "bulk", "probes"
SCHEMA = "key long, made_ns long"


class Probes:
    """When probes were made, and when they came."""

    def __init__(self) -> None:
        self._parts: list[tuple[Numbers, Numbers]] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        made_ns = batch.column(1).to_numpy()
        self._parts.append((made_ns, np.full(len(made_ns), now_ns)))

    def take(self) -> Arrays:
        made_ns, came_ns = (np.concatenate(column) for column in zip(*self._parts))
        self._parts = []
        return {"made_ns": made_ns, "came_ns": came_ns}


class CostJob:
    """The running job; `entries` of a hundred bytes."""

    def __init__(self, directory: Path, entries: int, *, mode: Any, parallelism: int) -> None:
        self.entries = entries
        self._directory = directory
        self._kind = BatchEntries(entries)
        self._checkpoints = directory / "checkpoints"
        env = weir.Environment(
            parallelism=parallelism,
            checkpoints=weir.Checkpoints(every=None, to=str(self._checkpoints), mode=mode, timeout="15m"),
            name="cost",
        )
        bulk, probes = sources(self._kind)
        self._bulk, self._probes = Valve(bulk, directory / BULK), Valve(probes, directory / PROBES)
        lay(env, self._bulk, self._probes, FoldSink(directory / "probes-seen", Probes))
        self.handle: Any = env.submit()

    def fill(self) -> None:
        """Every key has an entry."""
        self.let(bulk=self.entries, probes=0)
        deadline_s = time.monotonic() + WAIT_S
        while sum(o["rows_out"] for o in self.handle.metrics()["operators"] if o["uid"] == BULK) < self.entries:
            if self.handle.wait(0.1) in ENDED or time.monotonic() > deadline_s:
                raise WeirError(f"the job did not fill its state; it is {self.handle.status}")

    def let(self, *, bulk: int = OPEN, probes: int = OPEN) -> None:
        """Let so many rows of each through altogether."""
        self._bulk.let(bulk)
        self._probes.let(probes)

    def checkpoint(self) -> None:
        self.handle.trigger_checkpoint(WAIT_S)

    def stop(self) -> int:
        """End the job; how far its state is from what it must be."""
        self.handle.stop(savepoint=False, timeout=WAIT_S)
        place = directory_of(self._checkpoints / "cost", self.handle.checkpoints()[-1])
        return wrong_entries(self._kind, place, given_in(place, [BULK, PROBES]))

    def rate(self, start_s: float, end_s: float) -> float:
        """Rows of the bulk a second, in a time that a checkpoint is behind."""
        return rows_between(self._bulk.directory, start_s, end_s) / (end_s - start_s)

    def probes(self) -> list[tuple[Numbers, Numbers]]:
        """When they were made and came, by the task that they came to; in the order in which they were made."""
        found: dict[int, list[Arrays]] = {}
        for epoch in read_epochs(self._directory / "probes-seen"):
            found.setdefault(epoch.subtask, []).append(epoch.arrays)
        tasks = []
        for parts in found.values():
            made_ns, came_ns = (np.concatenate([part[name] for part in parts]) for name in ("made_ns", "came_ns"))
            order = np.argsort(made_ns, kind="stable")
            tasks.append((made_ns[order], came_ns[order]))
        return tasks


def sources(kind: BatchEntries, rows: int | None = None) -> tuple[Source, Source]:
    """The bulk, and the probes."""
    bulk = connectors.Generator(rows, partial(bulk_rows, kind=kind), SCHEMA)
    probes = connectors.Generator(rows, partial(probe_rows, keys=kind.entries), SCHEMA, rate=PROBES_PER_S)
    return bulk, probes


def lay(env: weir.Environment, bulk: Source, probes: Source, sink: Sink) -> None:
    """The dataflow."""
    both = env.read(bulk, uid=BULK).union(env.read(probes, uid=PROBES))
    values = {name: weir.ValueState("long", default=0) for name in column_names()}
    counted = both.key_by("key").process_batches(count_rows, SCHEMA, state=values, uid=STATE)
    counted.write(sink, uid="sink")


def bulk_rows(numbers: Numbers, *, kind: BatchEntries) -> pa.RecordBatch:
    keys = kind.sources["source"].make(numbers).column("key")
    return pa.RecordBatch.from_arrays([keys, pa.array(np.zeros(len(numbers), np.int64))], ["key", "made_ns"])


def probe_rows(numbers: Numbers, *, keys: int) -> dict[str, Any]:
    return {"key": drawn(numbers, keys), "made_ns": np.full(len(numbers), time.monotonic_ns())}


def count_rows(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """All numbers of a key grow by its rows; probes come out."""
    added = np.bincount(rows["key_row"].to_numpy(), minlength=len(state))
    return rows.filter(pl.col("made_ns") > 0).select("key", "made_ns"), state.select(
        pl.exclude("key") + pl.Series(added)
    )
