"""Which columns the two halves of a keyed aggregate have: rows in, accumulators between, values out.

Comes in: keys, aggregates by output name, the schema of the rows. Goes out: the three
schemas, checked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import SchemaError
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.chosen import ARRIVAL, as_accumulators
from weir.operators.base import KEY_GROUP_COLUMN
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.schema import format_schema
from weir.state.keys.columns import is_bytes
from weir.state.keys.hashing import check_key_type
from weir.state.keys.xxhash64 import Ints

KIND_METADATA = b"weir.aggregate"

_LONG_AGO = 1 << 62
"""A time less this is below any number that is given."""


@dataclass(frozen=True, eq=False)
class AggregateLayout:
    """The columns of one keyed aggregate."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    input_schema: pa.Schema

    def check(self) -> None:
        """Raise SchemaError where a column or type does not fit."""
        if not self.keys or not self.aggregates:
            raise SchemaError("a keyed aggregate needs at least one key and one aggregate")
        for key in self.keys:
            if key not in self.input_schema.names:
                exist = ", ".join(self.input_schema.names)
                raise SchemaError(f"there is no column {key!r} to key by; the columns are {exist}")
            check_key_type(self.input_schema.field(key).type, key)
        for schema in (self.sent, self.output):
            twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
            if twice:
                raise SchemaError(f"the aggregate would give two columns the name {twice[0]!r}; choose another")

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The key columns, in the types that they have in flight."""
        fields = [self.input_schema.field(key) for key in self.keys]
        return pa.schema([pa.field(field.name, in_flight_type(field.type), field.nullable) for field in fields])

    def keys_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of rows of the user, in the types that they have in flight."""
        columns = [(batch.column(field.name), field.type) for field in self.key_schema]
        return [array if array.type == kind else array.cast(kind) for array, kind in columns]

    @cached_property
    def accumulators(self) -> dict[str, list[pa.Field]]:
        """The accumulators of each output, named after it."""
        return {
            output: [
                pa.field(f"{output}#{number}", field.type)
                for number, field in enumerate(aggregate.accumulators(self.input_schema))
            ]
            for output, aggregate in self.aggregates.items()
        }

    @cached_property
    def arrivals(self) -> tuple[str, ...]:
        """Those of them that are numbers of rows."""
        return tuple(
            f"{output}#{number}"
            for output, aggregate in self.aggregates.items()
            for number, field in enumerate(aggregate.accumulators(self.input_schema))
            if aggregate.reads_arrival and field.name == ARRIVAL
        )

    @cached_property
    def combined(self) -> pa.Schema:
        """Keys and accumulators: what travels to the owner of a key."""
        return pa.schema([*self.key_schema, *(field for fields in self.accumulators.values() for field in fields)])

    @cached_property
    def hash_column(self) -> str | None:
        """The column beside keys and accumulators with the hash of the keys, which its name says; None: to compute it
        anew costs no more than to send it."""
        if len(self.keys) == 1 and not is_bytes(self.key_schema.field(0).type):
            return None
        return f"hash({', '.join(self.keys)})"

    @cached_property
    def sent(self) -> pa.Schema:
        """What the first half of a running aggregate sends to the second."""
        if self.hash_column is None:
            return self.combined
        return self.combined.append(pa.field(self.hash_column, pa.uint64()))

    @cached_property
    def output(self) -> pa.Schema:
        """Keys and final values."""
        types = {output: aggregate.output_type(self.input_schema) for output, aggregate in self.aggregates.items()}
        return pa.schema([*self.key_schema, *(pa.field(output, kind) for output, kind in types.items())])

    @cached_property
    def stored(self) -> pa.Schema:
        """Key group, keys and accumulators: the state table. Accumulators are marked with what they are of."""
        marked = [
            field.with_metadata({KIND_METADATA: self.aggregates[output].kind})
            for output, fields in self.accumulators.items()
            for field in fields
        ]
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.int32()), *self.key_schema, *marked])

    def refusal(self, stored: pa.Schema) -> str | None:
        """Why a state table of this schema cannot be taken over; None: it can."""
        expected = pa.schema([f for f in self.stored if f.name in stored.names or f.name not in self.arrivals])
        try:
            stored.empty_table().select(expected.names).cast(expected)
        except (KeyError, ValueError) as error:
            return f"it holds {stored.names}, this aggregate keeps {expected.names}: {error}; give it another uid"
        for field in expected:
            before = (stored.field(field.name).metadata or {}).get(KIND_METADATA)
            now = (field.metadata or {}).get(KIND_METADATA)
            if before is not None and now is not None and before != now:
                return (
                    f"{output_of(field.name)!r} was {before.decode()}(…) and is now {now.decode()}(…), which "
                    "cannot go on from there; give the column another name, or the aggregate another uid"
                )
        return None

    def with_arrivals(self, table: pa.Table, times: str) -> pa.Table:
        """A state table of an aggregate that did not number rows yet: they have come in the order of this column of
        times, and before any that are numbered."""
        for name in self.arrivals:
            if name in table.column_names:
                continue
            numbers: Ints = table.column(times).to_numpy() - _LONG_AGO
            lengths = None
            if pa.types.is_list(self.combined.field(name).type):
                values = self.combined.field(self.combined.get_field_index(name) - 1).name
                lengths = pc.list_value_length(table.column(values)).to_numpy()
                numbers = np.repeat(numbers, lengths)
            table = table.append_column(name, as_accumulators(numbers, lengths))
        return table


def output_of(column: str) -> str:
    """The output that an accumulator belongs to."""
    return column.rpartition("#")[0]


def check_same_columns(expected: pa.Schema, inputs: Sequence[pa.Schema], operator: str) -> None:
    """Raise SchemaError when an input has not the names and types that the operator was made for."""
    for found in inputs:
        if found.names != expected.names or found.types != expected.types:
            raise SchemaError(f"{operator}: made for {format_schema(expected)}, but gets {format_schema(found)}")
