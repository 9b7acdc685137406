"""The planner: chains, exchanges, unions, combiners, uids and what it refuses."""

from __future__ import annotations

import pickle

import pytest

from tests.unit.graph.sample import BIDS, KEY, Combine, Sketch, arrows, shape
from weir.errors import PlanError, SchemaError
from weir.graph.plan import Broadcast, Forward, HashByKey, Rebalance
from weir.graph.planner import plan


def test_a_straight_line_becomes_one_chain_with_the_sink_last() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step(sketch.step(sketch.source("in"), uid="a"), uid="b"), uid="out")
    made = sketch.plan()
    assert shape(made) == [["in", "a", "b", "out"]]
    assert made.edges == ()
    assert made.vertices[0].is_source
    assert made.vertices[0].is_sink
    assert made.parallelism == 2


def test_a_hash_exchange_breaks_the_chain_even_at_parallelism_one() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step((sketch.source("in"), KEY), uid="keyed"), uid="out")
    made = sketch.plan(parallelism=1)
    assert shape(made) == [["in"], ["keyed", "out"]]
    assert arrows(made) == [(0, 1, KEY)]
    assert made.edges[0].schema == BIDS


@pytest.mark.parametrize("exchange", [Rebalance(), Broadcast()])
def test_an_exchange_that_was_asked_for_breaks_the_chain(exchange: Rebalance | Broadcast) -> None:
    sketch = Sketch()
    sketch.sink(sketch.step((sketch.source("in"), exchange), uid="a"), uid="out")
    assert arrows(sketch.plan()) == [(0, 1, exchange)]


def test_forward_between_different_parallelisms_becomes_rebalance() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step(sketch.source("in", parallelism=1), uid="a"), uid="out", parallelism=3)
    made = sketch.plan(parallelism=2)
    assert shape(made) == [["in"], ["a"], ["out"]]
    assert [vertex.parallelism for vertex in made.vertices] == [1, 2, 3]
    assert arrows(made) == [(0, 1, Rebalance()), (1, 2, Rebalance())]
    assert made.parallelism == 3


def test_an_operator_with_two_consumers_ends_its_chain() -> None:
    sketch = Sketch()
    both = sketch.step(sketch.source("in"), uid="both")
    sketch.sink(sketch.step(both, uid="left"), uid="out-left")
    sketch.sink(both, uid="out-right")
    made = sketch.plan()
    assert shape(made) == [["in", "both"], ["left", "out-left"], ["out-right"]]
    assert arrows(made) == [(0, 1, Forward()), (0, 2, Forward())]


def test_a_union_is_several_edges_into_the_reader() -> None:
    sketch = Sketch()
    one, two = sketch.source("one"), sketch.source("two", parallelism=1)
    sketch.sink(sketch.step(one, two, uid="both"), uid="out")
    made = sketch.plan()
    assert shape(made) == [["one"], ["two"], ["both", "out"]]
    assert arrows(made) == [(0, 2, Forward()), (1, 2, Rebalance())]


def test_a_union_of_a_stream_with_itself_has_two_edges() -> None:
    sketch = Sketch()
    one = sketch.source("one")
    sketch.sink(one, one, uid="out")
    made = sketch.plan()
    assert arrows(made) == [(0, 1, Forward()), (0, 1, Forward())]
    assert [edge.id for edge in made.edges] == [0, 1]


def test_a_combiner_is_chained_before_the_hash_exchange() -> None:
    sketch = Sketch()
    summed = sketch.step((sketch.source("in"), KEY), uid="sums", combine=Combine())
    sketch.sink(summed, uid="out")
    made = sketch.plan()
    assert shape(made) == [["in", "sums/combine"], ["sums", "out"]]
    assert arrows(made) == [(0, 1, KEY)]
    assert made.edges[0].schema.names == ["auction", "price", "partial"]
    assert made.vertices[1].operators[0].schema == BIDS


def test_a_combiner_behind_a_shared_stream_is_a_vertex_of_its_own_with_the_streams_parallelism() -> None:
    sketch = Sketch()
    shared = sketch.source("in", parallelism=3)
    sketch.sink(sketch.step((shared, KEY), uid="sums", combine=Combine()), uid="out")
    sketch.sink(shared, uid="raw", parallelism=3)
    made = sketch.plan()
    assert shape(made) == [["in"], ["sums/combine"], ["sums", "out"], ["raw"]]
    assert arrows(made) == [(0, 1, Forward()), (1, 2, KEY), (0, 3, Forward())]
    assert made.vertices[1].parallelism == 3


def test_each_input_of_a_union_before_a_key_gets_its_own_combiner_and_hash_edge() -> None:
    sketch = Sketch()
    one, two = sketch.source("one"), sketch.source("two")
    sketch.sink(sketch.step((one, KEY), (two, KEY), uid="sums", combine=Combine()), uid="out")
    made = sketch.plan()
    assert shape(made) == [["one", "sums/combine-1"], ["two", "sums/combine-2"], ["sums", "out"]]
    assert arrows(made) == [(0, 2, KEY), (1, 2, KEY)]


