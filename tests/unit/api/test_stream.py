"""Streams: schemas are worked out and checked at the line that wrote them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import connectors
from weir.errors import PlanError, SchemaError
from weir.graph.plan import Broadcast, Forward, HashByKey, Rebalance
from weir.schema import format_schema
from weir.testing import collect_local

BIDS = "auction long, price long, bidder string"


@pytest.fixture
def env() -> weir.Environment:
    return weir.Environment(parallelism=2)


@pytest.fixture
def bids(env: weir.Environment) -> weir.Stream:
    return env.from_collection([(1, 250, "ann")], BIDS, uid="bids")


def ddl(stream: weir.Stream) -> str:
    return format_schema(stream.schema)


def shape(env: weir.Environment) -> list[list[str]]:
    return [[operator.uid for operator in vertex.operators] for vertex in env.plan().vertices]


def line(offset: int) -> str:
    """The place that many lines below the caller's, as errors show it."""
    return re.escape(f"test_stream.py:{inspect.stack()[1].lineno + offset}")


# --- Schemas ------------------------------------------------------------------------------------------


def test_select_keeps_and_computes_columns_in_the_order_given(bids: weir.Stream) -> None:
    selected = bids.select("bidder", pl.col("price"), euros=pl.col("price") / 100, copy="auction", one=1)
    assert ddl(selected) == "bidder string, price bigint, euros double, copy bigint, one int"


def test_with_columns_adds_and_replaces(bids: weir.Stream) -> None:
    assert ddl(bids.with_columns(price=pl.col("price") / 2, dear=pl.col("price") > 9)) == (
        "auction bigint, price double, bidder string, dear boolean"
    )


def test_filter_takes_an_expression_or_a_function_and_keeps_the_schema(bids: weir.Stream) -> None:
    assert bids.filter(pl.col("price") > 100).schema == bids.schema
    assert bids.filter(lambda bid: bid.price > 100).schema == bids.schema


def test_functions_have_the_schema_that_is_declared(bids: weir.Stream) -> None:
    assert ddl(bids.map(lambda bid: bid.price, "price int")) == "price int"
    assert ddl(bids.flat_map(lambda bid: [], "word string, n long")) == "word string, n bigint"
    assert ddl(bids.map_batches(lambda batch: batch, pa.schema([("x", pa.int8())]))) == "x tinyint"
    assert bids.map_batches(lambda frame: frame.head(1), kind="polars").schema == bids.schema


@pytest.mark.parametrize("kind", ["arrow", "polars", "pandas"])
def test_batch_functions_know_three_kinds(bids: weir.Stream, kind: str) -> None:
    bids.map_batches(lambda batch: batch, kind=kind)  # type: ignore[arg-type]


def test_a_stream_shows_its_schema(bids: weir.Stream) -> None:
    assert repr(bids) == "Stream[auction bigint, price bigint, bidder string]"
    assert bids.columns == ["auction", "price", "bidder"]


# --- Errors at the line that wrote them ---------------------------------------------------------------


def test_a_wrong_column_fails_at_its_line_with_the_columns_that_exist_and_a_suggestion(bids: weir.Stream) -> None:
    here = line(2)
    with pytest.raises(SchemaError, match=rf"^filter \(.*{here}\): .*'prise'.*auction, price, bidder.*'price'"):
        bids.filter(pl.col("prise") > 100)


@pytest.mark.parametrize("method", ["select", "with_columns"])
def test_a_wrong_column_in_a_projection_is_named_with_a_suggestion(bids: weir.Stream, method: str) -> None:
    with pytest.raises(SchemaError, match=rf"^{method} \(.*'biddr'.*auction, price, bidder.*did you mean 'bidder'"):
        getattr(bids, method)(twice=pl.col("biddr") + "!")


def test_a_wrong_key_is_named_with_a_suggestion(bids: weir.Stream) -> None:
    with pytest.raises(SchemaError, match=r"^key_by \(.*test_stream.py:\d+\): .*'actuion'; did you mean 'auction'"):
        bids.key_by("actuion")


def test_a_key_that_cannot_be_hashed_is_refused(env: weir.Environment) -> None:
    tagged = env.from_collection([(["a"],)], "tags array<string>")
    with pytest.raises(SchemaError, match="'tags'"):
        tagged.key_by("tags")


def test_a_filter_that_is_not_boolean_is_refused(bids: weir.Stream) -> None:
    with pytest.raises(SchemaError, match="boolean"):
        bids.filter(pl.col("price") + 1)


