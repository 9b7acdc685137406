"""The job of the state benchmarks: entries of 100 bytes by key, counted up by every row.

Comes in: how many keys, and where the state lives. Goes out: a running job whose every
checkpoint can be checked: each entry counts its own updates, so that all of them together
must be as many as the rows that the source had given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import weir
from weir import connectors
from weir.api.job import ENDED
from weir.api.state_table import state_tables
from weir.bench.epochs import Arrays, FoldSink
from weir.bench.harness import BenchOptions, Show, bench
from weir.errors import WeirError
from weir.ids import Uid
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.savepoints import origin_at
from weir.snapshot.parts import Position, read_as

Kind = Literal["rows", "columns"]
"""A process function with an entry of 100 bytes, or a batch function with 12 numbers, by key."""

ENTRY_BYTES = 100
COLUMNS = 12
SIGNAL_ROWS = 512
"""One row in so many comes out, on average, and shows when it was processed."""

PADDING = bytes(range(ENTRY_BYTES - 8))
WAIT_S = 900.0


@dataclass(frozen=True)
class StateOptions:
    """What a state benchmark is asked to do."""

    keys: int
    kind: Kind = "rows"
    backend: weir.Heap | weir.RocksDb = field(default_factory=weir.Heap)
    hot_share: float = 1.0
    """Of the keys, that is updated once all have an entry."""
    rows: int | None = None
    """None: without end."""
    parallelism: int = 2
    work: str | None = None
    show: Show | None = None
    local_recovery: bool = False


class CountUp(weir.ProcessFunction):
    """Adds one to the number that its key's entry begins with."""

    entry = weir.ValueState("binary")

    def process(self, row: Any, context: Any) -> Any:
        old = self.entry.get()
        count = 1 if old is None else int.from_bytes(old[:8], "little") + 1
        self.entry.set(count.to_bytes(8, "little") + PADDING)
        return (row.key,) if row.signal else None


def count_columns(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """The same for whole batches: all numbers of a key grow by its rows."""
    added = np.bincount(rows["key_row"].to_numpy(), minlength=len(state))
    new = state.select(pl.exclude("key") + pl.Series(added))
    return rows.filter("signal").select("key"), new


def make_rows(numbers: npt.NDArray[np.int64], *, keys: int, hot: int) -> pa.RecordBatch:
    """First every key once, in no order; then those below `hot` at random. Signals are drawn, too: the rows of a
    batch come from few splits, whose numbers leave the same remainder."""
    mixed = numbers.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    drawn = ((mixed >> np.uint64(32)) * np.uint64(hot) >> np.uint64(32)).view(np.int64)
    # A factor that shares no divisor with the number of keys visits each of them once.
    filling = (numbers * _coprime(keys)) % keys
    return pa.RecordBatch.from_arrays(
        [pa.array(np.where(numbers < keys, filling, drawn)), pa.array(mixed % SIGNAL_ROWS == 0)],
        names=["key", "signal"],
    )


def _coprime(keys: int) -> int:
    factor = int(keys * 0.618) | 1
    while np.gcd(factor, keys) != 1:
        factor += 2
    return factor


class Times:
    """When signals came."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        self._times.append((now_ns, batch.num_rows))

    def take(self) -> Arrays:
        times, self._times = np.array(self._times, np.int64).reshape(-1, 2), []
        return {"times": times}


class StateJob:
    """The running job."""

    def __init__(self, options: StateOptions, directory: Path, name: str) -> None:
        self.options = options
        self.directory = directory
        self.checkpoints_to = directory / "checkpoints" / name
        self.environment = weir.Environment(
            parallelism=options.parallelism,
            checkpoints=weir.Checkpoints(every=None, to=str(directory / "checkpoints"), timeout="15m"),
            restart=weir.FixedDelay(attempts=10, delay=0),
            settings=weir.Settings(backend=options.backend, local_recovery=options.local_recovery),
            name=name,
        )
        hot = max(1, round(options.keys * options.hot_share))
        make = partial(make_rows, keys=options.keys, hot=hot)
        source = connectors.Generator(options.rows, make, "key long, signal boolean")
        keyed = self.environment.read(source, uid="source").key_by("key")
        if options.kind == "rows":
            signals = keyed.process(CountUp(), "key long", uid="state")
        else:
            values = {f"c{number:02d}": weir.ValueState("long", default=0) for number in range(COLUMNS)}
            signals = keyed.process_batches(count_columns, "key long", state=values, uid="state")
        signals.write(FoldSink(directory / "epochs", Times), uid="sink")
        self.handle: Any = self.environment.submit()

    @property
    def rows(self) -> int:
        """Rows that the stateful operator has taken; told every half second."""
        return sum(o["rows_in"] for o in self.handle.metrics()["operators"] if o["uid"] == "state")

    def wait_for_rows(self, rows: int) -> float:
        """Wait until so many rows are taken; the time.monotonic() then."""
        deadline_s = time.monotonic() + WAIT_S
        while self.rows < rows:
            if self.handle.wait(0.1) in ENDED or time.monotonic() > deadline_s:
                raise WeirError(f"the job did not take {rows} rows; it is {self.handle.status}")
            if self.options.show is not None:
                self.options.show(self.handle)
        return time.monotonic()

    def fill(self) -> None:
        """Wait until every key has an entry."""
        self.wait_for_rows(self.options.keys)

    def checkpoint(self) -> Any:
        """Take a checkpoint; its record."""
        number = self.handle.trigger_checkpoint(WAIT_S)
        return next(record for record in self.handle.checkpoints() if record.id == number)

    def directory_of(self, record: Any) -> Path:
        (found,) = self.checkpoints_to.glob(f"*/chk-{record.id:010d}")
        return found

    def wrong_entries(self, record: Any) -> int:
        """How far the counts in a checkpoint are from what they must be: 0, when it is right."""
        counted = entries = 0
        for table in state_tables(self.directory_of(record), uid="state"):
            entries += table.num_rows
            counted += _counts(table)
        return abs(counted - _rows_given(self.directory_of(record))) + abs(entries - self.options.keys)


@contextmanager
def state_job(options: StateOptions, name: str) -> Iterator[StateJob]:
    """A state job in a fresh directory; cancelled and removed afterwards."""
    with bench(BenchOptions(events=0, work=options.work), name) as place:
        job = StateJob(options, place.directory, name)
        try:
            yield job
        finally:
            job.handle.cancel()


def _counts(table: pa.Table) -> int:
    values = table.column(table.num_columns - 1)
    if not pa.types.is_binary(values.type):
        return int(pc.sum(values).as_py() or 0)
    data = b"".join(value[:8] for value in values.to_pylist())
    return int(np.frombuffer(data, "<i8").sum())


def _rows_given(checkpoint: Path) -> int:
    origin = origin_at(str(checkpoint))
    parts = origin.read(origin.open(open_storage)).operators[Uid("source")].parts
    return sum(sum(position.value["rounds"].values()) for part in parts if (position := read_as(part.inline, Position)))
