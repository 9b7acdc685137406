"""Logical nodes: what a graph refuses to take, and how columns are checked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.unit.graph.sample import BIDS, Drain, Numbers, Sketch
from weir.errors import PlanError, SchemaError
from weir.graph.logical import Input, LogicalGraph, Node, NodeId, Place, check_keys, missing_columns
from weir.graph.plan import Forward
from weir.ids import Uid


def test_a_node_says_what_it_is_and_where_it_was_written() -> None:
    node = Node(
        NodeId(0), kind="source", spec=Numbers(), inputs=(), schema=BIDS, uid=Uid("in"), place=Place("job.py", 7)
    )
    assert str(node) == "source 'in' (job.py:7)"


def test_an_input_must_be_in_the_same_graph_already() -> None:
    sink = Node(NodeId(0), kind="sink", spec=Drain(), inputs=(Input(NodeId(3), Forward()),), schema=BIDS)
    with pytest.raises(PlanError, match="one Environment"):
        LogicalGraph().add(sink)


def test_only_a_source_has_no_input() -> None:
    with pytest.raises(PlanError, match="at least one"):
        LogicalGraph().add(Node(NodeId(0), kind="sink", spec=Drain(), inputs=(), schema=BIDS))


@pytest.mark.parametrize("uid", ["", "  ", "x" * 151, "語" * 17])
def test_a_uid_must_be_fit_for_file_names(uid: str) -> None:
    with pytest.raises(PlanError, match="uid is"):
        Sketch().source(uid)


def test_a_node_that_was_refused_leaves_the_graph_as_it_was() -> None:
    sketch = Sketch()
    sketch.source("in")
    with pytest.raises(PlanError):
        sketch.source("in")
    assert len(sketch.graph) == 1
    sketch.source("other")


def test_no_suggestion_is_made_when_nothing_is_close() -> None:
    assert missing_columns(["zzz"], BIDS) == "no column 'zzz'. The columns are: auction, price"


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ((), PlanError, "at least one column"),
        ((["auction", "price"],), PlanError, "not the name of a column"),
        (("auction", "auction"), PlanError, "twice"),
        (("pric",), SchemaError, "did you mean 'price'"),
        (("tags",), SchemaError, "'tags'.*list"),
    ],
)
def test_keys_must_exist_once_and_be_hashable(keys: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_keys(keys, BIDS.append(pa.field("tags", pa.list_(pa.string()))))