def test_a_filter_that_is_neither_expression_nor_function_is_refused(bids: weir.Stream) -> None:
    with pytest.raises(PlanError, match=r"'price > 100' is neither"):
        bids.filter("price > 100")  # type: ignore[arg-type]


def test_a_declared_schema_that_cannot_be_read_is_refused(bids: weir.Stream) -> None:
    with pytest.raises(SchemaError, match="longg"):
        bids.map(lambda bid: bid.price, "price longg")


def test_a_refused_operator_leaves_nothing_behind(env: weir.Environment, bids: weir.Stream) -> None:
    with pytest.raises(SchemaError):
        bids.select("nothing")
    bids.write(connectors.Discard())
    assert shape(env) == [["bids", "sink-1"]]


def test_a_uid_used_twice_fails_at_once_with_both_places(bids: weir.Stream) -> None:
    first, second = line(1), line(3)
    bids.filter(pl.col("price") > 1, uid="same")
    with pytest.raises(PlanError, match=rf"'same' is used twice.*{first}.*{second}"):
        bids.filter(pl.col("price") > 2, uid="same")


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2"])
def test_a_parallelism_that_is_no_positive_whole_number_is_refused(bids: weir.Stream, parallelism: object) -> None:
    with pytest.raises(PlanError, match="whole number"):
        bids.filter(pl.col("price") > 1, parallelism=parallelism)  # type: ignore[arg-type]


def test_an_expression_passed_as_the_operators_name_is_explained(bids: weir.Stream) -> None:
    with pytest.raises(PlanError, match="to call a column 'name'"):
        bids.with_columns(name=pl.col("bidder"))  # type: ignore[arg-type]


def test_write_takes_sinks_only(bids: weir.Stream) -> None:
    with pytest.raises(PlanError, match="not a sink"):
        bids.write("out/")  # type: ignore[arg-type]


# --- Where rows go ------------------------------------------------------------------------------------


def test_uid_name_and_parallelism_reach_the_plan(env: weir.Environment, bids: weir.Stream) -> None:
    bids.filter(pl.col("price") > 1, uid="dear", name="dear bids", parallelism=3).write(connectors.Discard())
    made = env.plan()
    assert [(o.uid, o.name, v.parallelism) for v in made.vertices for o in v.operators] == [
        ("bids", "bids", 2),
        ("dear", "dear bids", 3),
        ("sink-1", "sink-1", 2),
    ]


def test_union_rebalance_and_broadcast_are_exchanges_and_no_operators(env: weir.Environment, bids: weir.Stream) -> None:
    others = env.from_collection([(2, 90, "bob")], BIDS, uid="others")
    bids.rebalance().union(others.broadcast(), bids).write(connectors.Discard(), uid="out")
    made = env.plan()
    assert shape(env) == [["bids"], ["others"], ["out"]]
    assert [(e.source, e.exchange) for e in made.edges] == [(0, Rebalance()), (1, Broadcast()), (0, Forward())]


def test_a_key_behind_a_union_hashes_every_input(env: weir.Environment, bids: weir.Stream) -> None:
    others = env.from_collection([(2, 90, "bob")], BIDS, uid="others")
    best = bids.union(others.rebalance()).key_by("auction").reduce(lambda a, b: max(a, b), uid="best")
    best.write(connectors.Discard(), uid="out")
    assert shape(env) == [["bids"], ["others"], ["best", "out"]]
    assert [e.exchange for e in env.plan().edges] == [HashByKey(("auction",))] * 2


def test_streams_of_a_union_must_have_the_same_columns(env: weir.Environment, bids: weir.Stream) -> None:
    with pytest.raises(SchemaError, match=r"union \(.*: the columns differ.*select"):
        bids.union(bids.select("price", "auction", "bidder"))
    with pytest.raises(SchemaError, match="'price' is int64 here and double there"):
        bids.union(bids.with_columns(price=pl.col("price") / 2))


async def numbered(row: Any) -> Any:
    return row.k, row.n


READ_AS_ONE: dict[str, Callable[[weir.KeyedStream], weir.Stream]] = {
    "count window": lambda keyed: keyed.window(weir.count_window(4)).process(of_window, "k long, n long", uid="w"),
    "time window": lambda keyed: keyed.window(weir.tumbling("10s")).process(of_window, "k long, n long", uid="w"),
    "join": lambda keyed: keyed.join(keyed, weir.tumbling("10s"), uid="w"),
    "calls": lambda keyed: keyed.map_async(numbered, "k long, n long", uid="w"),
}


