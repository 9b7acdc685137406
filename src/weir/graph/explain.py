"""A plan as text for people, and as a Mermaid diagram for pages.

Comes in: a Plan. Goes out: a string that is the same for the same plan. Never
touches anything else.
"""

from __future__ import annotations

from weir.graph.plan import Broadcast, Edge, Exchange, Forward, HashByKey, Plan, PlannedOperator, Rebalance, Vertex
from weir.operators.time.watermarks import AssignWatermarks
from weir.schema import format_schema

_EXCHANGES = {Forward: "forward", Rebalance: "rebalance", Broadcast: "broadcast"}


def explain(plan: Plan) -> str:
    """Vertices in order, each with its chained operators and where its rows go."""
    lines = [_headline(plan)]
    for vertex in plan.vertices:
        lines += ["", f"[{vertex.id}] parallelism {vertex.parallelism}"]
        lines += _operator_lines(vertex)
        lines += [f"    note: {note}" for note in notes(vertex, plan)]
        lines += [f"    └─ {_arrow(edge, plan)}" for edge in plan.out_edges(vertex.id)]
    return "\n".join(lines)


def notes(vertex: Vertex, plan: Plan) -> list[str]:
    """What is allowed, and may not be what was meant."""
    if vertex.is_source:
        return []
    makers = [operator for operator in vertex.operators if isinstance(operator.spec, AssignWatermarks)]
    sources = [
        plan.vertices[edge.source].operators[0].uid
        for edge in plan.in_edges(vertex.id)
        if plan.vertices[edge.source].is_source and not isinstance(edge.exchange, Forward)
    ]
    return [
        f"'{maker.uid}' makes watermarks behind an exchange, where the rows of all splits of '{source}' are mixed, and "
        f"rows of a split that is behind the others come late; give the strategy to read(…, watermark=…), or "
        f"with_watermarks(…) the parallelism of the source"
        for maker in makers
        for source in sources
    ]


def mermaid(plan: Plan) -> str:
    """A flowchart with one box for each vertex and one arrow for each exchange."""
    lines = ["flowchart LR"]
    for vertex in plan.vertices:
        rows = [_label(operator) for operator in vertex.operators]
        rows.append(f"× {vertex.parallelism}")
        left, right = ("[", "]") if not (vertex.is_source or vertex.is_sink) else ("([", "])")
        lines.append(f'    v{vertex.id}{left}"{"<br/>".join(rows)}"{right}')
    for edge in plan.edges:
        arrow, label = ("-.->", "back: ") if edge.is_back else ("-->", "")
        label += describe_exchange(edge.exchange)
        lines.append(f'    v{edge.source} {arrow}|"{_escape(label)}"| v{edge.target}')
    return "\n".join(lines)


def describe_exchange(exchange: Exchange) -> str:
    """
    >>> describe_exchange(HashByKey(("auction", "bidder")))
    'hash by auction, bidder'
    """
    if isinstance(exchange, HashByKey):
        return f"hash by {', '.join(exchange.keys)}"
    return _EXCHANGES[type(exchange)]


def _headline(plan: Plan) -> str:
    ends = "bounded" if plan.bounded else "unbounded"
    regions, slots = len(plan.regions), sum(region.parallelism for region in plan.regions)
    apart = f" for {regions} regions" if regions > 1 else ""
    return (
        f"{ends} job, {_counted(slots, 'task slot')}{apart}, {_counted(len(plan.vertices), 'vertex', 'vertices')}, "
        f"{_counted(len(plan.edges), 'exchange')}, {_counted(plan.max_parallelism, 'key group')}"
    )


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _operator_lines(vertex: Vertex) -> list[str]:
    rows = [(operator.uid, _kind(operator), format_schema(operator.schema)) for operator in vertex.operators]
    uid_width = max(len(row[0]) for row in rows)
    kind_width = max(len(row[1]) for row in rows)
    return [f"    {uid:<{uid_width}}  {kind:<{kind_width}}  {schema}".rstrip() for uid, kind, schema in rows]


def _kind(operator: PlannedOperator) -> str:
    """The operator's class, and the user's name for it where that says more than the uid."""
    kind = type(operator.spec).__name__
    return kind if operator.name == operator.uid else f"{kind} '{operator.name}'"


def _arrow(edge: Edge, plan: Plan) -> str:
    sources, targets = plan.vertices[edge.source].parallelism, plan.vertices[edge.target].parallelism
    direction = "back to" if edge.is_back else "to"
    return f"{describe_exchange(edge.exchange)} ({sources} → {targets}) {direction} [{edge.target}]"


def _label(operator: PlannedOperator) -> str:
    kind = type(operator.spec).__name__
    return f"{_escape(operator.name)}: {kind}"


def _escape(text: str) -> str:
    """Mermaid reads quotes, brackets and markup inside labels; entities it shows as they are meant."""
    for character, entity in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("#", "&#35;")):
        text = text.replace(character, entity)
    return text
