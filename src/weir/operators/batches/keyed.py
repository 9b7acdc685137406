"""The keyed batch function: state by key for whole batches, gathered and stored as columns.

Comes in: batches of rows that belong to this subtask's key groups. Goes out: what the
function made of each. Nothing here is per row: one call sees all rows of a batch, and
the state of all their keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import CheckpointError, PlanError, SchemaError, WeirError
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.batches.expiry import check_ttls
from weir.operators.batches.results import BatchKind, Results, check_kind, given, given_with
from weir.operators.batches.stored import StoredColumns
from weir.operators.batches.table import SlotTable
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.row_codec import emit
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_schema, parse_schema
from weir.state.declared.kinds import ValueState
from weir.state.frozen import CheckedState
from weir.state.keys.hashing import take_rows
from weir.state.keys.xxhash64 import Ints

STATE = "state"
"""The name of the state table: all values of a key are one row."""

KEY_ROW = "key_row"
"""The column that the function's rows have besides their own: which row of `state` is that of their key."""


class KeyedBatchFunction:
    """A function of batches with state by key. Write a subclass; declare values as class attributes.

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

    def open(self, context: OperatorContext) -> None:
        """Get ready, before the first batch and after each restart."""

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
        state: Mapping[str, ValueState] | None = None,
        kind: BatchKind = "polars",
    ) -> None:
        check_kind(kind, "process_batches")
        self.keys = tuple(keys)
        self.function = function
        self.output = parse_schema(schema)
        self.declared = _declared(function, state)
        self.kind: BatchKind = kind
        self.key_schema: pa.Schema | None = None
        """Known once `schema` has seen the input."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        found = key_schema_of(self.keys, inputs[0])
        self.key_schema = pa.schema([pa.field(field.name, in_flight_type(field.type)) for field in found])
        if KEY_ROW in inputs[0].names:
            raise SchemaError(f"process_batches adds a column {KEY_ROW!r}, and there is one; rename it before")
        if taken := set(self.keys) & set(self.declared):
            raise SchemaError(f"process_batches: {sorted(taken)[0]!r} is a key and a state; rename the state")
        return self.output

    def make(self) -> Operator:
        if self.key_schema is None:
            raise PlanError("process_batches: its input schema is not known; call schema() before make()")
        return _KeyedBatches(self, self.key_schema)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        return self._columns.verdict(stored)

    def dropped(self, state: str, stored: Callable[[], pa.Schema]) -> tuple[str, ...]:
        return self._columns.dropped(stored())

    @property
    def _columns(self) -> StoredColumns:
        if self.key_schema is None:
            raise PlanError("process_batches: its input schema is not known; call schema() before verdict()")
        return StoredColumns(self.key_schema, self.declared)


def _declared(function: Any, state: Mapping[str, ValueState] | None) -> dict[str, ValueState]:
    if isinstance(function, KeyedBatchFunction):
        if state:
            raise PlanError("process_batches: a KeyedBatchFunction declares its values as attributes; leave out state=")
        attributes = {name: getattr(type(function), name, None) for name in dir(type(function))}
        found = {name: value for name, value in attributes.items() if isinstance(value, ValueState)}
    elif callable(function) and not isinstance(function, type):
        found = dict(state or {})
    else:
        raise PlanError(
            f"process_batches: expected a KeyedBatchFunction, or a function of (rows, state), found {function!r}"
        )
    if not found:
        raise PlanError("process_batches: declare at least one value, such as state={'total': weir.ValueState('long')}")
    for name, value in found.items():
        if not isinstance(value, ValueState):
            raise PlanError(f"process_batches: state {name!r} is {value!r}; batch functions keep ValueState only")
    check_ttls([value.ttl for value in found.values()], "process_batches")
    return {value.name or name: value.named(name) for name, value in sorted(found.items())}


class _KeyedBatches(Operator):
    def __init__(self, spec: KeyedBatches, key_schema: pa.Schema) -> None:
        # Subtasks may share one process, and what a function keeps for itself must not be shared.
        self._function = spec.function
        self._call: Callable[[Any, Any], Any] = spec.function  # type: ignore[assignment]
        if isinstance(spec.function, KeyedBatchFunction):
            self._function = own = copy.deepcopy(spec.function)
            self._call = own.process
        self._opened = False
        self._spec = spec
        self._key_schema = key_schema
        self._values = pa.schema([pa.field(name, d.type) for name, d in spec.declared.items()])
        self._given_schema = pa.schema([*key_schema, *self._values])

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        label = operator_label(context)
        self._rows_out = Results(self._spec.output, label=label)
        self._state_out = Results(self._values, label=f"{label}: the new state", others=True)
        declared = self._spec.declared.values()
        self._table = SlotTable(
            self._key_schema,
            self._values,
            defaults=[pa.scalar(value.default, value.type) for value in declared],
            ttls=[value.ttl for value in declared],
            context=context,
        )
        if restored is not None and STATE in restored.states:
            self._restore(restored)
        if isinstance(self._function, KeyedBatchFunction):
            try:
                self._function.open(context)
            except Exception as error:
                raise user_code_error(error, context, doing="open()") from None
            self._opened = True

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        keys = self._table.find([batch.column(name) for name in self._key_schema.names])
        values = self._table.read(keys.slots)
        given_state = pa.RecordBatch.from_arrays([*keys.columns, *values], schema=self._given_schema)
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
        return Frozen(states={STATE: self._table.freeze()})

    def close(self) -> None:
        if hasattr(self, "_table"):
            self._table.close()
        if not self._opened or not isinstance(self._function, KeyedBatchFunction):
            return
        try:
            self._function.close()
        except WeirError:
            raise
        except Exception as error:
            raise user_code_error(error, self._context, doing="close()") from None

    def _checked_state(self, new: Any, keys: int) -> list[pa.Array]:
        checked = self._state_out.checked(new)
        if checked.num_rows != keys:
            raise SchemaError(
                f"{operator_label(self._context)}: the new state has {checked.num_rows} rows, expected {keys}: one for "
                "each row of the state that was given, in its order"
            )
        columns: list[pa.Array] = checked.columns
        return columns

    def _restore(self, restored: Restored) -> None:
        columns = StoredColumns(self._key_schema, self._spec.declared)
        try:
            now_ms = self._context.place.now_ms()
            self._table.restore(CheckedState(restored.states[STATE], lambda table: columns.adapted(table, now_ms)))
        except CheckpointError as error:
            raise CheckpointError(f"{operator_label(self._context)}: {error.message}") from None