def of_window(rows: pl.DataFrame, window: weir.Window) -> tuple[int, int]:
    return window.key, rows.height


@pytest.mark.parametrize("reader", READ_AS_ONE)
@pytest.mark.parametrize("nullable_first", [True, False])
def test_streams_are_read_as_one_though_a_column_may_be_null_in_one_of_them(reader: str, nullable_first: bool) -> None:
    env = weir.Environment(parallelism=1)
    rows = [(n % 3, n, datetime(2025, 1, 1) + timedelta(seconds=n)) for n in range(24)]
    streams = [
        env.from_collection(rows, f"k long{nulls}, n long, ts timestamp_ntz{nulls}", watermark=weir.monotonic("ts"))
        for nulls in ("", " not null")
    ]
    one, other = streams if nullable_first else streams[::-1]
    both = one.union(other)
    assert ddl(both) == ddl(streams[0])
    found = collect_local(READ_AS_ONE[reader](both.key_by("k")), checkpoint_every=2)
    count = {"count window": 12, "time window": 9, "calls": 48}
    assert found.num_rows == count.get(reader, found.num_rows) > 0


async def tagged(row: Any, state: Any) -> Any:
    state.seen.value += 1
    if state.seen.value == 2:
        raise LookupError(row.k)
    return row.k, state.seen.value


VIEWED: dict[str, Callable[[weir.KeyedStream], weir.Stream]] = {
    "process": lambda keyed: keyed.window(weir.count_window(4)).process(
        lambda rows, window: (window.key, rows.height), "k string, n long", uid="w"
    ),
    "state": lambda keyed: keyed.window(weir.count_window(4)).process(
        lambda rows, window, state: (window.key, rows.height),
        "k string, n long",
        state={"seen": weir.ValueState("long")},
        uid="w",
    ),
    "agg": lambda keyed: keyed.window(weir.count_window(4)).agg(n=weir.count(), uid="w"),
    "calls": lambda keyed: keyed.map_async(
        tagged, "k string, n long", state={"seen": weir.ValueState("long", default=0)}, failed="failed", uid="w"
    ),
}


@pytest.mark.parametrize("reader", VIEWED)
@pytest.mark.parametrize("seed", range(3))
def test_strings_that_a_source_has_as_views_are_keys_as_others_are(reader: str, seed: int) -> None:
    found = []
    for kind in (pa.string(), pa.string_view()):
        env = weir.Environment(parallelism=2)
        rows = [(f"a key of some length, {n % 3}", n) for n in range(48)]
        keyed = env.from_collection(rows, pa.schema([("k", kind), ("n", pa.int64())]), uid="rows").key_by("k")
        table = collect_local(VIEWED[reader](keyed), checkpoint_every=2, crash_at=5, seed=seed)
        found.append(sorted((str(row["k"]), row["n"]) for row in table.to_pylist()))
    assert found[0] == found[1] != []


def test_streams_of_different_environments_do_not_mix(bids: weir.Stream) -> None:
    other = weir.Environment().from_collection([(1, 2, "x")], BIDS)
    with pytest.raises(PlanError, match="same Environment"):
        bids.union(other)


def test_a_broadcast_is_not_undone_in_silence(bids: weir.Stream) -> None:
    with pytest.raises(PlanError, match=r"^key_by .*broadcast"):
        bids.broadcast().key_by("auction")
    with pytest.raises(PlanError, match=r"^rebalance .*broadcast"):
        bids.broadcast().rebalance()


def test_the_last_exchange_asked_for_holds(env: weir.Environment, bids: weir.Stream) -> None:
    bids.rebalance().broadcast().write(connectors.Discard())
    assert [e.exchange for e in env.plan().edges] == [Broadcast()]


def test_a_stream_explains_what_leads_to_it_without_a_sink(env: weir.Environment, bids: weir.Stream) -> None:
    bids.write(connectors.Discard())
    dear = bids.filter(pl.col("price") > 1, uid="dear")
    assert "dear" in dear.explain()
    assert "sink" not in dear.explain()
    assert dear.explain("mermaid").startswith("flowchart")
    with pytest.raises(PlanError, match="neither 'text' nor 'mermaid'"):
        dear.explain("html")  # type: ignore[arg-type]
