"""The keyed batch function: state by key for whole batches, gathered and stored as columns.

Comes in: batches of rows that belong to this subtask's key groups. Goes out: what the
function made of each. Nothing here is per row: one call sees all rows of a batch, and
the state of all their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError, PlanError, SchemaError, WeirError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.batches.columns import StateColumns
from weir.operators.batches.expiry import check_ttls
from weir.operators.batches.results import BatchKind, Results, check_kind, given, given_with
from weir.operators.batches.stored import StoredColumns
from weir.operators.batches.table import SlotTable
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.declared import (
    FunctionStates,
    attributes,
    kept_by,
    keyed_states,
    named_states,
    operator_states,
)
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.row_codec import emit
from weir.operators.functions.stateful import StatefulFunction, check_none_dropped
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_schema, parse_schema
from weir.state.declared.base import StateDescriptor
from weir.state.declared.kinds import KeyedState
from weir.state.frozen import CheckedState, RestoredState
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

STATE = "state"
"""The name of the state table: all values of a key are one row."""

KEY_ROW = "key_row"
"""The column that the function's rows have besides their own: which row of `state` is that of their key."""


class KeyedBatchFunction:
    """A function of batches with state by key. Write a subclass; declare states of any kind as class attributes.

        class Totals(weir.KeyedBatchFunction):
            total = weir.ValueState("long", default=0)

            def process(self, rows, state):
                state = state.with_columns(total=pl.col("total") + weir.ByKey(rows, state).sum("value"))
                return state.select("key", "total"), state

    `rows` are the rows of a batch, those of a key together, with the column `key_row`; `state` has one row for each key
    among them: the key columns and the values, defaults where there are none yet. Return the rows that come out, and
    the new state: a frame with as many rows as `state`, in its order. A key whose values are all null is forgotten.
    Return the rows alone, or None, to leave the state as it is.
    """

    def open(self, context: FunctionContext) -> None:
        """Get ready, before the first batch and after each restart. More states may be declared here, with
        `context.state("total", weir.ValueState("long"))`."""

    def process(self, rows: Any, state: Any) -> Any:
        """Take one batch. Return rows, or (rows, new state)."""
        raise NotImplementedError(f"{type(self).__name__}.process")

    def close(self) -> None:
        """Release what `open` made."""


