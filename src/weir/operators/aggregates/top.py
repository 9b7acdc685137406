"""The aggregate `top`: the rows of a key with the greatest values in some columns.

Comes in: rows, or lists of the best ones so far. Goes out: the best of all of them by
slot, as a list of structs. Whole columns only: one sort for all slots of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import SchemaError
from weir.operators.aggregates.base import Aggregate, input_type
from weir.operators.aggregates.chosen import ARRIVAL
from weir.operators.aggregates.frames import SLOT, FrameKernel
from weir.operators.expressions.polars_bridge import in_flight_type, series_to_arrow, to_polars
from weir.schema import format_type
from weir.state.columns.kernels import Kernel
from weir.state.keys.xxhash64 import Ints

ROWS = "rows"
"""The accumulator: the best rows, with the columns that they are sorted by."""


@dataclass(frozen=True, eq=False)
class Top(Aggregate):
    """`columns` None: all columns of the rows. `reverse`: for each column of `by` whether the least come first.
    `by_number`: rows are numbered, and of those that are equal the lowest numbers are kept; else they come in order."""

    count: int
    by: tuple[str, ...]
    columns: tuple[str, ...] | None
    reverse: tuple[bool, ...]
    ties: bool
    by_number: bool = False

    @property
    def numbered(self) -> Aggregate:
        return replace(self, by_number=True)

    @property
    def reads_arrival(self) -> bool:
        return self.by_number

    @property
    def lifts_rows(self) -> bool:
        return False

    def output_type(self, input_schema: pa.Schema) -> pa.DataType:
        kept = _fields(input_schema, self._kept(input_schema))
        self.accumulators(input_schema)
        return pa.list_(pa.struct(kept))

    def accumulators(self, input_schema: pa.Schema) -> list[pa.Field]:
        self._check(input_schema)
        rows = pa.field(ROWS, pa.list_(pa.struct(_fields(input_schema, self._stored(input_schema)))))
        return [rows, *(pa.field(name, pa.list_(pa.int64())) for name in self.numbers)]

    def lift(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return self._in_lists(self._read(batch, np.arange(batch.num_rows)), batch.schema)[1]

    def lift_grouped(self, batch: pa.RecordBatch, slots: Ints) -> tuple[Ints, list[pa.Array]]:
        return self._in_lists(self._best(self._read(batch, slots)), batch.schema)

    def kernel(self, input_schema: pa.Schema, name: str) -> Kernel:
        return _TopKernel(self, self.accumulators(input_schema))

    def final(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        lists = accumulators[0]
        names = [lists.type.value_type.field(i).name for i in range(lists.type.value_type.num_fields)]
        kept = names[: len(names) - self._extra(names)]
        if len(kept) == len(names):
            return lists
        structs = lists.flatten()
        chosen = pa.StructArray.from_arrays(
            [structs.field(name) for name in kept], fields=[structs.type.field(name) for name in kept]
        )
        lengths = lists.value_lengths().to_numpy()
        offsets = np.zeros(len(lists) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), chosen)

    # --- How it is done ---

    @property
    def numbers(self) -> list[str]:
        """The column with the numbers of rows, if they have some."""
        return [ARRIVAL] if self.by_number else []

    def _read(self, batch: pa.RecordBatch, slots: Ints) -> pl.DataFrame:
        return to_polars(batch, [*self._stored(batch.schema), *self.numbers]).with_columns(pl.Series(SLOT, slots))

    def _check(self, input_schema: pa.Schema) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise SchemaError(f"top({self.count!r}): how many rows must be a whole number of at least 1")
        if not self.by or len(self.reverse) != len(self.by):
            raise SchemaError(
                f"top: by={list(self.by)} needs as many in reverse={list(self.reverse)}, and at least one"
            )
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise SchemaError(f"top: columns={list(self.columns)} names one twice")
        for name in self.by:
            kind = input_type(name, input_schema, "top")
            if pa.types.is_nested(kind) or pa.types.is_null(kind):
                raise SchemaError(f"top: column {name!r} of type {format_type(kind)} has no order")

    def _kept(self, input_schema: pa.Schema) -> list[str]:
        if self.columns is not None:
            return list(self.columns)
        return [name for name in input_schema.names if not name.startswith("__")]

    def _stored(self, input_schema: pa.Schema) -> list[str]:
        kept = self._kept(input_schema)
        return [*kept, *(name for name in dict.fromkeys(self.by) if name not in kept)]

    def _extra(self, stored: Sequence[str]) -> int:
        """How many of the stored columns are there for the order only; they come last."""
        if self.columns is None:
            return 0
        return len(stored) - len(self.columns)

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best rows of each slot, by slot and then best first. `rows` come in the order of arrival, if they have no
        numbers."""
        slots = rows.get_column(SLOT).to_numpy()
        if len(slots) and (slots == slots[0]).all():
            rows = self._of_one(rows)
        down = [False, *(not least for least in self.reverse), *(False for _ in self.numbers)]
        # Where the greatest come first nulls come last, and the other way round.
        rows = rows.sort([SLOT, *self.by, *self.numbers], descending=down, nulls_last=down, maintain_order=True)
        slots = rows.get_column(SLOT).to_numpy()
        starts = _starts(slots)
        lengths = np.diff(np.append(starts, len(slots)))
        if not len(lengths) or int(lengths.max()) <= self.count:
            return rows
        places = np.arange(len(slots)) - np.repeat(starts, lengths)
        keep = places < self.count
        if self.ties:
            last = np.repeat(starts + np.minimum(lengths, self.count) - 1, lengths)
            equal = np.ones(len(slots), np.bool_)
            for name in self.by:
                column = rows.get_column(name)
                equal &= column.eq_missing(column.gather(last)).to_numpy()
            keep |= equal
        return rows.filter(pl.Series(keep))

    def _of_one(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of rows of one slot, all that may be among the best: most are not, and need not be sorted."""
        first = rows.get_column(self.by[0])
        if (
            len(rows) <= 4 * self.count
            or first.has_nulls()
            or not (first.dtype.is_integer() or first.dtype.is_temporal())
        ):
            return rows
        best = first.bottom_k(self.count) if self.reverse[0] else first.top_k(self.count)
        limit = best.max() if self.reverse[0] else best.min()
        return rows.filter(first <= limit if self.reverse[0] else first >= limit)

    def _in_lists(self, rows: pl.DataFrame, input_schema: pa.Schema) -> tuple[Ints, list[pa.Array]]:
        """Slots, and their rows as lists."""
        return in_lists(rows, _fields(input_schema, self._stored(input_schema)), self.numbers)


class _TopKernel(FrameKernel):
    """Lists of the best rows by slot."""

    def __init__(self, top: Top, fields: Sequence[pa.Field]) -> None:
        self._top = top
        structs = fields[0].type.value_type
        self._columns = [structs.field(i) for i in range(structs.num_fields)]
        super().__init__(fields, {})

    def _merged(self, incoming: pl.DataFrame) -> pl.DataFrame:
        numbers = self._top.numbers
        best = self._top._best(incoming.explode(ROWS, *numbers).unnest(ROWS))
        slots, lists = in_lists(best, self._columns, numbers)
        named = [pl.Series(name, array) for name, array in zip([ROWS, *numbers], lists, strict=True)]
        return pl.DataFrame([pl.Series(SLOT, slots), *named])


def in_lists(
    rows: pl.DataFrame, fields: Sequence[pa.Field], numbers: Sequence[str] = ()
) -> tuple[Ints, list[pa.Array]]:
    """Rows that are sorted by slot: each slot once, the list of its rows as structs, and that of their numbers."""
    slots = rows.get_column(SLOT).to_numpy()
    starts = _starts(slots)
    columns = [series_to_arrow(rows.get_column(field.name), field.type) for field in fields]
    structs = pa.StructArray.from_arrays(columns, fields=list(fields))
    offsets = pa.array(np.append(starts, len(slots)).astype(np.int32))
    found: Ints = slots[starts]
    apart = [rows.get_column(name).to_arrow() for name in numbers]
    return found, [pa.ListArray.from_arrays(offsets, array) for array in (structs, *apart)]


def _starts(slots: Ints) -> Ints:
    """Where each slot begins, of slots that are sorted."""
    if not len(slots):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))


def _fields(schema: pa.Schema, names: Sequence[str]) -> list[pa.Field]:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise SchemaError(f"top: there is no column {missing[0]!r}; the columns are {', '.join(schema.names)}")
    return [pa.field(name, in_flight_type(schema.field(name).type)) for name in names]
