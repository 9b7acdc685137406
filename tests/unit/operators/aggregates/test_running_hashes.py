"""The hash that the first half of an aggregate sends with its rows; keys that the second half takes from them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import SchemaError
from weir.ids import AttemptId, Uid
from weir.operators.aggregates import named as of
from weir.operators.aggregates import partial as first_half
from weir.operators.aggregates import running
from weir.operators.aggregates.running import PartialAggregate, RunningAggregate
from weir.operators.base import Operator, OperatorContext
from weir.state.keys.hashing import hash_keys

ROWS = pa.schema([("site", pa.string()), ("user", pa.large_string()), ("n", pa.int64()), ("x", pa.float64())])
SUM = {"total": of.sum("n")}


def rows(count: int, *, seed: int = 1) -> pa.RecordBatch:
    dice = np.random.default_rng(seed)
    columns = [
        pa.array([None if n == 0 else f"site-{n}" * (n % 4) for n in dice.integers(0, 20, count).tolist()]),
        pa.array([f"u{n}" for n in dice.integers(0, 9, count).tolist()], pa.large_string()),
        pa.array(dice.integers(0, 50, count)),
        pa.array(dice.choice([0.0, -0.0, np.nan, 1.5], count)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def opened(operator: Operator) -> Operator:
    operator.open(OperatorContext("job", Uid("sum"), "sum", 0, 1, 128, AttemptId(1)), None)
    return operator


def sent(keys: list[str], batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    out: list[pa.RecordBatch] = []
    partial = opened(PartialAggregate(keys, SUM, ROWS).make())
    for piece in (batch.slice(0, 500), batch.slice(500)):
        partial.process(piece, out.append)
        partial.flush(out.append)
    return out


@pytest.mark.parametrize("passes", [True, False], ids=["row by row", "combined"])
@pytest.mark.parametrize("keys", [["site"], ["user", "site"], ["x", "site"], ["n", "x"]], ids=str)
def test_the_hash_that_is_sent_is_that_of_the_keys(
    keys: list[str], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_half, "JUDGED_ROWS_MIN", 1 if passes else 1 << 30)
    monkeypatch.setattr(first_half, "WORTHWHILE_RATIO_MAX", 0.0)
    came = sent(keys, rows(1_000))
    assert (came[-1].num_rows == 500) is passes
    for batch in came:
        assert batch.schema.names == [*keys, "total#0", f"hash({', '.join(keys)})"]
        assert batch.column(-1).to_numpy().tolist() == hash_keys([batch.column(key) for key in keys]).tolist()


def test_a_number_is_hashed_anew_rather_than_sent() -> None:
    spec = PartialAggregate(["n"], SUM, ROWS)
    assert spec.schema([ROWS]).names == ["n", "total#0"]
    assert spec.hashed_as(["n"]) is None


def test_the_hash_is_nobodys_who_keys_by_other_columns() -> None:
    spec = PartialAggregate(["user", "site"], SUM, ROWS)
    assert spec.hashed_as(("user", "site")) == "hash(user, site)"
    for others in (["site", "user"], ["user"], ["user", "site", "n"]):
        assert spec.hashed_as(others) is None
    with pytest.raises(SchemaError, match="made for"):
        RunningAggregate(["site", "user"], SUM, ROWS).schema([spec.schema([ROWS])])


@pytest.mark.parametrize("keys", [["site"], ["user", "site"], ["x", "site"]], ids=str)
@pytest.mark.parametrize(
    ("limit", "kept"),
    [("KEPT_ROWS_MAX", 0), ("KEPT_ROWS_MAX", 300), ("KEPT_BYTES_MAX", 0), ("KEPT_BYTES_MAX", 1 << 20)],
)
def test_what_comes_out_does_not_depend_on_where_its_keys_are_taken_from(
    keys: list[str], limit: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, limit, kept)
    first, second = (opened(spec(keys, SUM, ROWS).make()) for spec in (PartialAggregate, RunningAggregate))
    collected: list[pa.RecordBatch] = []
    last: dict[tuple[object, ...], int] = {}
    for seed in range(4):
        for piece in (rows(600, seed=seed).slice(0, 100), rows(600, seed=seed).slice(100)):
            first.process(piece, lambda batch: second.process(batch, collected.append))
            first.flush(lambda batch: second.process(batch, collected.append))
        before = len(collected)
        second.flush(collected.append)
        found = pa.Table.from_batches(collected[before:]).to_pydict()
        assert list(found) == [*keys, "total"]
        changed = list(zip(*(map(str, found[key]) for key in keys), strict=True))
        assert len(set(changed)) == len(changed), "once in each flush"
        last.update(zip(changed, found["total"], strict=True))
    expected: dict[tuple[object, ...], int] = {}
    for seed in range(4):
        for row in rows(600, seed=seed).to_pylist():
            key = tuple(str(row[key] + 0.0 if key == "x" else row[key]) for key in keys)
            expected[key] = expected.get(key, 0) + row["n"]
    assert last == expected