class KeyedBatches(OperatorSpec):
    """Call a KeyedBatchFunction, or a plain function of (rows, state), with each batch."""

    def __init__(
        self,
        keys: Sequence[str],
        function: KeyedBatchFunction | Callable[[Any, Any], Any],
        schema: str | pa.Schema,
        *,
        state: Mapping[str, StateDescriptor] | None = None,
        kind: BatchKind = "polars",
    ) -> None:
        check_kind(kind, "process_batches")
        self.keys = tuple(keys)
        self.function = function
        self.output = parse_schema(schema)
        self.declared = _declared(function, state)
        self.columns = _by_name(self.declared)
        self.kind: BatchKind = kind
        self.key_schema: pa.Schema | None = None
        """Known once `schema` has seen the input."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        found = key_schema_of(self.keys, inputs[0])
        self.key_schema = pa.schema([pa.field(field.name, in_flight_type(field.type)) for field in found])
        if KEY_ROW in inputs[0].names:
            raise SchemaError(f"process_batches adds a column {KEY_ROW!r}, and there is one; rename it before")
        if taken := set(self.keys) & set(self.columns):
            raise SchemaError(f"process_batches: {sorted(taken)[0]!r} is a key and a state; rename the state")
        return self.output

    def make(self) -> Operator:
        if self.key_schema is None:
            raise PlanError("process_batches: its input schema is not known; call schema() before make()")
        return _KeyedBatches(self, self.key_schema)

    @property
    def states(self) -> tuple[str, ...]:
        by_key = set(self.columns)
        return (STATE, *(name for name in self.declared.names if name not in by_key))

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return self._columns.verdict(stored) if state == STATE else self.declared.verdict(state, stored)

    def dropped(self, state: str, stored: Callable[[], pa.Schema]) -> tuple[str, ...]:
        # What open() declares is known to tasks only, and they ask again.
        return () if state != STATE or self.declared.opens else self._columns.dropped(stored())

    @property
    def _columns(self) -> StoredColumns:
        if self.key_schema is None:
            raise PlanError("process_batches: its input schema is not known; call schema() before verdict()")
        return StoredColumns(self.key_schema, self.columns)


def _declared(function: Any, state: Mapping[str, StateDescriptor] | None) -> FunctionStates:
    if isinstance(function, KeyedBatchFunction):
        if state:
            raise PlanError("process_batches: a KeyedBatchFunction declares its states as attributes; leave out state=")
        found: Mapping[str, StateDescriptor] = attributes(function)
    elif callable(function) and not isinstance(function, type):
        found = dict(state or {})
    else:
        raise PlanError(
            f"process_batches: expected a KeyedBatchFunction, or a function of (rows, state), found {function!r}"
        )
    named = named_states(found, "process_batches")
    is_held = isinstance(function, KeyedBatchFunction)
    if not is_held and (unkeyed := operator_states(named)):
        raise PlanError(
            f"process_batches: state {min(unkeyed)!r} belongs to the subtask; write a KeyedBatchFunction to use it"
        )
    if any(name == STATE for name in (descriptor.name for descriptor in operator_states(named).values())):
        raise PlanError(f"process_batches: {STATE!r} is what the values by key are kept as; give yours another name")
    kept = kept_by(function, named, "process_batches", is_held=is_held, base=KeyedBatchFunction)
    if not keyed_states(named) and not kept.opens:
        raise PlanError("process_batches: declare at least one value, such as state={'total': weir.ValueState('long')}")
    check_ttls([value.ttl for value in keyed_states(named).values()], "process_batches")
    return kept


def _by_name(declared: FunctionStates) -> dict[str, KeyedState]:
    """The states that are columns."""
    return {state.name or "": state for _, state in sorted(keyed_states(declared.declared).items())}


class _KeyedBatches(Operator):
    def __init__(self, spec: KeyedBatches, key_schema: pa.Schema) -> None:
        self._stateful = StatefulFunction(spec.function, spec.declared)
        function = self._stateful.function
        self._call: Callable[[Any, Any], Any] = (
            function.process if isinstance(function, KeyedBatchFunction) else function
        )
        self._spec = spec
        self._key_schema = key_schema
        self._declared = dict(spec.columns)

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        held = {} if restored is None else restored.states
        others = {name: state for name, state in held.items() if name != STATE}
        self._stateful.attach(context, others, by_key=self._column)
        self._stateful.open(FunctionContext(context, self._stateful.state))
        label = operator_label(context)
        if not self._declared:
            raise PlanError(f"{label}: neither the class nor open() declares a state by key")
        self._columns = StateColumns(self._declared)
        self._given_schema = pa.schema([*self._key_schema, *self._columns.schema])
        self._rows_out = Results(self._spec.output, label=label)
        self._state_out = Results(self._columns.schema, label=f"{label}: the new state", others=True)
        self._table = SlotTable(
            self._key_schema,
            self._columns.schema,
            defaults=self._columns.defaults,
            ttls=self._columns.ttls,
            context=context,
        )
        if STATE in held:
            self._restore(held[STATE])

    def _column(self, state: KeyedState) -> KeyedState:
        """A state by key is a column; in the function's own place it stands with its name."""
        name = state.name or ""
        if name not in self._declared:
            if name in self._key_schema.names:
                raise PlanError(f"process_batches: {name!r} is a key and a state; rename the state")
            self._declared[name] = state
            check_ttls([value.ttl for value in self._declared.values()], "process_batches")
        return state

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        keys = self._table.find([batch.column(name) for name in self._key_schema.names])
        values = self._table.read(keys.slots)
        shown = [*keys.columns, *self._columns.given(values)]
        given_state = pa.RecordBatch.from_arrays(shown, schema=self._given_schema)
        emitted, new = self._called(
            batch if keys.order is None else take_rows(batch, keys.order), keys.rows, given_state
        )
        if new is not None:
            self._table.write(keys.slots, self._checked_state(new, len(keys.slots)))
        else:
            self._table.touch(keys.slots, values)
        if emitted is not None:
            emit(self._rows_out.checked(emitted), out)

    def _called(self, rows: pa.RecordBatch, key_rows: Ints, state: pa.RecordBatch) -> tuple[Any, Any]:
        """What the function returned: rows, and the new state."""
        kind = self._spec.kind
        try:
            result = self._call(given_with(rows, KEY_ROW, key_rows, kind), given(state, kind))
        except WeirError:
            raise
        except Exception as error:
            what = f"a batch of {rows.num_rows} rows ({format_schema(rows.schema)})"
            raise user_code_error(error, self._context, doing=what) from None
        return result if isinstance(result, tuple) else (result, None)

    def freeze(self) -> Frozen:
        return Frozen(states={STATE: self._table.freeze(), **self._stateful.freeze()})

    def close(self) -> None:
        try:
            self._stateful.close()
        finally:
            if hasattr(self, "_table"):
                self._table.close()

    def _checked_state(self, new: Any, keys: int) -> list[pa.Array]:
        checked = self._state_out.checked(new)
        if checked.num_rows != keys:
            raise SchemaError(
                f"{operator_label(self._context)}: the new state has {checked.num_rows} rows, expected {keys}: one for "
                "each row of the state that was given, in its order"
            )
        return self._columns.kept(checked.columns, operator_label(self._context))

    def _restore(self, held: RestoredState) -> None:
        columns = StoredColumns(self._key_schema, self._declared)
        now_ms = self._context.place.now_ms()

        def adapted(table: pa.Table) -> pa.Table:
            if self._spec.declares_in_open and not self._context.may_drop_state:
                check_none_dropped(columns.dropped(table.schema), self._declared)
            return columns.adapted(table, now_ms)

        try:
            self._table.restore(CheckedState(held, adapted))
        except CheckpointError as error:
            raise type(error)(f"{operator_label(self._context)}: {error.message}") from None
