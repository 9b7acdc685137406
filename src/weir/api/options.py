"""What the methods of streams accept, turned into what the specs want.

Comes in: arguments as users write them. Goes out: expressions and texts, or an error
that says what was found and what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import polars as pl

from weir.config import Duration, JobConfig, duration_ms
from weir.errors import PlanError
from weir.graph.explain import explain, mermaid
from weir.graph.guarantees import guarantee_of
from weir.graph.plan import Plan
from weir.operators.calls import ONCE, CallPolicy, Retry

Format: TypeAlias = Literal["text", "mermaid"]
"""How a plan is shown."""


def as_expressions(expressions: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Column names and expressions as they are, and named values as aliases: a string names a column, as in Polars."""
    return [*expressions, *(_value(value).alias(name) for name, value in named.items())]


def _value(value: Any) -> pl.Expr:
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    if callable(value):
        raise PlanError(f"{value!r} is a function; write a Polars expression, or use map or map_batches")
    return pl.lit(value)


def explained(made: Plan, format: Format, config: JobConfig | None = None) -> str:
    """A plan in the format that was asked for; the text with what a job of this configuration promises."""
    if format == "text":
        promised = "" if config is None else f"\n\nguarantee: {guarantee_of(made, config)}"
        return f"{explain(made)}{promised}"
    if format == "mermaid":
        return mermaid(made)
    raise PlanError(f"explain: format {format!r} is neither 'text' nor 'mermaid'")


def call_policy(timeout: Duration, retry: Retry | int | None) -> CallPolicy:
    """How patient to be with calls, as users say it."""
    attempts = Retry(attempts=retry) if isinstance(retry, int) else retry or ONCE
    return CallPolicy(duration_ms(timeout, "timeout"), attempts)
