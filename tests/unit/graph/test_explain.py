"""Plans as people read them."""

from __future__ import annotations

from tests.unit.graph.sample import KEY, Combine, Sketch
from weir.graph.explain import explain, mermaid
from weir.graph.plan import Broadcast, Plan


def sums_over_a_union() -> Plan:
    sketch = Sketch()
    one, two = sketch.source("one"), sketch.source("two", parallelism=1, bounded=False)
    sums = sketch.step((one, KEY), (two, KEY), uid="sums", name='the "sums" <all>', combine=Combine())
    sketch.sink(sums, uid="out")
    sketch.sink((sums, Broadcast()), uid="audit", parallelism=3)
    return sketch.plan()


def test_text_shows_chains_uids_parallelism_exchanges_and_schemas() -> None:
    assert explain(sums_over_a_union()).splitlines() == [
        "unbounded job, 3 task slots, 5 vertices, 4 exchanges, 128 key groups",
        "",
        "[0] parallelism 2",
        "    one             Numbers                               auction bigint, price bigint",
        "    sums/combine-1  Combine 'the \"sums\" <all>/combine-1'  auction bigint, price bigint, partial bigint",
        "    └─ hash by auction (2 → 2) to [2]",
        "",
        "[1] parallelism 1",
        "    two             Numbers                               auction bigint, price bigint",
        "    sums/combine-2  Combine 'the \"sums\" <all>/combine-2'  auction bigint, price bigint, partial bigint",
        "    └─ hash by auction (1 → 2) to [2]",
        "",
        "[2] parallelism 2",
        "    sums  Same 'the \"sums\" <all>'  auction bigint, price bigint",
        "    └─ forward (2 → 2) to [3]",
        "    └─ broadcast (2 → 3) to [4]",
        "",
        "[3] parallelism 2",
        "    out  Drain  auction bigint, price bigint",
        "",
        "[4] parallelism 3",
        "    audit  Drain  auction bigint, price bigint",
    ]


def test_mermaid_has_a_box_for_each_vertex_and_an_arrow_for_each_edge_with_names_escaped() -> None:
    assert mermaid(sums_over_a_union()).splitlines() == [
        "flowchart LR",
        '    v0(["one: Numbers<br/>the &quot;sums&quot; &lt;all&gt;/combine-1: Combine<br/>× 2"])',
        '    v1(["two: Numbers<br/>the &quot;sums&quot; &lt;all&gt;/combine-2: Combine<br/>× 1"])',
        '    v2["the &quot;sums&quot; &lt;all&gt;: Same<br/>× 2"]',
        '    v3(["out: Drain<br/>× 2"])',
        '    v4(["audit: Drain<br/>× 3"])',
        '    v0 -->|"hash by auction"| v2',
        '    v1 -->|"hash by auction"| v2',
        '    v2 -->|"forward"| v3',
        '    v2 -->|"broadcast"| v4',
    ]
