"""What is known of keys by the rows in segments, also where many rows of another key have the same hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.unit.operators.windows.keyed.test_rows import Reference, Run
from weir.operators.windows.counts import CountedRows
from weir.operators.windows.event_time import CountWindows
from weir.operators.windows.functions import ProcessFunctionOfWindow
from weir.operators.windows.keyed import older

SCHEMA = pa.schema([("n", pa.int64()), ("one", pa.int64()), ("other", pa.int64())])
SIZE = 3_000

Key = tuple[int | None, int | None]


def lengths(rows: Any, window: weir.Window) -> Any:
    return (*window.key, rows.height, int(rows["n"].sum()))


def rows_of(key: Key, count: int) -> pa.RecordBatch:
    columns = [pa.array(range(count)), *(pa.array([value] * count, pa.int64()) for value in key)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_a_key_is_found_behind_many_rows_of_another_with_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    result = "one long, other long, rows long, sum long"
    function = ProcessFunctionOfWindow(("one", "other"), SCHEMA, None, lengths, result)
    run = Run(CountedRows(CountWindows(SIZE, SIZE), function), Path(), None)
    run.start(1)
    # A null leaves a hash as it is, so that these have the same.
    for key, count in (((None, 5), 2_000), ((5, None), 1), ((None, 5), 900)):
        run.operators[0].process(rows_of(key, count), run.out.append)
    run.start(1, run.write(run.freeze(), Reference(None)))
    looks = 0
    take_rows = older.take_rows

    def looked(*given: Any) -> pa.RecordBatch:
        nonlocal looks
        looks += 1
        return take_rows(*given)

    with monkeypatch.context() as patch:
        patch.setattr(older, "take_rows", looked)
        for key in ((5, None), (6, None), (None, 5)):
            run.operators[0].process(rows_of(key, 1), run.out.append)
    assert looks < 20
    run.operators[0].process(rows_of((5, None), SIZE - 2), run.out.append)
    run.operators[0].process(rows_of((None, 5), SIZE - 2_901), run.out.append)
    assert run.took() == [
        (5, None, SIZE, sum(range(SIZE - 2))),
        (None, 5, SIZE, sum(range(2_000)) + sum(range(900)) + sum(range(SIZE - 2_901))),
    ]
