"""Rows that wait for their turn: each is written once, and comes out in its order."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import Shelf, table_of
from weir.snapshot.parts import StatePart
from weir.state import waiting
from weir.state.frozen import RestoredPart
from weir.state.operator_state import RestoredOperatorState
from weir.state.waiting import INDEX, FrozenWaiting, Mask, Stored, WaitingRows

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass(eq=False)
class Held:
    rows: pa.RecordBatch
    left: Mask
    stored: Stored | None = None

    def batch(self) -> pa.RecordBatch:
        return self.rows


def held(*numbers: int) -> Held:
    return Held(pa.record_batch([pa.array(numbers, pa.int64())], SCHEMA), np.ones(len(numbers), np.bool_))


def frozen(batches: list[Held], names: itertools.count[int]) -> FrozenWaiting:
    return FrozenWaiting(SCHEMA, [WaitingRows(batch, batch.left.copy()) for batch in batches], names)


def read(files: Shelf, parts: list[StatePart]) -> list[int]:
    restored = RestoredOperatorState([RestoredPart(part, range(0), files) for part in parts], "split", 0, 1)
    return [n for table in restored.tables() for n in table.column("n").to_pylist()]


@pytest.mark.parametrize("seed", seeds(10))
def test_what_waits_is_what_is_restored_whatever_leaves_and_whichever_checkpoint_completes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, files, names = random.Random(seed), Shelf(), itertools.count()
    monkeypatch.setattr(waiting, "FILE_BYTES_MAX", 200)
    batches: list[Held] = []
    number = 0
    for step in range(40):
        for _ in range(dice.randrange(4)):
            size = dice.randrange(1, 9)
            batches.append(held(*range(number, number + size)))
            number += size
        for batch in batches:
            batch.left &= np.array([dice.random() > 0.2 for _ in batch.left])
        batches = [batch for batch in batches if batch.left.any()]
        now, files.prefix = frozen(batches, names), f"{step}-"
        expected = [n for b in batches for n in b.rows.filter(pa.array(b.left)).column("n").to_pylist()]
        part = now.write(files)
        assert read(files, [part]) == table_of(now).column("n").to_pylist() == expected
        if dice.random() < 0.6:
            now.confirmed(part)


def test_a_batch_that_waits_on_is_not_written_again_until_little_of_its_file_is_left() -> None:
    files, names = Shelf(), itertools.count()
    batches = [held(*range(start, start + 1_000)) for start in range(0, 10_000, 1_000)]
    first = frozen(batches, names)
    part = first.write(files)
    first.confirmed(part)
    before = files.put_bytes
    batches[0].left[:500] = False
    files.prefix = "2-"
    second = frozen(batches, names).write(files)
    assert files.put_bytes - before < 2_000
    assert {name for name in second.files if name != INDEX} == {name for name in part.files if name != INDEX}
    files.prefix = "3-"
    third = frozen(batches[-2:], names).write(files)
    assert not {file.path for file in third.files.values()} & {file.path for file in part.files.values()}
    assert read(files, [third]) == list(range(8_000, 10_000))


def test_what_was_written_for_a_checkpoint_that_never_was_is_written_again() -> None:
    files, names, batches = Shelf(), itertools.count(), [held(1, 2)]
    frozen(batches, names).write(files)
    files.prefix = "2-"
    part = frozen(batches, names).write(files)
    assert all(file.path.startswith(("shared/2-", "own/2-")) for file in part.files.values())


def test_rows_stay_in_their_order_also_where_a_column_is_called_like_that_of_a_list() -> None:
    files, schema = Shelf(), pa.schema([("index", pa.int64())])
    batch = Held(pa.record_batch([pa.array([3, 1, 2])], schema), np.ones(3, np.bool_))
    part = FrozenWaiting(schema, [WaitingRows(batch)], itertools.count()).write(files)
    restored = RestoredOperatorState([RestoredPart(part, range(0), files)], "split", 0, 1)
    assert pa.concat_tables(restored.tables()).column("index").to_pylist() == [3, 1, 2]
