"""The first half of an aggregate: when rows are combined, when they pass, and what it never holds.

What it combines by is tested with the second halves: test_running.py, and those of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from weir.errors import ProtocolViolation, UserCodeError
from weir.ids import AttemptId, Uid
from weir.operators.aggregates import named as of
from weir.operators.aggregates import partial as module
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.running import PartialAggregate
from weir.operators.base import OperatorContext, OperatorSpec
from weir.operators.windows.aggregate import PartialWindowAggregate
from weir.operators.windows.definition import WindowDefinition
from weir.operators.windows.event_time import AlignedWindows, SessionWindows
from weir.operators.windows.sessions.partial import PartialSessionAggregate

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64(), "at": pa.timestamp("us")})
SECOND_US = 1_000_000


def opened(spec: OperatorSpec) -> Any:
    operator = spec.make()
    operator.open(OperatorContext("job", Uid("hot"), "agg", 0, 1, 128, AttemptId(1)), None)
    return operator


def by_key(aggregates: Mapping[str, Aggregate]) -> OperatorSpec:
    return PartialAggregate(["k"], aggregates, ROWS)


def by_pane(aggregates: Mapping[str, Aggregate]) -> OperatorSpec:
    windows = AlignedWindows(SECOND_US, SECOND_US, 0)
    return PartialWindowAggregate(WindowDefinition(windows, ["k"], aggregates, ROWS, "at"))


def by_session(aggregates: Mapping[str, Aggregate]) -> OperatorSpec:
    return PartialSessionAggregate(WindowDefinition(SessionWindows(SECOND_US), ["k"], aggregates, ROWS, "at"))


every_kind = pytest.mark.parametrize("made", [by_key, by_pane, by_session], ids=lambda kind: kind.__name__)


def rows_of(keys: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Of each key the number is the value, too; all at the same time."""
    return pa.record_batch([pa.array(keys), pa.array(keys), pa.array([0] * len(keys), ROWS.types[2])], schema=ROWS)


Made = Callable[[Mapping[str, Aggregate]], OperatorSpec]


def sent_rows(made: Made, keys: np.ndarray[Any, Any], batches: int) -> list[int]:
    """How many rows the first half sends on, flush by flush."""
    operator = opened(made({"total": of.sum("v")}))
    counts = []
    for part in np.array_split(keys, batches):
        out: list[pa.RecordBatch] = []
        operator.process(rows_of(part), out.append)
        operator.flush(out.append)
        counts.append(sum(batch.num_rows for batch in out))
        assert sum(sum(batch["total#0"].to_pylist()) for batch in out) == part.sum()
    return counts


@every_kind
def test_rows_are_combined_where_keys_repeat(made: Made) -> None:
    assert sent_rows(made, np.arange(50_000) % 10, 5) == [10] * 5


@every_kind
def test_rows_pass_uncombined_where_keys_do_not_repeat_and_combining_is_tried_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PASSED_ROWS", 20_000)
    keys = np.concatenate((np.arange(30_000), np.arange(30_000) % 10))
    assert sent_rows(made, keys, 6) == [10_000] * 3 + [10] * 3
    keys = np.concatenate((np.arange(10_000), np.zeros(50_000, np.int64)))
    assert sent_rows(made, keys, 6) == [10_000, 10_000, 10_000, 1, 1, 1]


@every_kind
def test_the_first_half_never_holds_more_keys_than_its_limit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_KEYS_MAX", 1_000)
    operator = opened(made({"n": of.count()}))
    out: list[pa.RecordBatch] = []
    for start in range(0, 10_000, 400):
        operator.process(rows_of(np.arange(start, start + 400)), out.append)
        assert operator._held.remembered <= 1_000
    operator.flush(out.append)
    assert sorted(k for batch in out for k in batch["k"].to_pylist()) == list(range(10_000))


@every_kind
def test_freezing_without_a_flush_is_refused_since_rows_would_be_lost(made: Made) -> None:
    operator = opened(made({"n": of.count()}))
    operator.process(rows_of(np.arange(1)), lambda batch: None)
    with pytest.raises(ProtocolViolation, match="without a flush"):
        operator.freeze()


@every_kind
def test_an_expression_that_fails_on_the_data_blames_the_users_code(made: Made) -> None:
    operator = opened(made({"total": of.sum(pl.col("at").cast(pl.String).cast(pl.Int64))}))
    with pytest.raises(UserCodeError, match="'hot'"):
        operator.process(rows_of(np.arange(1)), lambda batch: None)
