"""The running reduce: each key's rows folded into one of the same schema.

Comes in: batches of rows that belong to this subtask's key groups. Goes out: for each
row, its key's row so far. The state is that row, beside what the function keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, SchemaError
from weir.operators.base import Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.functions.at_key import KeyedRowOperator, key_schema_of
from weir.operators.functions.declared import states_of
from weir.operators.functions.row_codec import RowReader, Rows, RowWriter
from weir.operators.functions.stateful import StatefulFunction, States
from weir.operators.user_code import operator_label
from weir.state.declared.base import StateDescriptor
from weir.state.keys.codec import KeyCodec, stored_type
from weir.state.values.conversion import NotOfType
from weir.state.values.evolution import plan_evolution

STATE_NAME = "reduced"


class ReduceRows(OperatorSpec):
    """Call `function(so_far, row)` for each row after a key's first; its result, a row too, is the new `so_far`."""

    def __init__(
        self,
        keys: Sequence[str],
        function: Callable[..., Any],
        state: Mapping[str, StateDescriptor] | None = None,
    ) -> None:
        if not callable(function):
            raise PlanError(f"reduce: expected a function of (so_far, row), found {function!r}")
        self.keys = tuple(keys)
        self.function = function
        self.declared = states_of(function, "reduce", state, keyed=True, reserved=(STATE_NAME,))
        self.input: pa.Schema | None = None
        """Known once `schema` has seen it."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        key_schema_of(self.keys, inputs[0])
        self.input = inputs[0]
        return inputs[0]

    def make(self) -> Operator:
        if self.input is None:
            raise PlanError("reduce: its input schema is not known; call schema() before make()")
        return _Reduce(self.keys, StatefulFunction(self.function, self.declared), self.input)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE_NAME, *self.declared.names)

    @property
    def declares_in_open(self) -> bool:
        return self.declared.opens

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if state != STATE_NAME:
            keys = key_schema_of(self.keys, self.input) if self.input is not None else pa.schema([])
            return self.declared.verdict(state, stored, KeyCodec(keys).schema)
        kind = pa.struct([pa.field(f.name, stored_type(f.type), f.nullable) for f in self.input or ()])
        return plan_evolution(stored.types[-1], kind, has_migrate=False)


class _Reduce(KeyedRowOperator):
    own_states = frozenset({STATE_NAME})

    def __init__(self, keys: Sequence[str], stateful: StatefulFunction, schema: pa.Schema) -> None:
        super().__init__(key_schema_of(keys, schema), stateful)
        self._schema = schema
        self._reader = RowReader(schema)
        self._row_type: Any = self._reader.row_type

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self._function: Callable[[Any, Any], Any] = self.stateful.function
        if self.stateful.states.is_given:
            plain, given = self.stateful.function, States(self.stateful.handles)
            self._function = lambda so_far, row: plain(so_far, row, given)
        self._writer = RowWriter(self._schema, operator_label(context))

    def declare(self) -> None:
        self._state = self.backend.row_state(STATE_NAME, self._schema)

    def convert(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = self.read(piece)
        results: list[Any] = []
        keys = self.keys(piece)
        self.backend.begin(keys)
        try:
            self._fold(rows, keys, results)
        except NotOfType as problem:
            self._refuse(results, problem, rows)
        except SchemaError:
            raise
        except Exception as error:
            raise self.failure(error, rows) from None
        self.backend.end()
        return self._writer.write(results, rows.at)

    def _fold(self, rows: Rows, keys: list[Any], results: list[Any]) -> None:
        function, row_type, cursor, append = self._function, self._row_type, self.backend.cursor, results.append
        get, store, width = self._state.get, self._state.set, len(self._schema)
        new = tuple.__new__
        for row, cursor.key in zip(rows, keys):
            so_far = get()
            if so_far is not None:
                row = function(new(row_type, so_far), row)
                if type(row) is tuple and len(row) == width:
                    row = new(row_type, row)
                elif type(row) is not row_type:
                    row = row_type._make(self._writer.as_values(row))
            append(row)
            store(row)

    def _refuse(self, results: list[Any], problem: NotOfType, rows: Rows) -> None:
        """The writer knows how to say it; it meets the same value in the last result."""
        position = rows.position
        self._writer.write(results[-1:], lambda _: rows.at(position))
        label = operator_label(self.context)
        raise SchemaError(
            f"{label}: {problem.found} does not fit: {problem.reason}", without_rows=f"{label}: a result does not fit"
        )
