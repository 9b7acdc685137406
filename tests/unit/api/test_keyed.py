"""Keyed streams: running aggregates, reduce, process."""

from __future__ import annotations

from typing import Any

import pytest

import weir
from weir import connectors
from weir.errors import PlanError, SchemaError
from weir.graph.plan import HashByKey
from weir.operators.aggregates.running import PartialAggregate, RunningAggregate
from weir.operators.functions.process import ProcessRows
from weir.schema import format_schema


@pytest.fixture
def env() -> weir.Environment:
    return weir.Environment(parallelism=2)


@pytest.fixture
def keyed(env: weir.Environment) -> weir.KeyedStream:
    return env.from_collection([(1, 250, "ann")], "auction long, price long, bidder string", uid="bids").key_by(
        "auction"
    )


def ddl(stream: weir.Stream) -> str:
    return format_schema(stream.schema)


def test_aggregates_come_out_behind_their_keys_in_the_order_given(keyed: weir.KeyedStream) -> None:
    hot = keyed.agg({"name": weir.first("bidder")}, n=weir.count(), mean=weir.avg("price"), top=weir.max("price"))
    assert ddl(hot) == "auction bigint, name string, n bigint, mean double, top bigint"


def test_an_aggregate_is_combined_before_the_exchange_and_merged_behind_it(
    env: weir.Environment, keyed: weir.KeyedStream
) -> None:
    keyed.agg(n=weir.count(), uid="hot", parallelism=3).write(connectors.Discard(), uid="out")
    made = env.plan()
    assert [[o.uid for o in v.operators] for v in made.vertices] == [["bids", "hot/combine"], ["hot"], ["out"]]
    assert isinstance(made.vertices[0].operators[1].spec, PartialAggregate)
    assert isinstance(made.vertices[1].operators[0].spec, RunningAggregate)
    assert made.edges[0].exchange == HashByKey(("auction",))
    assert made.edges[0].schema == made.vertices[0].operators[1].schema
    assert made.edges[1].schema.names == ["auction", "n"]


def test_strings_travel_with_the_hash_that_their_exchange_goes_by(env: weir.Environment) -> None:
    rows = env.read(connectors.Collection([("a", 1)], schema="word string, n long"), uid="rows")
    rows.key_by("word").sum("n", uid="sum").write(connectors.Discard(), uid="out")
    (edge,) = env.plan().edges
    assert edge.exchange == HashByKey(("word",), "hash(word)")
    assert edge.schema.names == ["word", "n#0", "hash(word)"]
    assert env.plan().vertices[1].operators[0].schema.names == ["word", "n"]


def test_count_and_sum_are_short_for_aggregates(keyed: weir.KeyedStream) -> None:
    assert ddl(keyed.count()) == "auction bigint, count bigint"
    assert ddl(keyed.count("n")) == "auction bigint, n bigint"
    assert ddl(keyed.sum("price")) == "auction bigint, price bigint"


def test_reduce_keeps_the_schema(keyed: weir.KeyedStream) -> None:
    assert keyed.reduce(lambda a, b: b).schema == keyed.schema


def test_a_wrong_column_in_an_aggregate_fails_at_its_line_with_a_suggestion(keyed: weir.KeyedStream) -> None:
    with pytest.raises(SchemaError, match=r"^agg \(.*test_keyed.py:\d+\): .*'prise'.*'price'"):
        keyed.agg(top=weir.max("prise"))


def test_something_that_is_no_aggregate_is_refused_by_name(keyed: weir.KeyedStream) -> None:
    with pytest.raises(PlanError, match="n="):
        keyed.agg(n="count")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="at least one"):
        keyed.agg()


def test_an_aggregate_passed_as_the_operators_name_is_explained(keyed: weir.KeyedStream) -> None:
    with pytest.raises(PlanError, match="dict of aggregates"):
        keyed.agg(name=weir.first("bidder"))  # type: ignore[arg-type]


def test_a_keyed_stream_shows_its_keys(keyed: weir.KeyedStream) -> None:
    assert keyed.keys == ("auction",)
    assert repr(keyed) == "Stream[auction bigint, price bigint, bidder string].key_by('auction')"


class FirstBid(weir.ProcessFunction):
    """The first bid of each auction."""

    seen = weir.ValueState("boolean", default=False)

    def process(self, row: Any, context: Any) -> Any:
        if not self.seen.get():
            self.seen.set(True)
            yield row.auction, row.bidder


def test_process_takes_a_process_function_or_a_plain_one_with_its_states(keyed: weir.KeyedStream) -> None:
    by_class = keyed.process(FirstBid(), "auction long, bidder string")
    plain = keyed.process(lambda row, state: None, "auction long", state={"seen": weir.ValueState("boolean")})
    assert ddl(by_class) == "auction bigint, bidder string"
    assert ddl(plain) == "auction bigint"


def test_process_knows_the_states_that_were_declared(env: weir.Environment, keyed: weir.KeyedStream) -> None:
    keyed.process(FirstBid(), "auction long, bidder string", uid="first").write(connectors.Discard())
    spec = env.plan().vertices[1].operators[0].spec
    assert isinstance(spec, ProcessRows)
    assert spec.states == ("seen",)


def test_a_process_function_that_is_wrong_fails_at_its_line(keyed: weir.KeyedStream) -> None:
    with pytest.raises(PlanError, match=r"^process \(.*test_keyed.py:\d+\): pass an instance, FirstBid"):
        keyed.process(FirstBid, "auction long")  # type: ignore[arg-type]
