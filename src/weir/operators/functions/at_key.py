"""What operators share that call a function with each row, most of them at its key.

Comes in: the key columns and the schema of the input, and the function. Goes out: a state
backend, rows with their keys, and snapshots. What happens to a row is up to rows.py,
process.py and reduce.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.base import Frozen, OperatorContext, Restored
from weir.operators.functions.opening import FunctionContext
from weir.operators.functions.row_codec import Rows
from weir.operators.functions.row_operator import RowOperator
from weir.operators.functions.stateful import StatefulFunction
from weir.operators.user_code import user_code_error
from weir.state.backend import Backend
from weir.state.backends import make_backend
from weir.state.declared.cursor import Key
from weir.state.keys.columns import check_key_type


def key_schema_of(keys: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """The key columns of an input, or SchemaError."""
    if not keys:
        raise PlanError("a keyed operator needs at least one key column")
    for key in keys:
        if key not in schema.names:
            raise SchemaError(f"no column {key!r}; the columns are: {', '.join(schema.names)}")
        check_key_type(schema.field(key).type, key)
    return pa.schema([schema.field(key) for key in keys])


class FunctionOfRows(RowOperator):
    """A row operator whose function may have states; those of the subtask only, where there is no key."""

    def __init__(self, stateful: StatefulFunction) -> None:
        self.stateful = stateful

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self.stateful.attach(context, {} if restored is None else restored.states)
        self.stateful.open(FunctionContext(context, self.stateful.state))

    def results(self, piece: pa.RecordBatch, rows: Rows) -> list[Any]:
        """What the function gives for each row."""
        function = self.stateful.function
        return [function(row) for row in rows]

    def called(self, piece: pa.RecordBatch, rows: Rows) -> Iterator[Any]:
        """The same one after the other: a row is the current one until the next is asked for."""
        function = self.stateful.function
        for row in rows:
            yield function(row)

    def freeze(self) -> Frozen:
        return Frozen(states=self.stateful.freeze())

    def close(self) -> None:
        self.stateful.close()


class KeyedRowOperator(FunctionOfRows):
    """A row operator with state by key."""

    backend: Backend
    own_states: frozenset[str] = frozenset()
    """Those that the operator itself keeps in the backend."""
    other_states: frozenset[str] = frozenset()
    """States that are restored elsewhere."""

    def __init__(self, key_schema: pa.Schema, stateful: StatefulFunction) -> None:
        super().__init__(stateful)
        self._key_schema = key_schema

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self.context = context
        self.backend = make_backend(
            self._key_schema,
            max_parallelism=context.max_parallelism,
            key_groups=context.key_groups,
            place=context.place,
        )
        self.piece_rows = max(self.piece_rows, self.backend.keys_at_once)
        self.declare()
        held = {} if restored is None else restored.states
        self.backend.restore({name: state for name, state in held.items() if name in self.own_states})
        others = self.own_states | self.other_states
        self.stateful.attach(context, {name: state for name, state in held.items() if name not in others}, self.backend)
        self.open_function()

    def declare(self) -> None:
        """Declare `own_states`."""

    def open_function(self) -> None:
        self.stateful.open(FunctionContext(self.context, self.stateful.state))

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        return self.backend.keys([batch.column(name) for name in self._key_schema.names])

    def results(self, piece: pa.RecordBatch, rows: Rows) -> list[Any]:
        keys, cursor, function = self.keys(piece), self.backend.cursor, self.stateful.call
        self.backend.begin(keys)
        results = [function(row) for row, cursor.key in zip(rows, keys)]
        self.backend.end()
        return results

    def called(self, piece: pa.RecordBatch, rows: Rows) -> Iterator[Any]:
        keys, cursor, function = self.keys(piece), self.backend.cursor, self.stateful.call
        self.backend.begin(keys)
        for row, cursor.key in zip(rows, keys):
            yield function(row)
        self.backend.end()

    def failure(self, error: Exception, rows: Rows) -> UserCodeError:
        key: Any = self.backend.shown(self.backend.cursor.key)
        return user_code_error(error, self.context, row=rows.current, key=key)

    def freeze(self) -> Frozen:
        return Frozen(states={**self.backend.freeze(), **self.stateful.freeze()})

    def close(self) -> None:
        try:
            super().close()
        finally:
            # An operator that failed to open has none.
            if hasattr(self, "backend"):
                self.backend.close()
