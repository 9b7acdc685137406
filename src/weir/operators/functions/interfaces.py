"""What users write to keep state by key: process functions, and what they are given.

Comes in: a ProcessFunction, or a plain function with its states. Goes out: the states
that it declares. The operator that runs it is in process.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from weir.errors import PlanError
from weir.operators.functions.context import ProcessContext as ProcessContext
from weir.operators.functions.declared import FunctionStates, attributes, kept_by, named_states
from weir.state.declared.base import StateDescriptor
from weir.state.timers.tables import TIMERS


class KeyedFunction:
    """What all functions with state by key have in common."""

    def open(self, context: ProcessContext) -> None:
        """Get ready, before the first row and after each restart. There is no key yet. More states may be declared:
        `self.total = context.state("total", weir.ValueState("long"))`."""

    def on_timer(self, time: datetime, context: ProcessContext) -> Any:
        """A timer of a key is due, which `context.timers` has set: `context.key` and the states are those of the key.
        Yield or return rows as from `process`."""
        raise NotImplementedError(f"{type(self).__name__}.on_timer")

    def close(self) -> None:
        """Release what `open` made."""


class ProcessFunction(KeyedFunction):
    """A function with state. Write a subclass; declare states of any kind as class attributes.

        class RunningTotal(weir.ProcessFunction):
            total = weir.ValueState("long", default=0)

            def process(self, row, context):
                self.total.set(self.total.get() + row.value)
                yield row.key, self.total.get()

    Each subtask works on a copy of its own. What is not in a declared state does not survive a failure.
    """

    def process(self, row: Any, context: ProcessContext) -> Any:
        """Take one row, a named tuple. Yield rows, or return one (a tuple or a dict), a list of them, or None."""
        raise NotImplementedError(f"{type(self).__name__}.process")


class CoProcessFunction(KeyedFunction):
    """A function of two streams that share state and timers by key: `left.connect(right).key_by(…).process(…)`.

    class Paid(weir.CoProcessFunction):
        order = weir.ValueState("long")

        def process_left(self, order, context):
            self.order.value = order.amount

        def process_right(self, payment, context):
            if self.order.value == payment.amount:
                yield context.key, payment.amount
    """

    def process_left(self, row: Any, context: ProcessContext) -> Any:
        """Take one row of the first stream. What it gives is as for `ProcessFunction.process`."""
        raise NotImplementedError(f"{type(self).__name__}.process_left")

    def process_right(self, row: Any, context: ProcessContext) -> Any:
        """Take one row of the second stream."""
        raise NotImplementedError(f"{type(self).__name__}.process_right")


class BroadcastProcessFunction(KeyedFunction):
    """A function of a keyed stream and of one that every subtask gets: `keyed.connect(rules.broadcast()).process(…)`.

        class Alerts(weir.BroadcastProcessFunction):
            limits = weir.BroadcastState("string", "double")

            def process_broadcast(self, rule, context):
                self.limits[rule.name] = rule.limit

            def process(self, row, context):
                for name, limit in self.limits.items():
                    if row.value > limit:
                        yield row.key, name

    A BroadcastState can be changed in `process_broadcast` only, where there is no key and so no keyed state. Every
    subtask sees all broadcast rows, but those of several channels in an order of its own.
    """

    def process(self, row: Any, context: ProcessContext) -> Any:
        """Take one row of the keyed stream. What it gives is as for `ProcessFunction.process`."""
        raise NotImplementedError(f"{type(self).__name__}.process")

    def process_broadcast(self, row: Any, context: ProcessContext) -> Any:
        """Take one row that every subtask gets. What it puts out comes once from each subtask."""
        raise NotImplementedError(f"{type(self).__name__}.process_broadcast")


def has_timers(function: Any) -> bool:
    """Whether a function can be called by timers."""
    return isinstance(function, KeyedFunction) and type(function).on_timer is not KeyedFunction.on_timer


def declared_states(
    function: Any,
    state: Mapping[str, StateDescriptor] | None,
    kind: type[KeyedFunction] = ProcessFunction,
) -> FunctionStates:
    """What a function object of this kind declares or, instead of a ProcessFunction, a plain function's `state`."""
    if isinstance(function, kind):
        if state:
            raise PlanError(f"process: a {kind.__name__} declares its states as class attributes; leave out state=")
        named = named_states(attributes(function), "process")
    elif isinstance(function, type) and issubclass(function, KeyedFunction):
        raise PlanError(f"process: pass an instance, {function.__name__}(…), rather than the class")
    elif isinstance(function, KeyedFunction) or kind is not ProcessFunction:
        raise PlanError(f"process: expected a {kind.__name__} here, found {function!r}")
    elif callable(function):
        named = named_states(state or {}, "process")
    else:
        raise PlanError(f"process: expected a ProcessFunction or a function of (row, state), found {function!r}")
    is_held = isinstance(function, KeyedFunction)
    reserved = (TIMERS,) if has_timers(function) else ()
    return kept_by(function, named, "process", is_held=is_held, base=KeyedFunction, reserved=reserved)
