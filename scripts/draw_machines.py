"""Draws docs/machines.md from the tables of the machines: `python scripts/draw_machines.py`.

Comes in: the tables alone. Goes out: one page, the same bytes every time; a test says when it is
out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.runtime.driver import region_machine
from weir.snapshot.alignment import AtLeastOnceAlignment, ExactlyOnceAlignment
from weir.snapshot.coordinator import phases
from weir.snapshot.transitions import Transition

PAGE = Path(__file__).parents[1] / "docs" / "machines.md"

Edges = dict[tuple[str, str], list[str]]

HEAD = """# The machines

Three parts decide in which order things happen, and touch nothing: [alignment](../src/weir/snapshot/alignment.py) (when
a subtask takes its snapshot), the [coordinator](../src/weir/snapshot/coordinator/machine.py) (which checkpoints begin,
complete and fail) and the [life of a region's attempts](../src/weir/runtime/driver/region_machine.py) (what the driver
launches, tells and kills). Each has a table; an event that a phase has no entry for is a violation, and a test goes
through all pairs. This page is drawn from the tables by `scripts/draw_machines.py`.
"""


def page() -> str:
    return "\n".join(
        [
            HEAD,
            "## A region's attempts\n",
            drawn(edges_of(region_machine.TRANSITIONS), "Created"),
            "Nothing follows from these, though they may come:\n",
            ignored(),
            "\n## Alignment, exactly once\n",
            drawn(edges_of(ExactlyOnceAlignment.handlers), "Flowing"),
            "## Alignment, at least once\n",
            drawn(edges_of(AtLeastOnceAlignment.handlers), "Counting"),
            "## The coordinator\n",
            drawn(coordinator_edges(), "WAITING"),
            "| phase | |\n|---|---|",
            *(f"| {phase.name} | {phase.value} |" for phase in phases.CoordinatorPhase),
            "",
        ]
    )


def edges_of(table: Mapping[tuple[type[Any], type[Any]], Transition]) -> Edges:
    """The events that lead from one phase to another, or back to it."""
    edges: Edges = {}
    for (phase, event), transition in table.items():
        for to in transition.to:
            edges.setdefault((phase.__name__, to.__name__), []).append(event.__name__)
    return edges


def coordinator_edges() -> Edges:
    return {(before.name, after.name): [why] for (before, after), why in phases.TRANSITIONS.items()}


def drawn(edges: Edges, first: str) -> str:
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in edges.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```", ""])


def ignored() -> str:
    rows = []
    for phase in region_machine.PHASES:
        events = [event.__name__ for event in region_machine.EVENTS if (phase, event) in region_machine.IGNORED]
        rows.append(f"| {phase.__name__} | {', '.join(events)} |")
    return "\n".join(["| in | |", "|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(page())
