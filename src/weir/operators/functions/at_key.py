"""What operators share that call a function with each row at its key.

Comes in: the key columns and the schema of the input. Goes out: a state backend, rows
with their keys, and snapshots. What happens to a row is up to process.py and reduce.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PlanError, SchemaError, UserCodeError
from weir.operators.base import Frozen, OperatorContext, Restored
from weir.operators.functions.row_codec import Rows
from weir.operators.functions.rows import RowOperator
from weir.operators.user_code import user_code_error
from weir.state.backend import Backend
from weir.state.backends import make_backend
from weir.state.declared.cursor import Key
from weir.state.declared.kinds import OperatorState
from weir.state.keys.columns import check_key_type
from weir.state.operator_state import OperatorStates


def key_schema_of(keys: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """The key columns of an input, or SchemaError."""
    if not keys:
        raise PlanError("a keyed operator needs at least one key column")
    for key in keys:
        if key not in schema.names:
            raise SchemaError(f"no column {key!r}; the columns are: {', '.join(schema.names)}")
        check_key_type(schema.field(key).type, key)
    return pa.schema([schema.field(key) for key in keys])


class KeyedRowOperator(RowOperator):
    """A row operator with state by key."""

    backend: Backend
    other_states: frozenset[str] = frozenset()
    """States that are restored elsewhere."""

    def __init__(self, key_schema: pa.Schema, operator_states: Mapping[str, OperatorState] | None = None) -> None:
        self._key_schema = key_schema
        self.operator_states = OperatorStates(operator_states or {})

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        super().open(context, restored)
        self.backend = make_backend(
            self._key_schema,
            max_parallelism=context.max_parallelism,
            key_groups=context.key_groups,
            place=context.place,
        )
        self.piece_rows = max(self.piece_rows, self.backend.keys_at_once)
        self.declare()
        if restored is not None:
            unkeyed = self.operator_states.names
            others = unkeyed | self.other_states
            self.operator_states.restore({name: state for name, state in restored.states.items() if name in unkeyed})
            self.backend.restore({name: state for name, state in restored.states.items() if name not in others})

    def declare(self) -> None:
        """Declare the states."""
        raise NotImplementedError

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        return self.backend.keys([batch.column(name) for name in self._key_schema.names])

    def failure(self, error: Exception, rows: Rows) -> UserCodeError:
        key: Any = self.backend.shown(self.backend.cursor.key)
        return user_code_error(error, self.context, row=rows.current, key=key)

    def freeze(self) -> Frozen:
        return Frozen(states={**self.backend.freeze(), **self.operator_states.freeze()})

    def close(self) -> None:
        # An operator that failed to open has none.
        if hasattr(self, "backend"):
            self.backend.close()
