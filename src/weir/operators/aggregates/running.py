"""Keyed running aggregates, in two halves around the exchange.

`PartialAggregate` combines rows by key before they are sent; `RunningAggregate`
merges what arrives into the state of each key and emits one row for each key that
changed. Batches in, batches out; what comes out does not depend on how they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from weir.errors import CheckpointError, ProtocolViolation
from weir.operators.aggregates.base import Aggregate
from weir.operators.aggregates.frames import last_rows
from weir.operators.aggregates.layout import AggregateLayout, check_same_columns, output_of
from weir.operators.aggregates.partial import PartialOperator
from weir.operators.aggregates.state import KeyedAccumulators, PassingState, in_batches
from weir.operators.base import Emit, Frozen, Operator, OperatorContext, OperatorSpec, Restored
from weir.operators.user_code import operator_label
from weir.state.frozen import CheckedState
from weir.state.keys.columns import is_bytes
from weir.state.keys.xxhash64 import Ints

STATE = "aggregate"
"""The name of the state table."""

KEPT_ROWS_MAX = 131_072
"""Rows whose keys the second half keeps until it emits them."""

KEPT_BYTES_MAX = 64 << 20
"""Bytes of the batches with these rows: Arrow cannot put more than two gigabytes of strings together."""

CHANGED_ROWS_MAX = 1_048_576
"""Rows whose slots the second half remembers before it reduces them to distinct ones."""


@dataclass(frozen=True, eq=False)
class _AggregateSpec(OperatorSpec):
    """What both halves know: the schema is that of the rows that the user aggregates."""

    keys: Sequence[str]
    aggregates: Mapping[str, Aggregate]
    input_schema: pa.Schema

    @cached_property
    def layout(self) -> AggregateLayout:
        layout = AggregateLayout(tuple(self.keys), dict(self.aggregates), self.input_schema)
        layout.check()
        return layout


class PartialAggregate(_AggregateSpec):
    """Rows to accumulators, combined by key as far as that pays."""

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_same_columns(self.input_schema, inputs, "the first half of an aggregate")
        return self.layout.sent

    def hashed_as(self, keys: Sequence[str]) -> str | None:
        return self.layout.hash_column if tuple(keys) == self.layout.keys else None

    def make(self) -> PartialOperator:
        return PartialOperator(self.layout, partial(PassingState, self.layout))


@dataclass(frozen=True, eq=False)
class RunningAggregate(_AggregateSpec):
    """Accumulators to the running values of each key. `combined` false: takes rows instead, without a first half."""

    combined: bool = True

    def schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        expected = self.layout.sent if self.combined else self.input_schema
        check_same_columns(expected, inputs, "the second half of an aggregate")
        return self.layout.output

    def make(self) -> RunningAggregateOperator:
        return RunningAggregateOperator(self.layout, combined=self.combined)

    @property
    def states(self) -> tuple[str, ...]:
        return (STATE,)

    def verdict(self, state: str, stored: pa.Schema) -> str:
        if refusal := self.layout.refusal(stored):
            return refusal
        expected = self.layout.stored
        return "same" if stored.names == expected.names and stored.types == expected.types else "evolved"

    def dropped(self, state: str, stored: Callable[[], pa.Schema]) -> tuple[str, ...]:
        outputs = {output_of(name) for name in stored().names[1 + len(self.keys) :]}
        return tuple(sorted(outputs - set(self.aggregates)))


class RunningAggregateOperator(Operator):
    """Holds the accumulators of every key of its key groups."""

    def __init__(self, layout: AggregateLayout, *, combined: bool) -> None:
        self._layout = layout
        self._combined = combined
        self._changed: list[Ints] = []
        self._changed_rows = 0
        self._keys: list[Sequence[pa.Array]] | None = []
        """Of the changed rows, while they are few."""
        self._kept_bytes = 0

    def open(self, context: OperatorContext, restored: Restored | None) -> None:
        self._context = context
        self._state = KeyedAccumulators(self._layout, context)
        if restored is not None and STATE in restored.states:
            self._state.restore(CheckedState(restored.states[STATE], self._checked))

    def process(self, batch: pa.RecordBatch, out: Emit) -> None:
        if not batch.num_rows:
            return
        self._changed.append(self._state.merge_sent(batch) if self._combined else self._state.add_rows(batch))
        self._changed_rows += batch.num_rows
        if self._keys is not None:
            self._keys = [*self._keys, [batch.column(key) for key in self._layout.keys]]
            self._kept_bytes += batch.nbytes
            if self._changed_rows > KEPT_ROWS_MAX or self._kept_bytes > KEPT_BYTES_MAX:
                self._keys = None
        if self._changed_rows > CHANGED_ROWS_MAX + len(self._state):
            changed, _ = self._distinct_changes()
            self._changed, self._changed_rows = [changed], len(changed)

    def flush(self, out: Emit) -> None:
        if not self._changed:
            return
        changed, keys = self._distinct_changes()
        start = 0
        for slots in in_batches(changed):
            given = [None if column is None else column.slice(start, len(slots)) for column in keys]
            out(self._state.values(slots, given))
            start += len(slots)
        self._changed, self._changed_rows = [], 0
        self._keys, self._kept_bytes = [], 0
        self._state.settle()

    def end(self, out: Emit) -> None:
        self.flush(out)

    def freeze(self) -> Frozen:
        if self._changed:
            raise ProtocolViolation(f"{operator_label(self._context)}: a snapshot without a flush before it")
        return Frozen(states={STATE: self._state.freeze()})

    def close(self) -> None:
        # An operator that failed to open has none.
        if hasattr(self, "_state"):
            self._state.close()

    def _distinct_changes(self) -> tuple[Ints, list[pa.Array | None]]:
        """The slots that changed, and such of their keys as are taken from the rows rather than from the state: in
        these, strings are close together."""
        slots = np.concatenate(self._changed)
        rows = last_rows(slots, len(self._state))
        given: list[pa.Array | None] = [None] * len(self._layout.keys)
        for number, field in enumerate(self._layout.key_schema):
            if self._keys and is_bytes(field.type) and all(keys[number].type == field.type for keys in self._keys):
                came = pa.concat_arrays([keys[number] for keys in self._keys])
                given[number] = came if len(rows) == len(came) else came.take(pa.array(rows))
        return slots[rows], given

    def _checked(self, table: pa.Table) -> pa.Table:
        """A state table in the types of this one, or CheckpointError when it is not what this aggregate keeps."""
        if refusal := self._layout.refusal(table.schema):
            raise CheckpointError(f"{operator_label(self._context)}: the checkpoint's state does not fit: {refusal}")
        return table.select(self._layout.stored.names).cast(self._layout.stored)
