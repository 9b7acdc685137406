"""What becomes of a batch function's state table that other code has written.

Comes in: the keys and values that are declared now, and a stored table or its schema.
Goes out: a verdict, what would be dropped, and the table as it is declared now. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from weir.errors import CheckpointError
from weir.operators.batches.columns import column_shape, column_type, default_of
from weir.operators.batches.expiry import TOUCHED
from weir.state.declared.cursor import TOUCHED_COLUMN
from weir.state.declared.kinds import KeyedState
from weir.state.declared.tables import adapted_values, plan_values
from weir.state.values.evolution import EVOLVED, MIGRATED, SAME, VERDICTS, plan_evolution


class StoredColumns:
    """The state table of a batch function: what becomes of one that other code has written."""

    def __init__(self, key_schema: pa.Schema, declared: Mapping[str, KeyedState]) -> None:
        self._keys = key_schema
        self._declared = declared
        self._expires = any(value.ttl is not None for value in declared.values())

    def verdict(self, stored: pa.Schema) -> str:
        """As OperatorSpec.verdict."""
        keys = [(field.name, field.type) for field in stored][1 : 1 + len(self._keys)]
        if keys != [(field.name, field.type) for field in self._keys]:
            return f"it was written with keys {keys}, the job's are {list(self._keys)}; give the operator another uid"
        found = set()
        for name, value in self._declared.items():
            if name in stored.names:
                kind = stored.field(name).type
                shape = column_shape(value)
                verdict = plan_evolution(kind, shape.column_type, value.migrate is not None, shape.default)
                if verdict not in VERDICTS:
                    return f"value {name!r}: {verdict}"
                found.add(verdict)
        if set(self._values_in(stored)) != set(self._declared):
            found.add(EVOLVED)
        return MIGRATED if MIGRATED in found else EVOLVED if EVOLVED in found else SAME

    def dropped(self, stored: pa.Schema) -> tuple[str, ...]:
        """As OperatorSpec.dropped."""
        return tuple(name for name in self._values_in(stored) if name not in self._declared)

    def adapted(self, table: pa.Table, now_ms: int) -> pa.Table:
        """A restored table with the values that are declared now, or CheckpointError."""
        verdict = self.verdict(table.schema)
        if verdict not in VERDICTS:
            raise CheckpointError(verdict)
        columns = [table.column(i) for i in range(1 + len(self._keys))]
        for name, value in self._declared.items():
            if name in table.column_names:
                shape = column_shape(value)
                column_verdict = plan_values(table.schema.field(name), shape)
                columns.append(adapted_values(table.column(name), shape, column_verdict))
            else:
                columns.append(pa.repeat(default_of(value), table.num_rows))
        fields = [pa.field(name, column_type(value)) for name, value in self._declared.items()]
        if self._expires:
            fields.append(TOUCHED)
            # Where nothing expired before, the time starts now.
            known = TOUCHED_COLUMN in table.column_names
            now = pa.repeat(pa.scalar(now_ms, pa.int64()), table.num_rows)
            columns.append(table.column(TOUCHED_COLUMN) if known else now)
        return pa.table(columns, schema=pa.schema([table.schema.field(0), *self._keys, *fields]))

    def _values_in(self, stored: pa.Schema) -> list[str]:
        return [name for name in stored.names[1 + len(self._keys) :] if name != TOUCHED_COLUMN]
