"""Snapshot hooks: what a function object keeps in plain attributes, as a value of its own making.

Comes in: an object with `snapshot_state` (or `snapshot_state_async`) and `restore_state`. Goes
out: a small state table with one value for each subtask, dealt out or given to all when it
is restored. Values are JSON unless the class says a type; nothing is pickled unless it says so.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError, PlanError, SchemaError
from weir.operators.base import OperatorContext
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_type
from weir.snapshot.parts import StatePart
from weir.state.declared.kinds import OperatorListState
from weir.state.declared.tables import TableLayout
from weir.state.frozen import FrozenState, RestoredState, StateWriter, write_tables
from weir.state.operator_state import REDISTRIBUTE, operator_layout
from weir.state.values.conversion import NotOfType, shown, to_array, to_list
from weir.state.values.evolution import VERDICTS

STATE = "snapshot_state"
"""The name of the state, and of the hook that makes it."""

ASYNC = "snapshot_state_async"
RESTORE = "restore_state"

JSON = pa.struct([pa.field("json", pa.string())])
"""The type of values whose class says none; a declared string is another type."""

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Hooks:
    """What an object's class says of its hooks. `state`: how the values are stored."""

    state: OperatorListState
    is_async: bool
    is_json: bool

    @property
    def layout(self) -> TableLayout:
        return operator_layout(self.state)

    def plan(self, stored: pa.Schema) -> str:
        """As TableLayout.plan. JSON is nothing that another type could evolve from."""
        if (stored.types[-1] == JSON) != self.is_json:
            found = "JSON" if stored.types[-1] == JSON else format_type(stored.types[-1])
            now = "JSON, since the class has no snapshot_type" if self.is_json else self.state.shown_type
            return f"stored as {found}, but now it is {now}; set snapshot_type back"
        return self.layout.plan(stored)

    def adapted(self, table: pa.Table) -> pa.Table:
        """A restored table with the type of now, or CheckpointError."""
        if (verdict := self.plan(table.schema)) not in VERDICTS:
            raise CheckpointError(f"state {STATE!r}: {verdict}")
        return self.layout.adapted(table, now_ms=0)


def hooks_of(kind: type, operator: str) -> Hooks | None:
    """The hooks of function objects of a class; None: it has none. PlanError where they do not fit together."""
    known = [name for name in (STATE, ASYNC, RESTORE) if callable(getattr(kind, name, None))]
    if not known:
        return None
    if RESTORE not in known or len(known) == 1:
        missing = f"{RESTORE}(self, values)" if RESTORE not in known else f"{STATE}(self)"
        raise PlanError(f"{operator}: {kind.__name__} has {known[0]}, but no {missing}; write both or none")
    if STATE in known and ASYNC in known:
        raise PlanError(f"{operator}: {kind.__name__} has both {STATE} and {ASYNC}; write one of them")
    declared = getattr(kind, "snapshot_type", None)
    redistribute: Any = getattr(kind, "snapshot_redistribute", "split")
    state = OperatorListState(JSON if declared is None else declared, redistribute, STATE)
    return Hooks(state, ASYNC in known, declared is None)