def test_sources_come_first_and_every_edge_points_forward() -> None:
    sketch = Sketch()
    first = sketch.step((sketch.source("one"), KEY), uid="a")
    late = sketch.source("two")
    sketch.sink(sketch.step((first, KEY), (late, KEY), uid="b"), uid="out")
    made = sketch.plan()
    assert [vertex.is_source for vertex in made.vertices] == [True, True, False, False]
    assert [vertex.id for vertex in made.vertices] == [0, 1, 2, 3]
    assert all(edge.source < edge.target for edge in made.edges)


def test_what_leads_to_no_sink_is_left_out_but_keeps_its_position() -> None:
    sketch = Sketch()
    sketch.step(sketch.source())
    sketch.sink(sketch.step(sketch.source()))
    assert shape(sketch.plan()) == [["source-2", "map-2", "sink-1"]]


def test_giving_one_operator_a_uid_does_not_move_the_uids_of_others() -> None:
    def uids(second: str | None) -> list[str]:
        sketch = Sketch()
        node = sketch.source()
        for uid in (None, second, None):
            node = sketch.step(node, uid=uid)
        sketch.sink(node)
        return shape(sketch.plan())[0]

    assert uids(None) == ["source-1", "map-1", "map-2", "map-3", "sink-1"]
    assert uids("mine") == ["source-1", "map-1", "mine", "map-3", "sink-1"]


def test_names_default_to_uids() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step(sketch.source(), name="double it", uid="x"))
    assert sketch.plan().vertices[0].name == "source-1 → double it → sink-1"


def test_a_uid_given_twice_is_refused_with_both_places() -> None:
    sketch = Sketch()
    sketch.step(sketch.source(), uid="same")
    with pytest.raises(PlanError, match=r"'same'.*job\.py:2.*job\.py:4"):
        sketch.sink(sketch.step(sketch.source(), uid="same"))


def test_a_given_uid_that_meets_a_generated_one_is_refused_with_both_places() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step(sketch.step(sketch.source()), uid="map-1"))
    with pytest.raises(PlanError, match=r"'map-1'.*job\.py:2.*job\.py:3"):
        sketch.plan()


def test_a_job_without_a_sink_is_told_to_write() -> None:
    sketch = Sketch()
    sketch.step(sketch.source())
    with pytest.raises(PlanError, match=r"call write\("):
        sketch.plan()


def test_explicit_ends_need_no_sink_and_leave_other_branches_out() -> None:
    sketch = Sketch()
    source = sketch.source("in")
    end = sketch.step(source, uid="a")
    sketch.sink(source, uid="out")
    assert shape(sketch.plan(ends=[end])) == [["in", "a"]]


@pytest.mark.parametrize("parallelism", [0, -1, 129])
def test_a_jobs_parallelism_outside_its_limits_is_refused(parallelism: int) -> None:
    sketch = Sketch()
    sketch.sink(sketch.source())
    with pytest.raises(PlanError, match="from 1 to 128"):
        sketch.plan(parallelism=parallelism)


def test_an_operators_parallelism_above_the_key_groups_is_refused_at_its_place() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step(sketch.source(), uid="wide", parallelism=129))
    with pytest.raises(PlanError, match=r"map 'wide' \(job\.py:2\).*129.*128"):
        sketch.plan()


def test_an_operators_parallelism_below_one_is_refused_at_once() -> None:
    with pytest.raises(PlanError, match="at least 1"):
        Sketch().source(parallelism=0)


def test_keys_must_exist_in_what_comes_in() -> None:
    sketch = Sketch()
    sketch.sink(sketch.step((sketch.source(), HashByKey(("acution",)))))
    with pytest.raises(SchemaError, match=r"'acution'; did you mean 'auction'\? The columns are: auction, price"):
        sketch.plan()


def test_a_job_is_bounded_only_when_all_its_sources_are() -> None:
    sketch = Sketch()
    one, two = sketch.source(), sketch.source(bounded=False)
    sketch.sink(one, two)
    assert not sketch.plan().bounded


def test_the_same_nodes_always_give_the_same_plan_which_survives_pickling() -> None:
    sketch = Sketch()
    summed = sketch.step((sketch.source("in"), KEY), combine=Combine())
    sketch.sink(summed)
    assert sketch.plan() == sketch.plan()
    assert shape(pickle.loads(pickle.dumps(sketch.plan()))) == shape(sketch.plan())


def test_plan_takes_any_iterable_of_nodes() -> None:
    sketch = Sketch()
    sketch.sink(sketch.source())
    made = plan(iter(tuple(sketch.graph)), parallelism=1, max_parallelism=4)
    assert shape(made) == [["source-1", "sink-1"]]
