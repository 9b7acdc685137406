"""What can be rescaled in place.

Comes in: a running plan, and how it is made at another parallelism. Goes out: the plan to go on with, or why not.
Stops nothing, and never looks for slots.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.errors import JobError
from weir.graph.plan import Plan
from weir.operators.source import Source


def rescaled(job: str, running: Plan, plan_at: Callable[[int], Plan] | None, parallelism: int) -> Plan:
    """The plan at this parallelism. A source that the driver feeds cannot change its number of readers."""
    if plan_at is None:
        raise JobError(f"job {job!r} was not submitted by an Environment, so it cannot be rescaled in place")
    plan = plan_at(parallelism)
    readers = {vertex.operators[0].uid: vertex.parallelism for vertex in running.vertices}
    for vertex in plan.vertices:
        operator = vertex.operators[0]
        spec = operator.spec
        is_fed = isinstance(spec, Source) and type(spec).on_driver_start is not Source.on_driver_start
        if is_fed and readers.get(operator.uid) != vertex.parallelism:
            raise JobError(
                f"source {operator.name!r} is fed by the driver, for {readers.get(operator.uid)} readers: give it "
                "a parallelism of its own, or stop the job with a savepoint and start it from there"
            )
    return plan
