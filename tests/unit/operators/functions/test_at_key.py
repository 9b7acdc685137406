"""How many rows an operator with state by key takes at once, and for how many keys it asks its backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.operators.running import context
from weir.config import Heap, RocksDb, StateBackend
from weir.operators.base import OperatorSpec
from weir.operators.functions.at_key import KeyedRowOperator
from weir.operators.functions.process import ProcessRows
from weir.operators.functions.reduce import ReduceRows
from weir.state.declared.cursor import Key
from weir.state.declared.kinds import ValueState
from weir.state.place import StatePlace

BATCH = pa.record_batch({"key": range(20_000)})


def count(row: Any, state: Any) -> None:
    state.total.value += 1


SPECS = [
    pytest.param(
        ProcessRows(("key",), count, "key long", state={"total": ValueState("long", default=0)}), id="process"
    ),
    pytest.param(ReduceRows(("key",), lambda so_far, row: row), id="reduce"),
]
BACKENDS = [
    pytest.param(Heap(), [*[2_048] * 9, 1_568], id="heap"),
    pytest.param(RocksDb("4MB"), [8_192, 8_192, 3_616], id="rocksdb"),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("backend", "expected"), BACKENDS)
def test_the_keys_of_so_many_rows_are_fetched_at_once(
    spec: OperatorSpec, backend: StateBackend, expected: Sequence[int], tmp_path: Path
) -> None:
    spec.schema([BATCH.schema])
    operator = spec.make()
    operator.open(replace(context(), place=StatePlace(backend, str(tmp_path))), None)
    assert isinstance(operator, KeyedRowOperator)
    asked, begin = [], operator.backend.begin

    def noted(keys: Sequence[Key]) -> None:
        asked.append(len(keys))
        begin(keys)

    operator.backend.begin = noted  # type: ignore[method-assign]
    operator.process(BATCH, lambda batch: None)
    operator.close()
    assert asked == expected
