"""The job of the state benchmarks: one operator with state of a chosen kind and size, whose sources open on request.

Comes in: what kind of state, how many entries, where it lives. Goes out: a running job that can be filled to the row,
let run, and checked: by the counts in a checkpoint, or by its results once it is drained. Beside its rows, ticks go
through each task, past the operator: when they come late, the task was held up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import weir
from weir import connectors
from weir.api.job import ENDED
from weir.api.state_table import state_tables
from weir.bench.epochs import Arrays, FoldSink, read_epochs
from weir.bench.harness import BenchOptions, Show, bench
from weir.bench.state.kinds import (
    STATE,
    AggregateEntries,
    BatchEntries,
    CountedEntries,
    KnownResults,
    ProcessEntries,
    ResultSums,
    StateKind,
)
from weir.bench.state.numbers import Given, Numbers
from weir.bench.state.sides import JoinedRows, KeyVersions
from weir.bench.state.timed import OpenSessions, SetTimers, WindowPanes
from weir.bench.state.valve import OPEN, Valve, rows_between
from weir.errors import WeirError
from weir.ids import Uid
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at
from weir.snapshot.parts import Position, read_as

KINDS: Mapping[str, type[StateKind]] = {
    "process": ProcessEntries,
    "batches": BatchEntries,
    "agg": AggregateEntries,
    "window": WindowPanes,
    "session": OpenSessions,
    "join": JoinedRows,
    "as-of": KeyVersions,
    "timers": SetTimers,
}

TICKS_PER_S = 1_000
"""Of each task."""

WAIT_S = 900.0

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StateOptions:
    """What a state benchmark is asked to do."""

    entries: int
    kind: str = "process"
    backend: weir.Heap | weir.RocksDb = field(default_factory=weir.Heap)
    parallelism: int = 2
    work: str | None = None
    show: Show | None = None
    local_recovery: bool = False
    share: float = 1.0
    """Of the entries, that rows change once all are there, where rows choose."""


class TickTimes:
    """When something came."""

    def __init__(self) -> None:
        self._times: list[int] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        self._times.append(now_ns)

    def take(self) -> Arrays:
        times, self._times = np.array(self._times, np.int64), []
        return {"times": times}


class StateJob:
    """The running job."""

    def __init__(self, options: StateOptions, directory: Path, name: str) -> None:
        self.options = options
        self.directory = directory
        self.kind = KINDS[options.kind](options.entries)
        self.kind.only(options.share)
        self.checkpoints_to = directory / "checkpoints" / name
        self.environment = weir.Environment(
            parallelism=options.parallelism,
            checkpoints=weir.Checkpoints(every=None, to=str(directory / "checkpoints"), timeout="15m"),
            restart=weir.FixedDelay(attempts=10, delay=0),
            settings=weir.Settings(backend=options.backend, local_recovery=options.local_recovery),
            name=name,
        )
        self._valves: dict[str, Valve] = {}
        results = self.kind.build(self._read)
        self._lay_ticks(results)
        self.handle: Any = self.environment.submit()

    @property
    def rows(self) -> int:
        """Rows that the sources have given in this attempt; told every half second. What the operator takes is not
        counted: some have their rows combined before."""
        return sum(o["rows_out"] for o in self.handle.metrics()["operators"] if o["uid"] in self._valves)

    def let(self, rows: int = OPEN) -> None:
        """Let so many rows of each source through altogether; without a number, all."""
        for valve in self._valves.values():
            valve.let(rows)

    def give(self, rows: int) -> None:
        """Let exactly so many through, and wait until they are given; a checkpoint is behind them."""
        self.let(rows)
        self.wait_for_rows(rows * len(self._valves))

    def wait_for_rows(self, rows: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self.rows < rows:
            if self.handle.wait(0.05) in ENDED or time.monotonic() > deadline_s:
                raise WeirError(f"the job did not come to {rows} rows; it is {self.handle.status}")
            if self.options.show is not None:
                self.options.show(self.handle)

    def fill(self) -> None:
        """Let in what makes all entries, and no more."""
        self.give(self.kind.fill_rows)

    def checkpoint(self) -> Any:
        """Take a checkpoint; its record."""
        number = self.handle.trigger_checkpoint(WAIT_S)
        return next(record for record in self.handle.checkpoints() if record.id == number)

    def rate(self, start_s: float, end_s: float) -> float:
        """Rows a second that the sources gave in a time that a checkpoint is behind."""
        rows = sum(rows_between(valve.directory, start_s, end_s) for valve in self._valves.values())
        return rows / (end_s - start_s) if end_s > start_s else 0.0

    def ticks(self, until: int) -> list[Times]:
        """When ticks came, of each task, up to a checkpoint; waits until they are committed."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            epochs = [epoch for epoch in read_epochs(self.directory / "ticks-seen") if epoch.checkpoint <= until]
            if sum(epoch.checkpoint == until for epoch in epochs) == self.options.parallelism:
                break
            if self.handle.wait(0.05) in ENDED or time.monotonic() > deadline_s:
                raise WeirError(
                    f"the ticks up to checkpoint {until} were not committed; the job is {self.handle.status}"
                )
        found: dict[int, list[Times]] = {}
        for epoch in epochs:
            found.setdefault(epoch.subtask, []).append(epoch.arrays["times"])
        return [np.concatenate(parts) for parts in found.values()]

    def wrong(self) -> int:
        """How far what the job has come to is from what it must be; 0, when it is right. The last thing that is asked:
        the job ends for it, drained where results say what is right."""
        if isinstance(self.kind, CountedEntries):
            directory = self._directory_of(self.checkpoint())
            return wrong_entries(self.kind, directory, given_in(directory, self._valves))
        if not isinstance(self.kind, KnownResults):
            raise TypeError(f"{type(self.kind).__name__} says nothing of what is right")
        kind = self.kind
        self.handle.stop(savepoint=False, drain=kind.state is None, timeout=WAIT_S)
        record = self.handle.checkpoints()[-1]
        answers = [epoch.arrays["answer"] for epoch in read_epochs(self.directory / "results")]
        if kind.state is not None:
            tables = state_tables(self._directory_of(record), uid=STATE, state=kind.state)
            answers += [kind.answer_in(table) for table in tables]
        with np.errstate(over="ignore"):
            found = np.add.reduce([np.zeros(3, np.int64), *answers], axis=0)
        right = kind.answer(given_in(self._directory_of(record), self._valves))
        return 0 if np.array_equal(found, right) else max(1, abs(int(found[0] - right[0])))

    def _directory_of(self, record: Any) -> Path:
        return directory_of(self.checkpoints_to, record)

    def _read(self, name: str) -> weir.Stream:
        rows = self.kind.sources[name]
        self._valves[name] = Valve(connectors.Generator(None, rows.make, rows.schema), self.directory / name)
        return self.environment.read(self._valves[name], uid=name)

    def _lay_ticks(self, results: weir.Stream) -> None:
        """Ticks go to a sink of their own. An edge on which no row goes keeps them in the same tasks as the rest."""
        ticks = self.environment.generate(
            None, make_ticks, "tick long", rate=TICKS_PER_S * self.options.parallelism, uid="ticks"
        )
        ticks.write(FoldSink(self.directory / "ticks-seen", TickTimes), uid="ticks-seen")
        none = ticks.map_batches(no_row, results.schema, uid="no-tick")
        kind = self.kind
        fold = (lambda: ResultSums(kind)) if isinstance(kind, KnownResults) else TickTimes
        results.union(none).write(FoldSink(self.directory / "results", fold), uid="sink")


