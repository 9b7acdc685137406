"""Both halves of a keyed aggregate against Polars, however the stream is cut, snapshotted and rescaled."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.seeds import seeds
from tests.states import as_restored, split_by_owner, table_of
from weir.errors import CheckpointError, DataError, ProtocolViolation, SchemaError
from weir.ids import AttemptId, Uid
from weir.operators.aggregates import named as of
from weir.operators.aggregates import partial as first_half
from weir.operators.aggregates import running as module
from weir.operators.aggregates.running import PartialAggregate, RunningAggregate
from weir.operators.base import KEY_GROUP_COLUMN, OperatorContext, Restored
from weir.state.keys.hashing import hash_keys, key_groups

GROUPS = 128
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "n": pa.int32(),
        "x": pa.float64(),
        "word": pa.string(),
        "flag": pa.bool_(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(9, 2),
    }
)
SPREAD = of.aggregate(
    partial={"low": pl.col("n").min(), "high": pl.col("n").max(), "rows": pl.len()},
    merge={"low": pl.col("low").min(), "high": pl.col("high").max(), "rows": pl.col("rows").sum()},
    final=pl.col("high") - pl.col("low") + pl.col("rows"),
)
AGGREGATES = {
    "rows": of.count(),
    "values": of.count("n"),
    "total": of.sum("n"),
    "double": of.sum(pl.col("n") * 2),
    "weight": of.sum("x"),
    "mean": of.avg("n"),
    "least": of.min("x"),
    "most": of.max("n"),
    "first_word": of.first("word"),
    "last_word": of.last("word"),
    "first_n": of.first("n"),
    "last_x": of.last("x"),
    "low_word": of.min("word"),
    "all": of.min("flag"),
    "latest": of.max("at"),
    "paid": of.sum("price"),
    "mean_price": of.avg("price"),
    "spread": SPREAD,
}


def reference(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The same in one go. Sums of nothing but nulls are null, as in SQL."""

    def total(expression: pl.Expr) -> pl.Expr:
        return pl.when(expression.count() > 0).then(expression.sum())

    n, x, word = pl.col("n").cast(pl.Int64), pl.col("x"), pl.col("word")
    return rows.group_by(keys).agg(
        rows=pl.len().cast(pl.Int64),
        values=n.count().cast(pl.Int64),
        total=total(n),
        double=total(n * 2),
        weight=total(x),
        mean=n.mean(),
        least=x.min(),
        most=pl.col("n").max(),
        first_word=word.first(),
        last_word=word.last(),
        first_n=pl.col("n").first(),
        last_x=x.last(),
        low_word=word.min(),
        all=pl.col("flag").min(),
        latest=pl.col("at").max(),
        paid=total(pl.col("price")),
        mean_price=total(pl.col("price")).cast(pl.Float64) / pl.col("price").count(),
        spread=n.max() - n.min() + pl.len().cast(pl.Int64),
    )


def random_rows(generator: np.random.Generator, count: int) -> pa.Table:
    def some(values: list[Any], null_share: float = 0.2) -> list[Any]:
        return [None if generator.random() < null_share else value for value in values]

    numbers = generator.integers(-1000, 1000, count).tolist()
    start = datetime(2024, 1, 1)
    columns = {
        "id": some(generator.integers(0, 40, count).tolist(), 0.05),
        "name": some([f"name-{n}" * (n % 3) for n in generator.integers(0, 12, count)], 0.1),
        "n": some(numbers, 0.5),
        "x": some([float(n) for n in numbers]),
        "word": some([f"word {n}" for n in generator.integers(0, 500, count)]),
        "flag": some((generator.random(count) < 0.5).tolist()),
        "at": some([start + timedelta(seconds=n) for n in numbers]),
        "price": some([Decimal(n) / 100 for n in numbers]),
    }
    return pa.table(columns, schema=SCHEMA)


def context(index: int = 0, parallelism: int = 1) -> OperatorContext:
    return OperatorContext("job", Uid("hot"), "agg", index, parallelism, GROUPS, AttemptId(1))


