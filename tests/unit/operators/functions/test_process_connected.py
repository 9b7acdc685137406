"""Functions of two streams: state that both share, and rules that all subtasks get."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import weir
from tests.seeds import seeds
from tests.unit.operators.functions.test_keyed_timers import BACKENDS, BEGIN, crashes, environment
from weir import connectors as io
from weir.errors import PlanError, SchemaError, UserCodeError
from weir.testing import run_local


def orders_and_payments(seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = random.Random(seed)

    def frame(name: str, count: int) -> pl.DataFrame:
        times = [BEGIN + timedelta(seconds=i * 0.3 - rng.random() * 2) for i in range(count)]
        return pl.DataFrame(
            {name: [rng.randrange(40) for _ in range(count)], "amount": list(range(count)), "ts": times},
            schema={name: pl.Int64, "amount": pl.Int64, "ts": pl.Datetime("us")},
        )

    return frame("order", 150), frame("of", 120)


class WithinTenSeconds(weir.CoProcessFunction):
    """For each order, ten seconds later: how much was paid in that time. The answer depends on no order of rows."""

    paid = weir.ListState("struct<at: timestamp_ntz, amount: long>")
    orders = weir.MapState("timestamp_ntz", "long")

    def process_left(self, row: Any, context: Any) -> Any:
        assert context.timestamp == row.ts
        self.orders[row.ts] = row.amount
        context.timers.at(row.ts + timedelta(seconds=10))

    def process_right(self, row: Any, context: Any) -> Any:
        assert context.key == row.of
        self.paid.add({"at": row.ts, "amount": row.amount})
        context.side("payments", (row.of, row.amount))

    def on_timer(self, time: datetime, context: Any) -> Any:
        begin = time - timedelta(seconds=10)
        total = sum(paid["amount"] for paid in self.paid.get() if begin <= paid["at"] < time)
        yield context.key, self.orders[begin], total
        del self.orders[begin]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(6))
def test_two_streams_share_state_and_timers_by_key(seed: int, backend: str) -> None:
    orders, payments = orders_and_payments(seed)
    env = environment(seed, backend)
    disorder = weir.bounded_disorder("ts", "2s")
    left = env.from_collection(orders, watermark=disorder, uid="orders")
    right = env.from_collection(payments, watermark=disorder, uid="payments")
    result = (
        left.connect(right)
        .key_by("order", "of")
        .process(
            WithinTenSeconds(),
            "order long, amount long, paid long",
            sides={"payments": "of long, amount long"},
            uid="within",
        )
    )
    result.write(io.Discard(), uid="out")
    result.side("payments").write(io.Discard(), uid="side")
    found = run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)
    pairs = orders.join(payments, left_on="order", right_on="of", how="left", suffix="_paid")
    within = (pl.col("ts_paid") >= pl.col("ts")) & (pl.col("ts_paid") < pl.col("ts").dt.offset_by("10s"))
    expected = (
        pairs.with_columns(paid=pl.when(within).then(pl.col("amount_paid")).otherwise(0))
        .group_by("order", "amount")
        .agg(pl.col("paid").sum())
        .sort("amount")
    )
    assert pl.DataFrame(found["out"]).sort("amount").equals(expected)
    assert pl.DataFrame(found["side"]).sort("amount").equals(payments.select("of", "amount").sort("amount"))


def test_keys_of_two_streams_must_have_one_type() -> None:
    env = weir.Environment()
    left = env.from_collection([(1, "a")], "id long, name string")
    right = env.from_collection([(1, "a")], "id int, name string")
    with pytest.raises(SchemaError, match="key 'id' is bigint and key 'id' of the other stream is int; equal keys"):
        left.connect(right).key_by("id")
    with pytest.raises(SchemaError, match="different numbers of keys: id and id, name"):
        left.key_by("id").connect(right.key_by("id", "name"))
    with pytest.raises(SchemaError, match="no column 'nome'; did you mean 'name'"):
        left.connect(right).key_by("name", "nome")
    both = left.connect(right).key_by("name")
    with pytest.raises(PlanError, match="expected a CoProcessFunction here"):
        both.process(lambda row, state: None, "id long")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="pass an instance"):
        both.process(WithinTenSeconds, "id long")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="not a stream of the same Environment"):
        left.connect(weir.Environment().from_collection([(1,)], "id long"))
    with pytest.raises(PlanError, match=r"with rules.broadcast\(\); found Stream"):
        left.key_by("id").connect(right)


class Rules(weir.BroadcastProcessFunction):
    """Rows that arrive before a rule wait for it, so that the answer depends on no order."""

    limits = weir.BroadcastState("long", "long")
    seen = weir.ListState("long")

    def process_broadcast(self, rule: Any, context: Any) -> Any:
        assert context.key is None
        self.limits[rule.name] = rule.limit
        context.side("rules", (context.index, rule.name))

    def process(self, row: Any, context: Any) -> Any:
        self.seen.add(row.value)
        context.timers.at(row.ts + timedelta(days=1))

    def on_timer(self, time: datetime, context: Any) -> Any:
        for value in self.seen.get():
            for name, limit in sorted(self.limits.items()):
                if value > limit:
                    yield context.key, value, name
        self.seen.clear()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(6))
def test_every_subtask_applies_all_rules_to_its_keys(seed: int, backend: str) -> None:
    rng = random.Random(seed)
    data = pl.DataFrame(
        {
            "key": [rng.randrange(20) for _ in range(150)],
            "value": [rng.randrange(1_000) for _ in range(150)],
            "ts": [BEGIN + timedelta(seconds=i) for i in range(150)],
        }
    )
    rules = pl.DataFrame({"name": list(range(10)), "limit": [rng.randrange(1_000) for _ in range(10)]})
    env = environment(seed, backend)
    rows = env.from_collection(data, watermark=weir.bounded_disorder("ts", "200s"), uid="rows")
    result = (
        rows.key_by("key")
        .connect(env.from_collection(rules, uid="rules").broadcast())
        .process(Rules(), "key long, value long, rule long", sides={"rules": "subtask int, rule long"}, uid="alerts")
    )
    result.write(io.Discard(), uid="out")
    result.side("rules").write(io.Discard(), uid="told")
    found = run_local(env, seed=seed, crash_at=crashes(seed), checkpoint_every=9)
    expected = (
        data.join(rules, how="cross")
        .filter(pl.col("value") > pl.col("limit"))
        .select("key", "value", pl.col("name").alias("rule"))
    )
    order = ["key", "value", "rule"]
    assert pl.DataFrame(found["out"]).sort(order).equals(expected.sort(order))
    assert sorted(pl.DataFrame(found["told"]).rows()) == [(s, r) for s in range(env.parallelism) for r in range(10)]


def alerts(function: weir.BroadcastProcessFunction, backend: str = "heap") -> weir.Environment:
    env = weir.Environment(parallelism=1, backend=backend)  # type: ignore[arg-type]
    rows = env.from_collection([(1, 5)], "key long, value long")
    rules = env.from_collection([(1, 5)], "name long, limit long")
    rows.key_by("key").connect(rules.broadcast()).process(function, "key long").write(io.Discard(), uid="out")
    return env


def test_the_keyed_side_cannot_change_rules() -> None:
    class Changing(Rules):
        def process(self, row: Any, context: Any) -> Any:
            assert self.limits.get(99) is None
            self.limits[1] = 2

    with pytest.raises(UserCodeError, match="state 'limits' can be changed in process_broadcast only"):
        run_local(alerts(Changing()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_broadcast_side_has_no_key(backend: str) -> None:
    class Touching(Rules):
        def process(self, row: Any, context: Any) -> Any:
            return None

        def process_broadcast(self, rule: Any, context: Any) -> Any:
            self.seen.add(1)

    with pytest.raises(UserCodeError, match="process_broadcast has no key, so neither keyed state nor timers"):
        run_local(alerts(Touching(), backend))

    class Waiting(Touching):
        def process_broadcast(self, rule: Any, context: Any) -> Any:
            context.timers.after("1s")

    with pytest.raises(UserCodeError, match="process_broadcast has no key, so neither keyed state nor timers"):
        run_local(alerts(Waiting(), backend))


def test_rules_without_event_time_do_not_hold_back_that_of_the_rows() -> None:
    env = weir.Environment(parallelism=1)
    rows = env.from_collection(
        [(1, 5, BEGIN)], "key long, value long, ts timestamp_ntz", watermark=weir.monotonic("ts"), uid="rows"
    )
    rules = env.from_collection([(1, 5)], "name long, limit long", uid="rules")
    rows.key_by("key").connect(rules.broadcast()).process(Rules(), "key long").write(io.Discard(), uid="out")
    assert {edge.input_number: edge.has_watermarks for edge in env.plan().edges} == {0: True, 1: False}
