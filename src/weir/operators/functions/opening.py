"""What a function is told of where it runs: given to `open(context)`.

Comes in: the operator's context, and who declares states. Goes out: what users ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.operators.base import OperatorContext
from weir.state.declared.base import StateDescriptor


class FunctionContext:
    """Where a function runs."""

    __slots__ = ("_declare", "attempt", "index", "job", "max_parallelism", "name", "parallelism", "settings", "uid")

    def __init__(self, context: OperatorContext, declare: Callable[[str, StateDescriptor], Any]) -> None:
        self.job = context.job
        self.uid = context.uid
        self.name = context.name
        self.index = context.index
        """Which of the `parallelism` subtasks of the operator this is, from 0."""
        self.parallelism = context.parallelism
        self.max_parallelism = context.max_parallelism
        self.attempt = context.attempt
        self.settings = context.settings
        self._declare = declare

    def state(self, name: str, descriptor: StateDescriptor) -> Any:
        """Declare a state, in `open` only: `self.total = context.state("total", weir.ValueState("long"))`. Its handle
        holds what the checkpoint had under this name."""
        return self._declare(name, descriptor)
