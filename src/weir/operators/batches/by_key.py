"""What functions of keyed batches often need, for all keys of a batch at once.

Comes in: the rows and the state that such a function is given. Goes out: a value for
each row, or for each key. Whole columns only; what belongs to one key never depends on
another, not even by rounding.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from weir.errors import DataError
from weir.state.columns.exact_sums import INT64_MAX, leaves_int64, magnitude
from weir.state.columns.key_order import stable_order
from weir.state.declared.kinds import AggregatingState, ReducingState
from weir.state.keys.xxhash64 import Ints
from weir.state.values.conversion import NotOfType, to_array, to_list

Values: TypeAlias = "str | pl.Series | npt.NDArray[Any]"
"""A column by name, or one value for each row (or key)."""

_FEW_ROWS = 32
"""Keys with more rows are summed up one by one; those with fewer all together, row by row."""


class ByKey:
    """The rows of a batch, key by key; for functions of Polars frames, which is what process_batches gives.

        def process(self, rows, state):
            keys = weir.ByKey(rows, state)
            total = keys.running_sum("cents", start="total")
            return {"account": rows["account"], "total": total}, {"total": keys.last(total)}

    Columns are named, or given as a Series or an array. `running_sum`, `running_count`, `previous` and `spread` give a
    value for each row; `sum`, `count`, `first` and `last` one for each key, which is a row of `state`. Rows may have
    been filtered or sorted before: a key without rows has a count and a sum of 0, and its first and last are null.
    """

    def __init__(self, rows: pl.DataFrame, state: pl.DataFrame) -> None:
        if not isinstance(rows, pl.DataFrame) or not isinstance(state, pl.DataFrame):
            raise TypeError(f"ByKey works on the Polars frames of process_batches, found {type(rows).__name__}")
        self._rows = rows
        self._state = state
        self._key_row: Ints = rows.get_column("key_row").to_numpy()
        self._order = stable_order(self._key_row, len(state))
        self._sorted: Ints = self._key_row if self._order is None else self._key_row[self._order]

    # --- A value for each row ---

    def running_sum(self, values: Values, start: Values | None = None) -> pl.Series:
        """The sum of a key's values up to each row, on top of what the key starts with. Nulls count as 0. A sum of
        integers beyond int64 is an error, at whichever row."""
        added, before = self._numbers(values, self._rows), self._start(start)
        if added.dtype.kind == "f" or before.dtype.kind == "f":
            sums: npt.NDArray[Any] = self._float_sums(
                self._in_order(added).astype(np.float64), before.astype(np.float64)
            )
        else:
            self._check(added, before)
            # Integers wrap around, so that what other keys have added comes off again without a trace.
            so_far = _cumulative(self._in_order(added))
            sums = so_far[1:]
            sums += (before - so_far[self._starts]).take(self._sorted)
        return pl.Series(self._back(sums))

    def running_count(self, start: Values | None = None) -> pl.Series:
        """The number of each row among those of its key, from 1, on top of what the key starts with."""
        return self.running_sum(np.ones(len(self._rows), np.int64), start)

    def previous(self, values: Values, start: Values | None = None) -> pl.Series:
        """The value of the row before, of the same key; of its first row what the key starts with, or null."""
        given = self._column(values, self._rows)
        rows = given if self._order is None else given.gather(self._order)
        starts = None if start is None else self._column(start, self._state).cast(given.dtype).gather(self._sorted)
        first = np.ones(len(rows), np.bool_)
        np.not_equal(self._sorted[1:], self._sorted[:-1], out=first[1:])
        shifted = rows.shift(1).zip_with(pl.Series(~first), starts if starts is not None else _nulls(rows))
        return shifted if self._order is None else shifted.gather(self._places)

    def spread(self, values: Values) -> pl.Series:
        """What each row's key has in a column of the state."""
        return _taken(self._column(values, self._state), self._key_row)

    # --- A value for each key ---

    def sum(self, values: Values, start: Values | None = None) -> pl.Series:
        """The sum of each key's values, on top of what the key starts with. Nulls count as 0. A sum of integers beyond
        int64 is an error, also in passing: batches could have been cut there."""
        added, before = self._numbers(values, self._rows), self._start(start)
        if added.dtype.kind == "f" or before.dtype.kind == "f":
            # NumPy adds in order, so that what a key starts with comes before its rows, as if there were no batches.
            keys = np.concatenate([np.arange(len(before)), self._key_row])
            return pl.Series(np.bincount(keys, weights=np.concatenate([before, added])))
        self._check(added, before)
        so_far = _cumulative(self._in_order(added))
        return pl.Series(before + (so_far[self._ends] - so_far[self._starts]))

    def count(self) -> pl.Series:
        """How many rows each key has."""
        return pl.Series(self._counts)

    def first(self, values: Values) -> pl.Series:
        """The value of each key's first row."""
        return self._chosen(values, self._starts)

    def last(self, values: Values) -> pl.Series:
        """The value of each key's last row."""
        return self._chosen(values, self._ends - 1)

    # --- Functions of the user ---

    def fold(self, state: ReducingState | AggregatingState, values: Values) -> pl.Series:
        """What a reducing or aggregating state of each key is with these values, in the order of the rows: the new
        column. The state's functions are called for each row: this is as fast as they are."""
        so_far = to_list(self._column(self._named(state), self._state).to_arrow())
        column = self._column(values, self._rows)
        added = to_list((column if self._order is None else column.gather(self._order)).to_arrow())
        for key, (start, stop) in enumerate(zip(self._starts.tolist(), self._ends.tolist(), strict=True)):
            held = so_far[key]
            for value in added[start:stop]:
                if isinstance(state, AggregatingState):
                    held = state.add_value(state.create_accumulator() if held is None else held, value)
                else:
                    held = value if held is None else state.function(held, value)
            so_far[key] = held
        try:
            return pl.Series(state.name or "", to_array(so_far, state.type))
        except NotOfType as problem:
            raise TypeError(
                f"state {state.name!r} holds {state.shown_type}, but became {problem.found}: {problem.reason}"
            ) from None

    def results(self, state: AggregatingState, accumulators: Values) -> pl.Series:
        """The result of each key's accumulator; the state's default where there is none."""
        result = state.result or (lambda held: held)
        held = to_list(self._column(accumulators, self._state).to_arrow())
        return pl.Series([state.default if one is None else result(one) for one in held])

    # --- How it is done ---

    def _named(self, state: ReducingState | AggregatingState) -> str:
        if not isinstance(state, (ReducingState, AggregatingState)) or not state.name:
            raise TypeError(f"fold: expected a reducing or aggregating state with a name, found {state!r}")
        return state.name

    @cached_property
    def _starts(self) -> Ints:
        """Of each key, in key order, the first row, or where it would be."""
        begins = np.ones(len(self._sorted), np.bool_)
        np.not_equal(self._sorted[1:], self._sorted[:-1], out=begins[1:])
        starts: Ints = np.flatnonzero(begins)
        if len(starts) == len(self._state):  # every key has rows, unless some were filtered out
            return starts
        return np.searchsorted(self._sorted, np.arange(len(self._state)))

    @cached_property
    def _ends(self) -> Ints:
        """The row after the last."""
        return np.append(self._starts[1:], len(self._sorted))

    @cached_property
    def _counts(self) -> Ints:
        return self._ends - self._starts

    @cached_property
    def _places(self) -> Ints:
        """Where each row stands in key order."""
        places = np.empty(len(self._sorted), np.int64)
        places[self._order] = np.arange(len(places))
        return places

    def _column(self, values: Values, frame: pl.DataFrame) -> pl.Series:
        column = frame.get_column(values) if isinstance(values, str) else pl.Series(values)
        if len(column) != len(frame):
            what = "row" if frame is self._rows else "key"
            raise ValueError(f"ByKey: expected {len(frame)} values, one for each {what}, found {len(column)}")
        return column

    def _numbers(self, values: Values, frame: pl.DataFrame) -> npt.NDArray[Any]:
        column = self._column(values, frame)
        if not (column.dtype.is_integer() or column.dtype.is_float() or column.dtype == pl.Boolean):
            raise TypeError(f"ByKey: expected integers or floats to add up, found {column.dtype}; cast them before")
        # Whatever need not be done is left out: a call of Polars takes as long as thousands of rows.
        kind = pl.Float64 if column.dtype.is_float() else pl.Int64
        column = column if column.dtype == kind else column.cast(kind)
        numbers: npt.NDArray[Any] = (column.fill_null(0) if column.has_nulls() else column).to_numpy()
        return numbers

    def _start(self, start: Values | None) -> npt.NDArray[Any]:
        return np.zeros(len(self._state), np.int64) if start is None else self._numbers(start, self._state)

    def _check(self, added: Ints, before: Ints) -> None:
        """Refuse sums beyond int64 after any row. Costs next to nothing while values are small against that."""
        if magnitude(before) + magnitude(added) * len(added) <= INT64_MAX:
            return
        if leaves_int64(before, self._key_row, added):
            raise DataError("ByKey: a sum is beyond the range of int64; cast the column to double before summing")

    def _in_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._order is None else values.take(self._order)

    def _back(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._order is None else values.take(self._places)

    def _chosen(self, values: Values, places: Ints) -> pl.Series:
        column = self._column(values, self._rows)
        if not len(column):
            return column.extend_constant(None, len(self._state))
        present = self._counts > 0
        complete = bool(present.all())
        places = places if complete else np.where(present, places, 0)
        chosen = _taken(column, places if self._order is None else self._order[places])
        return chosen if complete else chosen.zip_with(pl.Series(present), _nulls(chosen))

    def _float_sums(self, values: npt.NDArray[np.float64], before: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Each sum is made of its own key's values alone, one after the other, as if there were no batches."""
        sums, starts, counts = values.copy(), self._starts, self._counts
        present = np.flatnonzero(counts)
        sums[starts[present]] += before[present]
        few = np.flatnonzero(counts <= _FEW_ROWS)
        for number in range(1, int(counts[few].max(initial=0))):
            few = few[counts[few] > number]
            rows = starts[few] + number
            sums[rows] += sums[rows - 1]
        for key in np.flatnonzero(counts > _FEW_ROWS):
            own = slice(starts[key], starts[key] + counts[key])
            np.cumsum(sums[own], out=sums[own])
        return sums


def _cumulative(values: Ints) -> Ints:
    """The sum of all values before each row, and of all."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _taken(column: pl.Series, rows: Ints) -> pl.Series:
    if column.dtype.is_numeric() and not column.dtype.is_decimal() and not column.has_nulls():
        return pl.Series(column.to_numpy().take(rows))
    return column.gather(rows)


def _nulls(like: pl.Series) -> pl.Series:
    return pl.Series([None], dtype=like.dtype).new_from_index(0, len(like))