class Pipeline:
    """A first half, the exchange, and a second half of some parallelism; remembers the newest row of each key."""

    def __init__(self, keys: list[str], parallelism: int, aggregates: dict[str, Any] | None = None) -> None:
        self.keys = keys
        self.aggregates = aggregates or AGGREGATES
        self.newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.partial = pickle.loads(pickle.dumps(PartialAggregate(keys, self.aggregates, SCHEMA))).make()
        self.partial.open(context(), None)
        self.running = self.open(parallelism, None)

    def open(self, parallelism: int, tables: list[pa.Table] | None) -> list[Any]:
        spec = pickle.loads(pickle.dumps(RunningAggregate(self.keys, self.aggregates, SCHEMA)))
        operators = [spec.make() for _ in range(parallelism)]
        for index, operator in enumerate(operators):
            place = context(index, parallelism)
            restored = None
            if tables is not None:
                own = [t.filter(pl_in(t[KEY_GROUP_COLUMN], place.key_groups)) for t in tables]
                restored = Restored(states=as_restored({"aggregate": own}))
            operator.open(place, restored)
        return operators

    def send(self, batch: pa.RecordBatch) -> None:
        for owner, part in split_by_owner(batch, self.keys, len(self.running), GROUPS):
            self.running[owner].process(part, self.collect)

    def collect(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.newest[tuple(row[key] for key in self.keys)] = row

    def flush(self) -> list[pa.RecordBatch]:
        self.partial.flush(self.send)
        emitted: list[pa.RecordBatch] = []
        for operator in self.running:
            operator.flush(emitted.append)
        for batch in emitted:
            self.collect(batch)
        return emitted

    def freeze(self) -> list[Any]:
        self.flush()
        return [partial(table_of, operator.freeze().states["aggregate"]) for operator in self.running]


def pl_in(column: pa.ChunkedArray, groups: range) -> pa.Array:
    return pa.array(np.isin(column.to_numpy(), np.arange(groups.start, groups.stop)))


def assert_equals_reference(pipeline: Pipeline, rows: pa.Table) -> None:
    expected = reference(pl.DataFrame(rows), pipeline.keys)
    by_key = {tuple(row[key] for key in pipeline.keys): row for row in expected.to_dicts()}
    assert pipeline.newest.keys() == by_key.keys()
    for key, row in by_key.items():
        assert pipeline.newest[key] == {name: row[name] for name in (*pipeline.keys, *pipeline.aggregates)}


def pieces(generator: np.random.Generator, table: pa.Table) -> list[pa.RecordBatch]:
    whole = table.combine_chunks().to_batches()[0]
    cuts = sorted({0, len(table), *generator.integers(0, len(table), 12).tolist()})
    return [whole.slice(start, end - start) for start, end in pairwise(cuts)]


@pytest.mark.parametrize("keys", [["id"], ["name"], ["name", "id"], ["flag"], ["at", "price"]])
@pytest.mark.parametrize("seed", seeds(3))
def test_values_do_not_depend_on_cuts_flushes_snapshots_or_parallelism(
    keys: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(seed)
    monkeypatch.setattr(first_half, "JUDGED_ROWS_MIN", 20)
    monkeypatch.setattr(first_half, "PASSED_ROWS", 100)
    monkeypatch.setattr(first_half, "HELD_KEYS_MAX", 200)
    aggregates = dict(AGGREGATES)
    if seed:  # a custom aggregate never passes rows uncombined
        del aggregates["spread"]
    rows = random_rows(generator, 1_500)
    pipeline = Pipeline(keys, 2, aggregates)
    for batch in pieces(generator, rows):
        pipeline.partial.process(batch, pipeline.send)
        if generator.random() < 0.5:
            pipeline.flush()
        if generator.random() < 0.4:
            built = [build() for build in pipeline.freeze()]
            pipeline.running = pipeline.open(int(generator.integers(1, 4)), built)
    pipeline.flush()
    assert_equals_reference(pipeline, rows)


def test_a_snapshot_holds_what_was_there_when_it_was_frozen_and_restores_on_three_subtasks() -> None:
    generator = np.random.default_rng(5)
    rows = random_rows(generator, 2_000)
    pipeline = Pipeline(["name", "id"], 1)
    before, after = rows.slice(0, 1_000).combine_chunks(), rows.slice(1_000).combine_chunks()
    pipeline.partial.process(before.to_batches()[0], pipeline.send)
    frozen = pipeline.freeze()
    for batch in pieces(generator, after):  # goes on while the snapshot is not built yet
        pipeline.partial.process(batch, pipeline.send)
        pipeline.flush()
    assert_equals_reference(pipeline, rows)
    tables = [build() for build in frozen]
    pipeline.running = pipeline.open(3, tables)
    pipeline.partial.process(after.to_batches()[0], pipeline.send)
    pipeline.flush()
    assert_equals_reference(pipeline, rows)
    assert all(len(operator._state) for operator in pipeline.running)


def test_a_state_table_is_sorted_by_the_key_group_of_its_keys() -> None:
    pipeline = Pipeline(["name", "id"], 2)
    pipeline.partial.process(random_rows(np.random.default_rng(1), 500).to_batches()[0], pipeline.send)
    for index, build in enumerate(pipeline.freeze()):
        table = build()
        assert table.schema.field(0) == pa.field(KEY_GROUP_COLUMN, pa.int32())
        groups = table[KEY_GROUP_COLUMN].to_pylist()
        hashes = hash_keys([table[key].combine_chunks() for key in pipeline.keys])
        assert groups == sorted(groups) == key_groups(hashes, GROUPS).tolist()
        assert set(groups) <= set(context(index, 2).key_groups)
        expected = PartialAggregate(pipeline.keys, AGGREGATES, SCHEMA).layout.combined
        assert table.schema.names == [KEY_GROUP_COLUMN, *expected.names]


def test_an_empty_state_freezes_and_restores() -> None:
    pipeline = Pipeline(["id"], 1)
    tables = [build() for build in pipeline.freeze()]
    assert [table.num_rows for table in tables] == [0]
    assert pipeline.open(2, tables)


def test_each_flush_emits_every_changed_key_once_and_no_other() -> None:
    pipeline = Pipeline(["id"], 1, {"n": of.count()})
    for ids in ([1, 2, 2, None], [2, 3, 2], [3]):
        rows = pa.table({name: ids if name == "id" else [None] * len(ids) for name in SCHEMA.names}, schema=SCHEMA)
        pipeline.partial.process(rows.to_batches()[0], pipeline.send)
        emitted = [row["id"] for batch in pipeline.flush() for row in batch.to_pylist()]
        assert sorted(emitted, key=str) == sorted(set(ids), key=str)
        assert pipeline.flush() == []
    assert {key: row["n"] for (key,), row in pipeline.newest.items()} == {1: 1, 2: 4, 3: 2, None: 1}


def test_batches_that_go_out_are_bounded_and_hold_every_key_once() -> None:
    keys = np.arange(150_000)
    schema = pa.schema({"k": pa.int64()})
    spec = RunningAggregate(["k"], {"n": of.count()}, schema, combined=False)
    operator, out = spec.make(), []
    operator.open(context(), None)
    operator.process(pa.record_batch({"k": keys}), out.append)
    operator.flush(out.append)
    assert [batch.num_rows for batch in out] == [65_536, 65_536, 18_928]
    assert sorted(k for batch in out for k in batch["k"].to_pylist()) == keys.tolist()
    assert spec.schema([schema]) == out[0].schema


def test_changes_are_remembered_without_growing_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGED_ROWS_MAX", 1_000)
    schema = pa.schema({"k": pa.int64()})
    operator = RunningAggregate(["k"], {"n": of.count()}, schema, combined=False).make()
    operator.open(context(), None)
    for _ in range(50):
        operator.process(pa.record_batch({"k": np.arange(100)}), lambda batch: None)
        assert sum(map(len, operator._changed)) <= 1_200
    out: list[pa.RecordBatch] = []
    operator.flush(out.append)
    assert out[0]["n"].to_pylist() == [50] * 100


def test_what_was_emitted_does_not_change_when_the_operator_goes_on() -> None:
    schema = pa.schema({"k": pa.int64(), "w": pa.string()})
    aggregates = {"n": of.count(), "w": of.last("w")}
    partial, running = (s(["k"], aggregates, schema).make() for s in (PartialAggregate, RunningAggregate))
    partial.open(context(), None)
    running.open(context(), None)
    emitted: list[pa.RecordBatch] = []
    copies = []
    for round_number in range(4):
        part: list[pa.RecordBatch] = []
        words = [f"w{round_number}"] * 3
        partial.process(pa.record_batch({"k": [1, 2, round_number], "w": words}), part.append)
        partial.flush(part.append)
        for batch in part:
            running.process(batch, emitted.append)
        running.flush(emitted.append)
        emitted += part
        copies += [pickle.dumps(batch.to_pylist()) for batch in emitted[len(copies) :]]
    assert [pickle.dumps(batch.to_pylist()) for batch in emitted] == copies


def test_freezing_without_a_flush_is_refused_since_rows_would_be_lost() -> None:
    schema = pa.schema({"k": pa.int64()})
    operator = RunningAggregate(["k"], {"n": of.count()}, schema, combined=False).make()
    operator.open(context(), None)
    operator.process(pa.record_batch({"k": [1]}), lambda batch: None)
    with pytest.raises(ProtocolViolation, match="without a flush"):
        operator.freeze()


def test_state_of_another_aggregate_is_refused_with_both_columns() -> None:
    pipeline = Pipeline(["id"], 1, {"n": of.count()})
    tables = [build() for build in pipeline.freeze()]
    with pytest.raises(CheckpointError, match=r"n#0.*total#0.*another uid"):
        Pipeline(["id"], 1, {"total": of.sum("n")}).open(1, tables)


def test_a_sum_beyond_int64_is_an_error_that_names_operator_and_column() -> None:
    operator = RunningAggregate(
        ["k"], {"total": of.sum("v")}, (s := pa.schema({"k": pa.int64(), "v": pa.int64()})), False
    )
    instance = operator.make()
    instance.open(context(), None)
    instance.process(pa.record_batch({"k": [1, 2], "v": [1 << 62, 1 << 62]}, schema=s), lambda batch: None)
    with pytest.raises(DataError, match=r"'hot'.*'total'.*beyond"):
        instance.process(pa.record_batch({"k": [1], "v": [1 << 62]}, schema=s), lambda batch: None)


@pytest.mark.parametrize(
    ("keys", "aggregates", "message"),
    [
        (["nobody"], {"n": of.count()}, r"no column 'nobody'.*id, name"),
        (["id"], {"id": of.count()}, "two columns the name 'id'"),
        (["id"], {}, "at least one"),
        ([], {"n": of.count()}, "at least one"),
        (["id"], {"n": of.sum("nothing")}, r"no column 'nothing'.*id, name"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_job_is_built(
    keys: list[str], aggregates: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        PartialAggregate(keys, aggregates, SCHEMA).schema([SCHEMA])


def test_the_second_half_refuses_rows_that_are_not_from_its_first_half() -> None:
    with pytest.raises(SchemaError, match="made for"):
        RunningAggregate(["id"], {"n": of.count()}, SCHEMA).schema([SCHEMA])


def test_keys_keep_their_type_but_for_layouts_that_arrow_cannot_gather() -> None:
    schema = pa.schema(
        {"a": pa.dictionary(pa.int32(), pa.string()), "b": pa.string_view(), "c": pa.uint8(), "v": pa.large_string()}
    )
    batch = pa.record_batch(
        {"a": ["x", "y", "x"], "b": ["p" * 20, None, "p" * 20], "c": [1, 2, 1], "v": ["1", "2", "3"]}
    )
    batch = batch.cast(schema)
    aggregates = {"v": of.last("v"), "n": of.count("b")}
    for combined in (True, False):
        operator = RunningAggregate(["a", "b", "c"], aggregates, schema, combined).make()
        operator.open(context(), None)
        rows: list[pa.RecordBatch] = [batch]
        if combined:
            rows, partial = [], PartialAggregate(["a", "b", "c"], aggregates, schema).make()
            partial.open(context(), None)
            partial.process(batch, rows.append)
            partial.flush(rows.append)
        out: list[pa.RecordBatch] = []
        for part in rows:
            operator.process(part, out.append)
        operator.flush(out.append)
        assert out[0].schema.types == [pa.string(), pa.string(), pa.uint8(), pa.string(), pa.int64()]
        assert sorted(map(tuple, (r.values() for r in out[0].to_pylist()))) == [
            ("x", "p" * 20, 1, "3", 2),
            ("y", None, 2, "2", 0),
        ]


def test_another_aggregate_of_the_same_name_does_not_take_the_state_over() -> None:
    schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])

    def opened(aggregate: Any, restored: Restored | None) -> Any:
        operator = RunningAggregate(["key"], {"out": aggregate}, schema, combined=False).make()
        operator.open(context(0, 1), restored)
        return operator

    before = opened(of.sum("value"), None)
    before.process(pa.record_batch([pa.array([1]), pa.array([5])], schema=schema), lambda batch: None)
    before.flush(lambda batch: None)
    frozen = before.freeze().states["aggregate"]
    restored = Restored(states=as_restored({"aggregate": [table_of(frozen)]}))
    opened(of.sum("value"), restored)
    with pytest.raises(CheckpointError, match=r"'out' was sum\(…\) and is now max\(…\)"):
        opened(of.max("value"), restored)
