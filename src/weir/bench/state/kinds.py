"""What a kind of state is to the state benchmarks: a dataflow that fills it, and its known answer.

Comes in: how many entries there shall be. Goes out: the rows of its sources by their numbers, the operator with the
state, and what must come of exactly the rows that the sources had given. Never touches a running job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

import weir
from weir.bench.epochs import Arrays
from weir.bench.state.numbers import Given, Numbers, drawn, shuffled

ENTRY_BYTES = 100
"""Of each entry, about, whatever the kind."""

COLUMNS = 12
PADDING = bytes(range(ENTRY_BYTES - 8))
STATE = "state"
"""The uid of the operator that is measured."""

Made: TypeAlias = pa.RecordBatch
Read = Callable[[str], weir.Stream]
"""The stream of a kind's source, by its name."""

Answer = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceRows:
    """A source of a kind: what it makes of row numbers."""

    make: Callable[[Numbers], Made]
    schema: str


class StateKind(ABC):
    """`entries` of about ENTRY_BYTES each. Pickled: the sources and the sink ask it, too."""

    def __init__(self, entries: int) -> None:
        self.entries = entries

    @property
    @abstractmethod
    def sources(self) -> Mapping[str, SourceRows]:
        """By name."""

    @abstractmethod
    def build(self, read: Read) -> weir.Stream:
        """The operator, whose uid is STATE."""

    @property
    @abstractmethod
    def fill_rows(self) -> int:
        """So many rows of each source, and all entries are there."""

    def rows_to_change(self, share: float) -> int:
        """So many rows more of each source, and about a share of the entries are others."""
        return round(self.fill_rows * share)

    def only(self, share: float) -> None:
        """From now on, change a share of the entries only, where the rows choose their entries."""


class CountedEntries(StateKind):
    """A kind whose entries count their own updates, so that a checkpoint can be checked."""

    @abstractmethod
    def counted(self, table: pa.Table) -> int:
        """The sum of the counts in a table of the state."""


class KnownResults(StateKind):
    """A kind whose results are known from the rows that the sources had given: all of them, once the job has been
    drained, or together with what a checkpoint still holds."""

    state: str | None = None
    """What a checkpoint holds of entries that have no result yet; None: a drained job has none."""

    def answer_in(self, table: pa.Table) -> Answer:
        """The summary of the results that entries of that state will have."""
        raise NotImplementedError

    @abstractmethod
    def answer_of(self, batch: pa.RecordBatch) -> Answer:
        """A summary of results, of which the sum over all batches counts."""

    @abstractmethod
    def answer(self, given: Mapping[str, Given]) -> Answer:
        """What the sum must be."""


class ResultSums:
    """A fold of the sink: the summary of the results of an epoch."""

    def __init__(self, kind: KnownResults) -> None:
        self._kind = kind
        self._sum: Answer | None = None

    def add(self, batch: pa.RecordBatch, now_ns: int) -> None:
        with np.errstate(over="ignore"):
            answer = self._kind.answer_of(batch)
            self._sum = answer if self._sum is None else self._sum + answer

    def take(self) -> Arrays:
        taken, self._sum = self._sum, None
        return {} if taken is None else {"answer": taken}


def numbers_of(batch: pa.RecordBatch, name: str) -> Numbers:
    """A column of numbers or times."""
    numbers: Numbers = batch.column(name).view(pa.int64()).to_numpy()
    return numbers


# --- Entries by key, which rows change at random ------------------------------------------------------


class EntriesByKey(CountedEntries):
    """First every key once, in no order; then keys at random."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self._hot = entries

    @property
    def sources(self) -> Mapping[str, SourceRows]:
        return {"source": SourceRows(self._rows, "key long, one long")}

    @property
    def fill_rows(self) -> int:
        return self.entries

    def rows_to_change(self, share: float) -> int:
        # Drawn three times as often as there are keys, all but one in twenty come.
        return 3 * self._hot

    def only(self, share: float) -> None:
        self._hot = max(1, round(self.entries * share))

    def _rows(self, numbers: Numbers) -> Made:
        keys = np.where(numbers < self.entries, shuffled(numbers, self.entries), drawn(numbers, self._hot))
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.ones(len(keys), np.int64))], ["key", "one"])


class CountUp(weir.ProcessFunction):
    """Adds one to the number that its key's entry begins with."""

    entry = weir.ValueState("binary")

    def process(self, row: Any, context: Any) -> Any:
        old = self.entry.get()
        count = 1 if old is None else int.from_bytes(old[:8], "little") + 1
        self.entry.set(count.to_bytes(8, "little") + PADDING)


class ProcessEntries(EntriesByKey):
    """A process function with an entry of 100 bytes by key."""

    def build(self, read: Read) -> weir.Stream:
        return read("source").key_by("key").process(CountUp(), "key long", uid=STATE)

    def counted(self, table: pa.Table) -> int:
        data = b"".join(value[:8] for value in table.column(table.num_columns - 1).to_pylist())
        return int(np.frombuffer(data, "<i8").sum())


def count_columns(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
    """All numbers of a key grow by its rows."""
    added = np.bincount(rows["key_row"].to_numpy(), minlength=len(state))
    return None, state.select(pl.exclude("key") + pl.Series(added))


class BatchEntries(EntriesByKey):
    """A batch function with twelve numbers by key."""

    def build(self, read: Read) -> weir.Stream:
        values = {name: weir.ValueState("long", default=0) for name in column_names()}
        return read("source").key_by("key").process_batches(count_columns, "key long", state=values, uid=STATE)

    def counted(self, table: pa.Table) -> int:
        return last_summed(table)


class AggregateEntries(EntriesByKey):
    """Twelve running sums by key."""

    def build(self, read: Read) -> weir.Stream:
        return read("source").key_by("key").agg(sums_of("one"), uid=STATE)

    def counted(self, table: pa.Table) -> int:
        return last_summed(table)


def column_names() -> Sequence[str]:
    return [f"c{number:02d}" for number in range(COLUMNS)]


def sums_of(column: str) -> dict[str, Any]:
    """Twelve sums of the same column, as many accumulators as an entry has room for."""
    return {name: weir.sum(column) for name in column_names()}


def last_summed(table: pa.Table) -> int:
    """The sum of the last column."""
    return int(sum(chunk.to_numpy().sum() for chunk in table.column(table.num_columns - 1).chunks))
