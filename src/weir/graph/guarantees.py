"""What a job promises about each row, as the weakest of its parts has it.

Comes in: a plan, and the settings of checkpoints and restarts. Goes out: a line for people, or why the two do not go
together. Never touches anything else.
"""

from __future__ import annotations

from weir.config import JobConfig, NoRestart
from weir.errors import ConfigError
from weir.graph.plan import Plan, PlannedOperator
from weir.operators.sink import Sink
from weir.operators.source import Source

_WORDS = {"exactly_once": "exactly once", "at_least_once": "at least once", "at_most_once": "at most once"}


def guarantee_of(plan: Plan, config: JobConfig) -> str:
    """How often a row counts, in state and in output."""
    checkpoints = config.checkpoints
    mode = "exactly_once" if checkpoints is None else checkpoints.mode
    if config.is_at_most_once:
        lost = "after a failure the state is lost, and sources go on behind what they have read"
        return f"each row counts at most once: {lost}"
    if isinstance(config.restart, NoRestart):
        return "each row counts once, until a failure ends the job"
    if checkpoints is None or mode == "none":
        found = _shown_at_once(plan)
        repeats = f", and {_named(found)} may show rows again" if found else ""
        return f"each row counts once: after a failure the job begins anew{repeats}"
    weak = [operator for operator in _sources(plan) if _guarantee(operator) != "exactly_once"]
    state = f"{_WORDS[mode]}{_weakened(weak)}"
    output = [operator for operator in _shown_at_once(plan) if mode == "exactly_once"]
    return f"each row counts {state}" + (f"; {_named(output)} may show rows again after a failure" if output else "")


def check_at_most_once(plan: Plan) -> None:
    """ConfigError when a source hands rows out again although it has a position behind them."""
    for operator in _sources(plan):
        if _guarantee(operator) == "at_least_once":
            raise ConfigError(
                f"source {operator.name!r} (uid {operator.uid!r}) may hand out rows again from before its position, "
                f'so that mode="none" cannot count each row at most once; choose on_restart="from_the_beginning", '
                f"NoRestart(), or another mode"
            )


def _weakened(operators: list[PlannedOperator]) -> str:
    weak = [f"{_WORDS[_guarantee(operator)]} what comes from '{operator.uid}'" for operator in operators]
    return "".join(f", {each}" for each in weak)


def _guarantee(operator: PlannedOperator) -> str:
    assert isinstance(operator.spec, Source | Sink)
    return operator.spec.guarantee


def _sources(plan: Plan) -> list[PlannedOperator]:
    return [vertex.operators[0] for vertex in plan.vertices if isinstance(vertex.operators[0].spec, Source)]


def _shown_at_once(plan: Plan) -> list[PlannedOperator]:
    """Sinks that do not wait for a checkpoint."""
    ends = [vertex.operators[-1] for vertex in plan.vertices if isinstance(vertex.operators[-1].spec, Sink)]
    return [operator for operator in ends if _guarantee(operator) != "exactly_once"]


def _named(operators: list[PlannedOperator]) -> str:
    return ", ".join(f"'{operator.uid}'" for operator in operators)
