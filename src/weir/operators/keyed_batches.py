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
from weir.operators.batch_results import BatchKind, Results, check_kind, given
from weir.operators.keyed_rows import key_schema_of
from weir.operators.polars_bridge import in_flight_type
from weir.operators.row_codec import emit
from weir.operators.slot_table import SlotTable
from weir.operators.user_code import operator_label, user_code_error
from weir.schema import format_schema, parse_schema
from weir.state.descriptors import ValueState
from weir.state.evolution import EVOLVED, MIGRATED, SAME, VERDICTS, plan_evolution
from weir.state.frozen import CheckedState
from weir.state.tables import adapted_values, plan_values, shape_of

STATE = "state"
"""The name of the state table: all values of a key are one row."""

KEY_ROW = "key_row"
"""The column that the function's rows have besides their own: which row of `state` is that of their key."""


class KeyedBatchFunction:
    """A function of batches with state by key. Write a subclass; declare values as class attributes.

        class Totals(weir.KeyedBatchFunction):
            total = weir.ValueState("long", default=0)

            def process(self, rows, state):
                added = rows.group_by("key_row").agg(pl.col("value").sum()).sort("key_row")["value"]
                state = state.with_columns(total=pl.col("total") + added)
                return state.select("key", "total"), state

    `rows` are the rows of a batch, with the column `key_row`; `state` has one row for each key among them: the key
    columns and the values, defaults where there are none yet. Return the rows that come out, and the new state: a frame
    with as many rows as `state`, in its order. A key whose values are all null is forgotten. Return the rows alone, or
    None, to leave the state as it is.
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
        if self.key_schema is None:
            raise PlanError("process_batches: its input schema is not known; call schema() before verdict()")
        return StoredColumns(self.key_schema, self.declared).verdict(stored)


class StoredColumns:
    """The state table of a batch function: what becomes of one that other code has written."""

    def __init__(self, key_schema: pa.Schema, declared: Mapping[str, ValueState]) -> None:
        self._keys = key_schema
        self._declared = declared

    def verdict(self, stored: pa.Schema) -> str:
        """As OperatorSpec.verdict."""
        keys = [(field.name, field.type) for field in stored][1 : 1 + len(self._keys)]
        if keys != [(field.name, field.type) for field in self._keys]:
            return f"it was written with keys {keys}, the job's are {list(self._keys)}; give the operator another uid"
        found = set()
        for name, value in self._declared.items():
            if name in stored.names:
                kind = stored.field(name).type
                verdict = plan_evolution(kind, value.type, value.migrate is not None, value.default)
                if verdict not in VERDICTS:
                    return f"value {name!r}: {verdict}"
                found.add(verdict)
        if set(stored.names[1 + len(self._keys) :]) != set(self._declared):
            found.add(EVOLVED)
        return MIGRATED if MIGRATED in found else EVOLVED if EVOLVED in found else SAME

    def adapted(self, table: pa.Table) -> pa.Table:
        """A restored table with the values that are declared now, or CheckpointError."""
        verdict = self.verdict(table.schema)
        if verdict not in VERDICTS:
            raise CheckpointError(verdict)
        columns = [table.column(i) for i in range(1 + len(self._keys))]
        for name, value in self._declared.items():
            if name in table.column_names:
                shape = shape_of(value)
                column_verdict = plan_values(table.schema.field(name), shape)
                columns.append(adapted_values(table.column(name), shape, column_verdict))
            else:
                columns.append(pa.repeat(pa.scalar(value.default, value.type), table.num_rows))
        fields = [pa.field(name, value.type) for name, value in self._declared.items()]
        return pa.table(columns, schema=pa.schema([table.schema.field(0), *self._keys, *fields]))


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
        if getattr(value, "ttl", None) is not None:
            raise PlanError(f"process_batches: state {name!r} has a time-to-live, which batch functions do not support")
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
        self._state_out = Results(self._values, label=f"{label}: the new state")
        defaults = [pa.scalar(d.default, d.type) for d in self._spec.declared.values()]
        self._table = SlotTable(self._key_schema, self._values, defaults=defaults, context=context)
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
        rows = batch.append_column(KEY_ROW, pa.array(keys.rows))
        state = pa.RecordBatch.from_arrays([*keys.columns, *self._table.read(keys.slots)], schema=self._given_schema)
        kind = self._spec.kind
        try:
            result = self._call(given(rows, kind), given(state, kind))
        except WeirError:
            raise
        except Exception as error:
            what = f"a batch of {batch.num_rows} rows ({format_schema(batch.schema)})"
            raise user_code_error(error, self._context, doing=what) from None
        emitted, new = result if isinstance(result, tuple) else (result, None)
        if new is not None:
            self._table.write(keys.slots, self._checked_state(new, len(keys.slots)))
        if emitted is not None:
            emit(self._rows_out.checked(emitted), out)

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
        is_pandas = type(new).__module__.startswith("pandas")
        chosen = new[self._values.names] if is_pandas else new.select(self._values.names)
        checked = self._state_out.checked(chosen)
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
            self._table.restore(CheckedState(restored.states[STATE], columns.adapted))
        except CheckpointError as error:
            raise CheckpointError(f"{operator_label(self._context)}: {error.message}") from None