def directory_of(checkpoints: Path, record: Any) -> Path:
    """Where a checkpoint lies, among those of a job."""
    (found,) = checkpoints.glob(f"*/chk-{record.id:010d}")
    return found


def given_in(checkpoint: Path, sources: Iterable[str]) -> dict[str, Given]:
    """Which rows sources had given, by their positions in a checkpoint."""
    origin = origin_at(str(checkpoint))
    operators = origin.read(origin.open(open_storage)).operators
    found = {}
    for name in sources:
        parts = [read_as(part.inline, Position) for part in operators[Uid(name)].parts]
        rounds = [position.value["rounds"] for position in parts if position is not None]
        found[name] = Given({int(split): done for some in rounds for split, done in some.items()})
    return found


def wrong_entries(kind: CountedEntries, checkpoint: Path, given: Mapping[str, Given]) -> int:
    """How far the counts in a checkpoint are from what they must be: 0, when it is right."""
    counted = entries = 0
    for table in state_tables(checkpoint, uid=STATE):
        entries += table.num_rows
        counted += kind.counted(table)
    return abs(counted - sum(map(len, given.values()))) + abs(entries - kind.entries)


def make_ticks(numbers: Numbers) -> dict[str, Any]:
    return {"tick": numbers}


def no_row(batch: Any) -> None:
    return None


@contextmanager
def state_job(options: StateOptions, name: str) -> Iterator[StateJob]:
    """A state job in a fresh directory; cancelled and removed afterwards."""
    with bench(BenchOptions(events=0, work=options.work), name) as place:
        job = StateJob(options, place.directory, name)
        try:
            yield job
        finally:
            job.handle.cancel()
