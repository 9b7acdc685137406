"""The aggregates `first` and `last`: the value of the row that came first, or last.

Where rows of a key come together in the order in which they came, that order is all there is
to know. Where they do not (partial results of panes, and pieces of sessions, meet in any order),
each partial result has the number of the row that it is of, and numbers grow as rows come.

Comes in: the name of a column, or an expression. Goes out: accumulators and kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.aggregates.base import Aggregate, Input, input_type, read_input
from weir.operators.aggregates.builtin import in_flight, make_kernel
from weir.operators.expressions.polars_bridge import in_flight_type
from weir.state.columns.growing import grown
from weir.state.columns.kernels import Kernel, Rule
from weir.state.keys.xxhash64 import Ints

ARRIVAL = "__arrival"
"""The column of rows, and the accumulator, with the number of a row."""


@dataclass(frozen=True, eq=False)
class Chosen(Aggregate):
    """The value of the first or the last row of those that come together in their order."""

    column: Input
    rule: Rule

    @property
    def kind(self) -> str:
        return self.rule

    @property
    def numbered(self) -> Aggregate:
        return NumberedChosen(self.column, self.rule)

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        return in_flight_type(input_type(self.column, input_schema, self.rule))

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        return [pa.field("value", self.output_type(input_schema))]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [in_flight(read_input(self.column, batch))]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return make_kernel(self.accumulators(input_schema), [self.rule], name)

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


def numbers_in(accumulators: pa.Array) -> tuple[Ints, Ints | None]:
    """The numbers; and how many each accumulator has, if it has a list."""
    if not pa.types.is_list(accumulators.type):
        return accumulators.to_numpy(), None
    return accumulators.flatten().to_numpy(), accumulators.value_lengths().to_numpy()


def as_accumulators(numbers: Ints, lengths: Ints | None) -> pa.Array:
    """The opposite."""
    if lengths is None:
        return pa.array(numbers)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(numbers))


class NumberedChosen(Chosen):
    """The same of rows that come together in any order, and are numbered."""

    @property
    def reads_arrival(self) -> bool:
        return True

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        return [*super().accumulators(input_schema), pa.field(ARRIVAL, pa.int64())]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [*super().lift(batch.drop_columns([ARRIVAL])), batch.column(ARRIVAL)]

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        (value,) = super().accumulators(input_schema)
        return _NumberedKernel(value, self.rule, name)


class _NumberedKernel(Kernel):
    """By slot the value of the row with the least number, or the greatest, and the number."""

    def __init__(self, value: pa.Field, rule: Rule, name: str) -> None:
        self._is_first = rule == "first"
        self._values = make_kernel([value], ["last"], name)
        """Of each slot what was merged last: only what takes the place of what was there is merged."""
        ends = np.iinfo(np.int64)
        self._identity = ends.max if self._is_first else ends.min
        self._numbers: Ints = np.empty(0, np.int64)
        self._count = 0

    def merge(self, slots: Ints, accumulators: Sequence[pa.Array], *, count: int) -> None:
        values, numbers = accumulators[0], accumulators[1].to_numpy()
        self._numbers = grown(self._numbers, count, self._identity)
        self._count = count
        before = self._numbers[slots]
        if self._is_first:
            np.minimum.at(self._numbers, slots, numbers)
            # Of equal numbers the earlier row counts. Backwards, so that it is merged last.
            rows = np.flatnonzero((numbers == self._numbers[slots]) & (numbers < before))[::-1]
        else:
            np.maximum.at(self._numbers, slots, numbers)
            rows = np.flatnonzero(numbers == self._numbers[slots])
        if len(rows):
            self._values.merge(slots[rows], [values.take(pa.array(rows))], count=count)

    def read(self, slots: Ints) -> list[pa.Array]:
        return [*self._values.read(slots), pa.array(self._numbers[slots])]

    @property
    def rules(self) -> Sequence[Rule] | None:
        return ["earliest", "min"] if self._is_first else ["latest", "max"]

    @property
    def size_bytes(self) -> int:
        return self._values.size_bytes + self._numbers.nbytes

    def clear(self) -> None:
        self._values.clear()
        self._numbers[: self._count] = self._identity
        self._count = 0