class HookedFunction:
    """One subtask's function object with hooks."""

    def __init__(self, function: Any, hooks: Hooks, context: OperatorContext) -> None:
        self._function = function
        self._hooks = hooks
        self._context = context

    def freeze(self) -> dict[str, FrozenState]:
        """What the object says of itself now."""
        hook = ASYNC if self._hooks.is_async else STATE
        try:
            value = getattr(self._function, hook)()
        except Exception as error:
            raise user_code_error(error, self._context, doing=f"{hook}()") from None
        if self._hooks.is_async:
            return {STATE: _FrozenHook(lambda: self._table(value, hook), self._hooks)}
        table = self._table(value, hook)
        return {STATE: _FrozenHook(lambda: table, self._hooks)}

    def restore(self, restored: RestoredState) -> None:
        """Tell the object what falls to it, if anything does."""
        tables = [self._hooks.adapted(table) for table in restored.tables()]
        if not tables:
            return
        values = to_list(pa.concat_tables(tables).column(-1).combine_chunks())
        if not values:
            return
        if self._hooks.is_json:
            values = [json.loads(value["json"]) for value in values]
        elif self._hooks.state.pickled:
            values = [pickle.loads(value) for value in values]
        try:
            self._function.restore_state(values)
        except Exception as error:
            raise user_code_error(error, self._context, doing=f"{RESTORE}()") from None

    def _table(self, value: Any, hook: str) -> pa.Table:
        """The state table of one value; without a row where it is None."""
        if value is not None and self._hooks.is_async and callable(value):
            # What it reads must not change any more; it runs behind the stream's back.
            try:
                value = value()
            except Exception as error:
                raise user_code_error(error, self._context, doing=f"what {hook}() returned") from None
        schema = self._hooks.layout.schema
        if value is None:
            return schema.empty_table()
        try:
            column = self._column(value)
        except NotOfType as problem:
            raise self._refusal(problem, hook) from None
        return pa.table([pa.array([0], pa.int32()), column], schema=schema)

    def _column(self, value: Any) -> pa.Array:
        kind = self._hooks.state.type
        if self._hooks.is_json:
            return pa.array([{"json": _as_json(value)}], kind)
        if not self._hooks.state.pickled:
            return to_array([value], kind)
        try:
            return pa.array([pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)], kind)
        except Exception as error:
            raise NotOfType(0, value, f"it cannot be pickled: {type(error).__name__}: {error}") from None

    def _refusal(self, problem: NotOfType, hook: str) -> SchemaError:
        owner = type(self._function).__name__
        label = f"{operator_label(self._context)}: {hook}() of {owner} returned what cannot be kept"
        kept = "JSON" if self._hooks.is_json else self._hooks.state.shown_type
        advice = f"Return {kept}, or change snapshot_type in the class"
        if self._hooks.is_json:
            advice = (
                "Return None, numbers, texts, lists, or dictionaries with text keys; or say in the class "
                "snapshot_type = 'an Arrow type' or, for any object, weir.Pickled()"
            )
        return SchemaError(
            f"{label} as {kept}: {problem.found}: {problem.reason}. {advice}. The checkpoint before this one is whole:"
            " nothing is lost",
            without_rows=label,
        )


class _FrozenHook(FrozenState):
    """What an object has said of itself. `make` is called by whoever writes it."""

    def __init__(self, make: Callable[[], pa.Table], hooks: Hooks) -> None:
        self._make = make
        self._hooks = hooks
        self._made: pa.Table | None = None

    def tables(self) -> Iterator[pa.Table]:
        if self._made is None:
            self._made = self._make()
        yield self._made

    def write(self, out: StateWriter) -> StatePart:
        return replace(write_tables(self.tables(), out), detail={REDISTRIBUTE: self._hooks.state.redistribute})

    def export(self, out: StateWriter) -> StatePart:
        return self.write(out)


def _as_json(value: Any) -> str:
    """JSON from which exactly this value is read again, or NotOfType."""
    try:
        _check_json(value, "it")
    except RecursionError:
        raise NotOfType(0, value, "it is nested without end") from None
    try:
        return json.dumps(value)
    except ValueError as error:  # Python puts an end to the digits of a number; it cannot be shown either
        raise NotOfType(0, type(value).__name__, f"no number in it may be so long: {error}") from None


def _check_json(value: Any, where: str) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is list:
        for index, element in enumerate(value):
            _check_json(element, f"{where}[{index}]")
    elif kind is dict:
        for key, element in value.items():
            if type(key) is not str:
                raise NotOfType(0, value, f"{where} has the key {shown(key)}, a {type(key).__name__}, not a text")
            _check_json(element, f"{where}[{key!r}]")
    else:
        raise NotOfType(0, value, f"{where} is a {kind.__name__}")
