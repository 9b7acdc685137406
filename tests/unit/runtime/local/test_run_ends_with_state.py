"""Sources and sinks of users that keep operator states of their own, and what their hooks say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import weir
from tests.states import as_restored
from tests.unit.operators.running import context
from weir.connectors.base import Sink, SinkWriter, Source, SourceReader
from weir.errors import PlanError
from weir.operators.base import InlinePart, OperatorContext, Restored
from weir.operators.functions.stateful import kept_by_end
from weir.testing import run_local

COUNT = 200
SCHEMA = pa.schema([("n", pa.int64()), ("of_reader", pa.int64()), ("batches", pa.int64())])


class Reader(SourceReader):
    """Numbers its rows in a list of its own, and its batches in a plain attribute; its position says neither."""

    seen = weir.OperatorListState("long", redistribute="split")
    names = weir.BroadcastState("string", "long", default=0)

    def __init__(self) -> None:
        self.batches = 0
        self.opened_with: list[int] = []

    def open(self, context: OperatorContext, restored: Sequence[InlinePart] | None) -> None:
        self.context = context
        self.next = context.index
        self.opened_with = self.seen.get()
        for part in restored or ():
            if (part.index, part.parallelism) == (context.index, context.parallelism):
                self.next = part.value

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        step, rows = self.context.parallelism, []
        self.batches += 1
        for _ in range(min(rows_max, 3)):
            if self.next < COUNT:
                self.seen.add(self.next)
                self.names["rows"] += 1
                assert self.names["rows"] == len(self.seen.get())
                rows.append((self.next, len(self.seen.get()), self.batches))
                self.next += step
        return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row)) for row in rows], SCHEMA) if rows else None

    @property
    def finished(self) -> bool:
        return self.next >= COUNT

    def position(self) -> Any:
        return self.next

    def snapshot_state(self) -> Any:
        return self.batches

    def restore_state(self, values: list[Any]) -> None:
        self.batches = sum(values)


class Numbers(Source):
    reader_class = Reader

    schema = SCHEMA  # type: ignore[assignment]
    bounded = True  # type: ignore[assignment]

    def reader(self) -> SourceReader:
        return Reader()


class Writer(SinkWriter):
    """Counts its epochs in a plain attribute and its rows in a state, and commits both with the rows."""

    written = weir.OperatorListState("long")

    def __init__(self) -> None:
        self.epochs = 0
        self.rows: list[int] = []

    def open(self, context: OperatorContext, restored: Sequence[Any] | None) -> None:
        self.index = context.index

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column("n").to_pylist()
        self.written.set([sum(self.written.get()) + batch.num_rows])

    def prepare(self, checkpoint: Any) -> Callable[[], Any]:
        self.epochs += 1
        rows, self.rows = self.rows, []
        committable = [self.index, self.epochs, sum(self.written.get()), rows]
        return lambda: committable

    def commit(self, grant: Any, committables: Sequence[Any]) -> None:
        for index, epoch, written, rows in committables:
            Counted.committed[(index, epoch)] = (written, rows)

    def snapshot_state(self) -> Any:
        return self.epochs

    def restore_state(self, values: list[Any]) -> None:
        (self.epochs,) = values


class Counted(Sink):
    writer_class = Writer
    committed: ClassVar[dict[tuple[int, int], tuple[int, list[int]]]] = {}

    def writer(self) -> SinkWriter:
        return Writer()


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("turn", [3, 6, 11, 19])
def test_what_a_reader_keeps_is_as_old_as_its_position(turn: int, seed: int | None) -> None:
    env = weir.Environment(parallelism=2)
    env.read(Numbers(), uid="numbers").print(uid="out")
    result = run_local(env, crash_at=[turn, turn + 4], checkpoint_every=2, seed=seed)
    assert result.restarts == 2
    rows = sorted(result["out"].to_pylist(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(COUNT))
    # Each reader has numbered its rows without a gap, and its batches in an order.
    for index in range(2):
        own = rows[index::2]
        assert [row["of_reader"] for row in own] == list(range(1, len(own) + 1))
        batches = [row["batches"] for row in own]
        assert batches == sorted(batches)


@pytest.mark.parametrize("turn", [3, 6, 11, 19])
def test_what_a_writer_keeps_is_as_old_as_its_epochs(turn: int) -> None:
    Counted.committed.clear()
    env = weir.Environment(parallelism=2)
    env.read(Numbers(), uid="numbers").write(Counted(), uid="out")
    result = run_local(env, crash_at=[turn, turn + 4], checkpoint_every=2, real_sinks=True)
    assert result.restarts == 2
    found = sorted(n for _, rows in Counted.committed.values() for n in rows)
    assert found == list(range(COUNT))
    for index in range(2):
        epochs = sorted(epoch for at, epoch in Counted.committed if at == index)
        assert epochs == list(range(1, len(epochs) + 1))
        total = 0
        for epoch in epochs:
            written, rows = Counted.committed[(index, epoch)]
            total += len(rows)
            assert written == total


def test_a_reader_that_keeps_something_must_be_named_by_its_source() -> None:
    with pytest.raises(PlanError, match=r"\(uid 'the-uid'\): Reader keeps 'seen'.*reader_class = Reader in the source"):
        kept_by_end(Reader(), None, context(), None)

    class Keyed(Reader):
        total = weir.ValueState("long")

    with pytest.raises(PlanError, match="state 'total' of Keyed is a ValueState, which needs a key"):
        kept_by_end(Keyed(), Keyed, context(), None)


def test_states_are_there_when_the_reader_is_opened_at_any_parallelism() -> None:
    table = pa.table({"index": pa.array([0, 1], pa.int32()), "value": [5, 6]})
    reader = Reader()
    held = Restored(states=as_restored({"seen": [table]}))
    assert kept_by_end(reader, Reader, context(), held) is not None
    reader.open(context(), None)
    assert reader.opened_with == [5, 6]
