"""Cycles: a stream that is fed back into itself.

Comes in: a stream and the user's step. Goes out: the head of a loop as a logical node,
and its back-edges. What is fed back is checked where the loop was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.api.build import Options
from weir.api.places import placed
from weir.api.upstream import check_same
from weir.errors import PlanError
from weir.operators.loop import LoopHead

if TYPE_CHECKING:
    from weir.api.stream import Stream

WANTED = "step(rows) must return two streams of the same Environment, (again, done)"


def iterate(stream: Stream, step: Callable[[Stream], tuple[Stream, Stream]], options: Options) -> Stream:
    """Stream.iterate."""
    rows = stream._apply("iterate", lambda: LoopHead(stream.schema), options)
    head = rows._upstream.inputs[0].node
    returned = step(rows)
    with placed("iterate", rows.schema):
        again, done = _checked(rows, returned)
        if any(i.node == head and i.side is None for i in again._upstream.inputs):
            raise PlanError("rows are fed back as they came in, so that they would go round for ever; filter them")
        check_same(rows.schema, again.schema)
        rows._environment._builder.graph.close_loop(head, again._upstream.inputs)
    return done


def _checked(rows: Stream, returned: object) -> tuple[Stream, Stream]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise PlanError(f"{WANTED}; found {returned!r}")
    for name, found in zip(("again", "done"), returned, strict=True):
        if not isinstance(found, type(rows)) or found._environment is not rows._environment:
            raise PlanError(f"{WANTED}; found {found!r} for {name}")
    return returned
